"""The rules of inspection: faults of form, tool errors, facts without support."""

import random
import time
from collections import Counter

import pytest
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.domains.stated_facts import read_facts
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import examine
from arenarl.domains.travel.world import build_world
from arenarl.rollout.environment import tool_schema
from arenarl.synthesis.rules import Problem, problems_of
from arenarl.trajectory import Query, Trajectory, assistant_message, tool_message

WORLD = build_world(0)
TOOLS = [tool_schema("look", "", {"place": {"type": "string"}, "count": {"type": "integer"}}, optional=("count",))]
QUERY = Query("q", "mine", "any", "en", "Where should I go near the old lake on 2026-05-01?")


def look(result, place="lake", name="look", **more):
    """The messages of a call and its result."""
    function = {"type": "function", "function": {"name": name, "arguments": {"place": place, **more}}}
    turn = {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [function]}
    return [turn, tool_message(result)]


def trajectory_of(*calls, answer="Go to the lake, it is very nice there.", stop_reason="answer", query=QUERY):
    last = {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{answer}\n</answer>"}
    messages = [{"role": "user", "content": query.query}, *(message for call in calls for message in call), last]
    return Trajectory(query.query_id, messages, stop_reason)


def rules_and_turns(trajectory, query=QUERY, tools=TOOLS):
    return [(problem.rule, problem.turn) for problem in problems_of(query, trajectory, tools)]


def facts_problem(answer, *results, query=QUERY):
    """The text of the problem with the answer's facts; None without one."""
    calls = [look(result, place=f"place {number}") for number, result in enumerate(results)]
    problems = problems_of(query, trajectory_of(*calls, answer=answer, query=query), TOOLS)
    return next((problem.text for problem in problems if problem.rule == "facts"), None)


GOOD = [look(f"ok {n}", place=f"p{n}") for n in range(6)]
BAD = [look("Error: unknown", place=f"x{n}") for n in range(3)]


@pytest.mark.parametrize(("calls", "keys", "faults"), [
    ([look("The lake is nice.")], {}, []), ([GOOD[0]], {"answer": ""}, [("form", 2)]),
    ([GOOD[0]], {"answer": "", "stop_reason": "done"}, []),  # a world with a state
    *(([GOOD[0]], {"stop_reason": stop}, [("form", 2)]) for stop in (
        "no_answer", "max_turns", "max_tokens", "tool_crash", "no_room")),
    *(([GOOD[0]], {"answer": f"Go to the lake. {tag}"}, [("form", 2)]) for tag in (
        "<|im_end|>", "< |im_start|>", "</think>", "<tool_call>", "< /tool_response>")),
    ([look("ok"), look("hill", place="hill"), look("ok")], {}, [("form", 3)]),
    ([look("page 1"), look("page 2")], {}, []),
    ([look("You go on."), look("You go on.")], {"stop_reason": "done"}, []),
    ([look("Error: unknown place", place="leak"), look("ok")], {}, []),  # a corrected error teaches correction
    ([GOOD[0], GOOD[1], BAD[0]], {}, [("tool_errors", 3)]), ([BAD[0], *GOOD[:4], BAD[1], GOOD[4]], {}, []),
    ([GOOD[0], BAD[0], BAD[1], GOOD[1]], {}, [("tool_errors", 2)]),
])  # fmt: skip
def test_form_faults_and_tool_errors_name_their_turn(calls, keys, faults):
    assert rules_and_turns(trajectory_of(*calls, **keys)) == faults
    problems = problems_of(QUERY, trajectory_of(*calls, **keys), TOOLS, ["Too dear."])
    assert problems[-1] == Problem("constraints", len(calls) + 1, "Too dear.")


@pytest.mark.parametrize(("text", "answer", "is_fault"), [
    ("Where should I go near the old lake?", "建议去湖边走走，那里很漂亮。", True),
    ("湖边有什么好玩的地方？", "You should go to the lake, it is nice.", True),
    ("湖边有什么好玩的地方？", "推荐 West Lake Pagoda 和 Broken Bridge，都很漂亮。", False),
    ("Where should I go near 西湖 in Hangzhou?", "Go to 断桥 (Broken Bridge), it is close to 西湖.", False),
    ("Translate this greeting to the host for me, please.", "您好，很高兴认识您。", False),
    ("How many people live there, and where?", "42", False),
])  # fmt: skip
def test_an_answer_must_have_the_language_of_its_query(text, answer, is_fault):
    query = Query("q", "mine", "any", "zh" if "湖边" in text else "en", text)
    assert (("form", 2) in rules_and_turns(trajectory_of(look("ok"), answer=answer, query=query), query)) == is_fault


def test_a_malformed_or_unfit_call_names_its_turn():
    malformed = [assistant_message('<tool_call>\n{"name": "look", "arguments": [\n</tool_call>'), tool_message("Error")]
    wrong = [look("Error: …", name="loko"), look("Error: …", count="many")]
    calls = [look("ok"), malformed, *wrong, look("ok", place="hill")]
    problems = problems_of(QUERY, trajectory_of(*calls), TOOLS)
    assert [problem.turn for problem in problems if problem.rule == "form"] == [2, 3, 4]
    assert 'Did you mean "look"' in problems[1].text and "count" in problems[2].text


@pytest.mark.parametrize(("stated", "known"), [
    ("It costs ¥1,290.", "price: 1290元"), ("It costs 1290 yuan.", '{"price": "1290.00"}'),
    ("It costs $45.50 to get in.", "45.5 USD"), ("It is open 9:00–17:00.", "09:00-17:00"),
    ("Open 9 am to 5:30 pm.", '{"open": "09:00", "close": "17:30"}'),
    ("它的营业时间是上午9点到下午5点半。", "09:00-17:30"), ("The ride takes 2 h 5 min.", "125min"),
    ("The ride takes 1h 20m, or 1 hour, 20 minutes, or 1 hr. 20 min.", "duration: 80min"),
    ("坐车要1小时零5分。", "65min"), ("It is open 5:00-9:00 PM, in winter 2-4 pm.", "17:00-21:00; 14:00-16:00"),
    ("它的营业时间是下午2:00-5:00，晚上七点到九点也开。", "14:00-17:00, 19:00-21:00"),
    ("G10 takes you there for ¥553.", '{"G10": {"price": "¥553"}}'),
    ("Take bus 331 Yuantong Temple stop.", "bus 331"),
    ("The ride takes about 2 hours.", "duration: 7500 s, in seconds 7500"),
    ("The ride on G10 takes 5 h 10 min.", "G10 07:45-12:55 ¥540"), ("It is 1.2 km away.", '{"distance": "1234"}'),
    ("It is 800 m away.", "0.8公里"), ("It is about 5 km away.", "5.2km"),
    ("Take CA1234 at 10:30.", "CA1234 10:30-12:05"), ("It opened on May 3, 1998.", "opened 1998-05-03"),
    ("It opened on 3 May.", "1998年5月3日"), ("Arrive on 2026-05-02, a day later.", "nothing"),
    ("It drew 1.2 million people in 1998.", "1,203,411 visitors (1998)"), ("It drew 120万 people.", "1200000"),
    ("Some 12.5% agree.", '{"share": 0.125}'), ("Rated 4.5 by visitors.", '{"rating": 4.5}'),
    ("See https://www.example.com/lake/.", "source: http://example.com/lake"),
    ("见https://baike.baidu.com/item/西湖的介绍", "https://baike.baidu.com/item/西湖/3"),
    ('As ["A Lake in Spring"] says.', "A lake  in spring, by Li"), ("《茶经》里有记载。", "陆羽的《茶经》"),
    ("1. Go there.\n2. Eat 3 buns.\n10. Walk 2 rounds.", "nothing"),
    ("### 2.1 The lake\n2.1 The lake\nDay 120: home\nOpen 24 hours, 100% fun.", "nothing"),
    ("Total: ¥999, of a budget of ¥1,000", "nothing"), ("合计999元", "nothing"), ("2 × ¥60 = ¥120", "nothing"),
    ("It is ¥120 cheaper and 3 hours faster, 22% off.", "nothing"),
    ("10:00-12:00 The lake\nAfternoon (14:00-16:30): the hill", "nothing"),
    ("Be at the hill at 15:00 and stay for 90 min.", "nothing"), ("In 2026 on 2026-05-01, as asked.", "nothing"),
])  # fmt: skip
def test_equal_values_and_values_of_a_plan_are_not_problems(stated, known):
    assert facts_problem(stated, known) is None


@pytest.mark.parametrize(("stated", "quoted", "known"), [
    ("It costs ¥1,290.", "¥1,290", "¥1,280 and 129 people"), ("It costs ¥50.", "¥50", "50min, 50km"),
    ("It is open 09:00-17:00.", "09:00-17:00", "09:00-18:00"),
    ("The ride takes 2 h 5 min.", "2 h 5 min", "2 h 15 min"), ("It is 1.2 km away.", "1.2 km", "1.3km"),
    ("Take CA1234 there.", "CA1234", "CA1235"), ("G10 leaves at 10:30.", "10:30", "G10 10:40"),
    ("It opened on May 3, 1998.", "May 3, 1998", "1998-05-04"),
    ("It drew 1.2 million people.", "1.2 million", "1,303,411"), ("Some 12.5% agree.", "12.5%", "12.4%"),
    ("Rated 4.5 by visitors.", "4.5", "4.4"), ("It dates from 1723.", "1723", "17231"),
    ("See https://example.com/lake.", "https://example.com/lake", "https://example.com/lakes"),
    ("《茶经》里有记载。", "《茶经》", "茶"), ("2.0 km from here.", "2.0 km", "3.0 km"),
    ("Take G1 there.", "G1", "G10"), ("It is open 5:00-9:00 PM.", "17:00-21:00", "05:00-21:00"),
    ("It costs ¥77.", "¥77", "Error: no such price as ¥77"),
])  # fmt: skip
def test_a_fact_without_support_is_quoted(stated, quoted, known):
    assert quoted in facts_problem(stated, known, "something else")


def test_the_rule_of_facts_needs_tools_but_no_calls():
    trajectory = trajectory_of(answer="It costs ¥50, and was built in 1723.")
    assert rules_and_turns(trajectory, tools=[]) == [] and rules_and_turns(trajectory) == [("facts", 1)]


@pytest.mark.parametrize(("results", "language"), [("compact", "en"), ("full", "en"), ("full", "zh")])
def test_only_invented_facts_of_the_scripted_teacher_are_found(results, language):
    """Compared with the truth. A missed invention has its value in a result about another place."""
    environment, rng, counts = TravelEnvironment(WORLD, results, language), random.Random(1), Counter()
    teacher = Teacher(WORLD, environment)
    for query in (query for name in SUBTASKS for query in make_queries(WORLD, name, language, 30, "rules", set())):
        trajectory = teacher.solve(query, rng, rng.choice((0.5, 1.0)))
        truth = examine(WORLD, query, trajectory.messages)
        rules = {problem.rule for problem in problems_of(query, trajectory, environment.tools)}
        counts[truth.facts_grounded < truth.facts_stated, "facts" in rules] += 1
        assert rules <= {"facts"}
    assert counts[False, True] == 0 and counts[True, True] >= 0.7 * (counts[True, True] + counts[True, False]) > 0


TOKENS = [
    "¥", "1,290", "1", "9" * 5000, "09:00", "-", "–", " ", "\n", "km", "min", "h ", "元", "%", "2026-05-01", "May 3",
    "https://a.b/", "[", '"', "《", "》", "G10", "CA1234", "3 pm", "下午", "9点", "半", "万", "about ", "total ",
    "visit ", ".", "1.1 ", "<|im_end|>", "Error", "٣", "１", "{", "]", "\ud800",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from([*TOKENS, *HOSTILE]), max_size=30).map("".join)


@settings(max_examples=150)
@given(TEXTS, TEXTS, TEXTS)
def test_no_text_breaks_the_rules_and_tool_results_always_count(text, result, other):
    query = Query("q", "mine", "any", "zh", text)
    trajectory = trajectory_of(look(result), answer=other.replace("answer>", ""), query=query)
    for problem in problems_of(query, trajectory, TOOLS):
        assert problem.rule in ("form", "tool_errors", "facts") and problem.turn in (1, 2)
        assert len(problem.text) < 10_000
    quoting = [fact.text for fact in read_facts(result) if fact.kind in ("price", "distance", "percentage", "hours")]
    if not result.startswith("Error") and "\\" not in result:
        assert facts_problem("\n".join(f"It is said: {text}" for text in quoting), result, query=query) is None


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    "unit", ["1", "1,", "¥1", "9:00 - ", "1 h ", '["a', "http://a.", "May 1, ", "1\n", " ", "x 1 = ", "< |"]
)
def test_the_rules_take_linear_time(unit):
    """Quadratic time would take a minute."""
    text = (unit * 20_000)[:20_000]
    began = time.process_time()
    problems_of(QUERY, trajectory_of(look(text), answer=text), TOOLS)
    assert time.process_time() - began < 5
