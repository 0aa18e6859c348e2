"""Pass@k and test-time turns: numbers by hand; a cut trajectory equals a rollout with the smaller budget."""

import math

import numpy as np
import pytest
from policies import Scripted, call
from worlds import Counter

from arenarl.config.schema import Config, EvaluateConfig, RolloutConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS, TravelTruth
from arenarl.evaluation.evaluation import Case, Panel
from arenarl.evaluation.inference_scaling import estimates, pass_at_k, rollout_budgets, scaling_figures, within
from arenarl.evaluation.parts import figures_of_checkpoints, read_parts, run_parts
from arenarl.judges.judge import Verdict
from arenarl.report.summary import pass_rows, turns_rows
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import NoTools
from arenarl.rollout.generation import GeneratedTurn
from arenarl.trajectory import Query, Trajectory

TOTAL = domain_rubric("travel", "en").total

DIMENSIONS = PATH_DIMENSIONS + ANSWER_DIMENSIONS
W, L, N = 1.0, 0.0, math.nan


class Wanderer:
    """A policy that searches up to four times before it answers, depending on its seed."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request):
        turn = self.tokenizer.decode(request.token_ids).count("<|im_start|>assistant")
        answer = f"<think>\ndone\n</think>\n\n<answer>\nplace {request.seed % 1000}\n</answer>"
        search = call("universal_search", query="quiet cafe in Chengdu")
        text = answer if turn > 4 or request.seed % 3 == 0 else search
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


def case(query, turns=2, leads=(1.0,), meets=True):
    """Return a case. `leads` are points over the baseline in one order, by judge; None: no verdict; (): invalid."""
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [{"role": "user", "content": "q"}]
    for _ in range(turns - 1):
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "r"}]
    messages.append({"role": "assistant", "content": "<answer>\nx\n</answer>"})
    calls = [(None, None) if lead is None else (verdict(5 + lead, 5), verdict(5, 5)) for lead in leads]
    signs = [N if lead is None else float(np.sign(lead)) for lead in leads] or [-1.0]
    outcomes = [[sign] * len(DIMENSIONS) for sign in signs]
    trajectory = Trajectory(query.query_id, messages, "answer" if leads else "no_answer")
    return Case(query, trajectory, TravelTruth(constraints={"budget": meets, "open": True}), np.array(outcomes), calls)


def verdict(*scores):
    return Verdict(tuple(dict.fromkeys(DIMENSIONS, float(score)) for score in scores), TOTAL)


def query(name, subtask="Search"):
    return Query(name, "travel", subtask, "en", name)


def test_pass_at_k_of_each_query_worked_by_hand_without_missing_verdicts():
    """With 1 pass in 3 samples: 1/3, 2/3, 1. With 2 passes: 2/3, 1, 1."""
    passed = np.array([[[W], [L], [L]], [[L], [W], [W]], [[L], [L], [L]]])
    assert [estimates(passed, k).tolist() for k in (1, 2, 3)] == [
        pytest.approx(row) for row in ([1 / 3, 2 / 3, 0], [2 / 3, 1, 0], [1, 1, 0])
    ]
    # One judge: 1 pass in 2 samples. The other: 2 in 3. k=1: (1/2 + 2/3) / 2; k=3: the second judge alone.
    passed = np.array([[[W, W], [N, W], [L, L]]])
    assert estimates(passed, 1) == pytest.approx([(1 / 2 + 2 / 3) / 2])
    assert estimates(passed, 3) == pytest.approx([1.0])
    assert np.isnan(estimates(np.full((1, 2, 1), N), 1)).all()


def test_a_pass_is_a_valid_win_or_all_constraints_met_and_the_mean_is_over_queries_then_subtasks():
    q = query("q")
    samples = [[case(q)], [case(q, leads=(0.0,), meets=False)], [case(q, leads=(-1.0,))], [case(q, leads=())]]
    found = pass_at_k(samples, resamples=0, seed=0)  # a win of four; constraints met by the first and the third
    assert [figure["mean"] for figure in found["win"]] == [25.0, 50.0, 75.0, 100.0]
    assert [figure["mean"] for figure in found["constraints"]] == [50.0, pytest.approx(83.3333), 100.0, 100.0]
    # Search: queries with 1 and 0 of 2 passed, 25 %; M-Day: one with 2 of 2, 100 %. Together 62.5 %.
    a, b, c = query("a"), query("b"), query("c", "M-Day")
    samples = [[case(a), case(b, leads=()), case(c)], [case(a, leads=()), case(b, leads=()), case(c)]]
    figure = pass_at_k(samples, resamples=200, seed=0)["win"][0]
    assert figure["mean"] == 62.5 and figure["ci"][0] < 62.5 < figure["ci"][1]


def test_figures_by_turns_count_longer_trajectories_as_invalid():
    q = [query("a"), query("b"), query("c"), query("d")]
    first = [case(q[0], 2), case(q[1], 3), case(q[2], 5, leads=(-1.0,)), case(q[3], 2, leads=())]
    second = [case(q[0], 3), case(q[1], 2, leads=(-1.0,)), case(q[2], 5), case(q[3], 2)]
    found = scaling_figures([first, second], [2, 4, 8], 0, 0)
    by_turns = found["by_turns"]
    assert list(by_turns) == ["2", "4", "8"] and by_turns["8"]["pass_at_k"] == found["pass_at_k"]
    assert [by_turns[turns]["valid_rate"]["mean"] for turns in by_turns] == [37.5, 62.5, 87.5]  # 3, 5, 7 of 8 are valid
    assert [by_turns[turns]["win_rate"]["mean"] for turns in by_turns] == [25.0, 50.0, 62.5]
    assert [by_turns[turns]["tool_calls"]["mean"] for turns in by_turns] == [1.5, 2.0, 2.0]
    wins = [[figure["mean"] for figure in by_turns[turns]["pass_at_k"]["win"]] for turns in by_turns]
    assert wins == [[25.0, 50.0], [50.0, 75.0], [62.5, 100.0]]


def test_the_tables_show_every_budget_and_doubling_samples_or_nothing():
    two = [case(query("a")), case(query("b"))]
    samples = {"rl sampled": [two] * 6, "rl greedy": [two]}
    policies = {name: scaling_figures(some, [2, 8], 20, 0) for name, some in samples.items()}
    assert [row[0] for row in turns_rows(policies)[1:]] == [f"{name}, {n} turns" for name in policies for n in (2, 8)]
    heads, *rows = pass_rows(policies)
    assert heads == ["", "pass@1 %", "pass@2 %", "pass@4 %", "pass@6 %"]
    for row, what in zip(rows, ("beats the baseline", "meets all constraints"), strict=True):
        assert row == [f"rl sampled: {what}", *["100.0 [100.0, 100.0]"] * 4]
    assert scaling_figures([[case(query("a"))]], None, 0, 0) == {}
    assert turns_rows({"sft greedy": {}}) == pass_rows({"sft greedy": {}}) == []


def test_a_cut_trajectory_equals_a_rollout_with_the_smaller_budget(tokenizer, compact):
    engine = RolloutEngine(
        Wanderer(tokenizer), tokenizer, lambda: compact, RolloutConfig(max_tokens=4000), schemas_in_prompt=False
    )
    queries = [query(f"Find a quiet cafe, please, number {number}.") for number in range(20)]

    def roll_out(turns):
        return engine.roll_out([Attempt(q, 0.8, seed, turns) for seed, q in enumerate(queries)])

    whole = [Case(q, trajectory, None, np.empty((0, 7))) for q, trajectory in zip(queries, roll_out(8), strict=True)]
    taken = [one.trajectory.meta["turns"] for one in whole]
    assert min(taken) == 1 and max(taken) == 5
    for turns in (1, 2, 3, 5):
        for one, trajectory in zip(whole, roll_out(turns), strict=True):
            cut = within(one, turns).trajectory
            assert (cut.messages, cut.stop_reason) == (trajectory.messages, trajectory.stop_reason)
            assert cut.valid == (one.trajectory.meta["turns"] <= turns)


class Undecided:
    async def compare(self, *_):
        return verdict(5, 5)

    async def score(self, *_):
        return verdict(5)


def test_in_a_world_each_budget_has_trajectories_of_its_own(tokenizer, tmp_path):
    """The goal is 2, 4 or 9 turns up. With 3 turns one query is won, with 5 two, and each trajectory is whole."""
    queries = [Query(f"q{goal}", "travel", "x", "en", f"Task {goal}.", {"goal": goal}) for goal in (2, 4, 9)]
    up = {query.query: [call("act", action="up")] * 9 for query in queries}
    make, panel = type("Fresh", (Counter,), {}), Panel([Undecided()], None)
    config = Config(evaluate=EvaluateConfig(max_turns=[3, 5], decodings=["greedy"], bootstrap=20))
    engine = RolloutEngine(
        Scripted(tokenizer, up), tokenizer, make, RolloutConfig(max_tokens=600, max_turn_tokens=100), False
    )
    assert rollout_budgets(config, make) == [5, 3] and rollout_budgets(config, NoTools) == [5]
    baselines = {query.query_id: Trajectory(query.query_id, [], "no_answer") for query in queries}

    def evaluate(baselines=baselines, folder=tmp_path):
        parts = read_parts(config, {"p": "nowhere"}, folder, [5, 3])
        missing = [key for key, part in parts.items() if part.trajectories is None]
        tested = run_parts(config, parts, lambda name: engine, queries, baselines, panel, None, lambda: None)
        return missing, tested, figures_of_checkpoints(config, tested)["p"]["greedy"]

    missing, tested, figures = evaluate()
    assert missing == [("p", "greedy", 0, 5), ("p", "greedy", 0, 3)]
    by_turns = tested.by_turns["p", "greedy"]
    ends = {turns: [case.trajectory.stop_reason for case in cases] for turns, (cases,) in by_turns.items()}
    assert ends == {5: ["done", "done", "horizon"], 3: ["done", "horizon", "horizon"]}
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["p_greedy.jsonl", "p_greedy_3turns.jsonl"]
    rewards = {turns: found["world_reward"]["mean"] for turns, found in figures["by_turns"].items()}
    assert rewards == {"3": 0.6, "5": 1.0333}  # (1.2 + .3 + .3) / 3, (1.2 + 1.4 + .5) / 3
    assert figures["world_reward"]["mean"] == rewards["5"]
    assert [row[0] for row in turns_rows({"p greedy": figures})[1:]] == ["p greedy, 3 turns", "p greedy, 5 turns"]
    again = evaluate()
    assert again[0] == [] and again[2] == figures  # from the stored trajectories
    _, tested, figures = evaluate({}, tmp_path / "alone")  # the policy's trajectories are the baselines
    assert tested.reference == "p greedy"
    found = [(at_budget["score"]["mean"], at_budget["win_rate"]["mean"]) for at_budget in figures["by_turns"].values()]
    assert found == [(5.0, None)] * 2
