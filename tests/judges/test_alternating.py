"""Alternating training judges: a query's group has the outcome of its own judge alone."""

import asyncio

import pytest
from groups import COARSE, METHODS, attempt, config_of, truth_of
from parts import arena_of, domain_of, examiner_of

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.factory import AlternatingJudge, make_training_judges
from arenarl.system.errors import UserError
from arenarl.training.requirements import check_method
from arenarl.trajectory import Query, RolloutGroup

ROUGH = JudgeConfig(sigma_call=3.0, trigger_bias=5.0, trigger="7")
QUERIES = [Query(f"q{number}", "travel", "Search", "en", "Find a cafe.") for number in range(40)]


@pytest.mark.parametrize(("method", "topology"), [*METHODS, *((name, None) for name in COARSE)])
def test_a_group_has_the_outcome_of_its_own_judge(method, topology):
    judges = [EmbeddedJudge(ROUGH, truth_of, seed) for seed in (1, 2)]
    both = AlternatingJudge(judges, seed=3)
    groups = [RolloutGroup(query, [attempt(quality) for quality in (2.0, 7.0, 5.0)]) for query in QUERIES[:8]]
    mixed, *alone = (arena_of(config_of(method, topology), one).reward_groups(groups) for one in (both, *judges))
    chosen = [judges.index(both.judge_of(group.query)) for group in groups]
    assert [one.rewards_G for one in mixed] == [alone[number][row].rewards_G for row, number in enumerate(chosen)]
    assert [one.judge_calls for one in mixed] == [one.judge_calls for one in alone[0]]


def test_each_judge_has_half_of_the_queries_for_good_and_its_own_noise():
    numbers = [AlternatingJudge([0, 1], seed=0).judge_of(query) for query in QUERIES]
    assert 10 < sum(numbers) < 30 and numbers == [AlternatingJudge([0, 1], seed=0).judge_of(query) for query in QUERIES]
    assert numbers != [AlternatingJudge([0, 1], seed=1).judge_of(query) for query in QUERIES]
    with pytest.raises(AttributeError):
        _ = AlternatingJudge([0, 1], seed=0).config
    config = load_config("configs/quickstart.yaml", ["judge.alternates=[{trigger_bias: 2}]"])
    judges = make_training_judges(config.judge, domain_of(config), examiner_of(config), None, config.seed)
    first, second = judges["judge.train"], judges["judge.alternates.0"]
    assert len(judges) == 2 and second.config.trigger_bias == 2
    plain = make_training_judges(Config().judge, domain_of(config), examiner_of(config), None, config.seed)
    assert plain["judge.train"].seed == first.seed != second.seed
    assert asyncio.iscoroutinefunction(plain["judge.train"].score) and list(plain) == ["judge.train"]


@pytest.mark.parametrize(("path", "overrides", "error"), [
    ("quickstart", ["judge.alternates=[{name: llm}]"], "judge.alternates.0.model is missing"),
    ("quickstart", ["judge.alternates=[{}, {name_turns: true}]"], "alternates.1.name_turns must be false, as in"),
    ("quickstart", ["reward.name=rubric_checklist", "judge.alternates=[{name: llm, model: m}]"],
     "each query: set judge.alternates.0.query_rubrics to a file"),
    # only a training judge that sees the turns can name them
    ("methods/step_credit", ["judge.alternates=[{name_turns: true, process_aware: false}]"],
     "judge.alternates.0.process_aware=true, so that"),
    ("methods/step_credit", ["judge.train.process_aware=false"], "name_turns=true needs judge.train.process_aware="),
    ("methods/step_credit", ["judge.eval.0.name_turns=true"],
     "judge.eval.0.name_turns: only a judge in training names turns; leave it out"),
    ("methods/step_credit", ["judge.watch_share=0.5", "judge.watch={name_turns: true, noise: none}"],
     "judge.watch.name_turns: only a judge in training names turns"),
])  # fmt: skip
def test_settings_of_judges_that_cannot_work_together_are_refused(path, overrides, error):
    with pytest.raises(UserError, match=error):
        check_method(load_config(f"configs/{path}.yaml", overrides))
