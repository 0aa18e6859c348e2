"""A curve point that a spent budget interrupts is not written; the repeated point is equal."""

from contextlib import suppress

import pytest
from finished_run import StoredRollouts
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.domains.rubrics import domain_rubric
from arenarl.evaluation.curve import CurveRecorder
from arenarl.evaluation.evaluation import Panel
from arenarl.judges.judge import Verdict
from arenarl.llm.client import RunStopped
from arenarl.trajectory import Query, Trajectory, append_step, read_jsonl

RUBRIC = domain_rubric("travel", "en")
QUERIES = [Query(f"q{number}", "travel", "Search", "en", f"Find cafe {number}.") for number in range(4)]
CALLS = 2 * 2 * len(QUERIES)  # orders, decodings


def answer(query):
    message = {"role": "assistant", "content": f"<answer>\n{query.query}\n</answer>"}
    return Trajectory(query.query_id, [message], "answer")


class Budget:
    """A judge with a limit on calls, and the client of a run."""

    def __init__(self, calls):
        self.left, self.stop_reason = calls, None

    async def compare(self, query, first, second, repeat=0):
        if not self.left:
            self.stop_reason = "spent"
            return None
        self.left -= 1
        scores = tuple(dict.fromkeys(RUBRIC.names, score) for score in (5.0, 6.0))
        return Verdict(scores, RUBRIC.total)


class Fixed:
    """An engine, a user's own domain and a test set in one object."""

    is_own = True

    def roll_out(self, attempts, tick):
        return StoredRollouts({query.query_id: answer(query) for query in QUERIES}).roll_out(attempts, tick)

    def read_test_set(self):
        return QUERIES, {query.query_id: answer(query) for query in QUERIES}

    def spread_over_subtasks(self, queries, count):
        return queries[:count]


def curve_of(folder, budget):
    panel = Panel([budget], examine=None)
    return CurveRecorder(Fixed(), Fixed(), panel, len(QUERIES), {"sampled": 0.8, "greedy": 0.0}, 0, folder, budget)


@settings(max_examples=8)
@given(calls=st.integers(0, 4 * CALLS))
def test_a_budget_that_ends_at_any_call_costs_no_point(tmp_path_factory, calls):
    folder = tmp_path_factory.mktemp("curve")
    whole, broken = curve_of(folder / "whole", Budget(10**9)), curve_of(folder / "broken", Budget(calls))
    for step in (0, 20, 40):
        whole.record(step)
        with suppress(RunStopped):
            broken.record(step)
        assert whole.has_point(step) and broken.has_point(step) == (broken.client.stop_reason is None)
        if not broken.has_point(step):
            assert calls < (step // 20 + 1) * CALLS
            broken = curve_of(folder / "broken", Budget(10**9))  # the run resumes with a larger budget
            broken.record(step)
            assert broken.has_point(step)
    assert (folder / "broken" / "curve.jsonl").read_bytes() == (folder / "whole" / "curve.jsonl").read_bytes()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_curve_point_exists_if_the_file_has_its_step(tmp_path, is_there):
    for step in (0, 20, 40) if is_there else ():
        append_step(tmp_path / "curve.jsonl", step, [{"step": step}])
    curve = curve_of(tmp_path, Budget(0))
    assert curve.has_point(20) == is_there and not curve.has_point(30) and not curve.has_point(60)
    assert len(list(read_jsonl(curve.path))) == 3 if is_there else not curve.path.exists()
