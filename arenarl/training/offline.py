"""Offline methods, in rounds (3.2.2, AgentGym-RL): rollouts and rewards as ever,
then TRL's own trainers on what came of them.

`methods/dpo.py` and `methods/agentevol.py` say which examples a group gives and what trains on them. Together the
rounds roll out as many groups, of the same queries, as `rl.steps` of online RL do. Trajectories stay the tokens that
the policy chose, with their masks; TRL's trainers would tokenise them again.
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
from arenarl.run.checkpoints import MARK, Survival, TrainingBar, last_checkpoint
from arenarl.run.processes import hold_gradients_once, join_processes, own_share
from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import log
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, say
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.methods import offline_method
from arenarl.training.methods.method import Example
from arenarl.training.step import TrainingStep
from arenarl.training.trl_adapter import prompt_dataset
from arenarl.trajectory import Query, append_step, read_jsonl


class Rounds:
    """Trains a policy in RL's folder; the curve evaluates what the engine generates with, as during online RL."""

    def __init__(self, config: Config, step: TrainingStep, curve: Any, stopwatch: Stopwatch, bar: TrainingBar):
        self.config, self.step, self.curve, self.stopwatch, self.bar = config, step, curve, stopwatch, bar
        self.method, self.folder, self.has_warned = offline_method(config.rl), step.folder, False

    def train(self, start: str, queries: Sequence[Query]) -> None:
        """All rounds that are not done yet. Raises UserError if a round finds nothing to train on."""
        rl, method = self.config.rl, self.method
        join_processes(self.config)
        order = [self.step.by_id[query_id] for query_id in prompt_dataset(queries, self.config)["prompt"]]
        steps = [order[first : first + rl.groups] for first in range(0, len(order), rl.groups)]
        policy, examples = start, []
        for number in range(1, rl.rounds + 1):
            folder = self.folder / f"round{number}"
            target = self.folder if number == rl.rounds else folder / "policy"
            mine = range(len(steps) * (number - 1) // rl.rounds, len(steps) * number // rl.rounds)
            found = self._collect(folder / "examples.jsonl", policy, {step: steps[step] for step in mine})
            examples = examples + found if method.starts_anew else found
            if not examples:
                raise UserError(
                    f"{folder}: no trajectory to train on; raise rl.steps, lower rl.keep_from (agentevol), "
                    "or start from a better policy"
                )
            say(f"round {number} of {rl.rounds}: {len(found)} {method.examples} of {len(mine) * rl.groups} groups")
            self._fit(start if method.starts_anew else policy, examples, folder, target)
            policy = str(target)
        if rl.eval_steps:
            self._load(policy)
            self.curve.record(len(steps))
        self.step.close()

    def _load(self, policy: str) -> None:
        self.step.engine.generator.model = load_to_generate(policy, self.config.policy.dtype)

    def _collect(self, path: Path, policy: str, steps: dict[int, list[Query]]) -> list[Example]:
        """What the groups of these steps give to train on; steps that are in the file are not rolled out again.
        To be called on all processes."""
        done = {record["step"]: record for record in read_jsonl(path)} if path.is_file() else {}
        missing = [number for number in steps if number not in done]
        referee = self.step.arena.referee
        if missing:
            self._load(policy)
            if self.config.rl.eval_steps and not done:
                self.curve.record(min(steps))
        if done:
            referee.variances = JudgeVariances(**done[max(done)]["variances"])
        for number in missing:
            groups = self.step.roll_out(number, own_share(steps[number]))
            metrics = _means(gather_object([self.step.finish(number)]))
            log(metrics, number)
            examples = [
                example
                for group, outcome in zip(groups, self.step.outcomes, strict=True)
                for example in self.method.find_examples(group, outcome, self.config.rl)
            ]
            if self.method.needs_matches:
                self._warn_of_beginnings(groups)
            done[number] = {"examples": gather_object(examples), "variances": asdict(referee.variances)}
            if is_main_process():
                append_step(self.folder / "metrics.jsonl", number, [{"step": number, **metrics}])
                append_step(path, number, [{"step": number, **done[number]}])
                self.stopwatch.lap()
        self.step.engine.generator.model = None
        return [example for number in steps for example in done[number]["examples"]]

    def _warn_of_beginnings(self, groups: Sequence[Any]) -> None:
        for group in groups:
            prompts = {tuple(trajectory.prompt_ids) for trajectory in group.trajectories if not trajectory.is_void}
            if len(prompts) > 1 and not self.has_warned:
                self.has_warned = True
                say(
                    f"query {group.query.query_id}: reset showed one group {len(prompts)} beginnings; "
                    "only trajectories that began alike make pairs"
                )

    def _fit(self, policy: str, examples: Sequence[Example], folder: Path, target: Path) -> None:
        """Train a policy on examples and save it; a round that was interrupted resumes from its checkpoint."""
        if (target / MARK).is_file():
            return
        trainer = self.method.make_trainer(self.config, policy, list(examples), folder, self.step.engine.tokenizer)
        hold_gradients_once(trainer)
        trainer.add_callback(Survival(self.stopwatch))
        self.bar.attach(trainer)
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        save_policy(trainer, target)
        PartialState().wait_for_everyone()
        if target != self.folder and is_main_process():
            write_json(target / MARK, {"examples": len(examples)})
        del trainer
        # TRL's head makes the policy refer to itself: it would lie beside the next one until Python looks for such
        # circles
        gc.collect()


def _means(of_processes: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    """Of metrics, each given as the values whose mean it is."""
    names = dict.fromkeys(name for metrics in of_processes for name in metrics)
    values = {name: [value for metrics in of_processes for value in metrics.get(name, [])] for name in names}
    return {name: fmean(of_all) for name, of_all in values.items() if of_all}
