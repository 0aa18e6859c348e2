"""Evaluation of checkpoints on the test set, sampled and greedy, against stored baselines (Section 5.3). If none are
stored, the first checkpoint is the baseline.

    python evaluate.py --config configs/quickstart.yaml
    torchrun --nproc_per_node 8 evaluate.py --config configs/travel/rl_arenarl_qwen3_8b.yaml
        # the processes share the queries
    python evaluate.py --config configs/quickstart.yaml \\
        --query "Find a quiet cafe within 3 km of Lotus Park in Chengdu."
    python evaluate.py --config configs/benchmarks/writing.yaml --benchmark writingbench --items 100
        # public benchmarks, docs/benchmarks.md

Writes every judged trajectory and match to runs/<run>/evaluate and the table to runs/<run>/summary.json. Then
`python -m arenarl.report <run>` writes an HTML page, and `inspect view` opens runs/<run>/inspect.json. `evaluate.api`
adds models behind an API. Stored generations (by checkpoint, decoding, sample and turns) are reused until one of their
inputs changes (arenarl/evaluation/parts.py). --query answers one query with the last policy and prints the trajectory.
--benchmark runs public benchmarks by their official formulas (arenarl/benchmarks). Rollout, judge and parsing code are
shared with training.
"""

from argparse import ArgumentParser, Namespace
from functools import lru_cache

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, LLMConfig
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError, run_cli


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--query", help="answer only this query and print the trajectory; not for worlds whose queries are item ids"
    )
    parser.add_argument(
        "--benchmark", nargs="+", action="extend", metavar="NAME[=FILE]", help="run these public benchmarks instead"
    )
    parser.add_argument("--items", type=int, help="number of items per benchmark, drawn at random (default: all)")
    parser.add_argument(
        "--seed", type=int, help="seed for drawing the items (default: 0); for the run's seed use --set seed="
    )


def check_arguments(arguments: Namespace, config: Config, processes: int) -> None:
    """Raise UserError for options that contradict each other."""
    query, items = arguments.query, arguments.items
    if query is not None and not query.strip():
        raise UserError("--query is empty; write the query in quotes, or leave the option out to use the test set")
    if query is not None and arguments.benchmark:
        raise UserError("--query and --benchmark exclude each other; leave one of them out")
    if query is not None and config.rollout.backend == "vllm" and processes > 1:
        raise UserError("--query runs on one process with rollout.backend=vllm; use python instead of torchrun")
    if items is not None and (items < 1 or not arguments.benchmark):
        raise UserError("--items needs --benchmark and a number of at least 1; add --benchmark or omit --items")
    if arguments.seed is not None and items is None:
        raise UserError("--seed draws the sample of --items; add --items, or set the run's seed with --set seed=")


def preflight(config: Config, arguments: Namespace) -> dict[str, str | LLMConfig]:
    """Return the policies to evaluate by name: checkpoint folders and models behind an API.

    Raises:
        UserError: options contradict each other, a checkpoint is missing, or the back end cannot serve it.
    """
    from arenarl.report.summary import timings_of
    from arenarl.rollout.backends import require_backend, require_template
    from arenarl.rollout.policy import load_tokenizer, require_model
    from arenarl.run.processes import join_processes
    from arenarl.run.weights import refuse_other_starts
    from arenarl.system.progress import process_count, quiet_libraries

    quiet_libraries()
    check_arguments(arguments, config, process_count())
    join_processes(config)
    checkpoints = {name: require_model(policy) for name, policy in config.evaluated.items() if isinstance(policy, str)}
    for checkpoint in checkpoints.values():
        require_template(config, load_tokenizer(checkpoint))
        require_backend(config.rollout, checkpoint, config.policy.dtype)
    refuse_other_starts(checkpoints.values())
    timings_of(config)  # the summary needs them in the end
    return config.evaluated | checkpoints  # keeps the order of config.evaluated


