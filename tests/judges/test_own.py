"""A user's own judge may return or raise anything: a call has scores from 0 to 10 or no verdict, and ends no run."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from groups import OTHERS, QUERY, attempt, config_of
from hypothesis import given, settings
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


class Scripted(Judge):
    """Raises `reply` if it is an error, calls it if it is callable, and returns it otherwise."""

    def __init__(self, reply):
        self.reply = reply

    def weights(self, query):
        return RUBRIC.weights

    def _reply(self, count):
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply(count) if callable(self.reply) else self.reply

    async def compare(self, query, first, second, repeat=0):
        return self._reply(2)

    async def choose(self, query, trajectories, winners, repeat=0):
        return self._reply(2)

    async def score(self, query, trajectory, *options):
        return self._reply(1)

    score_overall = score_dimension = score_together = check_items = score

    async def propose_rubrics(self, query, trajectories, rubrics, *options):
        return self._reply(1)

    def checklist(self, query):
        return {"item_1": 2.0, "item_2": 1.0}


def verdict_of(score):
    return lambda shown: Verdict(
        tuple(dict.fromkeys(RUBRIC.names, 5.0) | {"path_breadth": score} for _ in range(shown)), RUBRIC.total
    )


def call(reply, method, *arguments):
    return asyncio.run(getattr(OwnJudge(Scripted(reply), "mine:Judge"), method)(QUERY, *arguments))


def compare(reply):
    return call(reply, "compare", attempt(1.0), attempt(2.0))


@pytest.mark.parametrize("score", [0, 10, 9.5, np.float64(3), np.float32(3), np.int64(3), Fraction(1, 2)])
def test_numbers_from_0_to_10_are_scores(score):
    (first, _) = compare(verdict_of(score)).dimensions
    assert first["path_breadth"] == score and set(map(type, first.values())) == {float}


@pytest.mark.parametrize("score", NO_SCORES, ids=repr)
def test_any_other_score_is_a_missing_verdict_and_reported_once(score, capsys):
    judge = OwnJudge(Scripted(verdict_of(score)), "mine:Judge")
    for _ in range(3):
        assert asyncio.run(judge.compare(QUERY, attempt(1.0), attempt(2.0))) is None
    assert call(score, "score_overall", attempt(1.0)) is None
    assert capsys.readouterr().err.count("mine:Judge.compare: ") == 1


def test_a_custom_total_and_weights_must_be_numbers_in_range_too():
    for total in (11.0, "7", math.nan):
        assert compare(lambda shown, total=total: Verdict(({"a": 5.0},) * shown, lambda scores: total)) is None
    assert compare(lambda shown: Verdict(({"a": 5.0},) * (shown + 1), RUBRIC.total)) is None
    for weights in (None, {}, {"a": 0}, {"a": "1"}, {"a": math.inf}, [("a", 1)]):
        judge = Scripted(None)
        judge.weights = lambda query, weights=weights: weights
        with pytest.raises(UserError, match="mine:Judge.weights must return"):
            OwnJudge(judge, "mine:Judge").weights(QUERY)


@pytest.mark.parametrize("fault", [*FAULTS, *map(verdict_of, NO_SCORES)])
def test_a_faulty_judge_stops_neither_training_nor_evaluation(fault):
    judge = OwnJudge(Scripted(fault), "mine:Judge")
    trajectories = [attempt(1.0), attempt(2.0), attempt(3.0)]
    for method in ("tournament", "tournament_grpo", "rubric_checklist", "evolving_rubrics", *OTHERS):
        outcome = arena_of(config_of(method), judge).reward_groups([RolloutGroup(QUERY, trajectories)])[0]
        valid = int(method == "evolving_rubrics" and fault == {})  # a proposal may have no new rubric
        assert outcome.rewards_G == [None] * 3 and outcome.failed_calls == outcome.judge_calls - valid > 0
    (case,) = judge_trajectories([QUERY], [trajectories[0]], {QUERY.query_id: trajectories[1]}, Panel([judge], None))
    assert np.isnan(case.outcomes).all()


MET = {"item_1": True, "item_2": False}


@pytest.mark.parametrize(("method", "arguments", "valid", "wrong"), [
    ("choose", ([attempt(1.0)] * 3, 2), [([2, 0], [2, 0]), ((np.int64(2), 0), [2, 0])],
     [b"\x02\x00", "20", [True, 0], [2.0, 0], ["2", "0"], [-1, 0], [3, 0], 2]),
    ("score_together", ([attempt(1.0)] * 3,), [([1, 2.5, 10], [1.0, 2.5, 10.0]), ((1.0, 2.5, 10), [1.0, 2.5, 10.0])],
     [[1, 2], [1, 2, 3, 4], [1, 2, 11], [1, 2, None], "123", {"1": 1}, 7]),
    ("check_items", (attempt(1.0),), [({"item_2": False, "item_1": True}, MET)],
     [{"item_1": True}, MET | {"item_2": 1}, MET | {"item_3": True}, [True, False], True]),
    ("check_items", (attempt(1.0), 0, ["new"]), [(MET | {"new": True}, MET | {"new": True})], [MET, {"new": True}]),
    ("propose_rubrics", ([attempt(1.0)] * 3, ["old"]), [({"a": 1, "b": -1.0}, {"a": 1.0, "b": -1.0}), ({}, {})],
     [["a"], {"a": 2}, {"a": True}, {"a": "1"}, {"": 1}, {1: 1}, "a"]),
])  # fmt: skip
def test_wrong_positions_scores_checklist_answers_and_rubrics_are_missing_verdicts(method, arguments, valid, wrong):
    assert all(call(reply, method, *arguments) == verdict for reply, verdict in valid)
    assert all(call(reply, method, *arguments) is None for reply in wrong)


@pytest.mark.parametrize(("member", "problem"), [
    ("compare", "mine:Judge: compare must be async"), ("score", "mine:Judge: score must be async"),
    ("__init__", r"mine:Judge does not fit \(too many"),
])  # fmt: skip
def test_the_error_of_a_class_that_is_not_a_judge_names_the_problem(member, problem, monkeypatch):
    """A method is not async, or `__init__` takes no config."""
    kind = type("Judge", (Scripted,), {member: lambda self: None})
    monkeypatch.setattr(own, "import_named", lambda *_: kind)
    with pytest.raises(UserError, match=problem):
        OwnJudge.of(JudgeConfig(name="mine:Judge"))


def test_a_judge_may_omit_its_init_and_its_checklist(monkeypatch):
    class Draws(Judge):
        async def compare(self, query, first, second, repeat=0):
            return verdict_of(5.0)(2)

    monkeypatch.setattr(own, "import_named", lambda *_: Draws)
    judge = OwnJudge.of(JudgeConfig(name="mine:Draws"))
    assert asyncio.run(judge.compare(QUERY, attempt(1.0), attempt(2.0))).totals[0] == 5.0
    with pytest.raises(UserError, match="mine:Judge has no checklist"):
        OwnJudge(object(), "mine:Judge").checklist(QUERY)


@pytest.mark.parametrize(
    "topology", ["seeded_single_elimination", "round_robin", "swiss", "double_elimination", "balanced"]
)
@settings(max_examples=20)
@given(st.data())
def test_in_a_tournament_only_pairs_of_numbers_count_and_all_scores_are_finite(topology, data):
    """If `compare` returns anything but a pair of numbers, its match fails."""
    anything = st.sampled_from(NO_SCORES) | st.floats() | st.integers() | st.text() | st.binary()
    pairs = st.tuples(anything, anything) | st.lists(anything) | st.floats(0, 10).map(lambda x: (x, 10 - x))
    replies = {}

    async def compare(i, j):
        replies[i, j] = data.draw(pairs)
        return replies[i, j]

    ranking = run_tournament(topology, 5, compare)
    for call in (call for match in ranking.matches for call in match.calls):
        scores = replies[call.first, call.second]
        are_numbers = all(type(score) in (int, float) and abs(score) <= 1e100 for score in scores[:2])
        is_valid = are_numbers and len(scores) in (2, 3)
        assert call.scores == (tuple(map(float, scores[:2])) if is_valid else None)
    assert all(score is None or math.isfinite(score) for score in ranking.scores_G)
