"""Credit per turn: hand-worked advantages on the real path from the verdicts to the loss, and the judge's naming."""

import asyncio
import math
import random
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from methods import Scorer, loss_by_hand
from parts import examiner_of, world_domain

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import Verdict, truly_pivotal
from arenarl.judges.own import OwnJudge
from arenarl.judges.view import view_of
from arenarl.system.repository import CONFIGS
from arenarl.tournament.play import run_tournament
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.training.methods import gigpo, online_method, rtmc
from arenarl.training.methods.grpo import standardize
from arenarl.training.methods.step_credit import depths_of
from arenarl.trajectory import RolloutGroup, Trajectory, read_turns


def test_step_credit_raises_the_winners_named_turns_up_to_the_loss(method, monkeypatch):
    """Ranks give 1, 1/6, 1/6, 2/3 and 1/2, -, 1, 0, each with mean 1/2. Odd trajectories have two turns. The fourth
    wins only in round 1, against the second or third; the anchor and the seventh win in round 0."""

    class Naming(Scorer):
        """A judge that names the first turn of every trajectory that it compares."""

        async def compare(self, *arguments, **options):
            verdict = await super().compare(*arguments, **options)
            return verdict and replace(verdict, pivotal_turns=((1,), (1,)))

    monkeypatch.setattr("methods.Scorer", Naming)
    made = method("methods/step_credit", ours=True).roll_out()
    by_turn = [[1.0], [-1 / 3] * 2, [-1 / 3], [1 / 3, 1 / 6], [0.0], [0.0] * 2, [1.0], [-0.5] * 2]
    expected = np.zeros(made.own.shape)
    for row, turns in enumerate(by_turn):
        starts = [t for t in range(made.own.shape[1]) if made.own[row, t] and not (t and made.own[row, t - 1])]
        for (start, end), advantage in zip(pairwise([*starts, made.own.shape[1]]), turns, strict=True):
            expected[row, start:end] = advantage
    expected *= made.own
    assert made.batch["advantages"].numpy() == pytest.approx(expected, abs=1e-6)
    assert made.trainer._metrics["train"]["credit/pivotal_turns"] == [1.0, 1.0, 0.0, 1.0]
    logps = made.logps(made.initial)
    rng = np.random.default_rng(0)
    old, ref = logps + rng.normal(scale=0.3, size=logps.shape), logps + rng.normal(size=logps.shape)
    by_hand = loss_by_hand(made.config.rl, made.config.rollout.max_tokens, logps, old, ref, made.own, expected)
    assert made.loss(logps, old, ref) == pytest.approx(by_hand, rel=1e-4, abs=3e-6)


def test_without_named_turns_step_credit_is_the_centred_reward_to_the_digit(method):
    plain = method("quickstart", "rl.advantage=center", ours=True).roll_out()
    credited = method("methods/step_credit", ours=True).roll_out()  # its judge names no turn
    advantages_B = plain.batch["advantages"].numpy()
    assert np.array_equal(credited.batch["advantages"].numpy(), advantages_B[:, None] * credited.own)


@pytest.mark.parametrize(("by", "expected"), [("round", {0: 1, 2: 1, 3: 0}), ("turn", {0: 0, 2: 2, 3: 3})])
def test_depths_come_from_won_matches_in_either_order(by, expected):
    """Row 0 wins in rounds 0 and 1, loses, draws and has a failed match; row 3 has its messages."""

    def match(j, depth, score, other, named, named_in_other_order):
        pair = [{"x": 1.0, "pivotal_turns": named}, {"x": 1.0, "pivotal_turns": [5]}]
        back = [{"x": 1.0, "pivotal_turns": [5]}, {"x": 1.0, "pivotal_turns": named_in_other_order}]
        return Match(0, j, depth, (Call(0, j, (score, other), pair), Call(j, 0, (other, score), back)))

    matches = [
        match(1, 0, 6, 4, [1], [4]),
        match(2, 1, 7, 2, [3], [1]),
        match(1, 2, 2, 3, [2], [2]),
        match(2, 2, 4, 4, [2], []),
        Match(0, 1, 3, (Call(0, 1, None, None, "no"), Call(1, 0, (1, 9), [{"pivotal_turns": [2]}] * 2))),
    ]
    rows = [Trajectory("q", [{"role": "assistant", "content": text}], "answer") for text in "abca"]
    depths = depths_of(RolloutGroup(None, rows), Ranking([0, 1, 2, 0], [None] * 4, matches), by)
    assert depths == [expected, {4: 2 if by == "round" else 4}, {}, expected]
    assert depths_of(RolloutGroup(None, rows), None, by) == [{}] * 4


