"""Judges of one's own that return or raise whatever they like:
their calls have scores from 0 to 10, or none, and never end a run."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from groups import OTHERS, QUERY, attempt, config_of
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from parts import arena_of

from arenarl.config.schema import JudgeConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.evaluation.evaluation import Panel, judge_trajectories
from arenarl.judges import own
from arenarl.judges.judge import Judge, Verdict
from arenarl.judges.own import OwnJudge
from arenarl.system.errors import UserError
from arenarl.tournament.play import run_tournament
from arenarl.trajectory import RolloutGroup

RUBRIC = domain_rubric("travel", "en")
NO_SCORES = [
    "9", b"9", True, None, [9], 10.5, -1, -1e-9, 1e308, 10**400, math.nan, math.inf, 1j, Decimal(9), np.bool_(True),
    np.array([9, 9]),
]  # fmt: skip
FAULTS = [
    ValueError("no"), RecursionError(), KeyError("x"), asyncio.CancelledError("inside"), TimeoutError(), ["9", "3"],
    ("9", "3"), (9, 3), {},
]  # fmt: skip


class Whatever(Judge):
    """Returns `said`, or raises it; of a callable, what it returns."""

    def __init__(self, said):
        self.said = said

    def weights(self, query):
        return RUBRIC.weights

    async def says(self, count):
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said(count) if callable(self.said) else self.said

    async def compare(self, query, first, second, repeat=0):
        return await self.says(2)

    async def choose(self, query, trajectories, winners, repeat=0):
        return await self.says(2)

    async def score(self, query, trajectory, *how):
        return await self.says(1)

    score_overall = score_dimension = score_together = check_items = score

    def checklist(self, query):
        return {"item_1": 2.0, "item_2": 1.0}


def verdict_of(score):
    return lambda shown: Verdict(
        tuple(dict.fromkeys(RUBRIC.names, 5.0) | {"path_breadth": score} for _ in range(shown)), RUBRIC.total
    )


def compare(said):
    return asyncio.run(OwnJudge(Whatever(said), "mine:Judge").compare(QUERY, attempt(1.0), attempt(2.0)))


@pytest.mark.parametrize("score", [0, 10, 9.5, np.float64(3), np.float32(3), np.int64(3), Fraction(1, 2)])
def test_numbers_from_0_to_10_are_scores(score):
    (first, _) = compare(verdict_of(score)).dimensions
    assert first["path_breadth"] == score and {type(one) for one in first.values()} == {float}


@pytest.mark.parametrize("score", NO_SCORES, ids=repr)
def test_anything_else_is_no_verdict_and_said_once(score, capsys):
    judge = OwnJudge(Whatever(verdict_of(score)), "mine:Judge")
    for _ in range(3):
        assert asyncio.run(judge.compare(QUERY, attempt(1.0), attempt(2.0))) is None
    assert asyncio.run(OwnJudge(Whatever(score), "mine:Judge").score_overall(QUERY, attempt(1.0))) is None
    assert capsys.readouterr().err.count("mine:Judge.compare: ") == 1


def test_a_total_of_ones_own_is_held_to_the_same():
    for total in (11.0, "7", math.nan):
        assert compare(lambda shown, total=total: Verdict(({"a": 5.0},) * shown, lambda scores: total)) is None
    assert compare(lambda shown: Verdict(({"a": 5.0},) * (shown + 1), RUBRIC.total)) is None


@pytest.mark.parametrize("fault", [*FAULTS, *map(verdict_of, NO_SCORES)])
def test_such_a_judge_ends_neither_training_nor_evaluation(fault):
    judge = OwnJudge(Whatever(fault), "mine:Judge")
    trajectories = [attempt(1.0), attempt(2.0), attempt(3.0)]
    for method in ("tournament", "tournament_grpo", "rubric_checklist", *OTHERS):
        outcome = arena_of(config_of(method), judge).reward_groups([RolloutGroup(QUERY, trajectories)])[0]
        assert outcome.rewards_G == [None] * 3 and outcome.failed_calls == outcome.judge_calls > 0
    (case,) = judge_trajectories([QUERY], [trajectories[0]], {QUERY.query_id: trajectories[1]}, Panel([judge], None))
    assert np.isnan(case.outcomes).all()


def test_winners_are_numbers_of_those_shown():
    def choose(said):
        return asyncio.run(OwnJudge(Whatever(said), "mine:Judge").choose(QUERY, [attempt(1.0)] * 3, 2))

    assert choose([2, 0]) == choose((np.int64(2), 0)) == [2, 0]
    for wrong in (b"\x02\x00", "20", [True, 0], [2.0, 0], ["2", "0"], [-1, 0], [3, 0], 2):
        assert choose(wrong) is None


def test_listed_scores_are_one_for_each_shown_and_a_checklists_answers_one_for_each_item():
    def together(said):
        return asyncio.run(OwnJudge(Whatever(said), "mine:Judge").score_together(QUERY, [attempt(1.0)] * 3))

    def items(said):
        return asyncio.run(OwnJudge(Whatever(said), "mine:Judge").check_items(QUERY, attempt(1.0)))

    assert together([1, 2.5, 10]) == together((1.0, 2.5, 10)) == [1.0, 2.5, 10.0]
    for wrong in ([1, 2], [1, 2, 3, 4], [1, 2, 11], [1, 2, None], "123", {"1": 1}, 7):
        assert together(wrong) is None
    assert items({"item_2": True, "item_1": False}) == {"item_1": False, "item_2": True}
    met = {"item_1": True, "item_2": False}
    for wrong in ({"item_1": True}, met | {"item_2": 1}, met | {"item_3": True}, [True, False], True):
        assert items(wrong) is None


class Sync(Whatever):
    def compare(self, query, first, second, repeat=0):
        return None


class Bare(Whatever):
    def __init__(self):
        super().__init__(None)


def test_a_class_that_can_be_no_judge_is_refused_in_a_line(monkeypatch):
    for kind, said in ((Sync, "mine:Judge: compare must be async"), (Bare, r"mine:Judge does not fit \(too many")):
        monkeypatch.setattr(own, "named", lambda *_, kind=kind: kind)
        with pytest.raises(UserError, match=said):
            OwnJudge.of(JudgeConfig(name="mine:Judge"))
    with pytest.raises(UserError, match="mine:Judge has no checklist"):
        OwnJudge(object(), "mine:Judge").checklist(QUERY)


def test_a_judge_that_needs_no_config_may_leave_its_init_out(monkeypatch):
    class Draws(Judge):
        async def compare(self, query, first, second, repeat=0):
            return verdict_of(5.0)(2)

    monkeypatch.setattr(own, "named", lambda *_: Draws)
    judge = OwnJudge.of(JudgeConfig(name="mine:Draws"))
    assert asyncio.run(judge.compare(QUERY, attempt(1.0), attempt(2.0))).totals[0] == 5.0


def test_weights_that_are_none_are_refused():
    class Weightless(Whatever):
        def weights(self, query):
            return self.said

    for said in (None, {}, {"a": 0}, {"a": "1"}, [("a", 1)]):
        with pytest.raises(UserError, match="mine:Judge.weights must return"):
            OwnJudge(Weightless(said), "mine:Judge").weights(QUERY)


@pytest.mark.parametrize(
    "topology", ["seeded_single_elimination", "round_robin", "swiss", "double_elimination", "balanced"]
)
@seed(0)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_in_a_tournament_alone_only_numbers_count_and_every_rank_is_finite(topology, data):
    """Whatever `compare` returns in place of a pair of numbers fails its match."""
    anything = st.sampled_from(NO_SCORES) | st.floats() | st.integers() | st.text() | st.binary()
    pairs = st.tuples(anything, anything) | st.lists(anything) | st.floats(0, 10).map(lambda x: (x, 10 - x))
    said = {}

    async def compare(i, j):
        said[i, j] = data.draw(pairs)
        return said[i, j]

    ranking = run_tournament(topology, 5, compare)
    for match in ranking.matches:
        for call in match.calls:
            scores = said[call.first, call.second]
            are_numbers = all(type(score) in (int, float) and abs(score) <= 1e100 for score in scores[:2])
            counts = are_numbers and len(scores) in (2, 3)
            assert call.scores == (tuple(map(float, scores[:2])) if counts else None)
    assert all(score is None or math.isfinite(score) for score in ranking.scores_G)
