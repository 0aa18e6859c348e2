import random

import pytest
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.travel.contradictions import contradictions_of
from arenarl.domains.travel.domain import TravelDomain
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.trajectory import Query

SEARCH = {"category": "cafe", "max_price_yuan": 40, "radius_m": 2000, "open_at": "19:00"}
DAY = {"city": "Wuhan", "categories": ["museum", "restaurant"], "evening": "restaurant", "budget_yuan": 100}
COMPARE = {"from_city": "Wuhan", "to_city": "Xian", "max_price_yuan": 400, "arrive_by": "15:00"}
WAY = {"stops": ["Lotus Park", "Jade Museum", "Pine Mall"], "mode": "walking", "max_minutes": 60}
JOURNEYS = "Train G10 08:00-12:00 ¥300\nFlight CA1234 09:00-10:40 ¥450\n"


def contradictions(subtask, wanted, answer):
    return contradictions_of(Query("q", "travel", subtask, "en", "?", wanted), answer)


SOUND = [
    ("Search", SEARCH, "I recommend Drum Cafe: ¥30 09:00-21:00 1.8km."),
    ("Search", SEARCH, "Drum Cafe costs ¥40 and closes at 02:00 (18:00-02:00), 2.0 km away; Bell Cafe would be ¥80."),
    ("Search", SEARCH, "推荐鼓楼咖啡馆，人均30元，营业时间09:00-21:00。"),
    ("Search", SEARCH, "The cafe is nice."),
    ("1-Day", DAY, "10:00 Lotus Museum ¥30 09:00-17:00\n19:00 Bell Restaurant ¥60 10:00-22:00\nTotal: ¥90 of ¥100"),
    ("1-Day", DAY, "Morning: the Palace (09:00-11:00)\nEvening\nDinner at Da Dong, ¥60"),
    ("1-Day", DAY, "上午10:00 故宫，门票60元\n晚上 全聚德烤鸭，吃饭40元"),
    ("1-Day", DAY, "1. Lotus Museum: open 09:00-11:30 and 13:00-17:00, ¥30\n"
                   "2. Louwailou: ¥60, 10:30-14:30 and 16:30-21:00, in the evening"),
    ("1-Day", DAY, "14：00 Lotus Museum ¥30 9:00 am-5:00 pm\n晚上7:00 Bell Restaurant ¥60 10:00-22:00"),
    ("Compare", COMPARE, "I recommend G10.\n" + JOURNEYS),
    ("Compare", COMPARE | {"priority": "cheap"}, JOURNEYS + "take G10"),
    ("Direction", WAY, "Lotus Park > Jade Museum > Pine Mall\nwalking 3.0km 55min\ndriving 3.5km 70min"),
    ("Direction", WAY, "从荷花公园步行到玉泉博物馆，再到松风商场，约55分钟"),
    ("Direction", {"stops": ["故宫博物院", "天坛公园"]}, "先到故宫，再去天坛。"),
    ("Direction", WAY, "Way to Pine Mall by Jade Museum:\nWalk from Lotus Park to Jade Museum, then to Pine Mall."),
    ("packing", {}, "¥1000000"),
    ("Search", {"max_price_yuan": "cheap"}, "¥1000000"),
]  # fmt: skip
SOUND_ADVICE = [
    "I recommend G10", "I recommend G10.\nDo not take flight CA1234: it is over your limit.",
    "Take G10.\nFlight CA1234 is not the best choice here.", "推荐G10。\n不建议选择CA1234，超出预算。",
    "Take G10 rather than CA1234.", "CA1234, though fast, is not recommended.",
    "推荐G10。\n不推荐航班MU5678，CA1234。", "Take G10 rather than MU5678, CA1234.", "选择G10而非MU5678、CA1234",
    "CA1234 costs ¥1,200, avoid it and take G10.", "Take G10, not the cheaper but slower CA1234.",
    "I recommend G10 over CA1234, which is not in budget.",
    "I recommend G10, as it is not only cheap but faster than CA1234.", "Do not take flight CA1234.",
]  # fmt: skip


@pytest.mark.parametrize(
    ("subtask", "wanted", "answer"), [*SOUND, *(("Compare", COMPARE, JOURNEYS + advice) for advice in SOUND_ADVICE)]
)
def test_an_answer_within_the_constraints_has_no_contradiction(subtask, wanted, answer):
    assert contradictions(subtask, wanted, answer) == []


