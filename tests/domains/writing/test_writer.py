"""The scripted writer: deliberately of mixed quality, in both languages, and its data is what the other domains' is."""

import random
from statistics import mean, pstdev

import pytest
from parts import domain_of, trainer_judge_of

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine
from arenarl.domains.writing.writer import HABITS, solve, writing_splits
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, read_turns, write_jsonl

SIZES = {"sft_size": 41, "rl_size": 10, "test_per_subtask": 3}


def quality(query, trajectory):
    return domain_rubric("writing", query.language).total(examine(query, trajectory.messages).dimensions())


def config_of(folder="", language="en"):
    return Config(
        environment=EnvironmentConfig(name="none", domain="writing"),
        data=DataConfig(folder=str(folder), language=language, **SIZES),
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_skill_pays_and_a_careless_writers_texts_are_mixed(language):
    queries = [query for subtask in SUBTASKS for query in make_queries(subtask, language, 40, "tests", set())]
    by_skill = {}
    for skill in (0, 0.1, 0.4, 1):
        solved = [solve(query, random.Random(index), skill) for index, query in enumerate(queries)]
        by_skill[skill] = [quality(*pair) for pair in zip(queries, solved, strict=True)]
    means = [mean(qualities) for qualities in by_skill.values()]
    assert means == sorted(means) and means[-1] == 10 and means[0] < 3.5
    assert pstdev(by_skill[0.1]) > 0.5 and pstdev(by_skill[0.4]) > 1 and len(set(by_skill[0.4])) > 40


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_text_is_one_turn_of_thinking_and_text_in_the_language_of_the_query(language):
    for query in make_queries("Speech", language, 20, "tests", set()):
        trajectory = solve(query, random.Random(query.query_id), 0.6)
        (turn,) = read_turns(trajectory.messages)
        assert turn.thought and turn.answer and not turn.tool_calls and trajectory.valid
        assert set(trajectory.meta["habits"]) == set(HABITS)
        assert any("\u4e00" <= character <= "\u9fff" for character in query.query + turn.answer) == (language == "zh")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_splits_have_the_sizes_asked_for_share_no_query_and_come_again_the_same(language):
    config = config_of(language=language).data
    splits = dict(writing_splits(config))
    counts = {name: len(records) for name, records in splits.items()}
    assert counts == {"test_queries": 12, "test_baselines": 12, "rl_queries": 10, "sft": 41}
    texts = [query.query for query in splits["test_queries"] + splits["rl_queries"]]
    texts += [record["messages"][0]["content"] for record in splits["sft"]]
    assert Trajectory.from_record(splits["sft"][0]).valid and splits["sft"][0]["tools"] == []
    assert len(set(texts)) == len(texts)
    assert dict(writing_splits(config)) == splits
    careful = sum(all(record["meta"]["habits"].values()) for record in splits["sft"])
    assert 5 < careful < 25


def test_the_embedded_judge_scores_a_text_by_its_truth_and_refuses_queries_without_one(tmp_path):
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
