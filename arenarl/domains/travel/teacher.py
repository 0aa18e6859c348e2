"""The scripted teacher of Open-Travel: it solves queries with the tools, for SFT and for stored baselines.

It replaces the closed models and experts of the paper's data (Section 5). Its quality is mixed on purpose: each good
habit is off more often than on, and few trajectories have all of them. So SFT shows every habit that a good plan needs,
and RL learns to prefer the good habits. The trajectories have the form of rollouts.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arenarl.domains.travel.names import CATEGORIES, TAGS
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import Line, read_lines
from arenarl.domains.travel.world import Poi, World
from arenarl.trajectory import Query, Trajectory, answer_message, call_messages, prompt_messages

# qualify: search with the user's wishes (cheap, quiet, open late), not only for the kind of place
# complete: cover every part of the query
# verify: check the way with get_navigation, with all stops
# ground: state the facts that the tools returned, not typical ones
# fit: choose by the constraints, not the first result
HABITS = ("qualify", "complete", "verify", "ground", "fit")
_TYPICAL = {"price": "¥50", "hours": "09:00-18:00", "distance": "2.0km", "duration": "30min"}  # stated without "ground"
_CLOCKS = ("10:00", "12:00", "14:00", "16:00")  # times of a day's stops


@dataclass
class Teacher:
    """A scripted agent that solves queries with the tools."""

    world: World
    environment: TravelEnvironment

    def solve(self, query: Query, rng: random.Random, skill: float) -> Trajectory:
        """Return a trajectory; each habit is on with probability `skill`, and nothing else is random."""
        attempt = _Attempt(self.world, self.environment, query, {habit: rng.random() < skill for habit in HABITS})
        attempt.answer(_SOLVERS[query.subtask](attempt))
        return Trajectory(query.query_id, attempt.messages, "answer", meta={"habits": attempt.habits})


class _Attempt:
    """The growing messages of one attempt, and helpers to call tools and write in each language and form."""

    def __init__(self, world: World, environment: TravelEnvironment, query: Query, habits: dict[str, bool]):
        self.world, self.environment, self.query, self.habits = world, environment, query, habits
        self.is_compact = environment.is_compact
        self.is_zh = query.language == "zh"
        self.messages: list[dict[str, Any]] = prompt_messages(query)

    def call(self, thought: str, name: str, **arguments: Any) -> list[Line]:
        observation = self.environment.call(name, arguments)
        self.messages += call_messages(thought, name, arguments, observation)
        return read_lines(self.world, observation)

    def answer(self, lines: list[str]) -> None:
        thought = self.say("answer", "I have what I need; now the answer.", "信息已经足够，现在给出答案。")
        self.messages.append(answer_message(thought, "\n".join(lines)))

    def say(self, compact: str, english: str, chinese: str) -> str:
        return compact if self.is_compact else chinese if self.is_zh else english

    def name(self, poi: Poi) -> str:
        return poi.name_zh if self.is_zh else poi.name_en

    def city(self, key: str) -> str:
        return self.world.cities[key].name_zh if self.is_zh else key

    def search_city(self, thought: str, category: str, is_cheap: bool, is_late: bool) -> list[Line]:
        """Search the guide for a kind of place in the query's city; return the results with a place."""
        city, words = self.query.constraints["city"], self.words(category, is_cheap, is_late)
        text = f"{self.city(city)}{words}" if self.is_zh else f"{words} in {city}"
        return [line for line in self.call(thought, "universal_search", query=text) if line.pois]

    def words(self, category: str, is_cheap: bool, is_late: bool) -> str:
        """Return a search's keywords: the kind of place, and with the habit "qualify" the user's wishes."""
        wanted = ["late"] * is_late + ["cheap"] * is_cheap + [self.query.constraints["preference"]]
        wanted = wanted if self.habits["qualify"] else []
        if self.is_zh:
            return "".join(TAGS[tag] for tag in wanted) + CATEGORIES[category]
        return " ".join([*wanted, category])

    def facts(self, line: Line | None, *kinds: str) -> str:
        """Write facts of a result. Without the habit "ground", or if the result lacks a fact, write a typical one."""
        known = dict(line.facts) if line and self.habits["ground"] else {}
        form = {"price": "¥{}", "hours": "{}", "distance": "{}km", "duration": "{}min"}
        return " ".join(form[kind].format(known[kind]) if kind in known else _TYPICAL[kind] for kind in kinds)

    def journeys(self, thought: str, tool: str) -> list[Line]:
        """Search flights or trains of the query's leg, which ends at `to_city`, or else at `city`."""
        wanted = self.query.constraints
        end = wanted["to_city"] if "to_city" in wanted else wanted["city"]
        leg = {"from_city": self.city(wanted["from_city"]), "to_city": self.city(end)}
        return [line for line in self.call(thought, tool, date=wanted["date"], **leg) if line.numbers]

    def navigate(self, thought: str, stops: list[Poi], mode: str) -> Line:
        start, *between, end = stops
        if self.is_compact:
            ends, names = {"start": start.name_en, "end": end.name_en}, [poi.name_en for poi in between]
        else:
            ends = {"start_lon": start.lon, "start_lat": start.lat, "end_lon": end.lon, "end_lat": end.lat}
            names = [f"{poi.lon},{poi.lat}" for poi in between]
        via = {"via_points": ";".join(names)} if between else {}
        return self.call(thought, "get_navigation", **ends, **via, mode=mode)[0]

    def locate(self, name: str) -> Poi:
        """Return the place of this name, after a search_poi call if the tools need its coordinates."""
        poi = self.world.find_poi(name)
        if not self.is_compact:
            thought = f"先查{poi.name_zh}的位置。" if self.is_zh else f"First I need to know where {poi.name_en} is."
            self.call(thought, "search_poi", query=self.name(poi))
        return poi


