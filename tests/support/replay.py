"""Train on recorded and on scripted trajectories, for test_processes.py.

    python -m arenarl.run.launch --nproc_per_node 2 tests/support/replay.py <folder> <layout> [<DeepSpeed JSON>]

takes two steps with each method of the layout from <folder>/policy, queries.jsonl and recorded.jsonl, and writes the
policy, its advantages, groups and metrics to <folder>/<layout>/<method>. On several processes it then takes two steps
with trajectories of different numbers of turns.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from accelerate.utils import gather_object
from parts import arena_of, domain_of, examiner_of, trainer_judge_of
from policies import call

from arenarl.config.schema import Config
from arenarl.domains.environments import make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator
from arenarl.rollout.policy import load_tokenizer, save_policy
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import run_cli
from arenarl.training.step import TrainingStep
from arenarl.training.trl_adapter import make_trainer
from arenarl.training.watching import make_watcher
from arenarl.trajectory import RolloutGroup, Trajectory, read_jsonl, read_queries

METHODS = {
    "grpo": {}, "dapo": {"rl.loss_type": "dapo"}, "gspo": {"rl.importance_sampling_level": "sequence"},
    "ppo": {"rl.advantage": "gae", "rl.loss_type": "dapo", "rl.critic_learning_rate": 1e-3},
    "lora": {"policy.lora_rank": 4},
    "balanced": {"rl.loss_type": "dapo", "rl.balance_micro_batches": True, "rl.micro_batch_size": 2},
    "resampled": {"rl.resample_equal": 2.0, "reward.name": "replay:some_equal"},
}  # fmt: skip
LAYOUTS = {
    "one": ("grpo", "dapo", "gspo", "ppo", "resampled"), "two": ("dapo", "gspo", "ppo", "balanced", "resampled"),
    "zero3": ("grpo", "dapo", "lora", "balanced"),
}  # fmt: skip
SETTINGS = {
    "policy.dtype": "float32", "wandb.mode": "disabled", "environment.results": "compact", "data.language": "en",
    "tournament.topology": "balanced",  # its ranking model uses the groups of all processes
    "rollout.group_size": 4, "rollout.max_tokens": 2048, "rl.steps": 2, "rl.groups": 4, "rl.micro_batch_size": 4,
    "rl.learning_rate": 1e-3, "rl.beta": 0.04, "rl.eval_steps": 1, "rl.save_steps": 1000, "judge.watch_share": 0.5,
}  # fmt: skip
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
TURNS = (1, 6)  # turns of each trajectory on process 0 and on process 1


def some_equal(query, trajectories, judge):
    """Reward the trajectories of half of the queries equally, up to rounding."""
    is_equal = int(query.query_id[-1]) % 2
    return [(0.3, 0.1 + 0.2)[row % 2] if is_equal else float(row) for row, _ in enumerate(trajectories)]


class Recorded:
    """A rollout engine that returns trajectories from a file."""

    def __init__(self, path, tokenizer):
        self.generator, self.tokenizer = SimpleNamespace(model=None), tokenizer
        self.trajectories = {}
        for record in read_jsonl(path):
            self.trajectories.setdefault(record["query_id"], []).append(Trajectory(**record))

    def roll_out_groups(self, queries, seed, max_turns, tick):
        groups = [RolloutGroup(query, self.trajectories[query.query_id]) for query in queries]
        for index, trajectory in enumerate(trajectory for group in groups for trajectory in group.trajectories):
            tick(index, trajectory)
        return groups

    def tool_metrics(self):
        return {}


class Ragged(TransformersGenerator):
    """The real model generates each turn, and a script replaces it: searches up to the last turn, then an answer."""

    def __init__(self, tokenizer, turns):
        super().__init__(None, tokenizer, batch_size=8)
        self.tokenizer, self.turns = tokenizer, turns

    async def generate(self, request):
        await super().generate(replace(request, max_tokens=2))
        turn = self.tokenizer.decode(request.token_ids).count("<|im_start|>assistant")
        answer = f"<think>\ndone\n</think>\n\n<answer>\nplace {request.seed % 1000}\n</answer>"
        text = call("universal_search", query="quiet cafe in Chengdu") if turn < self.turns else answer
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


def keep(trainer, method, values_of):
    """Return a list that gets the values of each call of a method, of all processes in the order of the batch."""
    kept, original = [], getattr(trainer, method)

    def call_and_keep(*arguments):
        result = original(*arguments)
        kept.append(gather_object(values_of(arguments, result)))
        return result

    setattr(trainer, method, call_and_keep)
    return kept


def tokens_of(arguments, loss):
    _, inputs = arguments
    return [int(inputs["prompt_mask"].sum() + inputs["completion_mask"].sum())]


def config_of(deepspeed, keys):
    config, known = Config(), SETTINGS | {"rl.deepspeed": deepspeed}
    # as at the paper's scale; it must not change the update
    config.policy.gradient_checkpointing = deepspeed is not None
    for key, value in (known | keys).items():
        section, _, name = key.partition(".")
        setattr(getattr(config, section), name, value)
    return config


def train(folder, target, config, engine, act=None):
    """Take two steps, and write the policy, its advantages, metrics and groups."""
    target.mkdir(parents=True, exist_ok=True)
    queries = read_queries(folder / "queries.jsonl")
    examine = examiner_of(config)
    arena = arena_of(config, trainer_judge_of(config, examine=examine))
    watcher = make_watcher(config, domain_of(config), examine, target)
    step = TrainingStep(config, queries, engine, arena, examine, target, watcher=watcher)
    curve = SimpleNamespace(record=act, has_point=lambda step: True) if act else None
    trainer = make_trainer(config, str(folder / "policy"), queries, step, curve)
    advantages = keep(trainer, "_generate_and_score_completions", lambda _, output: output["advantages"].tolist())
    counts = keep(trainer, "_compute_loss", tokens_of)
    trainer.train()
    held = gather_object([sum(parameter.numel() for parameter in trainer.model.parameters())])
    save_policy(trainer, target)
    if trainer.is_world_process_zero():
        groups = list(read_jsonl(target / "groups.jsonl"))
        kept = [[group for group in groups if group["step"] == step] for step in range(config.rl.steps)]
        came_from = {"advantages": advantages, "kept": kept, "log": trainer.state.log_history, "weights_held": held}
        write_json(target / "came_from.json", came_from | {"counts": counts})


def main():
    folder, layout, deepspeed = Path(sys.argv[1]), sys.argv[2], (sys.argv[3:] or [None])[0]
    tokenizer = load_tokenizer(str(folder / "policy"))
    for method in LAYOUTS[layout]:
        recorded = Recorded(folder / "recorded.jsonl", tokenizer)
        train(folder, folder / layout / method, config_of(deepspeed, METHODS[method]), recorded)
    if PROCESSES == 1:
        return
    config, query = config_of(deepspeed, {}), read_queries(folder / "queries.jsonl")[0]
    environment = make_environment(config.environment, config.data.language)
    policy = Ragged(tokenizer, TURNS[int(os.environ["RANK"])])
    engine = RolloutEngine(policy, tokenizer, lambda: environment, config.rollout, False)

    def act(step):
        engine.roll_out([Attempt(query, 0.0, seed=step)])

    train(folder, folder / layout / "ragged", config, engine, act)


if __name__ == "__main__":
    run_cli(main)