def test_depths_of_a_bracket_follow_the_rounds_that_were_played():
    """A seeded bracket of five; each match names the turn with the index of the loser's row. The anchor, row 0, is the
    second best: it wins three matches of the seeding, round 0, and its verdicts against rows 3 and 4 stand in the
    bracket. Row 2 beats row 1 in round 1, row 4 beats row 2 in round 2. Row 3 reaches its semi-final by a bye alone."""
    strength = [4, 1, 2, 3, 5]
    rows = [Trajectory("q", [{"role": "assistant", "content": f"{row}"}], "answer") for row in range(5)]

    async def compare(i, j):
        return strength[i], strength[j], [{"pivotal_turns": [other + 1]} for other in (j, i)]

    ranking = run_tournament("seeded_single_elimination", 5, compare)
    assert ranking.ranks_G == [1.0, 4.0, 3.0, 2.0, 0.0]
    depths = depths_of(RolloutGroup(None, rows), ranking)
    assert depths == [{1: 0, 2: 0, 3: 0}, {}, {1: 1}, {}, {0: 0, 2: 2}]


def test_orders_that_name_different_turns_count_together_or_only_where_they_agree():
    """The first trajectory wins three matches: the orders name 1, 2 and 2, 3; then 4 and nothing; then 3, in one order
    alone."""

    def calls(*named):
        details = [[{"pivotal_turns": numbers}, {"pivotal_turns": [1]}] for numbers in named]
        return tuple(
            Call(first, 1 - first, (5 + 4 * (first == 0), 5 + 4 * (first == 1)), detail[:: 1 if first == 0 else -1])
            for first, detail in enumerate(details)
        )

    matches = [Match(0, 1, depth, calls(*named)) for depth, named in enumerate([([1, 2], [2, 3]), ([4], []), ([3],)])]
    rows = [Trajectory("q", [{"role": "assistant", "content": text}], "answer") for text in "ab"]
    group, ranking = RolloutGroup(None, rows), Ranking([0, 1], [None] * 2, matches)
    assert depths_of(group, ranking) == [{0: 0, 1: 0, 2: 2, 3: 1}, {}]
    assert depths_of(group, ranking, orders="both") == [{1: 0, 2: 2}, {}]


def named_by(taught, **keys):
    judge = EmbeddedJudge(JudgeConfig(**keys), examiner_of(Config()), 3)
    pairs = zip(taught[::2], taught[1::2], strict=True)
    return [asyncio.run(judge.compare(one.query, one.trajectory, other.trajectory)) for one, other in pairs]


def test_the_embedded_judge_names_the_truths_turns_with_errors_that_leave_its_scores_alone(taught):
    silent, naming = named_by(taught), named_by(taught, name_turns=True)
    exact = named_by(taught, name_turns=True, turn_error_rate=0.0)
    examine, wrong, turns = examiner_of(Config()), 0, 0
    for number, (one, two, three) in enumerate(zip(silent, naming, exact, strict=True)):
        assert one.dimensions == two.dimensions == three.dimensions and one.pivotal_turns == ()
        query = taught[2 * number].query
        for side in range(2):
            view = view_of(taught[2 * number + side].trajectory, "results")
            truth = {turn for turn, is_pivotal in enumerate(truly_pivotal(examine, query, view), start=1) if is_pivotal}
            assert set(three.pivotal_turns[side]) == truth and len(view.turns) not in truth
            wrong, turns = wrong + len(truth ^ set(two.pivotal_turns[side])), turns + len(view.turns)
    assert turns > 300 and wrong / turns == pytest.approx(0.2, abs=0.05)


