"""The paper's tools over MCP servers of real services: replies in the servers' formats, and Amap's own server."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from arenarl.config.load import load_config
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.schemas import travel_schemas
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from examples import real_services

ROOT = Path(__file__).resolve().parents[3]
NAMED = os.environ.get("AMAP_MCP_SERVER") or shutil.which("amap-mcp-server")
SERVER = NAMED or str(ROOT / ".venv-amap" / "bin" / "amap-mcp-server")
INSTALL = 'python -m venv .venv-amap && .venv-amap/bin/pip install amap-mcp-server==0.1.11 "pydantic<2.14"'
ROUTE = {"start_lon": 104.05, "start_lat": 30.67, "end_lon": 104.06, "end_lat": 30.66}


class Service:
    """A server that records its `calls`. `replies` has for each tool a value, a ToolError, or an iterator of them."""

    def __init__(self, **replies):
        self.replies, self.calls = replies, []

    async def __call__(self, tool, /, **arguments):
        self.calls.append((tool, arguments))
        reply = self.replies[tool]
        reply = next(reply) if hasattr(reply, "__next__") else reply
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, str) else json.dumps(reply)


def run(tool, service, **arguments):
    return json.loads(asyncio.run(getattr(real_services, tool)(service, **arguments)))


@pytest.fixture
def amap(tmp_path):
    """The environment section of a run with configs/environments/amap.yaml."""
    (tmp_path / "run.yaml").write_text(f"environment: {{base: {ROOT / 'configs' / 'environments' / 'amap.yaml'}}}\n")
    return load_config(tmp_path / "run.yaml").environment


def test_the_config_gives_the_policy_the_papers_six_tools(amap):
    tools = [name for server in amap.mcp for name in [*server.rename, *(server.allow or [])]]
    assert sorted(tools) == sorted(tool["function"]["name"] for tool in travel_schemas("full", "zh"))
    assert amap.name == "mcp" and amap.tickets.name == "llm" and amap.search.engine == "web"
    renamed = {name: tool for server in amap.mcp for name, tool in server.rename.items()}
    assert all(tool.like == "travel" and (tool.tool or hasattr(real_services, name)) for name, tool in renamed.items())


def test_a_service_without_its_key_is_refused_in_one_line(amap, monkeypatch):
    pytest.importorskip("mcp", reason="the SDK mcp is not installed: pip install mcp==2.3.0")
    monkeypatch.delenv("AMAP_MAPS_API_KEY", raising=False)
    amap.mcp = amap.mcp[:1]
    with pytest.raises(UserError, match="set the environment variable AMAP_MAPS_API_KEY"):
        make_environment(amap, "zh")


def test_a_place_has_its_details_or_the_reason_why_they_are_missing():
    found = {"pois": [{"id": "1", "name": "公园", "address": []}, {"id": "2", "name": "寺", "address": "路1号"}]}
    detail = {"id": "1", "location": "104.1,30.6", "rating": "4.5", "cost": [], "city": "成都市", "address": []}
    whole = Service(maps_text_search=found, maps_search_detail=detail)
    first = {"name": "公园", "location": "104.1,30.6", "city": "成都市", "business": {"rating": "4.5"}}
    assert run("search_poi", whole, query="公园")["pois"][0] == first
    assert whole.calls[0] == ("maps_text_search", {"keywords": "公园"})
    without = Service(maps_around_search=found, maps_search_detail=ToolError("quota"))
    reason = {"details": "could not be had: quota"}
    places = [{"name": "公园"} | reason, {"name": "寺", "address": "路1号"} | reason]
    assert run("around_search", without, location="1,2", radius=500.0)["pois"] == places
    assert without.calls[0] == ("maps_around_search", {"location": "1,2", "radius": "500", "keywords": ""})


def test_a_call_is_retried_after_a_rate_limit_and_a_refused_key_stops_the_run(monkeypatch):
    monkeypatch.setattr(real_services, "PAUSES_S", (0.0, 0.0))
    busy = ToolError("Get poi detail failed: CUQPS_HAS_EXCEEDED_THE_LIMIT")
    found, details = {"pois": [{"id": "1", "name": "公园"}]}, iter([busy, busy, {"location": "104.1,30.6"}])
    service = Service(maps_text_search=iter([busy, found]), maps_search_detail=details)
    assert run("search_poi", service, query="公园")["pois"] == [{"name": "公园", "location": "104.1,30.6"}]
    with pytest.raises(ToolError, match="CUQPS"):
        run("search_poi", Service(maps_text_search=busy), query="公园")
    transit = ROUTE | {"mode": "transit"}
    calls = {"search_poi": {"query": "公园"}, "around_search": {"location": "1,2"}, "get_navigation": transit}
    for tool, arguments in calls.items():
        replies = dict.fromkeys(("maps_search_detail", "maps_regeocode"), ToolError("failed: INVALID_USER_KEY"))
        service = Service(maps_text_search=found, maps_around_search=found, **replies)
        with pytest.raises(UserError, match="Amap refuses all calls: failed: INVALID_USER_KEY"):
            run(tool, service, **arguments)


def test_trains_use_the_codes_of_both_cities_and_long_lists_are_shortened():
    codes = {"北京": {"station_code": "BJP"}, "上海": {"station_code": "SHH"}}
    train = "G{}(实际车次) 北京南(telecode: VNP) -> 上海虹桥 06:00 -> 12:00 历时：06:00\n- 二等座: 有票 553元\n"
    direct = "".join(train.format(number) for number in range(60))
    service = Service(get_station_code_of_citys=codes, get_tickets=direct, get_interline_tickets="G1, G2")
    leg = {"date": "2026-12-01", "from_city": "北京市", "to_city": "上海"}
    found = run("search_train_tickets", service, **leg)
    *shown, last = found["direct"].splitlines()
    assert found["transfer"] == "G1, G2" and shown == direct.splitlines()[: len(shown)]
    assert last == f"… {120 - len(shown)} more lines"
    assert 20 < len(shown) and len(json.dumps(found, ensure_ascii=False)) < 8000
    assert service.calls[:2] == [
        ("get_station_code_of_citys", {"citys": "北京|上海"}),
        ("get_tickets", {"date": "2026-12-01", "fromStation": "BJP", "toStation": "SHH"})
    ]  # fmt: skip
    service.replies |= {"get_tickets": "G1 北京 -> 上海\n", "get_interline_tickets": ToolError("too many calls")}
    assert run("search_train_tickets", service, **leg) == {"direct": "G1 北京 -> 上海", "transfer": "too many calls"}
    service.replies["get_station_code_of_citys"] = codes | {"上海": {"error": "未检索到城市。"}}
    with pytest.raises(ToolError, match="12306 knows no city 上海"):
        run("search_train_tickets", service, **leg)


@pytest.mark.skipif(
    not Path(SERVER).is_file(), reason=f"amap-mcp-server is not installed: {INSTALL}, or name it in AMAP_MCP_SERVER"
)
@pytest.mark.slow(seconds=4)
def test_amaps_own_server_works_with_a_stand_in_for_its_service(amap, tmp_path, monkeypatch):
    from amap_stand_in import standing_in
    from mcp_servers import environment_of, say

    monkeypatch.setattr(real_services, "PAUSES_S", (0.0,))
    monkeypatch.setenv("AMAP_MAPS_API_KEY", "key-of-amap")
    (server, *_) = amap.mcp
    server.command = [SERVER]
    with standing_in(tmp_path) as (stand_in, variables):
        server.env |= variables
        environment = environment_of(server, store=tmp_path / "replies.sqlite")
        names = [tool["function"]["name"] for tool in environment.tools]
        assert names == ["search_poi", "around_search", "get_navigation"]
        (alley, cafe) = json.loads(say(environment, "search_poi", query="宽窄巷子"))["pois"]
        assert (alley["location"], alley["city"]) == ("104.053800,30.669600", "成都市")
        assert alley["business"]["rating"] == "4.8"
        assert cafe["business"] == {"cost": "38.00", "rating": "4.5", "opening_hours": "10:00-22:00"}
        around = {"location": "104.05,30.67", "radius": 500, "keyword": "咖啡"}
        assert len(json.loads(say(environment, "around_search", **around))["pois"]) == 2
        parameters = {"key": "key-of-amap", "location": "104.05,30.67", "radius": "500", "keywords": "咖啡"}
        assert stand_in.requests[3] == ("/v3/place/around", parameters)
        driving = json.loads(say(environment, "get_navigation", **ROUTE, via_points="104.055,30.665"))
        assert driving["route"] == {"mode": "driving", "distance": "4.7km", "duration": "18min"}
        assert len(driving["legs"]) == 2
        transit = json.loads(say(environment, "get_navigation", **ROUTE, mode="transit"))
        assert transit["route"]["distance"] == "1.2km" and transit["steps"] == ["地铁4号线: 宽窄巷子 → 骡马市"]
        cities = [(path, parameters.get("city")) for path, parameters in stand_in.requests]
        assert ("/v3/direction/transit/integrated", "北京市") in cities
        assert say(environment, "search_poi", query="满") == "Error: Text Search failed: CUQPS_HAS_EXCEEDED_THE_LIMIT"
        broken = say(environment, "search_poi", query="塌")
        assert broken.startswith("Error: Request failed: 502") and "key=***" in broken and "key-of-amap" not in broken
        before = len(stand_in.requests)
        say(environment, "search_poi", query="宽窄巷子")
        assert len(stand_in.requests) == before  # from the store


SEGMENTS = [
    7, ["x"], [{"bus": {"buslines": [{"name": "1"}]}}], [{"bus": 3}], [{"bus": {"buslines": [7]}}],
    [{"bus": {"buslines": [{"name": "1", "departure_stop": [], "arrival_stop": {"name": "x"}}]}}],
    [{"railway": {"name": ["x"]}}],
]  # fmt: skip
ROUTES = ["<html>busy</html>", [], {}, {"route": []}, {"route": {"paths": []}}, {"route": {"paths": [7]}}]
ROUTES += [{"route": {"paths": [{"distance": value, "duration": "1"}]}} for value in ([], "nan", "inf", 10**400)]


def test_a_malformed_reply_is_a_tool_error():
    for segments in SEGMENTS:
        route = {"distance": "100", "transits": [{"duration": "60", "segments": segments}]}
        replies = {"maps_direction_transit_integrated_by_coordinates": {"route": route}}
        service = Service(maps_regeocode={"city": [], "province": "北京市"}, **replies)
        with pytest.raises(ToolError, match="the service's reply"):
            run("get_navigation", service, **ROUTE, mode="transit")
    for reply in ROUTES:
        with pytest.raises(ToolError):
            run("get_navigation", Service(maps_direction_driving_by_coordinates=reply), **ROUTE)
    with pytest.raises(ToolError):
        run("search_poi", Service(maps_text_search={"pois": ["x"]}), query="tea")
