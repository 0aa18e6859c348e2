"""Tournament-ranked RL (ArenaRL, Sections 4 and 6): every query's rollout group plays a tournament, its ranks are the advantages.

    python train_rl.py --config configs/quickstart.yaml

One optimizer step: K queries → for each a greedy anchor and N-1 samples, multi-turn with tools (arenarl/rollout/engine.py) → a seeded
tournament of bidirectional judgements (arenarl/tournament/play.py, Eqs. 3-5), begun while others still generate → ranks → rewards (Eq. 6)
→ TRL standardises them in the group and takes the clipped step with KL (Eqs. 7 and 8). Start it again after a crash: it goes on from
the last checkpoint.
"""

import os

from arenarl.config.checks import check_groups
from arenarl.config.command_line import add_check, parse_arguments
from arenarl.report.provenance import provenance
from arenarl.run.stage import is_done, start_stage
from arenarl.run.timing import timed
from arenarl.run.tracking import start_tracking
from arenarl.run.zero3 import check_deepspeed
from arenarl.system.errors import guarded


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_check)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    check_groups(config, processes)
    check_deepspeed("rl.deepspeed", config.rl.deepspeed, "train_rl.py", arguments.check)

    import torch  # after the config is known to be sound: loading torch and TRL takes seconds
    from trl import GRPOTrainer

    from arenarl.build import build_client, build_curve, build_engine, build_examiner, build_judge, lora_config, require_backend, training_queries
    from arenarl.plan.estimate import print_estimate
    from arenarl.rollout.policy import load_tokenizer, require_model, save_policy
    from arenarl.run.checkpoints import Survival, TrainingBar, last_checkpoint
    from arenarl.training import trl_adapter as adapter
    from arenarl.training.rewarding import Arena, group_records, outcome_metrics
    from arenarl.trajectory import append_step

    start = require_model(config.sft_policy)
    require_backend(config, start)
    tokenizer = load_tokenizer(start)
    queries = training_queries(config)
    folder = start_stage(config, "rl", provenance(config))
    if is_done(folder):
        return

    client = build_client(config, "rl", folder)  # the way to LLMs, with its limits and its store of replies; None without any
    engine = build_engine(config, tokenizer, client=client)  # query → trajectories; the adapter lends it the trainer's model
    examine = build_examiner(config)
    bar = TrainingBar("rl")
    judge = build_judge(config, config.judge.train, examine, client)
    arena = Arena(judge, config, client, bar.note)  # group → tournament → ranks → rewards (Eqs. 3-6)

    def log(groups, outcomes):
        return outcome_metrics(groups, outcomes, examine) | engine.tool_metrics()

    def keep(step, groups, outcomes):
        append_step(folder / "groups.jsonl", step, group_records(step, groups, outcomes, examine))

    curve = adapter.EveryFewSteps(config.rl.eval_steps, engine, build_curve(config, engine, examine, folder, client).record)
    if arguments.check:
        return
    start_tracking(config, folder)
    with timed(folder, "rl") as stopwatch:
        trainer = GRPOTrainer(
            model=start,
            args=adapter.grpo_arguments(config, folder, processes, use_cpu=not torch.cuda.is_available()),
            train_dataset=adapter.prompt_dataset(queries, config),
            processing_class=tokenizer,
            rollout_func=adapter.rollout_function(engine, arena, queries, config),
            reward_funcs=adapter.reward_functions(arena, log, keep, config),
            callbacks=[curve, adapter.KeptWithCheckpoint(arena), Survival(stopwatch)],
            peft_config=lora_config(config),
        )
        curve.trainer = trainer
        adapter.connect(trainer, engine, queries, config)
        bar.attach(trainer)
        print_estimate(config, "rl")
        with adapter.saved_if_stopped(trainer):
            trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        save_policy(trainer, folder)


if __name__ == "__main__":
    guarded(main)
