import pytest

from arenarl.config.schema import Config, JudgeConfig, RolloutConfig
from arenarl.plan.estimate import estimate_rl, print_estimate

LLM = JudgeConfig(name="llm", model="m", price_in=2.0, price_out=8.0)


def config_of(train=LLM, evaluate=LLM, method="tournament", **rl):
    config = Config(rollout=RolloutConfig(group_size=4))
    config.reward.name, config.judge.train, config.judge.eval = method, train, [evaluate]
    config.rl.steps, config.rl.groups, config.rl.eval_steps, config.rl.eval_queries = 10, 8, 5, 20
    for key, value in rl.items():
        setattr(config.rl, key, value)
    return config


def estimate(taught, **how):
    some = taught[::50]
    return estimate_rl(config_of(**how), [one.query for one in some], {one.query.query_id: one.trajectory for one in some})


@pytest.mark.parametrize(("method", "calls"), [("pointwise_answer", 4), ("pointwise_explicit", 28), ("win_rate", 12)])
def test_the_calls_are_those_of_all_steps(taught, method, calls):
    assert estimate(taught, method=method, eval_steps=0).calls == 10 * 8 * calls


def test_the_curve_asks_about_every_case_in_both_orders_and_with_both_decodings(taught):
    assert estimate(taught, train=JudgeConfig()).calls == 3 * 20 * 2 * 2
    assert estimate(taught, train=JudgeConfig(), evaluate=JudgeConfig()).calls == 0


def test_tokens_and_cost_are_of_the_size_of_the_prompts(taught):
    usage = estimate(taught, eval_steps=0)
    assert 500 < usage.tokens_in / usage.calls < 1500 and 30 < usage.tokens_out / usage.calls < 150
    assert usage.cost == pytest.approx((2 * usage.tokens_in + 8 * usage.tokens_out) / 1e6, rel=0.01)


def test_without_an_llm_nothing_is_printed(capsys):
    print_estimate(Config(), "rl")
    assert capsys.readouterr().out == ""
