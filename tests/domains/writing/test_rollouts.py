"""Writing in the rollout engine and the tournament: one turn, no tools."""

import pytest
from parts import arena_of, examiner_of, trainer_judge_of
from policies import Scripted, call, think

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker
from arenarl.domains.writing.queries import make_queries
from arenarl.domains.writing.writer import HABITS, write
from arenarl.evaluation.evaluation import Panel, judge_trajectories
from arenarl.judges.judge import true_quality
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import NoTools, ToolError
from arenarl.trajectory import RolloutGroup, assistant_text, read_turns

QUERY = make_queries("Letter", "en", 1, "tests", set())[0]
REFUSAL = think("<answer>\nI am sorry, but I cannot write this.\n</answer>")
EMPTY = think("<answer>\n\n</answer>")


def config_of(noise="none"):
    config = Config(environment=EnvironmentConfig(name="none", domain="writing"), data=DataConfig(language="en"))
    config.judge.train.noise = config.judge.eval[0].noise = noise
    return config


def texts(*without):
    """Return the writer's turns; each argument has the habits that are off in one of them."""
    trajectories = [write(QUERY, {habit: habit not in off for habit in HABITS}, 0) for off in without]
    return [assistant_text(trajectory.messages[-1]) for trajectory in trajectories]


def roll_out(tokenizer, *turns, tokens=400, schemas=True):
    """Roll out one trajectory per turn."""
    limits = RolloutConfig(max_turns=1, max_tokens=tokens, max_turn_tokens=tokens)
    make = environment_maker(EnvironmentConfig(name="none"), "en")
    policies = [Scripted(tokenizer, {QUERY.query: [turn]}) for turn in turns]
    engines = [RolloutEngine(policy, tokenizer, make, limits, schemas_in_prompt=schemas) for policy in policies]
    return [engine.roll_out([Attempt(QUERY, 0.0, 1)])[0] for engine in engines]


def reward(trajectories, noise="simulated"):
    config = config_of(noise)
    return arena_of(config, trainer_judge_of(config)).reward_groups([RolloutGroup(QUERY, trajectories)])[0]


@pytest.mark.parametrize("schemas", [True, False])
def test_a_trajectory_has_query_thinking_and_text(schemas, tokenizer):
    (text,) = texts(())
    (trajectory,) = roll_out(tokenizer, text, schemas=schemas)
    (turn,) = read_turns(trajectory.messages)
    assert trajectory.stop_reason == "answer" and turn.thought and turn.answer == trajectory.answer
    prompt = f"<|im_start|>user\n{QUERY.query}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(trajectory.prompt_ids) == prompt
    assert true_quality(examiner_of(config_of()), QUERY, trajectory) == 10


def test_a_tool_call_gives_no_text_and_an_error_about_missing_tools(tokenizer):
    (trajectory,) = roll_out(tokenizer, call("search", query="a letter"))
    assert trajectory.stop_reason == "max_turns" and not trajectory.valid
    with pytest.raises(ToolError, match="there are no tools; reply with your text"):
        NoTools().call("search", {})


def test_better_texts_have_better_ranks(tokenizer):
    worse = texts((), ("vary",), ("words",), ("words", "tone"), ("words", "tone", "quote"))
    rewards_G = reward(roll_out(tokenizer, *worse), noise="none").rewards_G
    assert rewards_G == sorted(rewards_G, reverse=True) and rewards_G[0] == 1 > rewards_G[-1] == 0


def test_empty_and_cut_texts_are_invalid_and_identical_texts_share_a_rank(tokenizer):
    good, bad = texts((), ("quote", "tone"))
    cut = roll_out(tokenizer, good, tokens=40)[0]
    empty, whole, worse, same = roll_out(tokenizer, EMPTY, good, bad, bad)
    assert (cut.stop_reason, empty.stop_reason) == ("max_tokens", "no_answer")
    outcome = reward([whole, cut, worse, empty, same], noise="none")
    assert outcome.ranking.ranks_G == [0, 3.5, 1.5, 3.5, 1.5] and outcome.judge_calls == 2


def test_a_refusal_is_a_valid_text_that_loses(tokenizer):
    refusal, good, bad = roll_out(tokenizer, REFUSAL, *texts((), tuple(HABITS)))
    assert refusal.valid and true_quality(examiner_of(config_of()), QUERY, refusal) == 0
    assert reward([refusal, good, bad], noise="none").ranking.ranks_G == [2, 0, 1]
    config = config_of()
    panel = Panel([trainer_judge_of(config)], examiner_of(config))
    (case,) = judge_trajectories([QUERY], [refusal], {QUERY.query_id: bad}, panel)
    assert (case.outcomes <= 0).all() and case.quality == 0
