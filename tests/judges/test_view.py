"""A verdict depends only on the view: in every domain, with and without noise."""

import asyncio
import copy
import random
import re
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
from parts import domain_of, examiner_of

from arenarl.config.load import load_config
from arenarl.config.schema import JudgeConfig
from arenarl.domains.environments import make_environment
from arenarl.domains.research.open_queries import make_open_queries
from arenarl.domains.research.questions import make_questions
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.writing.queries import make_queries as make_writing_queries
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.factory import make_judge
from arenarl.judges.view import View, view_of
from arenarl.system.repository import CONFIGS
from arenarl.trajectory import Query, Trajectory

DOMAINS = {
    "travel": ("quickstart.yaml", []),
    "travel in Chinese": ("quickstart.yaml", ["environment.results=full", "data.language=zh"]),
    "research": ("research/quickstart.yaml", ["environment.search.corpus_size=200"]),
    "writing": ("writing/quickstart.yaml", []),
    "textcraft": ("agentgym/textcraft.yaml", []),
    "babyai": ("agentgym/babyai.yaml", []),
}
VIEWS = {"answer": {"process_aware": False}, "calls": {"show_tool_results": False}}


class Cases:
    """A domain with queries and trajectories of its teacher. Some trajectories are careless or of another query."""

    def __init__(self, file, overrides):
        self.config = load_config(CONFIGS / file, overrides)
        self.domain, self.examine = domain_of(self.config), examiner_of(self.config)
        environment, rng = make_environment(self.config.environment, self.config.data.language), random.Random(0)
        queries = self._queries(environment)
        self.taught = [(query, self.domain.solve(query, environment, rng, rng.random())) for query in queries]
        if self.domain.name not in ("textcraft", "babyai"):
            others = [trajectory for _, trajectory in self.taught[1:]]
            self.taught += zip(queries, others)  # noqa: B905

    def _queries(self, environment):
        language, subtasks = self.config.data.language, self.domain.subtasks
        if self.domain.name == "travel":
            queries = (make_queries(self.domain.world, name, language, 8, "view", set()) for name in SUBTASKS)
            return list(chain.from_iterable(queries))
        if self.domain.name == "research":
            closed = make_questions(self.domain.corpus, environment, self.config.data.research, "view", 6)
            return closed + make_open_queries(self.domain.corpus, "view", 9)
        if self.domain.name == "writing":
            queries = (make_writing_queries(name, language, 3, "view", set()) for name in subtasks)
            return list(chain.from_iterable(queries))
        return [self.domain.query({"item": item}) for item in self.domain.items("test")[:6]]

    def judge(self, **keys):
        return make_judge(JudgeConfig(**keys), self.domain, self.examine, None, 3)


@cache
def cases_of(domain):
    return Cases(*DOMAINS[domain])


@pytest.fixture(params=DOMAINS)
def cases(request):
    return cases_of(request.param)


def edited(trajectory, kind, rng):
    """Return the trajectory after one random edit of a part that a view of this kind does not show."""
    messages = copy.deepcopy(trajectory.messages)
    results = [message for message in messages if message["role"] == "tool"]

    def with_results(change):
        def changed(message):
            return message | {"content": change(message["content"])} if message["role"] == "tool" else message

        return list(map(changed, messages))

    edits = [
        lambda: [message for message in messages if message["role"] != "tool"],
        lambda: [*messages, {"role": "tool", "content": "It costs ¥20."}],
        lambda: with_results(lambda content: junk(content, rng)),
        lambda: with_results(lambda content: rng.choice(results)["content"]),
    ]
    if kind == "answer":
        before, last = messages[:-1], messages[-1]
        without_calls = [{key: value for key, value in message.items() if key != "tool_calls"} for message in before]
        edits += [
            lambda: [last],
            lambda: [turn | {"reasoning_content": turn.get("reasoning_content", "") + " "} for turn in messages],
            lambda: [*before, last | {"reasoning_content": junk("It costs ¥20 and opens at 09:00.", rng)}],
            lambda: [*without_calls, last],
            lambda: [*rng.sample(before, len(before)), last],
        ]
    return Trajectory(trajectory.query_id, rng.choice(edits)(), trajectory.stop_reason)


def junk(text, rng):
    """Return the text with random digits, cut, empty, or as an error."""
    digits = re.sub(r"\d", lambda _: str(rng.randrange(10)), text)
    return rng.choice([digits, text[: rng.randrange(len(text) + 1)], "", f"Error: {text}"])


async def verdicts(judge, query, trajectory, other, kind):
    """Return the results of all kinds of judge calls on views of this kind."""
    calls = [judge.score(query, trajectory, answer_only=kind == "answer")]
    calls += [judge.compare(query, trajectory, other), judge.compare(query, other, trajectory)]
    results = [(await call).dimensions for call in calls]
    results += [await judge.score_overall(query, trajectory), await judge.score_together(query, [other, trajectory])]
    results += [await judge.score_dimension(query, trajectory, name) for name in judge.weights(query)]
    if isinstance(judge, EmbeddedJudge) and query.domain == "travel":
        results.append(await judge.check_items(query, trajectory))
    return [*results, await judge.choose(query, [trajectory, other, trajectory], 1)]


