"""Evaluation: checkpoints on the test set, sampled and greedy, against stored baselines (Section 5.3), or against the first of them.

    python evaluate.py --config configs/quickstart.yaml
    torchrun --nproc_per_node 8 evaluate.py --config configs/travel/rl_arenarl_qwen3_8b.yaml    # each process has its share of the queries
    python evaluate.py --config configs/quickstart.yaml --query "Find a quiet cafe within 3 km of Lotus Park in Chengdu."

Writes every judged trajectory and match to runs/<run>/evaluate and the table to results/<run>/summary.json; `python -m arenarl.report
<run>` makes a page of them, and `inspect view` opens runs/<run>/inspect.json. Models behind an API stand beside checkpoints
(`evaluate.api`). What was generated before, a checkpoint, a decoding and a sample at a time, is not generated again unless what it depends
on changed (arenarl/evaluation/parts.py). With --query it answers that one query with the last of them and prints the trajectory. Rollout,
judge and parsing code are those of training.
"""

from functools import lru_cache

from arenarl.config.command_line import parse_arguments
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError, guarded


def main() -> None:
    config, arguments = parse_arguments(__doc__, lambda parser: parser.add_argument("--query", help="answer this one query and print the trajectory"))

    from arenarl.domains.domain import make_domain
    from arenarl.domains.environments import environment_maker
    from arenarl.evaluation.evaluation import Panel, baseline_cases, evaluate_policy, gather_cases, judge_trajectories, summarize
    from arenarl.evaluation.inference_scaling import scaling_figures
    from arenarl.evaluation.parts import Part, fingerprint
    from arenarl.evaluation.playoffs import play_offs
    from arenarl.judges.factory import make_judges, refuse_without_truth
    from arenarl.judges.judge import make_examiner
    from arenarl.judges.verifier import Verifier
    from arenarl.llm.client import open_client
    from arenarl.plan.estimate import print_estimate
    from arenarl.report.inspect_log import write_inspect_log
    from arenarl.report.provenance import provenance
    from arenarl.report.summary import print_table, print_trajectory, summary_of_run
    from arenarl.rollout.backends import make_policy_engine, require_backend
    from arenarl.rollout.engine import Attempt
    from arenarl.rollout.policy import load_tokenizer, require_model
    from arenarl.run.processes import join_processes, own_share
    from arenarl.run.stage import start_stage
    from arenarl.run.timing import timed
    from arenarl.run.tracking import log_summary, start_tracking
    from arenarl.run.weights import refuse_other_starts
    from arenarl.system.progress import Bar, is_main_process, process_count, quiet_libraries
    from arenarl.trajectory import Query, write_jsonl

    quiet_libraries()
    if arguments.query and config.rollout.backend == "vllm" and process_count() > 1:
        raise UserError("--query is answered by one process, and vLLM's engines start together; start the script with python, without torchrun")
    join_processes(config)
    checkpoints = {name: require_model(policy) for name, policy in config.evaluated.items() if isinstance(policy, str)}
    for checkpoint in checkpoints.values():
        load_tokenizer(checkpoint)
        require_backend(config.rollout, checkpoint, config.policy.dtype)
    refuse_other_starts(checkpoints.values())
    policies = config.evaluated | checkpoints  # in the order of the first
    domain = make_domain(config.environment, config.data)
    if arguments.query:
        if not is_main_process():
            return
        client = open_client(config.llms_of("query"), config.judge, f"{config.run_name}/query")
        make_environment = environment_maker(config.environment, config.data.language, client, config.judge)
        engine = make_policy_engine(config, list(policies.values())[-1], make_environment, client)
        query = Query("command-line", domain.name, "", config.data.language, arguments.query)
        print_trajectory(query, engine.roll_out([Attempt(query, temperature=0.0, seed=config.seed)])[0])
        return

    queries, baselines = domain.read_test_set()
    refuse_without_truth("judge.eval", config.judge.eval, domain, queries)
    folder = start_stage(config, "evaluate", provenance)
    client = open_client(config.llms_of("evaluate"), config.judge, f"{config.run_name}/evaluate", folder)
    make_environment = environment_maker(config.environment, config.data.language, client, config.judge)
    examine = make_examiner(domain)
    judges = make_judges(config.judge.eval, domain, examine, client, config.seed)
    panel = Panel(judges, examine, Verifier(config.judge.verifier, client))
    print_estimate(config, "evaluate")
    prints = {name: fingerprint(config, policy) for name, policy in policies.items()}
    parts = {
        (name, decoding, sample): Part(folder / f"{name}_{decoding}{f'_{sample + 1}' if sample else ''}.jsonl", prints[name])
        for name in policies
        for decoding, sample in config.evaluate.attempts
    }

    @lru_cache(maxsize=1)  # all parts of a checkpoint share its weights
    def engine_of(name):
        return make_policy_engine(config, policies[name], make_environment, client)

    missing, mine = [key for key, part in parts.items() if part.trajectories is None], own_share(queries)
    total = len(parts) * len(mine)
    cases, reference = {}, None
    start_tracking(config, folder)
    with timed(folder, "evaluate", is_new=bool(missing)) as stopwatch, Bar("evaluate", total, total - len(missing) * len(mine)) as bar:
        for (name, decoding, sample), part in parts.items():
            samples = cases.setdefault((name, decoding), [])
            if part.trajectories is not None:
                share = judge_trajectories(mine, own_share(part.trajectories), baselines, panel)
            else:
                share = evaluate_policy(
                    engine_of(name), mine, baselines, panel, config.temperatures[decoding], config.seed, bar.update, sample, config.test_turns
                )  # fmt: skip
            if client:
                client.check()
            samples.append(gather_cases(queries, share))
            if not baselines:  # none are stored: what the first made takes their place
                baselines, reference = {case.query.query_id: case.trajectory for case in samples[0]}, f"{name} {decoding}"
            if is_main_process():
                part.write(samples[-1])
                if part.trajectories is None:
                    stopwatch.lap()
        if not is_main_process():
            return
        write_jsonl(folder / "baseline.jsonl", [case.to_record() for case in baseline_cases(queries, baselines, examine)])
        entrants = {f"{name} {decoding}": samples[0] for (name, decoding), samples in cases.items()}
        write_jsonl(folder / "tournaments.jsonl", play_offs(queries, baselines, entrants, judges, config.evaluate.bracket, config.seed))
        if client:
            client.check()
        figures = {name: {} for name in policies}
        for (name, decoding), samples in cases.items():
            resamples, seed = config.evaluate.bootstrap, config.seed
            more = scaling_figures(samples, config.evaluate.max_turns, resamples, seed)
            figures[name][decoding] = summarize([case for cases in samples for case in cases], resamples, seed) | more
    log_summary(figures)
    summary = summary_of_run(config, figures, reference)
    write_json(config.results_dir / "summary.json", summary)
    write_inspect_log(config.run_dir / "inspect.json", config, cases, figures, summary["provenance"])
    print_table(summary)
    if client:
        print(client.report())
    print(f"written: {config.results_dir / 'summary.json'}, trajectories in {folder}")


if __name__ == "__main__":
    guarded(main)
