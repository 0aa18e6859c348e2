"""The paper's map and train tools (Appendix C, ArenaRL) over MCP servers of real services, as an example of tools.

Each tool is one function that calls the server; `configs/environments/amap.yaml` names the functions. The formats come
from the code of Amap's server (PyPI's amap-mcp-server 0.1.11) and 12306's (npm's 12306-mcp 0.3.2); the services behind
them were never called. docs/domains.md lists the formats. Places have the fields of the embedded world's places, except
those that the service leaves empty (Amap writes []).
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from typing import Any

from arenarl.llm.client import RunStopped
from arenarl.rollout.environment import ToolError
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json

Call = Callable[..., Awaitable[str]]  # call(tool, **arguments): one call to the server
MAX_PLACES = 5  # as in the embedded world
MAX_STEPS = 10  # instructions of a route
MAX_TICKET_CHARS = 3000  # per list of trains, direct or with a change: about twenty trains. Our choice
PAUSES_S = (0.5, 1.0, 2.0)  # before a retry, after too many calls per second
_TOO_MANY = re.compile(r"QPS_HAS_EXCEEDED|ACCESS_TOO_FREQUENT")
_REFUSES_ALL = re.compile(  # Amap's errors for a bad key, or an account without quota
    r"INVALID_USER_(KEY|IP|SCODE)|USERKEY_|DAILY_QUERY_OVER_LIMIT|QUOTA_PLAN_RUN_OUT|INSUFFICIENT_PRIVILEGES"
)


async def search_poi(call: Call, query: str) -> str:
    """Search places: one call for names and ids, then one for each place's details."""
    call = _patient(call)
    return await _places(call, await call("maps_text_search", keywords=query))


async def around_search(call: Call, location: str, radius: float = 3000.0, keyword: str = "") -> str:
    """Search places around a point, with their details."""
    call = _patient(call)
    arguments = {"location": location, "radius": str(round(radius)), "keywords": keyword}
    return await _places(call, await call("maps_around_search", **arguments))


async def get_navigation(
    call: Call,
    start_lon: float,
    start_lat: float,
    end_lon: float,
    end_lat: float,
    via_points: str = "",
    mode: str = "driving",
) -> str:
    """Plan a route: one call for each leg; public transport also needs the names of the cities."""
    call = _patient(call)
    via = [point.strip() for point in via_points.replace("；", ";").split(";") if point.strip()]
    points = [f"{start_lon:.6f},{start_lat:.6f}", *via, f"{end_lon:.6f},{end_lat:.6f}"]
    legs = await asyncio.gather(*(_leg(call, mode, *ends) for ends in pairwise(points)))
    total = [sum(leg[unit] for leg in legs) for unit in ("metres", "seconds")]
    route = {"mode": mode, **_as_distance(*total)}
    distances = [_as_distance(leg["metres"], leg["seconds"]) for leg in legs] if via else []
    steps = [step for leg in legs for step in leg["steps"]][:MAX_STEPS]
    return _to_json({"route": route, "legs": distances, "steps": steps})


async def search_train_tickets(call: Call, date: str, from_city: str, to_city: str) -> str:
    """Search trains: one call for the stations' codes, then one each for direct trains and trains with a change."""
    names = [city.strip().removesuffix("市") for city in (from_city, to_city)]
    stations = _read(await call("get_station_code_of_citys", citys="|".join(names)))
    codes = []
    for name in names:
        if "station_code" not in (station := _part(stations, name, dict)):
            raise ToolError(f"12306 knows no city {name}; write its Chinese name, such as 北京.")
        codes.append(station["station_code"])
    journey = {"date": date, "fromStation": codes[0], "toStation": codes[1]}
    transfer = _or_error(call("get_interline_tickets", **journey))
    texts = await asyncio.gather(call("get_tickets", **journey), transfer)
    return _to_json({kind: _shorten(text.strip()) for kind, text in zip(("direct", "transfer"), texts, strict=True)})


def _patient(call: Call) -> Call:
    """Retry calls to Amap after too many per second; raise RunStopped for a refused key or an empty quota."""

    async def call_patiently(tool: str, /, **arguments: Any) -> str:
        for attempt in count():
            try:
                return await call(tool, **arguments)
            except ToolError as error:
                if _REFUSES_ALL.search(str(error)):
                    raise RunStopped(f"Amap refuses all calls: {error}") from error
                if attempt == len(PAUSES_S) or not _TOO_MANY.search(str(error)):
                    raise
            await asyncio.sleep(PAUSES_S[attempt])

    return call_patiently