@pytest.mark.parametrize("noise", ["none", "simulated"])
@pytest.mark.parametrize("kind", VIEWS)
def test_a_verdict_does_not_depend_on_hidden_parts(cases, kind, noise):
    judge, rng = cases.judge(noise=noise, **VIEWS[kind]), random.Random(1)

    async def check():
        for query, trajectory in rng.sample(cases.taught, min(40, len(cases.taught))):
            other = rng.choice(cases.taught)[1]
            before = await verdicts(judge, query, trajectory, other, kind)
            for _ in range(3):
                both = edited(trajectory, kind, rng), edited(other, kind, rng)
                assert await verdicts(judge, query, *both, kind) == before

    asyncio.run(check())


def test_a_full_view_is_the_trajectory_and_a_reduced_view_has_only_its_parts(cases):
    for query, trajectory in cases.taught:
        full, calls, answer = (view_of(trajectory, kind) for kind in ("results", "calls", "answer"))
        assert full.messages is trajectory.messages and cases.examine(query, full) == cases.examine(query, trajectory)
        assert calls.turns == [replace(turn, observations=[]) for turn in full.turns]
        (turn,) = answer.turns
        assert (turn.thought, turn.tool_calls, turn.observations, turn.answer or "") == ("", [], [], trajectory.answer)


