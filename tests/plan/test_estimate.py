import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig, RolloutConfig
from arenarl.plan.estimate import (
    count_sft_trajectories,
    count_test_queries,
    estimate_rl,
    judge_calls,
    most_calls,
    print_estimate,
)
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import Query, Trajectory, write_jsonl

LLM = JudgeConfig(name="llm", model="m", price_in=2.0, price_out=8.0)


def config_of(train=LLM, evaluate=LLM, method="tournament", **rl):
    config = Config(rollout=RolloutConfig(group_size=4))
    config.reward.name, config.judge.train, config.judge.eval = method, train, [evaluate]
    config.rl.steps, config.rl.groups, config.rl.eval_steps, config.rl.eval_queries = 10, 8, 5, 20
    for key, value in rl.items():
        setattr(config.rl, key, value)
    return config


def estimate(taught, config=None, **changes):
    baselines = {one.query.query_id: one.trajectory for one in taught[::50]}
    return estimate_rl(config or config_of(**changes), [one.query for one in taught[::50]], baselines)


def test_the_estimate_counts_calls_of_steps_and_curve_and_follows_the_size_of_the_prompts(taught):
    calls = {"pointwise_answer": 4, "pointwise_explicit": 28, "win_rate": 12, "ruler": 1, "rubric_checklist": 4}
    assert {name: estimate(taught, method=name, eval_steps=0).calls / (10 * 8) for name in calls} == calls
    assert estimate(taught, train=JudgeConfig()).calls == 3 * 20 * 2 * 2
    assert estimate(taught, train=JudgeConfig(), evaluate=JudgeConfig()).calls == 0
    usage = estimate(taught, eval_steps=0)
    assert 500 < usage.tokens_in / usage.calls < 1500 and 30 < usage.tokens_out / usage.calls < 150
    assert usage.cost == pytest.approx((2 * usage.tokens_in + 8 * usage.tokens_out) / 1e6, rel=0.01)


def test_calls_of_a_watching_judge_and_of_an_llm_verifier_are_counted(taught):
    config = config_of(train=JudgeConfig(), evaluate=JudgeConfig())
    config.judge.watch, config.judge.watch_share = LLM, 0.25
    usage = estimate(taught, config)
    assert usage.calls == judge_calls(config, "rl")["the watching judge"] == 10 * 8 * 4 / 4
    assert usage.tokens_in > 500 * usage.calls
    config.judge.watch = JudgeConfig()
    assert estimate(taught, config).calls == 0 and judge_calls(config, "rl")["the watching judge"] == 80
    config = config_of(method="correctness", eval_steps=0)
    config.judge.verifier = LLM
    closed = Query("c", "research", "synthetic_qa", "en", "?", {"answer": "a", "entities": ["b"]})
    baseline = Trajectory("c", [{"role": "assistant", "content": "<answer>\nb\n</answer>"}], "answer")
    assert estimate_rl(config, [closed], {"c": baseline}).calls == 10 * 8 * 4


def test_a_users_reward_is_tried_on_invented_trajectories_and_may_refuse_them(taught, tmp_path, monkeypatch):
    code = "def {}(query, trajectories, judge):\n    return [1.0 / (1 + one.meta['turns']) for one in {}]\n"
    (tmp_path / "planned.py").write_text(code.format("own", "trajectories") + code.format("failing", "trajectories[9]"))
    monkeypatch.syspath_prepend(tmp_path)
    assert estimate(taught, method="planned:own", eval_steps=0).calls == 0
    assert most_calls(load("reward.name=planned:own")) == 0
    message = "reward.name=planned:failing raised IndexError.* on invented trajectories; its judge calls cannot be"
    with pytest.raises(UserError, match=message):
        estimate(taught, method="planned:failing")


def load(*overrides, path="configs/travel/rl_arenarl_qwen3_8b.yaml"):
    return load_config(ROOT / path, list(overrides))


@pytest.mark.parametrize(("overrides", "calls"), [
    ([], 60), (["tournament.bidirectional=false"], 30), (["tournament.topology=round_robin"], 240),
    (["tournament.topology=anchor"], 30), (["tournament.topology=swiss"], 64),
    (["tournament.topology=double_elimination"], 60), (["tournament.topology=balanced"], 60),
    (["tournament.topology=balanced", "tournament.matches=n"], 32), (["reward.name=pointwise_answer"], 16),
    (["reward.name=pointwise_trajectory"], 16), (["reward.name=win_rate"], 240),
    (["reward.name=pointwise_implicit"], 16), (["reward.name=pointwise_explicit"], 16 * 7),
    (["reward.name=tournament_grpo"], 56), (["reward.name=ruler"], 1), (["reward.name=brpo"], 30),
    (["reward.name=rubric_checklist"], 16), (["reward.name=elo"], 128), (["tournament.topology=elo"], 128),
    (["reward.name=elo", "tournament.elo_matches=15"], 30), (["reward.name=mixture"], 16 + 240),
    (["reward.name=mixture", "reward.mixture_pairs=elo"], 16 + 128),
])  # fmt: skip
def test_most_calls_of_a_group_of_16(overrides, calls):
    assert most_calls(load(*overrides)) == calls


