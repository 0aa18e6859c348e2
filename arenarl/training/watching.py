"""The judge that only watches (`judge.watch`): it scores a share of RL's groups, without any effect on rewards.

A policy can learn to please the judge that trains it: then that judge's scores rise, and those of another one, whom
nobody tries to please, do not. It is asked pointwise, about each valid trajectory as it ends, in a thread and with a
client of its own: its errors and a server that is down end its calls and no others. Training waits for it `GRACE_S` a
step at most; later scores are logged with the step in which they come, and given up after `LATE_STEPS`. Not in the
paper.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from accelerate.utils import gather_object

from arenarl.config.schema import Config
from arenarl.domains.domain import Domain
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import Examiner, Judge, Verdict
from arenarl.judges.own import OwnJudge
from arenarl.llm.client import LLMClient, Usage, open_client
from arenarl.system.errors import UserError, show
from arenarl.system.event_loops import LoopThread
from arenarl.system.progress import is_main_process
from arenarl.system.seeds import stable_seed
from arenarl.tournament.calls import attempt
from arenarl.training.judging import IncomingGroup
from arenarl.training.metrics import flags, rank_correlation
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import append_step

GRACE_S = 5.0  # that a step waits for the scores of its own groups
LATE_STEPS = 10  # optimizer steps after which scores that are not there yet are given up

# (G,), None where there is no verdict, and for an invalid one, which is not asked about; how many were asked for
Scores = tuple[list[float | None], int]


@dataclass(frozen=True)
class Watched:
    """One group: all lists are (G,), with None for what is not known."""

    step: int
    query_id: str
    scores: list[float | None]  # 0 to 10, by the watching judge
    judged: list[float | None]  # 0 to 10, by the judge that trains: the mean of its calls
    rewards: list[float | None]
    agreement: float | None  # Kendall's tau-b of the rewards and the watching judge's scores
    calls: int
    failed: int


@dataclass(eq=False)
class _Pending:
    step: int
    group: IncomingGroup
    scores: Future[Scores]
    outcome: GroupOutcome | None = None

    def watched(self) -> Watched:
        """Scores that were given up count as failed calls."""
        size, outcome = len(self.group), self.outcome
        scores, calls = ([None] * size, size) if self.scores.cancelled() else self.scores.result()
        agreement = rank_correlation(outcome.rewards_G, scores)
        return Watched(
            self.step, self.group.query.query_id, scores, outcome.judged_G, outcome.rewards_G,
            None if math.isnan(agreement) else agreement, calls, calls - len(scores) + scores.count(None),
        )  # fmt: skip


class Watcher:
    """Args:
    share: of the groups, each drawn by (seed, step, query), so that a resumed run watches the same.
    path: a JSONL file that gets a line for each group.
    client: of an LLM, not shared with other judges.
    """

    def __init__(self, judge: Judge, share: float, seed: int, path: Path, client: LLMClient | None = None):
        self.judge, self.share, self.seed, self.path, self.client = judge, share, seed, path, client
        self._pending: list[_Pending] = []
        self._thread = LoopThread("watching")
        self._has_stopped = False

    def watches(self, step: int, query_id: str) -> bool:
        return random.Random(stable_seed(self.seed, "watch", step, query_id)).random() < self.share

    def begin(self, step: int, groups: Sequence[IncomingGroup]) -> None:
        """Score those of a step's groups that it watches, from now on, as their trajectories are handed over."""
        watched = [group for group in groups if self.watches(step, group.query.query_id)]
        self._pending += [_Pending(step, group, self._thread.submit(self._scores(group))) for group in watched]

    async def _scores(self, group: IncomingGroup) -> Scores:
        async def score(row: int) -> tuple[float | None, int]:
            trajectory = await group.trajectory(row)
            if not trajectory.valid:
                return None, 0
            total, _ = await attempt(lambda: self.judge.score(group.query, trajectory), _total, None)
            return total, 1

        totals, calls = zip(*await asyncio.gather(*map(score, range(len(group)))), strict=True)
        return list(totals), sum(calls)

    def look(
        self, step: int, groups: Sequence[IncomingGroup], outcomes: Sequence[GroupOutcome]
    ) -> dict[str, list[float]]:
        """Keep the scores that are there in the file, and return them as metrics, each as the values whose mean it is.

        `groups` are those of this step, with their outcomes. To be called on all processes.
        """
        outcome_of = {id(group): outcome for group, outcome in zip(groups, outcomes, strict=True)}
        for one in self._pending:
            one.outcome = one.outcome or outcome_of.get(id(one.group))
        is_late = any(one.step < step for one in self._pending)
        return self._take(step, wait_s=0.0 if is_late else GRACE_S)

    def close(self) -> None:
        """Keep what is still to come, if it comes within GRACE_S.
        To be called on all processes, after the last step."""
        self._take(math.inf, wait_s=GRACE_S)
        if self._pending:
            show(
                f"judge.watch: {len(self._pending)} groups have no scores yet; "
                "training is over and does not wait for them"
            )

    def _take(self, step: float, wait_s: float) -> dict[str, list[float]]:
        wait([one.scores for one in self._pending], timeout=wait_s)
        for one in self._pending:
            if one.step < step - LATE_STEPS and step < math.inf:
                one.scores.cancel()
        ended = [one for one in self._pending if one.scores.done()]
        self._pending = [one for one in self._pending if one not in ended]
        found = [one.watched() for one in ended]
        usage = self.client.take_usage()[0] if self.client else Usage()
        of_processes = gather_object([([asdict(one) for one in found], usage)])
        records = [record for kept, _ in of_processes for record in kept]
        if records and is_main_process():
            append_step(self.path, step, records)
        if self.client and self.client.stop_reason and not self._has_stopped:
            self._has_stopped = True
            show(f"judge.watch has stopped, and training goes on without it: {self.client.stop_reason}")
        return watch_metrics(found, sum((one for _, one in of_processes), start=Usage()) if self.client else None)


