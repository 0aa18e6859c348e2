"""One step ahead (`rl.steps_ahead: 1`): step t+1's groups are generated and judged while the trainer updates on step t.

A thread runs the rollouts and starts their judging; the policy is a vLLM server or a second process. Before step t+1
(the boundary) the trainer waits for the thread, then syncs the weights, then starts the thread for step t+2. So groups
are one update old, and TRL corrects for that with the log-probabilities under which they were sampled. A step's queries
and seeds are the same as without this key.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl import GRPOTrainer

from arenarl.run.checkpoints import checkpoint_folder
from arenarl.system.atomic_files import write_lines
from arenarl.system.event_loops import DaemonThreads
from arenarl.system.progress import is_main_process
from arenarl.training.judging import IncomingGroup
from arenarl.training.step import Batch, TrainingStep
from arenarl.training.trl_internals import generating
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_jsonl

FILE = "pending.jsonl"  # in a checkpoint: the groups of its next step, one per line


class StepAhead(TrainingStep, TrainerCallback):
    """A step whose groups were generated during the last update; the first step generates its own.

    As a callback of the trainer, it stores the pending groups in each checkpoint and loads them when a run resumes.
    They are then judged again: an LLM's replies come from its store.
    """

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.pending: Future[Batch] | None = None
        self._stored: dict[str, dict[str, Any]] = {}  # by query; until the first step after a resume

    def collect(self, queries: Sequence[Query], trainer: GRPOTrainer) -> None:
        """Take the pending batch, finish its step, and start to generate the next one with the trainer's weights."""
        start, number = perf_counter(), trainer.state.global_step
        with generating(self.engine, trainer):  # nothing is under way: the sync of the weights has waited for it
            if self.pending:
                batch = self.pending.result()
            else:
                batch = self._restored(number, queries) or self.generate(number, queries, number)
        self.take(batch)
        if [group.query for group in batch.groups] != list(queries):
            raise RuntimeError(f"TRL passed other queries for step {number} than prompt_dataset has for it")
        self.metrics = self.finish(number)  # before the next step is judged, which needs the judge's new variances
        self.metrics["rollout/staleness"] = [float(number - batch.weights_step)]
        self.pending = self._begin(trainer, number + self.config.rl.updates_per_rollout)
        waited_s, sync_s = trainer.generator_weights.take_times()
        self.boundary_s = {"sync": sync_s, "wait": waited_s + perf_counter() - start}

    def rollout_func(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """As without this key, but drop stale anchors from the loss: greedy tokens are not samples, so no importance
        ratio corrects for their age."""
        rows = super().rollout_func(prompts, trainer)
        trajectories = [trajectory for group in self.batch.groups for trajectory in group.trajectories]
        is_stale = self.batch.weights_step < self.batch.number
        anchors = [row for row, trajectory in enumerate(trajectories) if is_stale and trajectory.is_anchor]
        tokens, dropped = (sum(sum(rows["env_mask"][row]) for row in of) for of in (range(len(trajectories)), anchors))
        self.metrics["rollout/anchor_tokens_dropped"] = [dropped / max(tokens, 1)]
        for row in anchors:
            rows["env_mask"][row] = [0] * len(rows["env_mask"][row])
        return rows

    def _begin(self, trainer: GRPOTrainer, number: int) -> Future[Batch] | None:
        """Start to generate and judge a later step's groups; return None after the last step."""
        rl, accelerator = self.config.rl, trainer.accelerator
        own = rl.groups // accelerator.num_processes
        first = number // rl.updates_per_rollout * rl.groups + accelerator.process_index * own
        queries = [self.by_id[query_id] for query_id in trainer.train_dataset[first : first + own]["prompt"]]
        if not queries:
            return None
        return DaemonThreads().submit(self.generate, number, queries, trainer.state.global_step)

    def _pending_batch(self) -> Batch | None:
        """Wait for the pending groups, and return None without complete ones. `collect` raises the error that
        ended them."""
        if self.pending is None:
            return None
        has_failed = self.pending.exception() is not None
        return None if has_failed or self.pending.result().stop else self.pending.result()

    def wait(self) -> None:
        if batch := self._pending_batch():
            batch.judgings[0].wait()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        batch, records = self._pending_batch(), []
        if batch:
            begin, end = batch.generated
            facts = {"step": batch.number, "weights_step": batch.weights_step, "rollout_s": end - begin}
            records = [
                {"query_id": group.query.query_id, **facts, "trajectories": [vars(one) for one in group.trajectories]}
                for group in batch.groups
            ]
        records = gather_object(records)
        if records and is_main_process():
            write_lines(checkpoint_folder(args, state) / FILE, records)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        path = checkpoint_folder(args, state) / FILE
        self._stored = {record["query_id"]: record for record in read_jsonl(path)} if path.is_file() else {}

    def _restored(self, number: int, queries: Sequence[Query]) -> Batch | None:
        """Return the batch that the checkpoint stored, None if it lacks a group of this process."""
        records, self._stored = [self._stored.get(query.query_id) for query in queries], {}
        if None in records:
            return None
        groups = [
            RolloutGroup(query, [Trajectory(**fields) for fields in record["trajectories"]])
            for query, record in zip(queries, records, strict=True)
        ]
        judging, now = self.arena.judge([IncomingGroup.of(group) for group in groups]), perf_counter()
        if self.watcher:
            self.watcher.begin(number, judging.groups)
        generated = now - records[0]["rollout_s"], now
        return Batch(number, records[0]["weights_step"], list(range(len(groups))), groups, [judging], generated)
