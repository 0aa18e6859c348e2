"""Evaluation: checkpoints on the test set, sampled and greedy, against stored baselines (Section 5.3).

    python evaluate.py --config configs/quickstart.yaml
    python evaluate.py --config configs/quickstart.yaml --query "Find a quiet cafe within 3 km of Lotus Park in Chengdu."

Writes every judged trajectory to runs/<run>/evaluate and the table to results/<run>/summary.json. With --query it answers that
one query with the last checkpoint and prints the trajectory. Rollout, judge and parsing code are those of training.
"""

from arenarl.config import parse_arguments
from arenarl.runs import guarded, start_stage, timed, write_json


def main() -> None:
    config, arguments = parse_arguments(__doc__, lambda parser: parser.add_argument("--query", help="answer this one query and print the trajectory"))
    checkpoints = config.evaluate.checkpoints or {"sft": config.sft_policy, "rl": str(config.run_dir / "rl")}

    from arenarl.build import build_client, build_engine, build_examiner, build_judges, load_policy, test_set
    from arenarl.estimate import print_estimate
    from arenarl.evaluation import evaluate_policy, summarize
    from arenarl.policy import load_tokenizer
    from arenarl.report import print_table, print_trajectory, summary_of_run
    from arenarl.rollouts import Attempt
    from arenarl.trajectory import Query, write_jsonl

    tokenizers = {name: load_tokenizer(path) for name, path in checkpoints.items()}
    if arguments.query:
        name = list(checkpoints)[-1]
        engine = build_engine(config, tokenizers[name], load_policy(config, checkpoints[name]), build_client(config, "query"))
        query = Query("command-line", "travel", "", config.data.language, arguments.query)
        print_trajectory(query, engine.roll_out([Attempt(query, temperature=0.0, seed=config.seed)])[0])
        return

    queries, baselines = test_set(config)
    folder = start_stage(config, "evaluate")
    examine = build_examiner(config)
    client = build_client(config, "evaluate", folder)
    judges = build_judges(config, examine, client)
    print_estimate(config, "evaluate")
    temperatures = {"sampled": config.rollout.temperature, "greedy": 0.0}
    figures = {}
    with timed(folder, "evaluate"):
        for name, path in checkpoints.items():
            engine = build_engine(config, tokenizers[name], load_policy(config, path), client)
            figures[name] = {}
            for decoding in config.evaluate.decodings:
                cases = evaluate_policy(engine, queries, baselines, judges, examine, temperatures[decoding], config.seed)
                if client:
                    client.check()
                write_jsonl(folder / f"{name}_{decoding}.jsonl", [case.to_record() for case in cases])
                figures[name][decoding] = summarize(cases, config.evaluate.bootstrap, config.seed)
    summary = summary_of_run(config, figures)
    write_json(config.results_dir / "summary.json", summary)
    print_table(summary)
    if client:
        print(client.report())
    print(f"written: {config.results_dir / 'summary.json'}, trajectories in {folder}")


if __name__ == "__main__":
    guarded(main)