def _solve_search(attempt: _Attempt) -> list[str]:
    wanted = attempt.query.constraints
    near, category, kind = attempt.locate(wanted["near"]), wanted["category"], CATEGORIES[wanted["category"]]
    wishes = (category, wanted["max_price_yuan"] is not None, wanted["open_at"] is not None)
    if attempt.habits["complete"]:
        center = near.name_en if attempt.is_compact else f"{near.lon},{near.lat}"
        around = {"location": center, "radius": wanted["radius_m"], "keyword": attempt.words(*wishes)}
        english, chinese = f"Look for a {category} around {near.name_en}.", f"在{near.name_zh}周边搜索{kind}。"
        lines = attempt.call(attempt.say("near", english, chinese), "around_search", **around)
        lines = [line for line in lines if line.pois]
    else:
        thought = attempt.say("city", f"See which {category} the city has.", f"看看城里有哪些{kind}。")
        lines = attempt.search_city(thought, *wishes)
    if not lines:
        return [attempt.say("nothing found", "I found no such place.", "没有找到合适的地方。")]

    def count_met(line: Line) -> int:
        """Count the met constraints on price and hours."""
        poi, price, clock = line.pois[0], wanted["max_price_yuan"], wanted["open_at"]
        return (clock is None or poi.opens <= clock < poi.closes) + (price is None or poi.price_yuan <= price)

    line = max(lines, key=count_met) if attempt.habits["fit"] else lines[0]
    poi, facts = line.pois[0], attempt.facts(line, "price", "hours", "distance")
    english, chinese = f"I recommend {poi.name_en}: {facts}.", f"推荐{poi.name_zh}：{facts}。"
    return [attempt.say(f"{poi.name_en} {facts}", english, chinese)]


