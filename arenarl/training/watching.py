"""The watching judge (`judge.watch`): a second judge that scores a share of RL's groups and does not affect rewards.

It detects reward hacking: then the training judge's scores rise, but the watching judge's scores do not. It scores
each valid trajectory pointwise as it ends, in its own thread and with its own client, so its errors stop only its own
calls. Training waits for it at most `GRACE_S` per step. Late scores are logged with the step in which they arrive, and
dropped after `LATE_STEPS`. Not in the paper.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from accelerate.utils import gather_object

from arenarl.config.schema import Config
from arenarl.domains.domain import Domain
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import Examiner, Judge
from arenarl.llm.client import LLMClient, Usage, open_client
from arenarl.system.errors import show
from arenarl.system.event_loops import LoopThread
from arenarl.system.progress import is_main_process
from arenarl.system.seeds import stable_seed
from arenarl.tournament.calls import attempt
from arenarl.training.judging import IncomingGroup
from arenarl.training.metrics import flags, rank_correlation
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import append_step

GRACE_S = 5.0  # a step's longest wait for the scores of its own groups
LATE_STEPS = 10  # optimizer steps after which missing scores are dropped

# scores (G,), None for a missing verdict and for invalid trajectories, which are not scored; number of calls
Scores = tuple[list[float | None], int]


@dataclass(frozen=True)
class Watched:
    """Both judges' scores of one group: all lists are (G,), with None for missing values."""

    step: int
    query_id: str
    scores: list[float | None]  # 0 to 10, by the watching judge
    judged: list[float | None]  # 0 to 10, by the training judge: the mean of its calls
    rewards: list[float | None]
    agreement: float | None  # Kendall's tau-b between the rewards and the watching judge's scores
    calls: int
    failed: int


@dataclass(eq=False)
class _Pending:
    step: int
    group: IncomingGroup
    scores: Future[Scores]
    outcome: GroupOutcome | None = None

    def watched(self) -> Watched:
        """Dropped scores count as failed calls."""
        size, outcome = len(self.group), self.outcome
        scores, calls = ([None] * size, size) if self.scores.cancelled() else self.scores.result()
        agreement = rank_correlation(outcome.rewards_G, scores)
        return Watched(
            self.step, self.group.query.query_id, scores, outcome.judged_G, outcome.rewards_G,
            None if math.isnan(agreement) else agreement, calls, calls - len(scores) + scores.count(None),
        )  # fmt: skip


class Watcher:
    """Scores a share of the groups with a judge in its own thread, and writes a line per group to a JSONL file.

    The choice depends on (seed, step, query), so a resumed run watches the same groups. `client` is the judge's own LLM
    client; None if the judge calls no LLM.
    """

    def __init__(self, judge: Judge, share: float, seed: int, path: Path, client: LLMClient | None = None):
        self.judge, self.share, self.seed, self.path, self.client = judge, share, seed, path, client
        self._pending: list[_Pending] = []
        self._thread = LoopThread("watching")
        self._has_stopped = False

    def watches(self, step: int, query_id: str) -> bool:
        return random.Random(stable_seed(self.seed, "watch", step, query_id)).random() < self.share

    def begin(self, step: int, groups: Sequence[IncomingGroup]) -> None:
        """Start to score a step's watched groups while their trajectories are handed over."""
        watched = [group for group in groups if self.watches(step, group.query.query_id)]
        self._pending += [_Pending(step, group, self._thread.submit(self._scores(group))) for group in watched]

    async def _scores(self, group: IncomingGroup) -> Scores:
        async def score(row: int) -> tuple[float | None, int]:
            trajectory = await group.trajectory(row)
            if not trajectory.valid:
                return None, 0
            call = partial(self.judge.score, group.query, trajectory)
            total, _ = await attempt(call, lambda verdict: verdict.totals[0], None, TimeoutError)
            return total, 1

        totals, calls = zip(*await asyncio.gather(*map(score, range(len(group)))), strict=True)
        return list(totals), sum(calls)

    def look(
        self, step: int, groups: Sequence[IncomingGroup], outcomes: Sequence[GroupOutcome]
    ) -> dict[str, list[float]]:
        """Write the scores that have arrived, and return them as metrics: lists of values whose means are logged.

        Call it on all processes. `groups` are this step's groups, with their outcomes.
        """
        outcome_of = {id(group): outcome for group, outcome in zip(groups, outcomes, strict=True)}
        for pending in self._pending:
            pending.outcome = pending.outcome or outcome_of.get(id(pending.group))
            if pending.step < step - LATE_STEPS:
                pending.scores.cancel()
        is_late = any(pending.step < step for pending in self._pending)
        return self._take(step, wait_s=0.0 if is_late else GRACE_S)

    def close(self) -> None:
        """Write the scores that arrive within GRACE_S. Call it on all processes, after the last step."""
        self._take(math.inf, wait_s=GRACE_S)
        if self._pending:
            show(f"judge.watch: {len(self._pending)} groups have no scores; training ends without waiting for them")

    def _take(self, step: float, wait_s: float) -> dict[str, list[float]]:
        wait([pending.scores for pending in self._pending], timeout=wait_s)
        ended = [pending for pending in self._pending if pending.scores.done()]
        self._pending = [pending for pending in self._pending if pending not in ended]
        groups = [pending.watched() for pending in ended]
        usage = self.client.take_usage()[0] if self.client else Usage()
        parts, usages = zip(*gather_object([([asdict(group) for group in groups], usage)]), strict=True)
        if (records := [record for part in parts for record in part]) and is_main_process():
            append_step(self.path, step, records)
        if self.client and self.client.stop_reason and not self._has_stopped:
            self._has_stopped = True
            show(f"judge.watch has stopped, training continues without it: {self.client.stop_reason}")
        return watch_metrics(groups, sum(usages, start=Usage()) if self.client else None)


def make_watcher(config: Config, domain: Domain, examine: Examiner | None, folder: Path) -> Watcher | None:
    """Return the watcher with the judge of `judge.watch`, for RL in `folder`; None with `judge.watch_share` 0.

    Its calls count towards the run's budget. In addition to the other judges' calls, `watch_share` of
    `judge.concurrency` calls may run at once.
    """
    judge, share = config.judge.watch, config.judge.watch_share
    if not share:
        return None
    limits = replace(config.judge, concurrency=math.ceil(share * config.judge.concurrency))
    client = open_client([judge], limits, f"{config.run_name}/rl")
    made = make_judge(judge, domain, examine, client, config.seed, "watch")
    return Watcher(made, share, config.seed, folder / "watch.jsonl", client)


def watch_metrics(watched: Sequence[Watched], usage: Usage | None) -> dict[str, list[float]]:
    """Return the watched groups' metrics as lists of values: one per trajectory, group or call."""
    pairs = [pair for group in watched for pair in zip(group.scores, group.judged, strict=True) if None not in pair]
    metrics = {
        "watch/score": [score for group in watched for score in group.scores if score is not None],
        "watch/training_score": [judged for _, judged in pairs],
        "watch/difference": [judged - score for score, judged in pairs],
        "watch/agreement": [group.agreement for group in watched if group.agreement is not None],
        "watch/failure_rate": flags((group.failed, group.calls) for group in watched),
    }
    return metrics | ({"watch/paid_calls": [float(usage.calls)], "watch/cost": [usage.cost]} if usage else {})
