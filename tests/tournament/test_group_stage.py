import asyncio
import random
from dataclasses import replace
from itertools import product

import pytest

from arenarl.tournament.group_stage import GroupCall, GroupStage
from arenarl.tournament.play import play_tournament, run_tournament

PAIRS = {"group": 2, "winners": 1, "final": 1}  # the two structures of Section 4.1
FOURS = {"group": 4, "winners": 2, "final": 2}
UNEVEN = [dict(zip(PAIRS, numbers, strict=True)) for numbers in ((4, 3, 3), (3, 1, 2), (5, 4, 6))]
each_structure = pytest.mark.parametrize("structure", [PAIRS, FOURS, *UNEVEN], ids=str)
QUALITIES = [1, 4, 2, 3]


def perfect(qualities):
    async def choose(indices, winners):
        return sorted(indices, key=lambda i: -qualities[i])[:winners]

    return choose


def noisy(seed):
    """A judge whose verdicts depend only on the trajectories shown; a tenth of the calls fails."""

    async def choose(indices, winners):
        rng = random.Random(repr((seed, indices)))
        return None if rng.random() < 0.1 else rng.sample(indices, winners)

    return choose


def play(group_size, choose, seed=0, **params):
    return run_tournament("group_stage", group_size, choose, seed, **params)


def test_algorithm_1_worked_by_hand():
    """Four of qualities 1, 4, 2, 3, in pairs, twice. The groups of seed 1 and their winners:

    first repeat    2-1 → 1, 0-3 → 3, then 3-1 → 1
    second repeat   2-0 → 2, 1-3 → 1, then 2-1 → 1
    """
    ranking = play(4, perfect(QUALITIES), seed=1, repeats=2, **PAIRS)
    assert ranking.group_calls == [
        GroupCall((0, 3), (3,), repeat=0, round=0),
        GroupCall((2, 1), (1,), repeat=0, round=0),
        GroupCall((3, 1), (1,), repeat=0, round=1),
        GroupCall((1, 3), (1,), repeat=1, round=0),
        GroupCall((2, 0), (2,), repeat=1, round=0),
        GroupCall((2, 1), (1,), repeat=1, round=1),
    ]
    assert (ranking.scores_G, ranking.ranks_G) == ([0.0, 4.0, 1.0, 1.0], [3.0, 0.0, 1.5, 1.5])
    assert (ranking.judge_calls, ranking.critical_path, ranking.matches, ranking.failed_matches) == (6, 2, [], [])
    assert ranking.tie_rate is None and ranking.flip_rate is None
    assert play(4, perfect(QUALITIES), seed=1, repeats=2, weights=[1, 3], **PAIRS).scores_G == [0.0, 8.0, 1.0, 1.0]
    scores_G = play(8, perfect(range(8)), repeats=1, weights=[1, 3], **PAIRS).scores_G
    assert scores_G[7] == 1 + 3 + 3 and sum(scores_G) == 4 * 1 + 2 * 3 + 3
    # Three in pairs: one entrant is alone in its group in the first round and gets a point.
    ranking = play(3, perfect([2, 1, 0]), repeats=1, **PAIRS)
    first, final = ranking.group_calls
    (alone,) = {0, 1, 2} - set(first.shown)
    assert alone in final.shown and (first.round, final.round) == (0, 1)
    assert sum(ranking.scores_G) == 3 and ranking.scores_G[alone] == (2 if alone == 0 else 1)


@pytest.mark.parametrize(("size", "structure", "calls", "rounds"), [
    (8, PAIRS, 7, 3), (16, PAIRS, 15, 4), (8, FOURS, 3, 2), (16, FOURS, 7, 3)
])  # fmt: skip
def test_for_sizes_that_divide_evenly_calls_and_rounds_equal_the_papers(size, structure, calls, rounds):
    """Section 4.5: sum of K/G (K_win/G)^t over log_{G/K_win}(K/K_final) rounds, M times."""
    ranking = play(size, perfect(range(size)), repeats=5, **structure)
    assert (ranking.judge_calls, ranking.critical_path) == (5 * calls, rounds)
    assert {len(call.shown) for call in ranking.group_calls} == {structure["group"]}
    # the defaults are the paper's best row
    assert play(8, perfect(range(8))) == play(8, perfect(range(8)), repeats=8, weights=(1,), **FOURS)


def test_a_judge_with_a_parameter_repeat_gets_the_number_of_the_tournament():
    """Without it, a judge that depends on the trajectories shown alone decides every repeat alike."""

    async def choose(indices, winners, repeat=0):
        return random.Random(repr((indices, repeat))).sample(indices, winners)

    numbered, blind = (play(2, judge, repeats=40, **PAIRS).group_calls for judge in (choose, noisy(0)))
    winners = {(call.repeat, call.shown): call.winners for call in numbered}
    assert all(list(won) == random.Random(repr((shown, m))).sample(shown, 1) for (m, shown), won in winners.items())
    assert len({(call.shown, call.winners) for call in numbered}) == 4 > len({(c.shown, c.winners) for c in blind})


@each_structure
def test_rounds_hold_all_entrants_and_end_and_have_the_length_of_their_chain_of_calls(structure):
    for size in range(1, 18):
        left = size
        for groups in GroupStage(**structure).draw_rounds(size, 7):
            assert left > structure["final"]
            assert sorted(place for group in groups for place in group) == list(range(left))
            sizes = list(map(len, groups))
            assert structure["winners"] < max(sizes) <= structure["group"]
            left = sum(min(count, structure["winners"]) for count in sizes)
        assert left <= structure["final"]
    ranking = play(17, perfect(range(17)), repeats=4, **structure)
    for repeat in range(4):
        chain = dict.fromkeys(range(17), 0)
        for call in (call for call in ranking.group_calls if call.repeat == repeat):
            assert call.round == max(chain[i] for i in call.shown)
            chain |= dict.fromkeys(call.shown, call.round + 1)


