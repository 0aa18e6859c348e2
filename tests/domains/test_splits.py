"""The splits that the scripted teachers make, in every domain: sizes, queries, trajectories, reproducibility."""

import random
from collections import Counter
from functools import partial

import pytest
from scripts import printed_in_two_processes

from arenarl.config.schema import DataConfig, EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains import domain as domain_module
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.domains.travel import queries as travel
from arenarl.domains.travel.queries import HELD_OUT
from arenarl.domains.travel.world import build_world
from arenarl.domains.writing import queries as writing
from arenarl.system.errors import UserError
from arenarl.trajectory import Trajectory, assistant_message, assistant_text, read_turns

SIZES = {"sft_size": 22, "rl_size": 23, "test_per_subtask": 4, "baseline_attempts": 3}
SEARCH = SearchConfig(corpus_size=500, results=3, snippet_words=20)
IN_A_PROCESS = """
from hashlib import sha256
from arenarl.config.schema import DataConfig, EnvironmentConfig, SearchConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
data = dict(sft_size=9, rl_size=8, test_per_subtask=1, baseline_attempts=2)
for name, results, language in [("travel", "compact", "en"), ("travel", "full", "zh"), ("research", "full", "en")]:
    world = EnvironmentConfig(name=name, domain=name, results=results, search=SearchConfig(corpus_size=400))
    domain = make_domain(world, DataConfig(language=language, **data))
    for split, records in domain.splits(make_environment(world, language)):
        print(split, sha256(repr(records).encode()).hexdigest())
"""


def parts_of(name, results="compact", language="en", open_share=0.5, **changes):
    """Return a domain and its environment."""
    tools = "none" if name == "writing" else name
    world = EnvironmentConfig(name=tools, domain=name, results=results, search=SEARCH)
    research = ResearchDataConfig(open_share=open_share, plain_share=1.0, hop_weights=[1, 1], max_tool_calls=4)
    data = DataConfig(language=language, research=research, **(SIZES | changes))
    return make_domain(world, data), make_environment(world, language)


def splits_of(*form, **changes):
    domain, environment = parts_of(*form, **changes)
    return dict(domain.splits(environment))


@pytest.mark.parametrize("form", [
    ("travel", "compact", "en"), ("travel", "full", "en"), ("travel", "full", "zh"), ("writing", "full", "en"),
    ("writing", "full", "zh"), ("research", "full", "en", 0.5),
    *(("research", "compact", "en", share) for share in (0.0, 1.0)),
])  # fmt: skip
def test_splits_have_their_sizes_share_no_query_and_have_trajectories_like_rollouts(form):
    domain, environment = parts_of(*form)
    splits = dict(domain.splits(environment))
    test, baselines, rl, sft = (splits[name] for name in ("test_queries", "test_baselines", "rl_queries", "sft"))
    assert (len(baselines), len(rl), len(sft)) == (len(test), 23, 22)
    assert Counter(query.subtask for query in test) == dict.fromkeys(domain.subtasks, 4)
    assert {query.subtask for query in rl} == set(domain.subtasks)
    if form[0] == "research":
        assert domain.subtasks == {0.0: (SUBTASK,), 0.5: (*OPEN_SUBTASKS, SUBTASK), 1.0: OPEN_SUBTASKS}[form[3]]
    texts = [query.query for query in test + rl] + [record["messages"][0]["content"] for record in sft]
    ids = [query.query_id for query in test + rl] + [record["query_id"] for record in sft]
    assert len({" ".join(text.lower().split()) for text in texts}) == len(set(ids)) == len(test) + 23 + 22
    assert [record["query_id"] for record in baselines] == [query.query_id for query in test]
    for record in sft + baselines:
        assert record["valid"] and Trajectory.from_record(record).answer
        assert form[0] != "writing" or record["tools"] == []
        observations = [text for turn in read_turns(record["messages"]) for text in turn.observations]
        assert not any(text.startswith("Error") for text in observations)
        turns = [message for message in record["messages"] if message["role"] == "assistant"]
        assert [assistant_message(assistant_text(turn)) for turn in turns] == turns


@pytest.mark.parametrize("name", ["travel", "research", "writing"])
def test_splits_depend_only_on_the_settings_and_the_test_set_on_no_training_size(name):
    splits, again, other = splits_of(name), splits_of(name), splits_of(name, seed=1)
    assert again == splits
    for queries in ("test_queries", "rl_queries"):
        assert not {query.query_id for query in splits[queries]} & {query.query_id for query in other[queries]}
        assert {query.query for query in splits[queries]} != {query.query for query in other[queries]}
    less = splits_of(name, sft_size=5, rl_size=7, teacher_skill=0.9)
    assert all(less[split] == splits[split] for split in ("test_queries", "test_baselines"))


def test_splits_are_the_same_in_every_process():
    outputs = printed_in_two_processes(IN_A_PROCESS)
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 12


def test_subtasks_are_spread_evenly_and_sft_has_none_that_is_held_out():
    domain, environment = parts_of("travel")
    splits = dict(domain.splits(environment))
    assert sorted(Counter(query.subtask for query in splits["rl_queries"]).values()) == [4, 4, 5, 5, 5]
    counts = Counter(record["query_id"].split("-", 2)[2].rsplit("-", 1)[0] for record in splits["sft"])
    assert sorted(counts.values()) == [5, 5, 6, 6] and set(counts) == set(domain.subtasks) - {HELD_OUT}


def test_a_baseline_is_the_attempt_of_median_quality():
    domain, environment = parts_of("travel")
    splits, rng = dict(domain.splits(environment)), random.Random("travel0-baselines")
    for query, baseline in zip(splits["test_queries"], splits["test_baselines"], strict=True):
        attempts = [domain.solve(query, environment, rng, domain.data.baseline_skill) for _ in range(3)]
        qualities = sorted(domain._quality(query, attempt) for attempt in attempts)
        assert domain._quality(query, Trajectory.from_record(baseline)) == qualities[1]


class AllTexts(set):
    def __contains__(self, text):
        return True


@pytest.mark.parametrize("name", ["travel", "writing", "closed", "open"])
def test_a_domain_without_further_queries_ends_with_an_error_instead_of_drawing_for_ever(name, monkeypatch):
    monkeypatch.setattr(domain_module, "MOST_FAILURES", 20)
    domain, environment = parts_of("research")
    make = {
        "travel": partial(travel.make_queries, build_world(0), "Search", "en"),
        "writing": partial(writing.make_queries, "Letter", "en"),
        "closed": partial(make_questions, domain.corpus, environment, domain.data.research),
        "open": partial(make_open_queries, domain.corpus),
    }[name]
    with pytest.raises(UserError, match=r"only 0 of 3 different queries could be drawn: .*(lower|raise) \w+\."):
        make(count=3, seed="none", taken=AllTexts())


def test_research_in_another_language_is_refused():
    with pytest.raises(UserError, match="data.language=zh: the research domain's queries are in English"):
        splits_of("research", "compact", "zh")