def test_the_judge_calls_of_a_run_are_counted_with_each_turn_budget_of_a_world():
    """200 steps of 8 groups; a curve at steps 0, 20, …, 200 of 50 queries, 2 decodings, 2 orders;
    250 test queries, 2 x 2, 2 policies."""
    assert judge_calls(load(), "sft") == {}
    assert judge_calls(load(), "rl") == {"rewards": 200 * 8 * 60, "the curve": 11 * 50 * 2 * 2}
    assert judge_calls(load(), "evaluate") == {"the evaluation": 250 * 2 * 2 * 2}
    bracket = judge_calls(load("evaluate.bracket=true", "judge.eval=[{}, {}]"), "evaluate")
    assert bracket == {"the evaluation": 250 * 2 * 2 * 2 * 2, "the bracket": 250 * (2 * 4 - 2)}  # of 4 trajectories
    assert judge_calls(load("rl.eval_steps=0", "judge.eval=[{}, {}]"), "rl")["the curve"] == 0
    assert judge_calls(load("judge.eval=[{}, {}]"), "evaluate") == {"the evaluation": 250 * 2 * 2 * 2 * 2}
    assert judge_calls(load(path="configs/travel/closed_models.yaml"), "evaluate") == {
        "the evaluation": 250 * 4 * 1 * 2
    }
    budgets, ratios = "evaluate.max_turns=[5,10,20]", []
    for path in ("configs/agentgym/textcraft.yaml", "configs/quickstart.yaml"):
        with_budgets, alone = (judge_calls(load(*more, path=path), "evaluate") for more in ([budgets], []))
        ratios.append(with_budgets["the evaluation"] / alone["the evaluation"])
    assert ratios == [3.0, 1.0]  # elsewhere trajectories are cut


def test_published_queries_and_undivided_trajectories_are_counted_in_the_prepared_files(tmp_path):
    published = {"path": "configs/travel/open_travel_qwen3_8b.yaml"}
    config = load(f"data.folder={tmp_path}/test", **published)
    with pytest.raises(UserError, match="test_queries.jsonl does not exist; make it with"):
        count_test_queries(config)
    query = {"domain": "travel", "subtask": "Search", "language": config.data.language}
    queries = [query | {"query_id": str(i), "query": str(i)} for i in range(3)]
    write_jsonl(tmp_path / "test" / "test_queries.jsonl", queries)
    assert count_test_queries(config) == 3
    before = count_sft_trajectories(load(f"data.folder={tmp_path}", **published))
    write_jsonl(tmp_path / "sft.jsonl", [{}] * 7)
    assert count_sft_trajectories(load(f"data.folder={tmp_path}", **published)) == 7
    divided = load(f"data.folder={tmp_path}", "data.divide=true", **published)
    assert count_sft_trajectories(divided) == divided.data.sft_size == before
    assert count_sft_trajectories(load(f"data.folder={tmp_path}")) == load().data.sft_size


def lines_of(capsys, config, stage="rl"):
    print_estimate(config, stage)
    return capsys.readouterr().out.splitlines()


def test_a_run_with_too_small_a_budget_is_warned_of_its_typical_or_highest_cost(capsys):
    judge = f"judge.train.base={ROOT}/configs/judges/qwen3_max.yaml"
    (line,) = lines_of(capsys, load(judge, path="configs/quickstart.yaml"))
    typical, most = (float(cost.replace(",", "")) for cost in re.findall(r"cost ([\d,.]+\d)", line))
    assert 0 < typical < most
    for limit, kind in ((typical - 1, "typical"), (most - 1, "highest possible"), (most + 1, None)):
        _, *warnings = lines_of(capsys, load(judge, f"judge.max_cost={limit}", path="configs/quickstart.yaml"))
        assert [f"below the {kind} cost of rl" in warning for warning in warnings] == [True] * (kind is not None)


def test_without_a_price_no_cost_is_printed_and_cached_tokens_have_their_own(capsys):
    (line,) = lines_of(capsys, load("judge.train={name: llm, model: m}", path="configs/quickstart.yaml"))
    assert "set price_in and price_out to see the cost" in line and "at most" in line and line.count("cost") == 1
    print_estimate(Config(), "rl")
    assert capsys.readouterr().out == ""
    llm = replace(LLM, price_cached=0.5)
    assert (LLM.cost(1000, 100, 600), llm.cost(1000, 100, 600)) == pytest.approx((2.8e-3, 1.9e-3))


@pytest.mark.parametrize("document", ["README.md", "docs/judges.md", "docs/paper_scale.md"])
def test_max_cost_in_a_documents_command_suffices_for_it(document, capsys):
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [
        shlex.split(line, comments=True) for line in re.findall("^    .*judge.max_cost=.*$", text, re.MULTILINE)
    ]
    assert commands
    for command in commands:
        stage = "evaluate" if "evaluate" in " ".join(command[:5]) else "rl"
        path = command[command.index("--config") + 1] if "--config" in command else "configs/quickstart.yaml"
        overrides = [word for before, word in pairwise(command) if before == "--set"]
        estimate, *warnings = lines_of(capsys, load(*overrides, path=path), stage)
        assert "at most" in estimate and not warnings