def make_watcher(config: Config, domain: Domain, examine: Examiner | None, folder: Path) -> Watcher | None:
    """The judge that `judge.watch` describes, for RL in `folder`; None with `judge.watch_share` 0.

    Its calls count for the run's budget. Beside those of the other judges, `watch_share` of `judge.concurrency` of them
    may be under way.

    Raises:
        UserError: the judge cannot be had, or cannot score.
    """
    judge, share = config.judge.watch, config.judge.watch_share
    if not share:
        return None
    limits = replace(config.judge, concurrency=math.ceil(share * config.judge.concurrency))
    client = open_client([judge], limits, f"{config.run_name}/rl")
    made = make_judge(judge, domain, examine, client, config.seed, "watch")
    if isinstance(made, OwnJudge) and not callable(getattr(made.judge, "score", None)):
        raise UserError(
            f"judge.watch.name={judge.name}: a watching judge scores trajectories one by one; "
            "define its method score (docs/judges.md)"
        )
    return Watcher(made, share, config.seed, folder / "watch.jsonl", client)


def watch_metrics(watched: Sequence[Watched], usage: Usage | None = None) -> dict[str, list[float]]:
    """Of the groups whose scores came in, each as the values whose mean it is: one a trajectory, group or call."""
    both = [pair for one in watched for pair in zip(one.scores, one.judged, strict=True) if None not in pair]
    metrics = {
        "watch/score": [score for one in watched for score in one.scores if score is not None],
        "watch/training_score": [judged for _, judged in both],
        "watch/difference": [judged - score for score, judged in both],
        "watch/agreement": [one.agreement for one in watched if one.agreement is not None],
        "watch/failure_rate": flags((one.failed, one.calls) for one in watched),
    }
    return metrics | ({"watch/paid_calls": [float(usage.calls)], "watch/cost": [usage.cost]} if usage else {})


def _total(verdict: Verdict) -> float:
    (total,) = verdict.totals
    return total