def _shorten(text: str) -> str:
    """Keep the first lines up to MAX_TICKET_CHARS, at least one."""
    lines, length = text.splitlines(), 0
    for number, line in enumerate(lines):
        length += len(line) + 1
        if length > MAX_TICKET_CHARS and number:
            return "\n".join([*lines[:number], f"… {len(lines) - number} more lines"])
    return text


async def _places(call: Call, reply: str) -> str:
    pois = _part(_read(reply), "pois", list)[:MAX_PLACES]
    return _to_json({"pois": await asyncio.gather(*(_place(call, poi) for poi in pois))})


async def _place(call: Call, poi: dict[str, Any]) -> dict[str, Any]:
    """Return a place with its details, or with the error that prevented them."""
    poi, details = _check_type(poi, dict), None
    try:
        poi = poi | _read(await call("maps_search_detail", id=str(poi.get("id"))))
    except ToolError as error:
        details = f"could not be had: {error}"
    business = {name: poi.get(name) for name in ("cost", "rating", "business_area", "alias")}
    business["opening_hours"] = poi.get("opentime2") or poi.get("open_time")
    place = {name: poi.get(name) for name in ("name", "type", "address", "location", "city")}
    return _without_empty(place | {"business": _without_empty(business), "details": details})


async def _leg(call: Call, mode: str, start: str, end: str) -> dict[str, Any]:
    """Return {metres, seconds, steps} of the first route."""
    ends = {"origin": start, "destination": end}
    if mode == "transit":
        city, other = await asyncio.gather(_city(call, start), _city(call, end))
        tool = "maps_direction_transit_integrated_by_coordinates"
        route = _part(_read(await call(tool, **ends, city=city, cityd=other)), "route", dict)
        path = _first(route, "transits")
        steps = [step for segment in _list(path, "segments") if (step := _ride(segment))]
        return {"metres": _number(route, "distance"), "seconds": _number(path, "duration"), "steps": steps}
    route = _part(_read(await call(f"maps_direction_{mode}_by_coordinates", **ends)), "route", dict)
    path = _first(route, "paths")
    steps = [_text(step, "instruction") for step in _list(path, "steps") if step.get("instruction")]
    return {"metres": _number(path, "distance"), "seconds": _number(path, "duration"), "steps": steps}


async def _city(call: Call, point: str) -> str:
    """Return the city of a point; the province in Beijing, Shanghai, Tianjin and Chongqing, whose city is empty."""
    address = _read(await call("maps_regeocode", location=point))
    if address.get("city") or address.get("province"):
        return _text(address, "city" if address.get("city") else "province")
    raise ToolError(f"{point} lies in no city that the map service knows.")


def _ride(segment: dict[str, Any]) -> str:
    """Return the alternative lines of one segment by public transport."""
    bus, railway = (_check_type(segment.get(name) or {}, dict) for name in ("bus", "railway"))
    rides = []
    for line in _list(bus, "buslines"):
        stops = [_text(_part(line, stop, dict), "name") for stop in ("departure_stop", "arrival_stop")]
        rides.append(f"{_text(line, 'name')}: {' → '.join(stops)}")
    return " / ".join([*rides, *([_text(railway, "name")] if railway.get("name") else [])])


async def _or_error(reply: Awaitable[str]) -> str:
    try:
        return await reply
    except ToolError as error:
        return str(error)


def _read(text: str) -> dict[str, Any]:
    """Parse a JSON object; raise ToolError for any other text, such as a proxy's page."""
    try:
        reply = parse_json(text, MAX_RECORD_NESTING)
    except ValueError as error:
        raise ToolError("the service's reply could not be read.") from error
    return _check_type(reply, dict)


def _part(reply: dict[str, Any], name: str, kind: type) -> Any:
    return _check_type(reply.get(name), kind)


def _first(reply: dict[str, Any], name: str) -> dict[str, Any]:
    if not (paths := _part(reply, name, list)):
        raise ToolError("the service knows no route between these points.")
    return _check_type(paths[0], dict)


def _number(reply: dict[str, Any], name: str) -> float:
    try:
        number = float(reply[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ToolError(f"the service's reply has no {name}.")
    return number


def _text(reply: dict[str, Any], name: str) -> str:
    if not (isinstance(text := reply.get(name), str) and text):
        raise ToolError(f"the service's reply has no {name}.")
    return text


def _list(reply: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects; empty if it is missing."""
    return [_check_type(item, dict) for item in _check_type(reply.get(name) or [], list)]


def _check_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ToolError("the service's reply could not be read.")
    return value


def _without_empty(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value not in (None, "", [], {})}


def _as_distance(metres: float, seconds: float) -> dict[str, str]:
    return {"distance": f"{metres / 1000:.1f}km", "duration": f"{round(seconds / 60)}min"}


def _to_json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)