def test_a_turn_is_truly_pivotal_if_its_results_bring_something_new(taught):
    """A repeated turn is not pivotal, with and without its results in the view."""
    one = next(one for one in taught if one.query.subtask == "M-Day" and len(read_turns(one.trajectory.messages)) > 3)
    messages, examine = one.trajectory.messages, examiner_of(Config())
    start = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
    again = Trajectory(one.query.query_id, messages[: start + 2] + messages[start:], "answer")
    for kind in ("results", "calls"):
        once, twice = (truly_pivotal(examine, one.query, view_of(each, kind)) for each in (one.trajectory, again))
        assert twice == [once[0], False, *once[1:]] and any(once) and once[-1] is False


@pytest.mark.parametrize("named", [(), ((1,),), ((0,), ()), ((1,), (9,)), ((1.5,), ()), (("1",), ()), ((True,), ()), 3])
def test_an_own_judge_that_does_not_name_turns_gives_no_verdict(taught, named, capsys):
    class Own:
        async def compare(self, query, first, second, repeat=0):
            scores = {"answer_clarity": 5.0}
            return Verdict((scores, scores), lambda scores: 5.0, pivotal_turns=named)

    judge, one, other = OwnJudge(Own(), "own:Own", names_turns=True), taught[0], taught[1]
    verdict = asyncio.run(judge.compare(one.query, one.trajectory, other.trajectory))
    assert verdict is None and "own:Own.compare: " in "".join(capsys.readouterr())


def textcraft_group(count=6):
    """A query and trajectories of the scripted expert, most of them careless, so that their states part and meet."""
    domain = world_domain("textcraft")
    query = domain.query({"item": 150})
    rng, environment = random.Random(1), domain.replay_world()
    return domain, RolloutGroup(query, [domain.solve(query, environment, rng, skill=0.2) for _ in range(count)])


def turn_advantages(config, group, rewards, own):
    """The advantages of a group's tokens, and the trainer's metrics."""
    metrics, outcome = defaultdict(list), SimpleNamespace(rewards_G=rewards)
    trainer = SimpleNamespace(_metrics={"train": metrics})
    advantages = online_method(config.rl).make_advantages(trainer, "", config, lambda: [(group, outcome)])
    return advantages({"completion_mask": own, "tool_mask": torch.ones_like(own)}, None), metrics


def test_a_worlds_visits_have_the_state_before_each_turn():
    """TextCraft's state is the inventory: the order in which it was filled and a refused action do not matter."""
    domain, group = textcraft_group()
    plan = domain.replay_world()
    plan.reset(group.query)
    gets = [action for action, _ in plan._plan() if action.startswith("get")]
    assert len(gets) > 1

    def visits(*actions):
        calls = [{"type": "function", "function": {"name": "act", "arguments": {"action": one}}} for one in actions]
        messages = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
        return domain.visits(group.query, [*messages, {"role": "assistant", "content": "no call"}])

    forth, back, refused = visits(*gets), visits(*reversed(gets)), visits("craft 1 nothing", *gets)
    assert [action for _, action in forth] == [*gets, None] and len({state for state, _ in forth}) == len(forth)
    assert forth[-1] == back[-1] == refused[-1] and forth[1][0] != back[1][0] and refused[0][0] == refused[1][0]
    for trajectory in group.trajectories:
        assert len(domain.visits(group.query, trajectory.messages)) == len(read_turns(trajectory.messages))


IN_TEXTCRAFT = ["environment.name=textcraft", "environment.domain=textcraft", "data.subtasks=[depth 1, depth 2]"]