def answered(query, text):
    return Trajectory(query.query_id, [{"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}], "answer")


SEARCH = {"city": "Beijing", "near": "Lotus Park", "category": "museum", "radius_m": 3000, "preference": "quiet"}
DAYS = {"city": "Beijing", "categories": ["museum", "park"], "preference": "quiet", "days": 1}
COMPARE = {"date": "2026-05-01", "from_city": "Beijing", "to_city": "Shanghai", "priority": "cheap"}


def names(travel, city, *categories):
    first = {(poi.city, poi.category): poi.name_en for poi in reversed(travel.domain.world.pois)}
    return [first[city, category] for category in categories]


@pytest.mark.parametrize("kind", VIEWS)
def test_only_a_stated_price_above_the_limit_lowers_the_score(kind):
    travel = cases_of("travel")
    museum, park, near = names(travel, "Beijing", "museum", "park", "cafe")
    search, days = SEARCH | {"near": near, "max_price_yuan": 50}, DAYS | {"budget_yuan": 80}
    judge = travel.judge(noise="none", **VIEWS[kind])
    for constraints, subtask, text, limit in (  # the text has a gap for a price
        (search, "Search", f"I recommend {museum}: quiet, ¥{{}}, 09:00-17:00, 1.2km.", 50),
        (search, "Search", f"{museum}\nPrice: ¥{{}}\nOpen 09:00-17:00", 50),
        (days, "1-Day", f"10:00 {museum} ¥{{}} 09:00-17:00\n14:00 {park} ¥30 06:00-21:00", 50),
        (days, "1-Day", f"10:00 {museum} 09:00-17:00\n14:00 {park} 06:00-21:00\nTotal: ¥{{}}", 80),
        (COMPARE | {"max_price_yuan": 500}, "Compare",
         "Flight CA1234 08:00-10:00 ¥900\nTrain G10 08:00-12:00 ¥{}\nI recommend G10", 500),
    ):  # fmt: skip
        query = Query("q", "travel", subtask, "en", "x", constraints)
        assert travel.domain.has_truth(query)
        prices = (1, limit - 1, limit, limit + 1, limit + 300)
        scores = [asyncio.run(judge.score(query, answered(query, text.format(price)))).totals for price in prices]
        assert scores[0] == scores[1] == scores[2] > scores[3] == scores[4], text


def test_the_judge_of_answers_believes_statements_and_ignores_missing_ones():
    """None stands for a constraint about which the answer says nothing."""
    travel = cases_of("travel")
    museum, cafe, park = names(travel, "Beijing", "museum", "cafe", "park")
    search = SEARCH | {"near": cafe, "max_price_yuan": 50, "open_at": "19:00"}
    unsaid = {"category": True, "radius": None, "quiet": None, "max_price": None, "open_at": None}
    said = {"category": True, "radius": False, "quiet": True, "max_price": False, "open_at": True}
    days = DAYS | {"budget_yuan": 80}
    evening = days | {"evening": "park"}
    missing = dict.fromkeys(("quiet museum", "museum open", "quiet park", "budget"))
    plan = f"10:00-12:00 {museum} ¥20 09:00-17:00\n{{}}\n19:00 {park} ¥30 06:00-21:00"
    kept = dict.fromkeys(("museum open", "park open", "budget", "evening"), True)
    both = "Train G10 08:00-12:00 ¥500\nFlight CA1234 08:00-10:00 ¥{}\nI recommend CA1234"
    others = "12:00-13:00 lunch break", "Metro ¥70, 5 stops", "Budget: ¥80 for all", "Total with train: ¥550"
    cases = [
        ("Search", search, f"Go to {museum}.", unsaid),
        ("Search", search, f"Go to {museum}, ¥60, quiet, 9 am to 8 pm, 4km from {cafe}.", said),
        ("Search", search, "Nowhere.", dict.fromkeys(unsaid, False)),
        *(("Search", search, f"{museum}, {text}", {"radius": is_near}) for text, is_near in {
            "0.0km": True, "850m away": True, "4000 metres away": False, "¥20": None}.items()),
        ("1-Day", days, f"10:00 {museum}\n20:00 {park} 06:00-21:00", missing | {"complete": True, "park open": True}),
        *(("1-Day", evening, plan.format(line), kept) for line in (*others, "driving 5.2km 20min ¥90")),
        ("1-Day", days, plan.format("Total ¥90, within the budget of ¥100"), {"budget": False}),
        ("1-Day", days, plan.replace("¥30", "¥70").format(""), {"budget": False}),
        *(("1-Day", days, f"10:00 {museum}, {tag}\n19:00 {park}", {"quiet museum": is_quiet}) for tag, is_quiet in {
            "quiet": True, "noisy, not quiet": None, "not a quiet place": None, "安静": True, "不安静": None}.items()),
        *(("1-Day", evening, text, {"evening": is_evening}) for text, is_evening in {
            f"Evening: {park}": True, park: None, f"21:00 {park}": True, f"11:00 {park}": False,
            museum: False}.items()),
        ("Compare", COMPARE, both.format(600), {"date and cities": True, "cheap": False}),
        ("Compare", COMPARE, both.format(400), {"date and cities": True, "cheap": True}),
        ("Compare", COMPARE, "I recommend CA1234 at ¥400", {"date and cities": True, "cheap": None}),
    ]  # fmt: skip
    for subtask, constraints, text, stated in cases:
        query = Query("q", "travel", subtask, "en", "x", constraints)
        met = travel.examine(query, view_of(answered(query, text), "answer")).constraints
        assert {name: met[name] for name in stated} == stated, text
    query = Query("q", "travel", "Search", "en", "x", search)
    judge = travel.judge(noise="none", process_aware=False)
    checked = asyncio.run(judge.check_items(query, answered(query, f"Go to {museum}.")))
    assert checked == {name: bool(is_met) for name, is_met in unsaid.items()}


def with_another_value(fact, name, value=None):
    """Return the fact's sentence with another value; a value inside the name stays."""
    value = value or ("1234" if fact["value"][0].isdigit() else "Nowhere")
    return fact["sentence"].replace(name, "\0").replace(fact["value"], value).replace("\0", name)


def test_the_judge_of_answers_believes_values_in_a_report_and_answers_of_the_right_type():
    cases = cases_of("research")
    judge, corpus = cases.judge(noise="none", process_aware=False), cases.domain.corpus
    for query in make_open_queries(corpus, "believed", 12):
        facts = query.constraints["facts"]
        true = answered(query, " ".join(fact["sentence"] for fact in facts))
        other = [with_another_value(fact, corpus.entities[fact["url"]].name) for fact in facts]
        reports = (true, answered(query, other[0]), answered(query, "No idea."))
        scores = [asyncio.run(judge.score(query, report)).dimensions[0] for report in reports]
        assert scores[0]["answer_depth"] == scores[0]["answer_relevance"] == scores[0]["answer_accuracy"] == 10
        assert scores[1]["answer_depth"] == pytest.approx(10 / len(facts)) and scores[2]["answer_depth"] == 0
        assert asyncio.run(judge.score(query, answered(query, " ".join(other)))).dimensions[0] == scores[0]
        vague = [with_another_value(fact, corpus.entities[fact["url"]].name, "unknown") for fact in facts]
        depth = asyncio.run(judge.score(query, answered(query, " ".join(vague)))).dimensions[0]["answer_depth"]
        assert depth == pytest.approx(10 * sum("unknown" not in sentence for sentence in vague) / len(vague))
    for query, _ in cases.taught:
        if "answer" in query.constraints:
            is_number = any(map(str.isdigit, query.constraints["answer"]))
            other, odd = ("1234", "Nowhere") if is_number else ("Nowhere", "1234")
            texts = (query.constraints["answer"], other, odd, "not found", "I do not know.")
            verdicts = [asyncio.run(judge.score(query, answered(query, text))) for text in texts]
            assert [verdict.dimensions[0]["answer_accuracy"] for verdict in verdicts] == [10, 10, 0, 0, 0]


def test_by_default_a_domain_examines_the_messages_of_the_view():
    cases = cases_of("textcraft")
    query, trajectory = cases.taught[0]
    view = view_of(trajectory, "calls")
    assert cases.examine(query, view) == cases.domain.examine(query, view.messages)
    assert cases.examine(query, View("answer", [])).actions == 0
