"""Offline methods in rounds (3.2.2, AgentGym-RL): each round rolls out and rewards groups, then trains on examples.

`methods/dpo.py` and `methods/agentevol.py` define the examples of a group and the TRL trainer that uses them. All
rounds together roll out the same groups as `rl.steps` of online RL. Examples keep the token ids and masks of the
rollouts, because TRL's trainers would tokenize the text again.
"""

import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from arenarl.config.schema import Config
from arenarl.rollout.policy import load_to_generate, save_policy
from arenarl.run.checkpoints import CheckpointMarker, TrainingBar, last_checkpoint
from arenarl.run.marks import MARK, damage, policy_file
from arenarl.run.processes import join_processes, own_share
from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import log
from arenarl.system.atomic_files import as_stored, json_hash, remove
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, say
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.methods import offline_method
from arenarl.training.methods.method import Example
from arenarl.training.sft_internals import prepare_training
from arenarl.training.step import TrainingStep
from arenarl.training.trl_adapter import prompt_dataset
from arenarl.trajectory import Query, RolloutGroup, append_step, read_jsonl, write_jsonl


class Rounds:
    """Trains a policy in RL's folder, and records the evaluation curve as online RL does."""

    def __init__(self, config: Config, step: TrainingStep, curve: Any, stopwatch: Stopwatch, bar: TrainingBar):
        self.config, self.step, self.curve, self.stopwatch, self.bar = config, step, curve, stopwatch, bar
        self.method, self.folder, self.has_warned = offline_method(config.rl), step.folder, False

    def train(self, start: str, queries: Sequence[Query]) -> None:
        """Run all unfinished rounds. Raises UserError if a round has no examples."""
        rl, method = self.config.rl, self.method
        join_processes(self.config)
        order = [self.step.by_id[query_id] for query_id in prompt_dataset(queries, self.config)["prompt"]]
        steps = [order[first : first + rl.groups] for first in range(0, len(order), rl.groups)]
        policy, examples = start, []
        for number in range(1, rl.rounds + 1):
            folder = self.folder / f"round{number}"
            target = self.folder if number == rl.rounds else folder / "policy"
            of_round = range(len(steps) * (number - 1) // rl.rounds, len(steps) * number // rl.rounds)
            new = self._collect(folder / "examples.jsonl", policy, {step: steps[step] for step in of_round})
            examples = examples + new if method.restarts else new
            if not examples:
                raise UserError(
                    f"{folder}: no trajectory to train on; raise rl.steps, lower rl.keep_from (agentevol), "
                    "or start from a better policy"
                )
            say(f"round {number} of {rl.rounds}: {len(new)} {method.examples} of {len(of_round) * rl.groups} groups")
            self._fit(start if method.restarts else policy, examples, folder, target)
            policy = str(target)
        if rl.eval_steps:
            self._load(policy)
            self.curve.record(len(steps))
        self.step.close()

    def _load(self, policy: str) -> None:
        self.step.engine.generator.model = load_to_generate(policy, self.config.policy.dtype)

    def _collect(self, path: Path, policy: str, steps: dict[int, list[Query]]) -> list[Example]:
        """Roll out these steps' groups, except steps already in the file, and return all examples of these steps."""
        done = _read_examples(path, list(steps)) if path.is_file() else {}
        missing = [number for number in steps if number not in done]
        referee = self.step.arena.referee
        if missing:
            self._load(policy)
            if self.config.rl.eval_steps and not done:
                self.curve.record(min(steps))
        if done:
            referee.variances = JudgeVariances(**done[max(done)]["variances"])
            for record in done.values():
                referee.rubrics |= record.get("rubrics", {})  # none in records of earlier versions
        for number in missing:
            self.step.take(self.step.generate(number, own_share(steps[number]), number))
            metrics = _means(gather_object([self.step.finish(number)]))
            log(metrics, number)
            examples = []
            for group, outcome in self.step.batch.judged():
                examples += self.method.find_examples(group, outcome, self.config.rl)
            if self.method.needs_matches:
                self._warn_of_prompts(self.step.batch.groups)
            done[number] = {"examples": gather_object(examples), "variances": asdict(referee.variances)}
            done[number]["rubrics"] = {
                query.query_id: referee.rubrics[query.query_id]
                for query in steps[number]
                if query.query_id in referee.rubrics
            }
            if is_main_process():
                append_step(self.folder / "metrics.jsonl", number, [{"step": number, **metrics}])
                append_step(path, number, [_signed({"step": number, **done[number]})])
                self.stopwatch.lap()
        self.step.engine.generator.model = None
        return [example for number in steps for example in done[number]["examples"]]

    def _warn_of_prompts(self, groups: Sequence[RolloutGroup]) -> None:
        for group in groups:
            prompts = {tuple(trajectory.prompt_ids) for trajectory in group.trajectories if not trajectory.is_void}
            if len(prompts) > 1 and not self.has_warned:
                self.has_warned = True
                say(
                    f"query {group.query.query_id}: the environment's reset returned {len(prompts)} different "
                    "observations in one group; only trajectories with equal prompts make pairs"
                )

    def _fit(self, policy: str, examples: Sequence[Example], folder: Path, target: Path) -> None:
        """Train a policy on examples and save it; an interrupted round resumes from its checkpoint."""
        problem = damage(target, policy_file) if is_main_process() else ""
        if gather_object([(target / MARK).is_file() and not problem])[0]:
            return
        if problem:
            say(f"{target} is damaged: {problem}; training it again from the round's last checkpoint")
        rl, steps = self.config.rl, -(-len(examples) // self.config.rl.batch_size)
        if rl.warmup_steps >= steps:
            problem = f"none of {folder.name}'s optimizer steps ({steps}) has the full rate; lower it below {steps}"
            say(f"rl.warmup_steps={rl.warmup_steps}: {problem}")
        trainer = self.method.make_trainer(self.config, policy, list(examples), folder, self.step.engine.tokenizer)
        prepare_training(trainer)
        trainer.add_callback(CheckpointMarker(self.stopwatch))
        self.bar.attach(trainer)
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        save_policy(trainer, target)
        PartialState().wait_for_everyone()
        del trainer
        gc.collect()  # TRL's head makes the policy refer to itself, so only a collection frees its memory


def _signed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with a hash, because the examples decide the policy."""
    return record | {"sha256": json_hash(as_stored(record))}


def _read_examples(path: Path, steps: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the stored steps of a round, in order, up to the first damaged line.

    The main process deletes that line, later lines and later rounds, because records must be in the order of steps.
    """
    done: dict[int, dict[str, Any]] = {}
    is_damaged = False
    try:
        for step, record in zip(steps, read_jsonl(path), strict=False):
            unsigned = {key: value for key, value in record.items() if key != "sha256"}
            if is_damaged := record.get("step") != step or record != _signed(unsigned):
                break
            done[step] = record
    except (UserError, AttributeError):  # a line is not JSON, or not an object
        is_damaged = True
    if is_damaged:
        say(f"{path}, line {len(done) + 1} is damaged; rolling out its step and later steps again")
        if is_main_process():
            write_jsonl(path, done.values())
            number, later = int(path.parent.name.removeprefix("round")), path.parent.parent.glob("round*")
            for folder in later:  # other names are the user's own copies
                if (name := folder.name.removeprefix("round")).isdecimal() and int(name) > number:
                    remove(folder)
    return done


def _means(of_processes: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    """Return the mean of each metric over the values of all processes, without metrics that have no value."""
    names = dict.fromkeys(name for metrics in of_processes for name in metrics)
    values = {name: [value for metrics in of_processes for value in metrics.get(name, [])] for name in names}
    return {name: fmean(of_all) for name, of_all in values.items() if of_all}
