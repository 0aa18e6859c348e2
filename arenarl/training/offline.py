"""Offline methods, in rounds (3.2.2, AgentGym-RL): rollouts and rewards as ever,
then TRL's own trainers on what came of them.

`rl.method: dpo` trains on pairs of one group of which both orders of a match preferred the same, each round from the
policy of the round before, which is its reference (DPO, Eq. 7). `rl.method: agentevol` trains on the trajectories that
were rewarded best, of all rounds so far, each round anew from the policy that RL starts from (AgentEvol). Together the
rounds roll out as many groups, of the same queries, as `rl.steps` of online RL do. Trajectories stay the tokens that
the policy chose, with their masks; TRL's trainers would tokenise them again.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer

from arenarl.config.schema import Config
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.policy import load_to_generate, lora_config, save_policy
from arenarl.run.checkpoints import MARK, Survival, TrainingBar, last_checkpoint
from arenarl.run.processes import hold_gradients_once, join_processes, own_share
from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import log
from arenarl.run.trainer_arguments import common_arguments, on_one_gpu
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, process_count, say
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.bookkeeping import Bookkeeping
from arenarl.training.judging import IncomingGroup
from arenarl.training.outcome import GroupOutcome
from arenarl.training.rewarding import Arena
from arenarl.training.sft_data import IGNORED
from arenarl.training.trl_adapter import prompt_dataset
from arenarl.trajectory import Query, RolloutGroup, append_step, read_jsonl

if TYPE_CHECKING:
    from trl import DPOTrainer

Example = dict[str, list[int]]


def preference_pairs(group: RolloutGroup, outcome: GroupOutcome) -> Iterator[Example]:
    """Winner and loser of each match that has a verdict in which both orders agree;
    masks are 1 on the policy's own tokens.

    A pair has one prompt: two that a world showed something else at first are none.
    """
    for match in outcome.ranking.matches if outcome.ranking else []:
        if match.scores is None:
            continue
        leads = [(call.scores[0] - call.scores[1]) * (1 if call.first == match.i else -1) for call in match.calls]
        if not (all(lead > 0 for lead in leads) or all(lead < 0 for lead in leads)):
            continue
        chosen, rejected = (
            group.trajectories[row] for row in ((match.i, match.j) if leads[0] > 0 else (match.j, match.i))
        )
        if chosen.prompt_ids != rejected.prompt_ids:
            continue
        yield {
            "prompt_ids": chosen.prompt_ids,
            "chosen_ids": chosen.completion_ids,
            "chosen_mask": chosen.policy_mask_T,
            "rejected_ids": rejected.completion_ids,
            "rejected_mask": rejected.policy_mask_T,
        }


def best_trajectories(group: RolloutGroup, outcome: GroupOutcome, least: float) -> Iterator[Example]:
    """Those rewarded with at least `least`, as SFT takes them; the same tokens once a group.

    Of a group that was ranked, the best in any case, unless all are alike:
    who ties for the first place is rewarded with less than 1.
    """
    seen, known = set(), {reward for reward in outcome.rewards_G if reward is not None}
    if outcome.ranking and len(known) > 1:
        least = min(least, max(known))
    for trajectory, reward in zip(group.trajectories, outcome.rewards_G, strict=True):
        ids, mask = (
            trajectory.prompt_ids + trajectory.completion_ids,
            [0] * len(trajectory.prompt_ids) + trajectory.policy_mask_T,
        )
        if reward is not None and reward >= least and any(mask) and tuple(ids) not in seen:
            seen.add(tuple(ids))
            yield {
                "input_ids": ids,
                "labels": [token if is_own else IGNORED for token, is_own in zip(ids, mask, strict=True)],
            }


@dataclass
class Rounds:
    """Trains `start`, in RL's folder; `curve(step)` evaluates what the engine generates with, as during online RL."""

    config: Config
    engine: RolloutEngine
    arena: Arena
    bookkeeping: Bookkeeping
    curve: Callable[[int], None]
    stopwatch: Stopwatch
    bar: TrainingBar
    _has_warned: bool = field(default=False, init=False)

    @property
    def folder(self) -> Path:
        return self.bookkeeping.folder

    def train(self, start: str, queries: Sequence[Query]) -> None:
        """All rounds that are not done yet. Raises UserError if a round finds nothing to train on."""
        rl, by_id = self.config.rl, {query.query_id: query for query in queries}
        join_processes(self.config)
        order = [by_id[query_id] for query_id in prompt_dataset(queries, self.config)["prompt"]]
        steps = [order[first : first + rl.groups] for first in range(0, len(order), rl.groups)]
        policy, examples = start, []
        for number in range(rl.rounds):
            place, mine = (
                self.folder / f"round{number + 1}",
                range(len(steps) * number // rl.rounds, len(steps) * (number + 1) // rl.rounds),
            )
            found = self._collect(place / "examples.jsonl", policy, {step: steps[step] for step in mine})
            examples = examples + found if rl.method == "agentevol" else found
            if not examples:
                raise UserError(
                    f"{place}: no trajectory to train on; raise rl.steps, lower rl.keep_from (agentevol), "
                    "or start from a better policy"
                )
            kind = "pairs" if rl.method == "dpo" else "trajectories"
            say(f"round {number + 1} of {rl.rounds}: {len(found)} {kind} of {len(mine) * rl.groups} groups")
            is_last = number + 1 == rl.rounds
            self._fit(
                start if rl.method == "agentevol" else policy,
                examples,
                place,
                self.folder if is_last else place / "policy",
            )
            policy = str(self.folder if is_last else place / "policy")
        self._evaluate(policy, len(steps))
        self.bookkeeping.finish()

    def _collect(self, path: Path, policy: str, steps: dict[int, list[Query]]) -> list[Example]:
        """What the groups of these steps give to train on; steps that are in the file are not rolled out again.
        To be called on all processes."""
        done = {record["step"]: record for record in read_jsonl(path)} if path.is_file() else {}
        missing = [step for step in steps if step not in done]
        if missing:
            self.engine.generator.model = load_to_generate(policy, self.config.policy.dtype)
            if self.config.rl.eval_steps and not done:
                self.curve(min(steps))
        if done:
            self.arena.variances = JudgeVariances(**done[max(done)]["variances"])
        for step in missing:
            groups = self.engine.roll_out_groups(
                own_share(steps[step]), stable_seed(self.config.seed, step), self.config.turns.at(step)
            )
            incoming = [IncomingGroup.of(group) for group in groups]
            self.bookkeeping.begin(step, incoming)
            outcomes = self.arena.reward_groups(groups)
            metrics = _means(gather_object([self.bookkeeping.close(step, incoming, groups, outcomes)]))
            log(metrics, step)
            examples = [
                example
                for group, outcome in zip(groups, outcomes, strict=True)
                for example in self._examples(group, outcome)
            ]
            done[step] = {"examples": gather_object(examples), "variances": asdict(self.arena.variances)}
            if is_main_process():
                append_step(self.folder / "metrics.jsonl", step, [{"step": step, **metrics}])
                append_step(path, step, [{"step": step, **done[step]}])
                self.stopwatch.lap()
        self.engine.generator.model = None
        return [example for step in steps for example in done[step]["examples"]]

    def _examples(self, group: RolloutGroup, outcome: GroupOutcome) -> Iterator[Example]:
        if self.config.rl.method == "dpo":
            prompts = {tuple(trajectory.prompt_ids) for trajectory in group.trajectories if not trajectory.is_void}
            if len(prompts) > 1 and not self._has_warned:
                self._has_warned = True
                say(
                    f"query {group.query.query_id}: reset showed one group {len(prompts)} beginnings; "
                    "only trajectories that began alike make pairs"
                )
            return preference_pairs(group, outcome)
        return best_trajectories(group, outcome, self.config.rl.keep_from)

    def _fit(self, policy: str, examples: Sequence[Example], place: Path, to: Path) -> None:
        """Train a policy on examples and save it; a round that was interrupted goes on from its checkpoint."""
        if (to / MARK).is_file():
            return
        make = _dpo_trainer if self.config.rl.method == "dpo" else _sft_trainer
        trainer = make(self.config, policy, list(examples), place, self.engine.tokenizer)
        hold_gradients_once(trainer)
        trainer.add_callback(Survival(self.stopwatch))
        self.bar.attach(trainer)
        trainer.train(resume_from_checkpoint=last_checkpoint(place))
        save_policy(trainer, to)
        PartialState().wait_for_everyone()
        if to != self.folder and is_main_process():
            write_json(to / MARK, {"examples": len(examples)})
        del trainer
        # TRL's head makes the policy refer to itself: it would lie beside the next one until Python looks for such
        # circles
        gc.collect()

    def _evaluate(self, policy: str, step: int) -> None:
        if self.config.rl.eval_steps:
            self.engine.generator.model = load_to_generate(policy, self.config.policy.dtype)
            self.curve(step)


def _means(of_processes: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    """Of metrics, each given as the values whose mean it is."""
    names = dict.fromkeys(name for metrics in of_processes for name in metrics)
    values = {name: [value for metrics in of_processes for value in metrics.get(name, [])] for name in names}
    return {name: fmean(of_all) for name, of_all in values.items() if of_all}


def _arguments(config: Config, place: Path, trajectories: int = 1) -> dict[str, Any]:
    """What both of TRL's trainers are told: one pass over the examples of so many trajectories, `rl.batch_size` of them
    a step over all processes.

    A CPU reads one at a time: it gains nothing from several at once, and most of what it then reads is padding.
    """
    rl, use_cpu = config.rl, not torch.cuda.is_available()
    share = rl.batch_size // process_count()
    most = 1 if use_cpu else max(1, min(rl.micro_batch_size // trajectories, share))
    size = next(size for size in range(most, 0, -1) if share % size == 0)  # or a step would have fewer
    return common_arguments(config, place, use_cpu) | {
        "num_train_epochs": 1,
        "learning_rate": rl.learning_rate,
        "lr_scheduler_type": rl.lr_scheduler,
        "max_grad_norm": rl.max_grad_norm,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": share // size,
        "max_length": None,
        "logging_steps": 1,
        "save_steps": rl.save_steps,
    }


def _sft_trainer(config: Config, policy: str, examples: list[Example], place: Path, tokenizer: Any) -> Trainer:
    from trl import SFTConfig

    from arenarl.training.right_padded import RightPaddedTrainer

    arguments = on_one_gpu(SFTConfig(**_arguments(config, place), dataset_kwargs={"skip_prepare_dataset": True}))
    lora = lora_config(config.policy.lora_rank)
    dataset = Dataset.from_list(examples)
    return RightPaddedTrainer(
        model=policy, args=arguments, train_dataset=dataset, processing_class=tokenizer, peft_config=lora
    )


def _dpo_trainer(config: Config, policy: str, examples: list[Example], place: Path, tokenizer: Any) -> "DPOTrainer":
    """The reference policy is the one that training starts from, with LoRA itself without its adapter."""
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    class OwnTokens(DataCollatorForPreference):
        """Pairs whose completion mask is 1 on the policy's own tokens, not on what its tools returned."""

        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super().torch_call(examples)
            masks = [example["chosen_mask"] for example in examples] + [
                example["rejected_mask"] for example in examples
            ]
            prompts = [len(example["prompt_ids"]) for example in examples] * 2
            for row, (prompt, mask) in enumerate(zip(prompts, masks, strict=True)):
                batch["completion_mask"][row, prompt : prompt + len(mask)] = torch.tensor(mask)
            return batch

    class Trainer(DPOTrainer):
        """With pairs that are token ids already.

        Padding comes behind a row's end, where causal attention does not see it: without a mask attention takes half
        the time. The loss that experts share sees it, and keeps the mask.
        """

        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            unmasked = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
            return super().compute_loss(model, inputs if self.aux_loss_enabled else unmasked, *args, **kwargs)

    arguments = on_one_gpu(
        DPOConfig(**_arguments(config, place, trajectories=2), beta=config.rl.dpo_beta, remove_unused_columns=False)
    )
    return Trainer(
        model=policy,
        args=arguments,
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        data_collator=OwnTokens(tokenizer.pad_token_id),
        peft_config=lora_config(config.policy.lora_rank),
    )
