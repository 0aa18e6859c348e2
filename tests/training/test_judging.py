"""Judging during rollouts: when calls start, that outcomes equal those of judging afterwards, and that errors are
raised."""

import asyncio
import random
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from groups import METHODS, QUERY, attempt, config_of, truth_of
from parts import arena_of
from virtual_clock import run_on_virtual_clock

from arenarl.config.schema import JudgeConfig, RolloutConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.llm.client import RunStopped
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.generation import GeneratedTurn
from arenarl.tournament.play import play_tournament
from arenarl.tournament.topologies import TOPOLOGIES
from arenarl.training import step
from arenarl.training.judging import EarlyCalls, IncomingGroup, Judging, sure_calls
from arenarl.training.step import TrainingStep, raise_first
from arenarl.trajectory import RolloutGroup

QUERIES = [QUERY, replace(QUERY, query_id="r", query="Find a bar."), replace(QUERY, query_id="s", query="Find a park.")]
EARLY = [("tournament", topology) for topology in ("seeded_single_elimination", "anchor", "round_robin")]
EARLY += [method for method in METHODS[3:] if method[0] != "ruler"]
DRAWN = ("single_elimination", "double_elimination", "swiss", "balanced", "elo", "random_reference", "circular")
LATE = [
    *[("tournament", topology) for topology in DRAWN],
    *[(method, None) for method in ("tournament_grpo", "brpo", "elo", "ruler")],
]
SURE = {"round_robin": "everyone", "dgr": "everyone", "anchor": "anchor", "seeded_single_elimination": "anchor"}
LONG_S = 120  # longest wait for another thread; no test depends on its value


class Watched(EmbeddedJudge):
    """The embedded judge with a record of its calls, for which other threads can wait."""

    def __init__(self):
        super().__init__(JudgeConfig(), truth_of, 0)
        self.calls, self.has_call = [], threading.Condition()

    def verdict(self, query, trajectories, dimensions, call):
        with self.has_call:
            self.calls.append((query.query_id, tuple(trajectory.answer for trajectory in trajectories)))
            self.has_call.notify_all()
        return super().verdict(query, trajectories, dimensions, call)

    def wait_for(self, calls):
        with self.has_call:
            assert self.has_call.wait_for(lambda: len(self.calls) >= calls, LONG_S)


def groups_of(rng, size=6):
    """A group for each query, with invalid and identical trajectories."""

    def trajectory():
        return attempt(float(rng.randrange(10)), rng.choice(["answer"] * 4 + ["max_turns"]))

    return [RolloutGroup(query, [trajectory() for _ in range(size)]) for query in QUERIES]


@pytest.mark.parametrize(("method", "topology"), EARLY + LATE)
def test_outcomes_equal_those_of_judging_complete_groups(method, topology):
    for seed in range(2):
        rng = random.Random(seed)
        groups, arenas = groups_of(rng), [arena_of(config_of(method, topology), Watched()) for _ in range(2)]
        expected = arenas[0].reward_groups(groups)
        judging = arenas[1].begin(QUERIES, 6)
        rows = [(k, row) for k in range(len(QUERIES)) for row in range(6)]
        for k, row in rng.sample(rows, len(rows)):
            judging.groups[k].hand_over(row, groups[k].trajectories[row])
            time.sleep(rng.choice([0, 0.001]))
        assert judging.outcomes() == expected
        assert [outcome.ranking for outcome in judging.outcomes()] == [outcome.ranking for outcome in expected]
        assert sorted(arenas[1].referee.judge.calls) == sorted(arenas[0].referee.judge.calls)
        assert len(arenas[1].referee.judge.calls) == sum(outcome.judge_calls for outcome in expected)


@pytest.mark.parametrize(("method", "topology"), EARLY)
def test_calls_start_while_the_group_is_incomplete(method, topology):
    arena = arena_of(config_of(method, topology), Watched())
    judging = arena.begin([QUERY], 4)
    for row in range(3):
        judging.groups[0].hand_over(row, attempt(row + 1.0))
    arena.referee.judge.wait_for({"tournament": 4, "win_rate": 6, "pointwise_explicit": 21}.get(method, 3))
    judging.groups[0].hand_over(3, attempt(9.0))
    (outcome,) = judging.outcomes()
    assert outcome.rewards_G.index(max(outcome.rewards_G)) == 3


