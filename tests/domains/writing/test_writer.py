"""The scripted writer, of deliberately mixed quality in both languages, and its data."""

import random
from statistics import mean, pstdev

import pytest
from parts import domain_of, trainer_judge_of

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine
from arenarl.domains.writing.writer import HABITS, solve
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, read_turns, write_jsonl

SIZES = {"sft_size": 41, "rl_size": 10, "test_per_subtask": 3}


def quality(query, trajectory):
    return domain_rubric("writing", query.language).total(examine(query, trajectory.messages).dimensions())


def config_of(folder="", language="en"):
    data = DataConfig(folder=str(folder), language=language, **SIZES)
    return Config(environment=EnvironmentConfig(name="none", domain="writing"), data=data)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_skill_raises_quality_and_texts_are_single_turns_in_the_querys_language(language):
    queries = [query for subtask in SUBTASKS for query in make_queries(subtask, language, 40, "tests", set())]
    by_skill = {}
    for skill in (0, 0.1, 0.4, 1):
        solved = [solve(query, random.Random(index), skill) for index, query in enumerate(queries)]
        by_skill[skill] = [quality(*pair) for pair in zip(queries, solved, strict=True)]
        for query, trajectory in zip(queries[::20], solved[::20], strict=True):
            (turn,) = read_turns(trajectory.messages)
            assert turn.thought and turn.answer and not turn.tool_calls and trajectory.valid
            assert set(trajectory.meta["habits"]) == set(HABITS)
            is_chinese = any("\u4e00" <= character <= "\u9fff" for character in query.query + turn.answer)
            assert is_chinese == (language == "zh")
    means = [mean(qualities) for qualities in by_skill.values()]
    assert means == sorted(means) and means[-1] == 10 and means[0] < 3.5
    assert pstdev(by_skill[0.1]) > 0.5 and pstdev(by_skill[0.4]) > 1 and len(set(by_skill[0.4])) > 40


@pytest.mark.parametrize("language", ["en", "zh"])
def test_splits_have_their_sizes_share_no_query_and_are_reproducible(language):
    domain = domain_of(config_of(language=language))
    splits = dict(domain.splits(None))
    counts = {name: len(records) for name, records in splits.items()}
    assert counts == {"test_queries": 12, "test_baselines": 12, "rl_queries": 10, "sft": 41}
    texts = [query.query for query in splits["test_queries"] + splits["rl_queries"]]
    texts += [record["messages"][0]["content"] for record in splits["sft"]]
    assert Trajectory.from_record(splits["sft"][0]).valid and splits["sft"][0]["tools"] == []
    assert len(set(texts)) == len(texts)
    assert dict(domain.splits(None)) == splits
    careful = sum(all(record["meta"]["habits"].values()) for record in splits["sft"])
    assert 5 < careful < 25


def test_the_simulated_judge_refuses_published_queries_and_own_ones_have_no_truth(tmp_path):
    config = config_of(tmp_path)
    domain = domain_of(config)
    query = make_queries("Letter", "en", 1, "tests", set())[0]
    assert domain.has_truth(query)
    assert trainer_judge_of(config).weights(query).keys() == domain_rubric("writing", "en").weights.keys()
    write_jsonl(tmp_path / "rl_queries.jsonl", [Query("a", "writing", "poem", "en", "Write a poem.")])
    assert not domain.has_truth(domain.read_split("rl")[0])
    assert domain.subtasks_of(domain.read_split("rl")) == (*SUBTASKS, "poem")
    config.data.source = ["somewhere"]
    with pytest.raises(UserError, match="published queries .* have no truth for the embedded judge"):
        trainer_judge_of(config)
