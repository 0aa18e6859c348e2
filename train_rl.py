"""Tournament-ranked RL (ArenaRL, Sections 4 and 6): every query's rollout group plays a tournament, and the ranks give
the advantages.

    python train_rl.py --config configs/quickstart.yaml

One optimizer step: K queries → for each a greedy anchor and N-1 samples, multi-turn with tools (arenarl/rollout) → a
seeded tournament of bidirectional judgements (arenarl/tournament, Eqs. 3-5), which starts before all trajectories are
complete → ranks → rewards (Eq. 6, arenarl/training) → TRL standardises the rewards within the group and takes the
clipped step with KL (Eqs. 7 and 8). After a crash, the same command resumes from the last checkpoint.
"""

from arenarl.config.command_line import add_check, parse_arguments
from arenarl.report.provenance import provenance
from arenarl.system.errors import run_cli
from arenarl.training.preflight import preflight


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_check)
    start = preflight(config, arguments, provenance)
    if start is None:
        return
    folder, domain, queries = start.folder, start.domain, start.queries

    # after all checks: loading TRL takes seconds
    from arenarl.domains.environments import environment_maker
    from arenarl.evaluation.curve import CurveRecorder
    from arenarl.evaluation.evaluation import Panel
    from arenarl.judges.factory import AlternatingJudge, make_judges, make_training_judges, refuse_without_checklist
    from arenarl.judges.judge import make_examiner
    from arenarl.judges.verifier import Verifier
    from arenarl.llm.client import billed, open_client
    from arenarl.plan.estimate import print_estimate
    from arenarl.plan.readiness import check_judges, check_readiness
    from arenarl.rollout.backends import make_engine
    from arenarl.rollout.policy import save_policy, sequence_limit
    from arenarl.run.checkpoints import CheckpointMarker, TrainingBar, last_checkpoint
    from arenarl.run.timing import timed
    from arenarl.run.tracking import start_tracking
    from arenarl.training.arena import Arena
    from arenarl.training.offline import Rounds
    from arenarl.training.step import TrainingStep
    from arenarl.training.step_ahead import StepAhead
    from arenarl.training.trl_adapter import make_trainer, saved_if_stopped
    from arenarl.training.watching import make_watcher

    print_estimate(config, "rl")

    # queries → trajectories: the policy and its tools, turn by turn
    client = open_client(config.llms_of("rl"), config.judge, f"{config.run_name}/rl", folder)  # None without LLMs
    make_environment = environment_maker(config.environment, config.data.language, client, config.judge)
    engine = make_engine(config, start.tokenizer, make_environment)
    engine.limit = sequence_limit(start.policy)

    # group → tournament → ranks → rewards (Eqs. 3-6)
    examine = make_examiner(domain)
    judges = make_training_judges(config.judge, domain, examine, client, config.seed)
    judge = AlternatingJudge(list(judges.values()), config.seed) if config.judge.alternates else judges["judge.train"]
    refuse_without_checklist(config.reward.name, judge, queries)
    verifier = Verifier(config.judge.verifier, client)
    bar = TrainingBar("rl")
    arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed, watch=bar.note)
    watcher = make_watcher(config, domain, examine, folder)  # a second judge, which does not affect rewards

    # every few steps: test queries against stored baselines
    panel = Panel(make_judges(config.judge.eval, domain, examine, client, config.seed), examine, verifier)
    curve = CurveRecorder(
        engine, domain, panel, config.rl.eval_queries, config.temperatures, config.seed, folder, client
    )
    judges |= dict(zip(config.judge.evaluating, panel.judges, strict=True))
    if watcher:
        judges["judge.watch"] = watcher.judge
    check_readiness(
        config, folder, [*queries, *curve.queries] if config.rl.eval_steps else queries, engine, arguments.check
    )
    check_judges(config, "rl", judges, domain, queries, client)
    if arguments.check:
        return

    # rewards → advantages → the clipped step (Eqs. 7 and 8)
    start_tracking(config, folder)
    step_class = StepAhead if config.rl.steps_ahead else TrainingStep  # may generate and judge a step ahead
    step = step_class(config, queries, engine, arena, examine, folder, client, watcher)
    with timed(folder, "rl") as stopwatch, billed(client):
        if config.rl.method != "online":
            Rounds(config, step, curve, stopwatch, bar).train(start.policy, queries)
            return
        trainer = make_trainer(config, start.policy, queries, step, curve)
        trainer.add_callback(CheckpointMarker(stopwatch))
        bar.attach(trainer)
        with saved_if_stopped(trainer):
            trainer.train(
                resume_from_checkpoint=last_checkpoint(folder, "the optimizer's states" if config.rl.deepspeed else "")
            )
            step.close()
        save_policy(trainer, folder)


if __name__ == "__main__":
    run_cli(main)