@pytest.mark.parametrize(("method", "topology"), LATE)
def test_a_complete_group_is_judged_while_another_is_incomplete(method, topology):
    arena = arena_of(config_of(method, topology), Watched())
    judging = arena.begin(QUERIES[:2], 4)
    for row in range(4):
        judging.groups[1].hand_over(row, attempt(row + 1.0))
        if row < 3:
            judging.groups[0].hand_over(row, attempt(row + 1.0))
    arena.referee.judge.wait_for(1 if method == "ruler" else 3)
    assert {query_id for query_id, _ in arena.referee.judge.calls} == {"r"}
    judging.groups[0].hand_over(3, attempt(9.0))
    assert None not in judging.outcomes()[0].rewards_G


def test_errors_of_judging_are_raised_by_outcomes_and_check():
    class Broken(EmbeddedJudge):
        async def score(self, query, trajectory, answer_only=False, repeat=0):
            raise LookupError("the judge is broken")

    arena = arena_of(config_of("pointwise_answer"), Broken(JudgeConfig(), truth_of, 0))
    judging = arena.begin([QUERY], 3)
    judging.check()
    judging.groups[0].hand_over(1, attempt(1.0))
    with pytest.raises(LookupError, match="the judge is broken"):
        judging.outcomes()
    with pytest.raises(LookupError, match="the judge is broken"):
        judging.check()
    judging.groups[0].hand_over(0, attempt(1.0))  # from a rollout that has not yet called check


def test_a_stopped_llm_client_ends_the_rollout_with_the_next_trajectory(tokenizer, compact, tmp_path, monkeypatch):
    class TwoThenNone:
        """A policy whose first two trajectories end at once, and all others after the test."""

        model = None

        def __init__(self, tokenizer):
            self.tokenizer, self.turns = tokenizer, 0

        async def generate(self, request):
            self.turns += 1
            if self.turns > 2:
                await asyncio.sleep(LONG_S)
            text = "<think>\ndone\n</think>\n\n<answer>\nyes\n</answer>"
            return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])

    class Stopping:
        """An LLM client that stops the run at its second check."""

        checks, stop_reason = 0, None

        def check(self):
            self.checks += 1
            if self.checks > 1:
                raise RunStopped("no reply from the judge")

    config = config_of("tournament", "swiss")
    config.rollout = RolloutConfig(group_size=8, max_tokens=200)
    client = Stopping()
    arena = arena_of(config, EmbeddedJudge(JudgeConfig(), truth_of, 0), client)
    engine = RolloutEngine(TwoThenNone(tokenizer), tokenizer, lambda: compact, config.rollout, schemas_in_prompt=False)
    monkeypatch.setattr(step, "generating", lambda engine, trainer: nullcontext())
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=0))
    training_step = TrainingStep(config, QUERIES, engine, arena, None, tmp_path, client)
    with pytest.raises(RunStopped, match="no reply from the judge"):
        training_step.rollout_func([QUERY.query_id] * 8, trainer)
    assert client.checks == 2


def test_a_stop_reason_of_one_process_stops_all():
    raise_first([None, None])
    with pytest.raises(RunStopped, match="used up"):
        raise_first([None, "used up"])


def test_busy_seconds_count_overlapping_calls_once_and_end_at_until():
    async def judge(group):
        return None

    judging = Judging([IncomingGroup(query, 2) for query in QUERIES[:2]], judge)
    judging.groups[0].calls = [(1.0, 3.0), (2.0, 4.0), (10.0, 12.0)]
    judging.groups[1].calls = [(2.5, 3.5), (6.0, 7.0)]
    assert judging.busy_s(until=20.0) == 3 + 1 + 2
    assert judging.busy_s(until=6.5) == 3 + 0.5 and judging.busy_s(until=1.0) == 0