def _solve_days(attempt: _Attempt) -> list[str]:
    wanted, categories = attempt.query.constraints, attempt.query.constraints["categories"]
    stops: list[Line] = []
    for category in categories if attempt.habits["complete"] else categories[: len(categories) // 2]:
        thought = attempt.say(category, f"Next I need a {category}.", f"接下来找{CATEGORIES[category]}。")
        wishes = (category, wanted["budget_yuan"] is not None, category == wanted["evening"])
        stops += attempt.search_city(thought, *wishes)[:1]
    lines = []
    if wanted.get("from_city") and attempt.habits["complete"]:
        thought = attempt.say("arrive", "How does the user get there?", "先看怎么到达。")
        for train in attempt.journeys(thought, "search_train_tickets")[:1]:
            facts = attempt.facts(train, "hours", "price")
            lines.append(f"{attempt.say('train', 'Train', '火车')} {train.numbers[0]} {facts}")
    route = None
    if attempt.habits["verify"] and len(stops) > 1:
        thought = attempt.say("way", "How far apart are these?", "看看这些地方之间的路程。")
        route = attempt.navigate(thought, [line.pois[0] for line in stops], "driving")
    for position, line in enumerate(stops):
        slot = position % 2 if wanted["days"] > 1 else position
        is_evening = attempt.habits["fit"] and line.pois[0].category == wanted["evening"]
        clock = "19:00" if is_evening else _CLOCKS[slot]
        if wanted["days"] > 1 and not attempt.is_compact and position % 2 == 0:
            lines.append(attempt.say("", f"Day {position // 2 + 1}", f"第{position // 2 + 1}天"))
        lines.append(f"{clock} {attempt.name(line.pois[0])} {attempt.facts(line, 'price', 'hours')}")
    if route:
        mode = attempt.say("driving", "By car (driving):", "驾车：")
        lines.append(f"{mode} {attempt.facts(route, 'distance', 'duration')}")
    return lines or [attempt.say("nothing found", "I found no such places.", "没有找到合适的地方。")]


def _solve_compare(attempt: _Attempt) -> list[str]:
    wanted, fits = attempt.query.constraints, attempt.habits["fit"]
    thought = attempt.say("train", "Look at the trains.", "先看火车。")
    by_kind = {attempt.say("train", "Train", "火车"): attempt.journeys(thought, "search_train_tickets")}
    if attempt.habits["complete"]:
        thought = attempt.say("flight", "Look at the flights.", "再看航班。")
        by_kind[attempt.say("flight", "Flight", "航班")] = attempt.journeys(thought, "search_flights")
    leg = (wanted["date"], wanted["from_city"], wanted["to_city"])
    journeys = {journey.number: journey for journey in attempt.world.journeys(*leg)}

    def cost(line: Line) -> float:
        journey = journeys[line.numbers[0]]
        return journey.price_yuan if wanted["priority"] == "cheap" else journey.minutes

    picks = {kind: min(lines, key=cost) if fits else lines[0] for kind, lines in by_kind.items()}
    lines = [f"{kind} {line.numbers[0]} {attempt.facts(line, 'hours', 'price')}" for kind, line in picks.items()]
    choice = min(picks.values(), key=cost) if fits else next(iter(picks.values()))
    return [*lines, f"{attempt.say('take', 'I recommend', '推荐')} {choice.numbers[0]}"]


def _solve_direction(attempt: _Attempt) -> list[str]:
    wanted = attempt.query.constraints
    stops = [attempt.locate(name) for name in wanted["stops"]]
    visited = stops if attempt.habits["verify"] else [stops[0], stops[-1]]
    modes = [wanted["mode"] if attempt.habits["fit"] else "driving"]
    if attempt.habits["complete"]:
        modes.append("driving" if modes == ["transit"] else "transit")
    lines = [" > ".join(attempt.name(poi) for poi in visited)]
    for mode in modes:
        zh = {"driving": "驾车", "walking": "步行", "transit": "公交"}[mode]
        thought = attempt.say(mode, f"What does the way look like, {mode}?", f"查一下{zh}路线。")
        route = attempt.navigate(thought, visited, mode)
        lines.append(f"{zh if attempt.is_zh else mode} {attempt.facts(route, 'distance', 'duration', 'price')}")
    return lines


_SOLVERS: dict[str, Callable[[_Attempt], list[str]]] = {
    "Direction": _solve_direction,
    "1-Day": _solve_days,
    "Compare": _solve_compare,
    "Search": _solve_search,
    "M-Day": _solve_days,
}
