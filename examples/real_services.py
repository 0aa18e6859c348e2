"""An example of the public environment interface: the paper's map and train tools (Appendix C, ArenaRL) over MCP
servers of real services. Each tool is one function that makes the server's calls.

`configs/environments/amap.yaml` names the functions in its renaming map. What Amap's server (PyPI's amap-mcp-server
0.1.11) and 12306's (npm's 12306-mcp 0.3.2) take and return is read off their code; the services behind them were not
asked: docs/domains.md has the shapes. Places look as the embedded world's, as far as the service says; fields that it
leaves empty, which Amap writes as [], are left out.
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

Call = Callable[..., Awaitable[str]]  # call(tool, **arguments): one call of the server's
MAX_PLACES = 5  # as many as the embedded world shows
MAX_STEPS = 10  # of a route's instructions
MAX_TICKET_CHARS = 3000  # of direct trains, and of those with a change: some twenty trains. Our choice
PAUSES_S = (0.5, 1.0, 2.0)  # before Amap is asked again that had too many calls in a second
_TOO_MANY = re.compile(r"QPS_HAS_EXCEEDED|ACCESS_TOO_FREQUENT")
_REFUSES_ALL = re.compile(
    r"INVALID_USER_(KEY|IP|SCODE)|USERKEY_|DAILY_QUERY_OVER_LIMIT|QUOTA_PLAN_RUN_OUT|INSUFFICIENT_PRIVILEGES"
)
# Amap's words for a key or an account that no call serves


async def search_poi(call: Call, query: str) -> str:
    """Names and ids by one call, then a call for each place's details."""
    call = _patient(call)
    return await _places(call, await call("maps_text_search", keywords=query))


async def around_search(call: Call, location: str, radius: float = 3000.0, keyword: str = "") -> str:
    call = _patient(call)
    return await _places(
        call, await call("maps_around_search", location=location, radius=str(round(radius)), keywords=keyword)
    )


async def get_navigation(
    call: Call,
    start_lon: float,
    start_lat: float,
    end_lon: float,
    end_lat: float,
    via_points: str = "",
    mode: str = "driving",
) -> str:
    """A call for each leg between two points; public transport needs the names of their cities too."""
    call = _patient(call)
    via = [point.strip() for point in via_points.replace("；", ";").split(";") if point.strip()]
    points = [f"{start_lon:.6f},{start_lat:.6f}", *via, f"{end_lon:.6f},{end_lat:.6f}"]
    legs = await asyncio.gather(*(_leg(call, mode, *ends) for ends in pairwise(points)))
    total = [sum(leg[unit] for leg in legs) for unit in ("metres", "seconds")]
    route = {
        "route": {"mode": mode, **_as_distance(*total)},
        "legs": [_as_distance(leg["metres"], leg["seconds"]) for leg in legs] if via else [],
    }
    return _to_json(route | {"steps": [step for leg in legs for step in leg["steps"]][:MAX_STEPS]})


async def search_train_tickets(call: Call, date: str, from_city: str, to_city: str) -> str:
    """The stations' codes by one call, then direct trains and those with a change."""
    names = [city.strip().removesuffix("市") for city in (from_city, to_city)]
    stations = _read(await call("get_station_code_of_citys", citys="|".join(names)))
    codes = []
    for name in names:
        if "station_code" not in (station := _part(stations, name, dict)):
            raise ToolError(f"12306 knows no city {name}; write its Chinese name, such as 北京.")
        codes.append(station["station_code"])
    journey = {"date": date, "fromStation": codes[0], "toStation": codes[1]}
    direct, transfer = await asyncio.gather(
        call("get_tickets", **journey), _or_why(call("get_interline_tickets", **journey))
    )
    return _to_json({"direct": _shortened(direct.strip()), "transfer": _shortened(transfer.strip())})


def _patient(call: Call) -> Call:
    """Amap's server, asked again where it had too many calls in a second.
    Raises RunStopped where it refuses the key or has no quota left."""

    async def asked(tool: str, /, **arguments: Any) -> str:
        for attempt in count():
            try:
                return await call(tool, **arguments)
            except ToolError as error:
                if _REFUSES_ALL.search(str(error)):
                    raise RunStopped(f"Amap refuses all calls: {error}") from error
                if attempt == len(PAUSES_S) or not _TOO_MANY.search(str(error)):
                    raise
            await asyncio.sleep(PAUSES_S[attempt])

    return asked


def _shortened(text: str) -> str:
    """The first lines, as many as fit."""
    lines, length = text.splitlines(), 0
    for number, line in enumerate(lines):
        length += len(line) + 1
        if length > MAX_TICKET_CHARS and number:
            return "\n".join([*lines[:number], f"… {len(lines) - number} more lines"])
    return text


