"""Runs the rows of tables: SFT once a seed, then RL and evaluation of every row, a process each and several at once.

The scripts do the work, as subprocesses, and resume by themselves; a row is finished when `store` has its
seed. That of another table with the same settings serves as well.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.evaluation.statistics import KEPT_BY_TABLES, shown_figures
from arenarl.report.figures import training_log
from arenarl.report.summary import heading
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import OWNED
from arenarl.system.progress import Bar, say
from arenarl.tables.rows import Run
from arenarl.tables.store import FILE, Stored, read_runs, store_run
from arenarl.trajectory import read_jsonl


class _RunFailed(Exception):
    """A script ended with an error; the message is what it was for, and its last line."""


_ONE_PREPARES = Lock()  # seeds share their data


def run_all(runs: Sequence[Run], results: Path, workers: int) -> list[str]:
    """Finish all runs; what failed, in a line each, after the others are through."""
    failures: dict[tuple[int, str], str] = {}
    missing = missing_runs(runs, results)
    with Bar("runs", len(runs), len(runs) - len(missing)) as bar:
        for run, future in _in_parallel(_different(missing), workers):
            try:
                found = future.result()
            except _RunFailed as error:
                failures[run.seed, run.row] = str(error)
                continue
            sharing = [other for other in missing if other.settings == run.settings]
            for other in sharing:
                store_run(results / other.table, found | {"row": other.row, "config": other.config})
            figure = f"{heading(run.figure)} {found['figures'][run.figure]:.1f}"
            say(f"{run.row}, seed {run.seed}: {figure} after {found['seconds']['total']:.0f} s")
            bar.update(len(sharing))
    return list(dict.fromkeys(failures[key] for key in sorted(failures)))  # a cold start that failed ended many runs


def _different(runs: Sequence[Run]) -> list[Run]:
    """Seed by seed, one run of those that tables share, the one of which most is measured."""
    measured_last = sorted(runs, key=lambda run: run.measure is not None)
    by_settings = {json.dumps(run.settings, sort_keys=True): run for run in measured_last}
    return sorted((run for run in runs if run in by_settings.values()), key=lambda run: run.seed)


def _in_parallel(runs: Sequence[Run], workers: int) -> Iterator[tuple[Run, Future[dict[str, Any]]]]:
    """Each run with what came of it, as they end; on Ctrl-C those that have not begun do not begin.

    Cold starts are first in the queue, so a run that waits for its own waits for one that is under way.
    """
    pool = ThreadPoolExecutor(workers)
    cold_starts = {run.cold_start: run for run in runs}
    policies = {options: pool.submit(_cold_start, run) for options, run in cold_starts.items()}
    futures = {pool.submit(_train_and_evaluate, run, policies[run.cold_start]): run for run in runs}
    try:
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        pool.shutdown(cancel_futures=True)


def missing_runs(runs: Sequence[Run], results: Path) -> list[Run]:
    """Return the runs that are still to be made; one that another table has with the same settings is copied."""
    stored = {path.parent.name: read_runs(path.parent) for path in sorted(results.glob(f"*/{FILE}"))}
    missing = []
    for run in runs:
        tables = [name for name in (run.table, *stored) if _is_finished(run, stored.get(name, {}))]
        if not tables:
            missing.append(run)
        elif tables[0] != run.table:
            store_run(results / run.table, stored[tables[0]][run.row, run.seed])
    return missing


def _is_finished(run: Run, stored: Stored) -> bool:
    found = stored.get((run.row, run.seed))
    if found is None or found["settings"] != json.loads(json.dumps(run.settings)):
        return False
    return run.figure in found["figures"] and (run.measure is None or run.measure in found)


def _cold_start(run: Run) -> None:
    """The data and the SFT policy that a run starts from, unless they are there."""
    log = Path(run.loaded.sft_policy).parent / "log.txt"
    with _ONE_PREPARES:
        _call([sys.executable, "data/prepare.py", *run.cold_start], log, f"seed {run.seed}")
    launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", "1"] if run.loaded.sft.deepspeed else []
    _call([sys.executable, *launcher, "train_sft.py", *run.cold_start], log, f"seed {run.seed}")


def _train_and_evaluate(run: Run, cold_start: Future[None]) -> dict[str, Any]:
    """RL and evaluation of one row and seed, and what came out."""
    cold_start.result()
    config = run.loaded
    log = config.run_dir / "log.txt"
    if run.checkpoint == "rl":
        _call([sys.executable, "train_rl.py", *run.options], log, f"{run.row}, seed {run.seed}")
    _call([sys.executable, "evaluate.py", *run.options], log, f"{run.row}, seed {run.seed}")
    summary = read_json(config.results_dir / "summary.json")
    figures, greedy = summary[run.checkpoint]["sampled"], summary[run.checkpoint].get("greedy")
    known = [name for name in shown_figures(figures) if figures[name]["mean"] is not None]
    if run.figure not in known:
        why = "; a win rate needs stored baselines and verdicts" if run.figure == "win_rate" else ""
        missing = f"evaluation has no figure {run.figure}; it has {', '.join(known)}{why}"
        raise _RunFailed(f"{run.row}, seed {run.seed}: {missing}")
    kept = [name for name in (*shown_figures(figures), *KEPT_BY_TABLES) if name in figures]
    means = {name: figures[name]["mean"] for name in kept}
    means |= {f"greedy_{run.figure}": greedy[run.figure]["mean"]} if greedy else {}
    at_k = enumerate(figures.get("pass_at_k", {}).get(run.figure, []), start=1)
    means |= {f"pass_at_{k}": value["mean"] for k, value in at_k if k > 1}
    steps = [entry for entry in training_log(config.run_dir / "rl") if "judge/calls_per_group" in entry]
    of_dimensions = figures.get("by_dimension", {}).items()
    dimensions = {name: {figure: value["mean"] for figure, value in of.items()} for name, of in of_dimensions}
    curve = config.run_dir / "rl" / "curve.jsonl"
    points = read_jsonl(curve) if curve.is_file() else ()
    found = {
        "row": run.row,
        "seed": run.seed,
        "config": run.config,
        "settings": run.settings,
        "figures": means,
        "by_subtask": {name: of[run.figure]["mean"] for name, of in figures["by_subtask"].items() if run.figure in of},
        "by_dimension": dimensions,
        "by_judge": _by_judge(config.judge.eval, figures.get("by_judge", [])),
        "judge_calls": round(sum(step["judge/calls_per_group"] for step in steps) * config.rl.groups),
        "curve": [{name: value for name, value in point.items() if name != "ci"} for point in points],
        "seconds": summary["seconds"],
        "peak_memory_gb": summary["peak_memory_gb"],
        "judge": summary["judge"],
        "date": time.strftime("%Y-%m-%d"),
        "provenance": summary["provenance"],
    }
    if run.measure == "discrimination":
        from arenarl.studies.signal_and_noise import measure  # only here: it loads torch

        found["discrimination"] = measure(config)
    return found


def _by_judge(judges: Sequence[JudgeConfig], figures: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the win rate by each judge's model or name; judges that share one are numbered."""
    names = [judge.model or judge.name for judge in judges]
    if len(set(names)) < len(names):
        names = [f"{name} {number}" for number, name in enumerate(names, start=1)]
    return {name: figure["mean"] for name, figure in zip(names, figures, strict=False)}


def _call(command: Sequence[str], log: Path, what: str) -> None:
    """Run a script that ends when this process does, however that ends; what it says goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | {OWNED: "1"}, check=False
        )
    if done.returncode:
        lines = log.read_text(encoding="utf-8").strip().splitlines() or [f"exit code {done.returncode}"]
        raise _RunFailed(f"{what}: {lines[-1]} ({log})")