@pytest.mark.parametrize("name", ["gigpo", "gigpo_mean", "rtmc"])
def test_state_credit_equals_hand_worked_values_for_each_token(name):
    domain, group = textcraft_group()
    rewards = [1.0, 0.0, None, 0.5, 0.0, 1.0]
    sets = ["rl.state_norm=none"] if name == "gigpo_mean" else []
    config = load_config(CONFIGS / "agentgym" / f"babyai_{name.partition('_')[0]}.yaml", [*IN_TEXTCRAFT, *sets])
    visits = [domain.visits(group.query, one.messages) for one in group.trajectories]
    turns = [(row, turn) for row, of_row in enumerate(visits) for turn in range(len(of_row))]
    known = [(row, turn) for row, turn in turns if rewards[row] is not None]
    state = {(row, turn): visits[row][turn][0] for row, turn in turns}

    def scaled(value, values):
        spread = np.std(values, ddof=1) + 1e-4 if len(set(values)) > 1 else math.inf
        return (value - sum(values) / len(values)) / (1 if name == "gigpo_mean" else spread)

    def gigpo(row, turn):
        returns = {place: rewards[place[0]] * 0.95 ** (len(visits[place[0]]) - 1 - place[1]) for place in known}
        alike = [value for place, value in returns.items() if state[place] == state[row, turn]]
        return scaled(rewards[row], [one for one in rewards if one is not None]) + scaled(returns[row, turn], alike)

    def rtmc(row, turn):
        here = {one for one, other in known if state[one, other] == state[row, turn]}
        same = {one for one, other in known if visits[one][other] == visits[row][turn]}
        return sum(rewards[one] for one in same) / len(same) - sum(rewards[one] for one in here) / len(here)

    by_hand = {place: (rtmc if name == "rtmc" else gigpo)(*place) for place in known}
    length = 3 * max(map(len, visits)) + 1
    own = torch.tensor([[int(t % 3 > 0 and t < 3 * len(of_row)) for t in range(length)] for of_row in visits])
    found, metrics = turn_advantages(config, group, rewards, own)
    for row, of_row in enumerate(visits):
        expected = [by_hand.get((row, t // 3), 0.0) * own[row, t].item() for t in range(3 * len(of_row))]
        assert found[row].tolist() == pytest.approx([*expected, *[0.0] * (length - len(expected))], abs=1e-5)
    assert len(set(by_hand.values())) > 2
    shared = metrics["credit/shared_states"]
    assert shared == [any(state[other] == state[place] for other in turns if other[0] != place[0]) for place in turns]
    assert 0 < sum(shared) < len(shared)


def test_equal_rewards_teach_gigpo_but_not_rtmc():
    """With the discount .5, the returns in s are .3 and .15, in t .6 and .3. Two standardised values are ±√.5."""
    visits = [[("s", "a"), ("t", "b")], [("s", "a"), ("t", "c"), ("u", None)]]
    assert rtmc.turn_advantages([0.6, 0.6], visits) == [[0.0, 0.0], [0.0, 0.0, 0.0]]
    states = [[state for state, _ in of_one] for of_one in visits]
    credit = gigpo.turn_advantages([0.6, 0.6], states, 1.0, 0.5, partial(standardize, eps=0.0))
    half = math.sqrt(0.5)
    assert credit == [pytest.approx([half, half]), pytest.approx([-half, -half, 0.0])]


@pytest.mark.parametrize("name", ["gigpo", "rtmc"])
def test_a_trajectory_whose_world_crashed_is_not_replayed(name, monkeypatch):
    """The first trajectory ends with an action that crashes the world, in a rollout and in a replay."""
    domain, group = textcraft_group(3)
    call = {"type": "function", "function": {"name": "act", "arguments": {"action": "crash"}}}
    messages = [*group.trajectories[0].messages[:2], {"role": "assistant", "content": "", "tool_calls": [call]}]
    group.trajectories[0] = replace(group.trajectories[0], messages=messages, stop_reason="tool_crash")
    world, act = type(domain.replay_world()), type(domain.replay_world()).act
    monkeypatch.setattr(world, "act", lambda self, action: 1 / (action != "crash") and act(self, action))
    config = load_config(CONFIGS / "agentgym" / f"babyai_{name}.yaml", IN_TEXTCRAFT)
    found, _ = turn_advantages(config, group, [None, 1.0, 0.0], torch.ones(3, 4, dtype=torch.long))
    assert not found[0].any() and found.isfinite().all()