@each_structure
def test_a_perfect_judge_gives_the_best_the_top_score_at_every_size(structure):
    for seed, size in product(range(3), range(1, 18)):
        qualities = random.Random(seed).sample(range(size), size)
        ranking = play(size, perfect(qualities), seed, repeats=3, **structure)
        assert ranking.scores_G[qualities.index(size - 1)] == max(ranking.scores_G)
        assert sum(ranking.ranks_G) == size * (size - 1) / 2
        is_judged = size > structure["final"]
        assert bool(ranking.judge_calls) == (ranking.ranks_G != [(size - 1) / 2] * size) == is_judged
        assert all(structure["winners"] < len(call.shown) <= structure["group"] for call in ranking.group_calls)


@each_structure
@pytest.mark.parametrize("size", [5, 8, 13])
def test_sequential_and_concurrent_calls_give_equal_rankings(size, structure):
    async def slow(indices, winners):
        await asyncio.sleep(random.random() / 1000)
        return await noisy(3)(indices, winners)

    async def one_by_one():
        return await play_tournament("group_stage", size, slow, 4, limit=asyncio.Semaphore(1), **structure)

    assert asyncio.run(one_by_one()) == play(size, slow, 4, **structure) == play(size, noisy(3), 4, **structure)


def test_calls_run_at_once_within_the_limit_and_a_group_starts_when_its_members_are_known():
    waiting, most, together = 0, 0, asyncio.Event()

    async def choose(indices, winners):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == 10:
            together.set()
        await asyncio.wait_for(together.wait(), timeout=20)
        await asyncio.sleep(0)
        waiting -= 1
        return indices[:winners]

    ranking = play(8, choose, repeats=5)
    assert most == 10 and not ranking.failed_matches

    async def limited():
        return await play_tournament("group_stage", 8, choose, limit=asyncio.Semaphore(3))

    most = 0
    assert not asyncio.run(limited()).failed_matches and most == 3
    # Eight in pairs: a first-round call waits until a second-round call starts.
    started, is_second = [], asyncio.Event()

    async def choose(indices, winners):
        started.append(indices)
        if len(started) == 5:
            is_second.set()
        if len(started) == 1:
            await asyncio.wait_for(is_second.wait(), timeout=20)
        return indices[:winners]

    assert not play(8, choose, repeats=1, **PAIRS).failed_matches


SLOW = object()


@pytest.mark.parametrize(("reply", "reason"), [
    (None, "None instead of a verdict"), (ConnectionError("no judge"), "ConnectionError: no judge"),
    ([3, 1], "not [3, 1]"), ([], "not []"), ([9], "not [9]"), (2, "TypeError"), (SLOW, "TimeoutError"),
])  # fmt: skip
def test_a_call_without_a_verdict_voids_only_its_own_repeat(reply, reason):
    """The hand-worked tournament: 2-0 is in the second repeat, so only the points of the first repeat count."""

    async def choose(indices, winners):
        if indices != (2, 0):
            return await perfect(QUALITIES)(indices, winners)
        if reply is SLOW:
            await asyncio.sleep(60)
        if isinstance(reply, Exception):
            raise reply
        return reply

    ranking = play(4, choose, seed=1, repeats=2, timeout_s=0.05, **PAIRS)
    assert (ranking.scores_G, ranking.ranks_G) == ([0.0, 2.0, 0.0, 1.0], [2.5, 0.0, 2.5, 1.0])
    (failed,) = ranking.failed_matches
    assert failed == replace(failed, shown=(2, 0), winners=None, repeat=1, round=0) and reason in failed.error
    assert ranking.judge_calls == 5  # the final after it is not judged


def test_without_a_complete_repeat_there_are_no_ranks_for_invalid_trajectories_either():
    async def choose(indices, winners):
        return None if 3 in indices else indices[:winners]

    ranking = play(5, choose, valid_G=[True] * 4 + [False], **PAIRS)
    assert ranking.ranks_G == ranking.scores_G == [None] * 5
    assert ranking.failed_matches and all(3 in call.shown for call in ranking.failed_matches)


def test_identical_trajectories_enter_once_and_at_most_final_entrants_tie_without_a_call():
    valid_G = [True] * 5 + [False]
    ranking = play(6, perfect([3, 9, 3, 1, 9, 7]), repeats=6, entrants="abacbd", valid_G=valid_G, **PAIRS)
    assert {index for call in ranking.group_calls for index in call.shown} == {0, 1, 3}
    assert ranking.scores_G[0] == ranking.scores_G[2] and ranking.scores_G[1] == ranking.scores_G[4]
    assert ranking.ranks_G[1] == ranking.ranks_G[4] == 0.5 and (ranking.ranks_G[5], ranking.scores_G[5]) == (5, None)
    assert play(3, perfect([]), entrants=[0, 0, 0]).ranks_G == [1.0] * 3
    ranking = play(3, perfect([]), valid_G=[True, False, True])
    assert (ranking.ranks_G, ranking.scores_G) == ([0.5, 2.0, 0.5], [0.0, None, 0.0])
    assert (ranking.judge_calls, ranking.critical_path) == (0, 0)
