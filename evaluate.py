"""Evaluation: checkpoints on the test set, sampled and greedy, against stored baselines (Section 5.3).

    python evaluate.py --config configs/quickstart.yaml
    python evaluate.py --config configs/quickstart.yaml --query "Find a quiet cafe within 3 km of Lotus Park in Chengdu."

Writes every judged trajectory and match to runs/<run>/evaluate and the table to results/<run>/summary.json; `python -m arenarl.report
<run>` makes a page of them. With --query it answers that
one query with the last checkpoint and prints the trajectory. Rollout, judge and parsing code are those of training.
"""

from arenarl.config import parse_arguments
from arenarl.runs import guarded, start_stage, timed, write_json


def main() -> None:
    config, arguments = parse_arguments(__doc__, lambda parser: parser.add_argument("--query", help="answer this one query and print the trajectory"))
    checkpoints = config.evaluate.checkpoints or {"sft": config.sft_policy, "rl": str(config.run_dir / "rl")}

    from arenarl.build import build_engine, build_examiner, build_judges, load_policy, test_set
    from arenarl.evaluation import baseline_cases, evaluate_policy, summarize
    from arenarl.playoffs import play_offs
    from arenarl.policy import load_tokenizer
    from arenarl.report import print_table, print_trajectory, summary_of_run
    from arenarl.rollouts import Attempt
    from arenarl.trajectory import Query, write_jsonl

    tokenizers = {name: load_tokenizer(path) for name, path in checkpoints.items()}
    if arguments.query:
        name = list(checkpoints)[-1]
        engine = build_engine(config, tokenizers[name], load_policy(config, checkpoints[name]))
        query = Query("command-line", "travel", "", config.data.language, arguments.query)
        print_trajectory(query, engine.roll_out([Attempt(query, temperature=0.0, seed=config.seed)])[0])
        return

    queries, baselines = test_set(config)
    folder = start_stage(config, "evaluate")
    examine = build_examiner(config)
    judges = build_judges(config, examine)
    temperatures = {"sampled": config.rollout.temperature, "greedy": 0.0}
    figures, cases = {}, {}
    with timed(folder, "evaluate"):
        for name, path in checkpoints.items():
            engine = build_engine(config, tokenizers[name], load_policy(config, path))
            figures[name] = {}
            for decoding in config.evaluate.decodings:
                found = evaluate_policy(engine, queries, baselines, judges, examine, temperatures[decoding], config.seed)
                write_jsonl(folder / f"{name}_{decoding}.jsonl", [case.to_record() for case in found])
                figures[name][decoding] = summarize(found, config.evaluate.bootstrap, config.seed)
                cases[f"{name} {decoding}"] = found
        write_jsonl(folder / "baseline.jsonl", [case.to_record() for case in baseline_cases(queries, baselines, examine)])
        write_jsonl(folder / "tournaments.jsonl", play_offs(queries, baselines, cases, judges, config.evaluate.bracket, config.seed))
    summary = summary_of_run(config, figures)
    write_json(config.results_dir / "summary.json", summary)
    print_table(summary)
    print(f"written: {config.results_dir / 'summary.json'}, trajectories in {folder}")


if __name__ == "__main__":
    guarded(main)
