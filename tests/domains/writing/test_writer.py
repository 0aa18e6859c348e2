"""The scripted writer, of deliberately mixed quality in both languages, and its texts in the rollout engine."""

import random
from statistics import mean, pstdev

import pytest
from parts import domain_of, trainer_judge_of
from policies import Scripted, call

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine
from arenarl.domains.writing.writer import HABITS, solve, write
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import NoTools, ToolError
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, assistant_text, read_turns, write_jsonl

LETTER = make_queries("Letter", "en", 1, "tests", set())[0]
WRITING = EnvironmentConfig(name="none", domain="writing")


def quality(query, trajectory):
    return domain_rubric("writing", query.language).total(examine(query, trajectory.messages).dimensions())


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


def test_the_simulated_judge_refuses_published_queries_and_own_ones_have_no_truth(tmp_path):
    config = Config(environment=WRITING, data=DataConfig(folder=str(tmp_path), language="en"))
    domain = domain_of(config)
    assert domain.has_truth(LETTER)
    assert trainer_judge_of(config).weights(LETTER).keys() == domain_rubric("writing", "en").weights.keys()
    write_jsonl(tmp_path / "rl_queries.jsonl", [Query("a", "writing", "poem", "en", "Write a poem.")])
    assert not domain.has_truth(domain.read_split("rl")[0])
    assert domain.subtasks_of(domain.read_split("rl")) == (*SUBTASKS, "poem")
    config.data.source = ["somewhere"]
    with pytest.raises(UserError, match="published queries .* have no truth for the embedded judge"):
        trainer_judge_of(config)


def roll_out(tokenizer, turn, schemas=True):
    limits = RolloutConfig(max_turns=1, max_tokens=400, max_turn_tokens=400)
    make, policy = environment_maker(WRITING, "en"), Scripted(tokenizer, {LETTER.query: [turn]})
    return RolloutEngine(policy, tokenizer, make, limits, schemas).roll_out([Attempt(LETTER, 0.0, 1)])[0]


@pytest.mark.parametrize("schemas", [True, False])
def test_a_trajectory_has_query_thinking_and_text(schemas, tokenizer):
    text = assistant_text(write(LETTER, dict.fromkeys(HABITS, True), 0).messages[-1])
    trajectory = roll_out(tokenizer, text, schemas)
    (turn,) = read_turns(trajectory.messages)
    assert trajectory.stop_reason == "answer" and turn.thought and turn.answer == trajectory.answer
    prompt = f"<|im_start|>user\n{LETTER.query}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(trajectory.prompt_ids) == prompt
    assert quality(LETTER, trajectory) == 10


def test_a_tool_call_gives_no_text_and_an_error_about_missing_tools(tokenizer):
    trajectory = roll_out(tokenizer, call("search", query="a letter"))
    assert trajectory.stop_reason == "max_turns" and not trajectory.valid
    with pytest.raises(ToolError, match="there are no tools; reply with your text"):
        NoTools().call("search", {})
