import asyncio
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from judges import perfect, scripted

from arenarl.tournament.mixed_model import JudgeVariances, quality_from_calls
from arenarl.tournament.play import play_tournament, run_tournament
from arenarl.tournament.ranking import Call, scored_calls
from arenarl.tournament.topologies import TOPOLOGIES

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)
each_exact_topology = pytest.mark.parametrize("topology", ["round_robin", "anchor", "seeded_single_elimination"])


def test_both_orders_of_a_match_are_judged_at_once():
    waiting, together = set(), asyncio.Event()

    async def compare(i, j):
        waiting.add((i, j))
        if len(waiting) == 2:
            together.set()
        await asyncio.wait_for(together.wait(), timeout=60)
        return 1, 0

    assert run_tournament("anchor", 2, compare).tie_rate == 1.0


def test_a_match_sums_both_orders_and_rates_are_shares_of_the_matches_with_a_verdict():
    # Eq. 3 by hand: trajectory 0 has 7 if shown first and 6 if shown second, trajectory 1 has 9 and 5.
    async def compare(i, j):
        return *((7, 5) if i == 0 else (9, 6)), f"{i} before {j}"

    (match,) = run_tournament("anchor", 2, compare).matches
    assert match.calls == (Call(0, 1, (7.0, 5.0), "0 before 1"), Call(1, 0, (9.0, 6.0), "1 before 0"))
    assert match.scores == (13.0, 14.0) and match.is_flip
    (match,) = run_tournament("anchor", 2, compare, bidirectional=False).matches
    assert match.scores == (7.0, 5.0) and len(match.calls) == 1 and not match.is_flip
    replies = {(0, 1): (5, 5), (1, 0): (5, 5), (0, 2): (6, 5), (2, 0): (7, 4), (0, 3): (6, 5), (3, 0): (5, 6)}

    async def compare(i, j):
        return replies.get((i, j))

    ranking = run_tournament("anchor", 5, compare)
    assert (ranking.tie_rate, ranking.flip_rate) == pytest.approx((1 / 3, 1 / 3))
    assert [match.j for match in ranking.failed_matches] == [4]


@each_topology
def test_invalid_trajectories_are_last_after_ties_and_without_a_rank_if_all_verdicts_failed(topology):
    ranking = run_tournament(topology, 5, perfect([5] * 5), valid_G=[True] * 4 + [False])
    assert ranking.ranks_G == [1.5, 1.5, 1.5, 1.5, 4.0]

    async def compare(i, j):
        return None

    ranking = run_tournament(topology, 6, compare, valid_G=[True] * 5 + [False])
    assert ranking.ranks_G == [None] * 6 and ranking.tie_rate is None
    assert len(ranking.failed_matches) == len(ranking.matches) > 0


@each_exact_topology
def test_identical_and_invalid_trajectories_share_their_rank_and_both_orders_cancel_a_position_bias(topology):
    ranking = run_tournament(topology, 5, perfect([3, 9, 3, 1, 9]), entrants="abacb")
    assert ranking.ranks_G == [2.5, 0.5, 2.5, 4.0, 0.5] and ranking.scores_G[0] == ranking.scores_G[2]
    assert {index for match in ranking.matches for index in (match.i, match.j)} == {0, 1, 3}
    valid_G = [True, False, True, False, True]
    ranking = run_tournament(topology, 5, perfect([9, 1, 8, 5, 7]), valid_G=valid_G)
    assert ranking.ranks_G == [0.0, 3.5, 1.0, 3.5, 2.0] and ranking.scores_G[1] is None
    assert {index for match in ranking.matches for index in (match.i, match.j)} == {0, 2, 4}

    async def biased(i, j):
        return 9 - i, 4 - j

    ranking = run_tournament(topology, 4, biased)
    assert ranking.ranks_G == [0.0, 1.0, 2.0, 3.0]
    assert ranking.flip_rate == 1.0


def test_the_first_valid_trajectory_replaces_an_invalid_anchor():
    ranking = run_tournament("anchor", 4, perfect([9, 1, 8, 5]), valid_G=[False, True, True, True])
    assert [(match.i, match.j) for match in ranking.matches] == [(1, 2), (1, 3)]
    assert ranking.ranks_G == [3.0, 2.0, 0.0, 1.0]


@each_topology
def test_a_group_with_fewer_than_two_entrants_is_ranked_without_a_call(topology):
    for keys, ranks_G in (
        ({"entrants": [0, 0, 0]}, [1.0] * 3), ({"valid_G": [False] * 3}, [1.0] * 3),
        ({"valid_G": [False, True, False]}, [1.5, 0.0, 1.5]),
    ):  # fmt: skip
        ranking = run_tournament(topology, 3, perfect([]), **keys)
        assert (ranking.ranks_G, ranking.scores_G) == (ranks_G, [None] * 3)
        assert (ranking.matches, ranking.judge_calls, ranking.critical_path) == ([], 0, 0)


SLOW = object()


def failing(reply, pair=(1, 2)):
    """A judge that prefers lower indices; for one pair in this order it raises or returns `reply`, or is slow."""

    async def compare(i, j):
        if (i, j) != pair:
            return 9 - i, 9 - j
        if reply is SLOW:
            await asyncio.sleep(60)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    return compare