@pytest.mark.parametrize(("subtask", "wanted", "answer", "words"), [
    ("Search", SEARCH, "I recommend Drum Cafe: ¥50.", ["50 yuan", "at most 40"]),
    ("Search", SEARCH, "推荐鼓楼咖啡馆：人均50元", ["50 yuan"]),
    ("Search", SEARCH, "Drum Cafe is 2.5 km away.", ["2.5 km", "within 2 km"]),
    ("Search", SEARCH, "Drum Cafe, 09:00-18:00", ["19:00"]),
    ("1-Day", DAY, "19:00 Bell Restaurant ¥60", ["no museum"]),
    ("1-Day", DAY, "10:00 Lotus Museum ¥60\n19:00 Bell Restaurant ¥60", ["120 yuan", "budget of 100"]),
    ("1-Day", DAY, "10:00 Lotus Museum\n19:00 Bell Restaurant\n合计：120元", ["total of 120"]),
    ("1-Day", DAY, "10:00 Lotus Museum\n14:00 Bell Restaurant", ["evening", "14:00 Bell Restaurant"]),
    ("1-Day", DAY, "08:00 Lotus Museum ¥30 09:00-17:00\n19:00 Bell Restaurant", ["08:00", "outside of the hours"]),
    ("M-Day", DAY | {"from_city": "Xian"}, "10:00 Lotus Museum\n19:00 Bell Restaurant", ["from Xian"]),
    ("Compare", COMPARE, "Train G10 08:00-12:00 ¥300\ntake G10", ["nothing of flights"]),
    ("Compare", COMPARE, JOURNEYS + "take CA1234", ["450 yuan", "at most 400"]),
    ("Compare", COMPARE, "Train G10 12:00-16:00 ¥300, no flight that day", ["G10", "after 15:00"]),
    ("Compare", {"priority": "cheap"}, JOURNEYS + "推荐 CA1234", ["G10 is cheaper"]),
    ("Compare", {"priority": "fast"}, JOURNEYS + "I recommend G10", ["CA1234 is faster"]),
    ("Direction", WAY, "Walk from Lotus Park to Pine Mall, 20min", ["stop Jade Museum"]),
    ("Direction", WAY, "Walk: Jade Museum > Lotus Park > Pine Mall", ["another order"]),
    ("Direction", WAY, "Lotus Park > Jade Museum > Pine Mall by taxi", ["by walking"]),
    ("Direction", WAY, "Lotus Park > Jade Museum > Pine Mall\nwalking 5km 1 h 15 min", ["75 min", "60 at most"]),
])  # fmt: skip
def test_a_constraint_broken_by_the_answers_words_gives_one_sentence(subtask, wanted, answer, words):
    (sentence,) = contradictions(subtask, wanted, answer)
    assert all(word in sentence for word in words)


@pytest.mark.parametrize(("results", "language"), [("compact", "en"), ("full", "en"), ("full", "zh")])
def test_contradictions_agree_with_the_truth_and_are_rare_for_a_careful_teacher(world, results, language):
    """A careful teacher sometimes plans a stop for an hour at which it is closed."""
    environment, rng = TravelEnvironment(world, results, language), random.Random(1)
    domain, found, count = TravelDomain(EnvironmentConfig(), DataConfig()), 0, 40
    for query in (query for name in SUBTASKS for query in make_queries(world, name, language, count, "blame", set())):
        for skill in (1.0, 0.5) if query.query_id.endswith("0") else (1.0,):
            trajectory = domain.solve(query, environment, rng, skill)
            if domain.contradictions(query, trajectory):
                truth = domain.examine(query, trajectory.messages)
                assert truth.constraints_met < 1 or (skill < 1 and truth.groundedness < 1)
                found += skill == 1
    assert found <= 0.1 * count * len(SUBTASKS)


WORDS = ["Lotus Museum", *"荷花公园 G10 ¥ 50 09:00 - 99:99 km min 晚上".split(), "\n", " ", "9" * 5000]
VALUES = [*SEARCH.values(), *DAY.values(), *COMPARE.values(), *WAY.values(), "fast", "(", ["[", ")"], None, -1, 10**30]
ANSWERS = st.lists(st.sampled_from([*WORDS, *HOSTILE]), max_size=30).map("".join)
WANTED = st.dictionaries(st.sampled_from([*SEARCH, *DAY, *COMPARE, *WAY, "priority", "near"]), st.sampled_from(VALUES))


@settings(max_examples=150)
@given(st.sampled_from([*SUBTASKS, "other"]), WANTED, ANSWERS)
def test_no_text_and_no_constraints_crash_the_search_for_contradictions(subtask, wanted, answer):
    assert all(isinstance(sentence, str) for sentence in contradictions(subtask, wanted, answer))