class FaultyJudge:
    """A judge of entrants that counts its calls; some calls give no verdict, raise or are cancelled."""

    def __init__(self, entrants, seed):
        self.entrants, self.seed, self.calls = entrants, seed, Counter()

    async def ask(self, i, j):
        pair = self.entrants[i], self.entrants[j]
        self.calls[pair] += 1
        rng = random.Random(f"{self.seed} {pair}")
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        scores = rng.uniform(0, 10), rng.uniform(0, 10)
        fate = rng.random()
        if fate < 0.1:
            raise rng.choice([ValueError("no"), asyncio.CancelledError("inside"), TimeoutError("its own")])
        return None if fate < 0.15 else scores


async def play_early(topology, judge, entrants, order, rng, **options):
    """Return the ranking and the number of calls that started before the last row entered."""
    early = EarlyCalls(TOPOLOGIES[topology].surely_meets, judge.ask, options["bidirectional"], None)
    for row in order:
        before = Counter(judge.calls)
        early.enter(row, entrants[row])
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
    options |= {"entrants": entrants, "valid_G": [entrant is not None for entrant in entrants]}
    return await play_tournament(topology, len(entrants), early.compare, **options), before.total()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_early_calls_give_the_ranking_and_calls_of_judging_afterwards(topology, bidirectional):
    rng, started_early = random.Random(topology), 0
    for seed in range(40):
        size = rng.randint(1, 9)
        entrants = [rng.choice([None, *range(2 * size), *range(2 * size)]) for _ in range(size)]  # None is invalid
        order = rng.sample(range(size), size)
        options = {"seed": seed, "bidirectional": bidirectional}
        rows = {"entrants": entrants, "valid_G": [entrant is not None for entrant in entrants]}
        afterwards, early = FaultyJudge(entrants, seed), FaultyJudge(entrants, seed)
        expected = asyncio.run(play_tournament(topology, size, afterwards.ask, **rows, **options))
        ranking, before_the_last = asyncio.run(play_early(topology, early, entrants, order, rng, **options))
        assert ranking == expected, (entrants, order)
        assert early.calls == afterwards.calls and early.calls.total() == ranking.judge_calls
        started_early += before_the_last
    assert (started_early > 25) == (topology in SURE)


def test_only_certain_calls_start_before_the_group_is_complete():
    entered = {1: "b", 2: None, 4: "b", 3: "c"}
    assert sure_calls("anchor", entered, True) == []  # row 0 may be the anchor
    assert sure_calls("everyone", entered, True) == [(1, 3), (3, 1)]
    assert sure_calls("everyone", entered, False) == []  # row 0 may be identical to row 3 and so be shown first
    assert sure_calls("nobody", {0: "a", 1: "b"}, True) == []
    assert sure_calls("anchor", {0: "c", **entered}, True) == [(0, 1), (1, 0)]  # row 3 is identical to the anchor
    assert all(sure_calls(rule, {0: None, **entered}, False) == [(1, 3)] for rule in ("anchor", "everyone"))
    assert sure_calls("anchor", {}, True) == sure_calls("everyone", {0: None}, True) == []


def test_topologies_with_certain_matches_schedule_exactly_these_matches_first():
    for name, topology in TOPOLOGIES.items():
        assert topology.surely_meets == SURE.get(name, "nobody")
        for size in range(2, 9) if name in SURE else []:
            calls = sure_calls(topology.surely_meets, dict(enumerate(range(size))), False)
            assert {(i, j) for i, j, _ in topology(size).ready({})} == set(calls)


def test_the_timeout_of_an_early_call_counts_from_its_start():
    """Each call takes 6 s; rows 0 and 1 enter at once, row 2 after 4 s; the timeout is 5 s."""

    async def ask(i, j):
        await asyncio.sleep(6)
        return 1.0, 2.0

    async def main():
        early = EarlyCalls("anchor", ask, True, 5.0)
        early.enter(0, "a")
        early.enter(1, "b")
        await asyncio.sleep(4)
        early.enter(2, "c")
        return await play_tournament("anchor", 3, early.compare, timeout_s=5.0)

    ranking, seconds = run_on_virtual_clock(main())
    assert [match.error for match in ranking.matches] == ["TimeoutError: no verdict within 5.0 s"] * 2
    assert seconds == 9 and ranking.failed_calls == 4
