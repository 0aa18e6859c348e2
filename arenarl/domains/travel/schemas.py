"""JSON schemas of the six Open-Travel tools (Appendix C, ArenaRL), in English or Chinese, in full or compact form.

The compact form takes names of places instead of coordinates, so that a tiny policy need not copy long numbers.
"""

from typing import Literal

from arenarl.rollout.environment import Schema, tool_schema

Results = Literal["full", "compact"]
Language = Literal["zh", "en"]

_TOOLS = {
    "search_poi": (
        "Find places by name or address, with address, location (longitude,latitude), cost, opening hours and rating.",
        "按名称或地址查找地点，返回匹配地点的详细地址、坐标（经度,纬度）、人均消费、营业时间和评分。",
    ),
    "around_search": (
        "Find places within a radius of a point, nearest first, with address, location, distance, cost, "
        "opening hours and rating.",
        "搜索某个中心点周边一定半径内的地点，由近到远返回地址、坐标、距离、人均消费、营业时间和评分。",
    ),
    "get_navigation": (
        "Plan a route from a start to an end, optionally through further points. Returns distance, duration and cost.",
        "规划从起点到终点的路线，可以设置途经点，返回距离、用时和费用。",
    ),
    "universal_search": (
        "Search city guides with an open question, such as 'quiet parks in Shanghai for families'. "
        "Returns recommended places.",
        "用开放性问题搜索城市旅游信息，例如“上海适合亲子的安静公园”，返回推荐的地点。",
    ),
    "search_flights": (
        "Find flights between two cities on a date, with flight number, price, airports and times.",
        "查询某日两个城市之间的航班，返回航班号、价格、起降机场和时间。",
    ),
    "search_train_tickets": (
        "Find trains between two cities on a date, direct ones and ones with a change, "
        "with train number, price, stations and times.",
        "查询某日两个城市之间的火车票，区分直达和中转，返回车次、价格、车站和时间。",
    ),
}
_ARGUMENTS = {
    "query": ("What to search for", "搜索内容"),
    "location": (
        "Centre point as 'longitude,latitude', such as '116.407400,39.904200'",
        "中心点坐标“经度,纬度”，例如：116.407400,39.904200",
    ),
    "radius": ("Radius in metres, 100 to 50000, default 3000", "搜索半径，单位米，100到50000，默认3000"),
    "keyword": ("Kind of place and wishes, such as 'cheap museum'", "地点类型和要求，例如：实惠的博物馆"),
    "start_lon": ("Longitude of the start", "起点经度"),
    "start_lat": ("Latitude of the start", "起点纬度"),
    "end_lon": ("Longitude of the end", "终点经度"),
    "end_lat": ("Latitude of the end", "终点纬度"),
    "via_points": (
        "Points to pass through, in order, as 'lon,lat;lon,lat'",
        "按顺序经过的途经点坐标“经度,纬度;经度,纬度”",
    ),
    "mode": ("Means of transport, default driving", "出行方式：driving驾车，walking步行，transit公交，默认driving"),
    "date": ("Date as YYYY-MM-DD", "日期，格式YYYY-MM-DD"),
    "from_city": ("City of departure", "出发城市"),
    "to_city": ("City of arrival", "到达城市"),
}
_COMPACT_ARGUMENTS = {
    "location": ("Name of the place in the centre, such as Lotus Museum", "中心地点的名称，例如：荷花博物馆"),
    "start": ("Name of the place to start from", "起点的名称"),
    "end": ("Name of the place to go to", "终点的名称"),
    "via_points": ("Names of places to pass through, in order, separated by ;", "按顺序经过的途经点名称，用;分隔"),
}
_NUMBERS = ("radius", "start_lon", "start_lat", "end_lon", "end_lat")
_OPTIONAL = ("radius", "keyword", "via_points", "mode")


def travel_schemas(results: Results, language: Language) -> list[Schema]:
    """Return the six schemas in the paper's order."""
    ends = ["start", "end"] if results == "compact" else ["start_lon", "start_lat", "end_lon", "end_lat"]
    journey = ["date", "from_city", "to_city"]
    arguments = {
        "search_poi": ["query"], "around_search": ["location", "radius", "keyword"],
        "get_navigation": [*ends, "via_points", "mode"], "universal_search": ["query"],
        "search_flights": journey, "search_train_tickets": journey,
    }  # fmt: skip
    column = ("en", "zh").index(language)
    descriptions = _ARGUMENTS | (_COMPACT_ARGUMENTS if results == "compact" else {})

    def argument_schema(name: str) -> Schema:
        schema = {"type": "number" if name in _NUMBERS else "string", "description": descriptions[name][column]}
        return schema | ({"enum": ["driving", "walking", "transit"]} if name == "mode" else {})

    return [
        tool_schema(name, description[column], {key: argument_schema(key) for key in arguments[name]}, _OPTIONAL)
        for name, description in _TOOLS.items()
    ]