async def _places(call: Call, found: str) -> str:
    pois = _part(_read(found), "pois", list)[:MAX_PLACES]
    return _to_json({"pois": await asyncio.gather(*(_place(call, poi) for poi in pois))})


async def _place(call: Call, poi: dict[str, Any]) -> dict[str, Any]:
    """A place with its details; where they cannot be had, it says so."""
    poi, details = _of_kind(poi, dict), None
    try:
        poi = poi | _read(await call("maps_search_detail", id=str(poi.get("id"))))
    except ToolError as error:
        details = f"could not be had: {error}"
    business = {name: poi.get(name) for name in ("cost", "rating", "business_area", "alias")}
    business["opening_hours"] = poi.get("opentime2") or poi.get("open_time")
    place = {name: poi.get(name) for name in ("name", "type", "address", "location", "city")}
    return _filled(place | {"business": _filled(business), "details": details})


async def _leg(call: Call, mode: str, start: str, end: str) -> dict[str, Any]:
    """{metres, seconds, steps} of the first route."""
    if mode == "transit":
        city, other = await asyncio.gather(_city(call, start), _city(call, end))
        found = _read(
            await call(
                "maps_direction_transit_integrated_by_coordinates",
                origin=start,
                destination=end,
                city=city,
                cityd=other,
            )
        )
        route = _part(found, "route", dict)
        path = _first(route, "transits")
        steps = [_ride(segment) for segment in _list(path, "segments")]
        return {
            "metres": _number(route, "distance"),
            "seconds": _number(path, "duration"),
            "steps": [step for step in steps if step],
        }
    found = _read(await call(f"maps_direction_{mode}_by_coordinates", origin=start, destination=end))
    path = _first(_part(found, "route", dict), "paths")
    steps = [_text(step, "instruction") for step in _list(path, "steps") if step.get("instruction")]
    return {"metres": _number(path, "distance"), "seconds": _number(path, "duration"), "steps": steps}


async def _city(call: Call, point: str) -> str:
    """The city of a point; of one in Beijing, Shanghai, Tianjin or Chongqing, where Amap leaves it empty,
    the province."""
    address = _read(await call("maps_regeocode", location=point))
    if address.get("city") or address.get("province"):
        return _text(address, "city" if address.get("city") else "province")
    raise ToolError(f"{point} lies in no city that the map service knows.")


def _ride(segment: dict[str, Any]) -> str:
    """The lines that a part of a journey by public transport offers."""
    bus, railway = (_of_kind(segment.get(name) or {}, dict) for name in ("bus", "railway"))
    rides = []
    for line in _list(bus, "buslines"):
        stops = [_text(_part(line, stop, dict), "name") for stop in ("departure_stop", "arrival_stop")]
        rides.append(f"{_text(line, 'name')}: {' → '.join(stops)}")
    return " / ".join([*rides, *([_text(railway, "name")] if railway.get("name") else [])])


async def _or_why(answer: Awaitable[str]) -> str:
    try:
        return await answer
    except ToolError as error:
        return str(error)


def _read(text: str) -> dict[str, Any]:
    """Raises ToolError for what is no JSON object, as a page of a proxy."""
    try:
        said = parse_json(text, MAX_RECORD_NESTING)
    except ValueError as error:
        raise ToolError("the service's reply could not be read.") from error
    return _of_kind(said, dict)


def _part(said: dict[str, Any], name: str, kind: type) -> Any:
    return _of_kind(said.get(name), kind)


def _first(said: dict[str, Any], name: str) -> dict[str, Any]:
    if not (paths := _part(said, name, list)):
        raise ToolError("the service knows no route between these points.")
    return _of_kind(paths[0], dict)


def _number(said: dict[str, Any], name: str) -> float:
    try:
        number = float(said[name])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ToolError(f"the service's reply has no {name}.") from error
    if not math.isfinite(number):
        raise ToolError(f"the service's reply has no {name}.")
    return number


def _text(said: dict[str, Any], name: str) -> str:
    if not (isinstance(text := said.get(name), str) and text):
        raise ToolError(f"the service's reply has no {name}.")
    return text


def _list(said: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Of objects; one that is missing is empty."""
    return [_of_kind(one, dict) for one in _of_kind(said.get(name) or [], list)]


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ToolError("the service's reply could not be read.")
    return value


def _filled(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value not in (None, "", [], {})}


def _as_distance(metres: float, seconds: float) -> dict[str, str]:
    return {"distance": f"{metres / 1000:.1f}km", "duration": f"{round(seconds / 60)}min"}


def _to_json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)