@pytest.mark.parametrize(("reply", "reason"), [
    (ConnectionError("judge is gone"), "ConnectionError: judge is gone"), (SLOW, "no verdict within 0.05 s"),
    (asyncio.CancelledError("not by the tournament"), "CancelledError: not by the tournament"),
    (None, "the judge returned None instead of a verdict"),
    *((reply, "must return 2 scores") for reply in ((1,), 3, "ab cd")),
    *((reply, "must return numbers within") for reply in (
        ("a", "b"), (1, float("nan")), (float("inf"), 1), (1e308, 1), ("9", b"3"), (True, 1),
        (np.float16("inf"), 1), (np.float32("nan"), 1), (1, np.longdouble("-inf")))),
])  # fmt: skip
def test_a_failed_call_fails_only_its_match_and_keeps_the_reason(reply, reason):
    """Every topology with failures: test_random_failures_fail_only_their_own_matches."""
    ranking = run_tournament("round_robin", 3, failing(reply), timeout_s=0.05)
    (failed,) = ranking.failed_matches
    errors = {(call.first, call.second): call.error for call in failed.calls}
    assert reason in errors[1, 2] == failed.error and errors[2, 1] is None and len(ranking.matches) == 3


def test_cancelling_the_tournament_cancels_its_calls_and_a_keyboard_interrupt_stops_it():
    started, cancelled, all_started = [], [], asyncio.Event()

    async def compare(i, j):
        started.append((i, j))
        if len(started) == 4:
            all_started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append((i, j))
            raise

    async def main():
        task = asyncio.create_task(play_tournament("anchor", 3, compare, timeout_s=30))
        await asyncio.wait_for(all_started.wait(), timeout=20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(cancelled) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    with pytest.raises(KeyboardInterrupt):
        run_tournament("round_robin", 2, failing(KeyboardInterrupt(), (0, 1)))


@pytest.mark.parametrize(("topology", "keys"), [
    *((topology, {name: value}) for topology, name in (
        ("balanced", "matches"), ("elo", "elo_matches"), ("group_stage", "repeats"), ("group_stage", "group"),
        ("group_stage", "winners"), ("group_stage", "final"), ("round_robin", "group_size"),
    ) for value in ("x", float("nan"), float("inf"), -1, 0, 2.5, True, [2])),
    *(("balanced", {"matches": value}) for value in ("", " ", "m", "2*n", "__import__('os')", "2n-", "n/0", "1.5n")),
    *(("group_stage", {"weights": value}) for value in ("12", 3, [], [1, 0], [1, "2"], [float("inf")], None)),
    ("group_stage", {"winners": 4}), ("group_stage", {"final": 1}), ("group_stage", {"weights": [float("nan")]}),
    *(("swiss", {"timeout_s": value}) for value in ("5", float("nan"), -1, 0)),
    ("anchor", {"bidirectional": "false"}), ("elo", {"elo_estimate": 3}),
    (None, {}), (float("nan"), {}), ("swiss", {"ranking": 2}), ("seeded_single_elimination", {"placement": None}),
])  # fmt: skip
def test_a_parameter_that_cannot_work_is_refused_before_any_call(topology, keys):
    calls = []

    async def compare(i, j):
        calls.append((i, j))
        return 4 - i, 4 - j

    with pytest.raises(ValueError, match=next(iter(keys), "topology")):
        run_tournament(topology, **{"group_size": 4, "compare": compare} | keys)
    assert not calls


@pytest.mark.parametrize("topology", ["round_robin", "swiss", "group_stage"])
def test_a_judge_that_is_not_async_is_refused_and_other_errors_than_failures_end_the_tournament(topology):
    async def generator(i, j):
        yield 1, 0

    for wrong in (lambda i, j: (1, 0), lambda i, j: None, generator, lambda i: (1, 0), None, 5):
        with pytest.raises(ValueError, match="must be a.* ?async|must be async"):
            run_tournament(topology, 4, wrong)

    async def compare(*_):
        raise FileNotFoundError("prompt.yaml") from KeyError("cause")

    with pytest.raises(FileNotFoundError, match="prompt") as raised:
        run_tournament(topology, 4, compare, failures=TimeoutError)
    assert isinstance(raised.value.__cause__, KeyError)


def test_ranking_by_scores_uses_the_mixed_model_of_the_calls_in_valid_matches():
    variances = JudgeVariances()
    variances.observe(2, [(0, 1, 9, 3), (1, 0, 4, 8)])
    before = asdict(variances)
    compare = scripted({(0, 2): (6, 5), (0, 3): (4, 7)}, failed=[{0, 4}])
    # Trajectories 0 and 1 are identical: the entrants are 0, 2, 3 and 4.
    ranking = run_tournament("anchor", 5, compare, entrants="aabcd", ranking="scores", variances=variances)
    calls = [(0, 2, 6, 5), (2, 0, 5, 6), (0, 3, 4, 7), (3, 0, 7, 4)]
    assert scored_calls(ranking.matches) == calls
    first, _, second, best, missing = quality_from_calls(5, calls, variances)
    assert ranking.scores_G == [first, first, second, best, missing]
    assert ranking.ranks_G == [1.5, 1.5, 3.0, 0.0, None] and missing is None
    assert asdict(variances) == before


def test_an_empty_group_wrong_lengths_and_a_running_event_loop_are_errors():
    for size, keys, problem in ((0, {}, "group_size >= 1, not 0"), (4, {"entrants": [0, 1]}, "entrants has 2 items"),
                                (4, {"valid_G": [True] * 3}, "valid_G has 3 items for group_size 4")):  # fmt: skip
        with pytest.raises(ValueError, match=problem):
            run_tournament("anchor", size, perfect([1]), **keys)

    async def main():
        run_tournament("anchor", 2, perfect([1, 2]))

    with pytest.raises(RuntimeError, match="await play_tournament"):
        asyncio.run(main())


def test_the_tournament_imports_neither_torch_nor_trl_nor_numpy():
    code = "import sys, arenarl.tournament; sys.exit(any(name in sys.modules for name in ('torch', 'trl', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