def answer(config: Config, name: str, policy: str | LLMConfig, text: str) -> None:
    """Print the policy's greedy trajectory for one query, and the policy."""
    from arenarl.domains.domain import make_domain
    from arenarl.domains.environments import environment_maker
    from arenarl.llm.client import open_client
    from arenarl.report.summary import print_trajectory
    from arenarl.rollout.backends import make_policy_engine
    from arenarl.rollout.engine import Attempt
    from arenarl.trajectory import Query

    query = Query("command-line", make_domain(config.environment, config.data).name, "", config.data.language, text)
    client = open_client(config.llms_of("query"), config.judge, f"{config.run_name}/query")
    engine = make_policy_engine(
        config, policy, environment_maker(config.environment, config.data.language, client, config.judge), client
    )
    print_trajectory(query, engine.roll_out([Attempt(query, temperature=0.0, seed=config.seed)])[0])
    print(f"policy: {name}, {policy if isinstance(policy, str) else policy.model}")


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_options)
    policies = preflight(config, arguments)

    from arenarl.domains.domain import make_domain
    from arenarl.domains.environments import environment_maker
    from arenarl.evaluation.evaluation import Panel, baseline_cases, is_own_data
    from arenarl.evaluation.inference_scaling import rollout_budgets
    from arenarl.evaluation.parts import figures_of_checkpoints, read_parts, run_parts
    from arenarl.evaluation.playoffs import play_offs
    from arenarl.judges.factory import make_judges, refuse_answers_alone, refuse_without_truth
    from arenarl.judges.judge import make_examiner
    from arenarl.judges.verifier import Verifier
    from arenarl.llm.client import open_client
    from arenarl.plan.estimate import print_estimate
    from arenarl.plan.readiness import check_judges
    from arenarl.report.inspect_log import write_inspect_log
    from arenarl.report.provenance import provenance
    from arenarl.report.summary import print_table, summary_of_run
    from arenarl.rollout.backends import make_policy_engine
    from arenarl.rollout.system_prompt import say_prompts
    from arenarl.run.stage import start_stage
    from arenarl.run.timing import timed
    from arenarl.run.tracking import log_summary, start_tracking
    from arenarl.system.progress import is_main_process
    from arenarl.trajectory import write_jsonl

    if arguments.benchmark:
        from arenarl.benchmarks.run import run_benchmarks

        run_benchmarks(config, policies, arguments.benchmark, arguments.items, arguments.seed or 0)
        return
    if arguments.query is not None:
        if is_main_process():
            answer(config, *list(policies.items())[-1], arguments.query)
        return

    print_estimate(config, "evaluate")

    # test set and rollout engine
    domain = make_domain(config.environment, config.data)
    queries, baselines = domain.read_test_set()
    refuse_without_truth("judge.eval", config.judge.eval, domain, queries)
    refuse_answers_alone(config, is_training=False)
    folder = start_stage(config, "evaluate", provenance)
    say_prompts(config, {name: policy for name, policy in policies.items() if isinstance(policy, str)})
    client = open_client(config.llms_of("evaluate"), config.judge, f"{config.run_name}/evaluate", folder)
    make_environment = environment_maker(config.environment, config.data.language, client, config.judge)
    budgets = rollout_budgets(config, make_environment)

    @lru_cache(maxsize=1)  # all parts of a checkpoint share its weights
    def engine_of(name: str):
        return make_policy_engine(config, policies[name], make_environment, client)

    # judges
    examine = make_examiner(domain)
    judges = make_judges(config.judge.eval, domain, examine, client, config.seed)
    panel = Panel(judges, examine, Verifier(config.judge.verifier, client), is_own_data(domain, queries, baselines))

    keyed = dict(zip(config.judge.evaluating, judges, strict=True))
    check_judges(config, "evaluate", keyed, domain, queries, client)

    # trajectories → verdicts → figures
    parts = read_parts(config, policies, folder, budgets)
    start_tracking(config, folder)
    with timed(folder, "evaluate", is_new=any(part.trajectories is None for part in parts.values())) as stopwatch:
        tested = run_parts(config, parts, engine_of, queries, baselines, panel, client, stopwatch.lap)
        if not is_main_process():
            return
        cases = baseline_cases(queries, tested.baselines, examine)
        write_jsonl(folder / "baseline.jsonl", [case.to_record() for case in cases])
        answers, bracket = tested.first_samples, config.evaluate.bracket
        matches = play_offs(queries, tested.baselines, answers, judges, bracket, config.seed, bool(tested.reference))
        write_jsonl(folder / "tournaments.jsonl", matches)
        if client:
            client.check()
        figures = figures_of_checkpoints(config, tested)

    # figures → W&B, summary.json, inspect.json, the table
    log_summary(figures)
    summary = summary_of_run(config, figures, tested.reference)
    write_json(config.results_dir / "summary.json", summary)
    write_inspect_log(config.run_dir / "inspect.json", config, tested.cases, figures, summary["provenance"])
    print_table(summary)
    if client:
        print(client.report())
    print(f"written: {config.results_dir / 'summary.json'}, trajectories in {folder}")


if __name__ == "__main__":
    run_cli(main)
