"""Runs the rows of tables: SFT once per seed, then RL and evaluation of every row, several runs at once.

The three scripts run as subprocesses and resume by themselves. A run is finished when `store` has it. A finished run of
another table with the same settings is copied if it ran on this kind of CPU, from the SFT policy in runs/. All rows of
a table and seed must start from the same SFT policy, so each run stores the hash of its weights, and a row with another
hash is refused.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.evaluation.statistics import KEPT_BY_TABLES, shown_figures
from arenarl.plan.estimate import tokens_per_call
from arenarl.report.figures import training_log
from arenarl.report.provenance import cpu
from arenarl.report.summary import heading
from arenarl.report.watching import last_quarter, watched_series
from arenarl.run.weights import hash_weights, read_start
from arenarl.system.atomic_files import as_stored, read_json
from arenarl.system.errors import UserError, owned
from arenarl.system.own_code import code_hashes
from arenarl.system.progress import Bar, say
from arenarl.tables.rows import Run
from arenarl.tables.store import (
    FILE,
    SFT_HASH,
    Stored,
    are_other_policies,
    cpu_of,
    read_runs,
    row_of_other_policy,
    sft_hash_of,
    store_run,
)
from arenarl.trajectory import read_steps


class _RunFailed(Exception):
    """A script ended with an error; the message has row, seed and the script's last line."""


RunKey = tuple[str, str, int]  # table, row, seed

_PREPARING = Lock()  # seeds share their data


def run_all(runs: Sequence[Run], results: Path, workers: int) -> list[str]:
    """Finish all runs. Log each failure at once, and return a line for each after all others have ended."""
    failures: dict[tuple[int, str, str], str] = {}

    def fail(run: Run, problem: str) -> None:
        if problem not in failures.values():  # a failed cold start fails many runs
            say(problem)
        failures[run.seed, run.row, run.table] = problem

    missing = missing_runs(runs, results)
    pending = {run.key for run in missing}
    with Bar("runs", len(runs), len(runs) - len(missing)) as bar:
        for run, future in _in_parallel(_unique(missing), results, pending, workers):
            try:
                record = future.result()
            except _RunFailed as error:
                fail(run, str(error))
                continue
            sharing = [other for other in missing if other.settings == run.settings]
            for other in sharing:
                if problem := _mixed_policies(other, results, sft_hash_of(record), pending):
                    fail(other, problem)
                else:
                    store_run(results / other.table, record | {"row": other.row, "config": other.config})
            figure = f"{heading(run.figure)} {record['figures'][run.figure]:.1f}"
            say(f"{run.row}, seed {run.seed}: {figure} after {record['seconds']['total']:.0f} s")
            bar.update(len(sharing))
    return list(dict.fromkeys(failures[key] for key in sorted(failures)))


def _unique(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without repeats, seed by seed. Of runs with equal settings, prefer the run that measures more,
    then the run that trains its policy itself, because other records lack the cost of training."""
    best_last = sorted(runs, key=lambda run: (run.measure is not None, run.trains))
    by_settings = {json.dumps(run.settings, sort_keys=True): run for run in best_last}
    return sorted((run for run in runs if run in by_settings.values()), key=lambda run: run.seed)


def _in_parallel(
    runs: Sequence[Run], results: Path, pending: Collection[RunKey], workers: int
) -> Iterator[tuple[Run, Future[dict[str, Any]]]]:
    """Yield each run with its result as it ends. After Ctrl-C no further run starts.
    Cold starts are first in the queue, so a run only waits for a cold start that has begun."""
    pool = ThreadPoolExecutor(workers)
    cold_starts = {run.cold_start: run for run in runs}
    policies = {options: pool.submit(_cold_start, run) for options, run in cold_starts.items()}
    training = {run.trained.run_dir: _Training() for run in runs}
    futures = {}
    for run in runs:
        parts = (policies[run.cold_start], training[run.trained.run_dir], results, pending)
        futures[pool.submit(_train_and_evaluate, run, *parts)] = run
    try:
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        pool.shutdown(cancel_futures=True)


def missing_runs(runs: Sequence[Run], results: Path) -> list[Run]:
    """Copy finished runs with the same settings from other tables, and return the runs that are still missing.

    Not copied: runs of another kind of CPU, on which the SFT policy of the same seed differs, and runs from another SFT
    policy than the table's rows or runs/ have.
    """
    stored = {path.parent.name: read_runs(path.parent) for path in sorted(results.glob(f"*/{FILE}"))}
    unfinished = [run for run in runs if not _is_finished(run, stored.setdefault(run.table, {}))]
    pending = {run.key for run in unfinished}
    for run in unfinished:
        here = stored[run.table]
        for other in [there[run.row, run.seed] for there in stored.values() if _is_finished(run, there)]:
            sha256 = sft_hash_of(other)
            is_from_here = cpu_of(other) == cpu() and not are_other_policies(sha256, _sft_hash(run))
            if is_from_here and not _other_policy(run, here, sha256, pending):
                store_run(results / run.table, other)
                here[run.row, run.seed] = other
                pending.remove(run.key)
                break
    return [run for run in unfinished if run.key in pending]


def _other_policy(run: Run, stored: Stored, sha256: str | None, pending: Collection[RunKey]) -> str | None:
    """Return a row of the run's seed that started from another SFT policy. `stored` are the runs of its table; those in
    `pending` do not count, because they are run again."""
    kept = {key: other for key, other in stored.items() if (run.table, *key) not in pending}
    return row_of_other_policy(kept, run.seed, sha256)


def _mixed_policies(run: Run, results: Path, sha256: str | None, pending: Collection[RunKey]) -> str | None:
    """Return the error if a run from this SFT policy would stand beside rows from another one."""
    other = _other_policy(run, read_runs(results / run.table), sha256, pending)
    return other and (
        f"{run.row}, seed {run.seed}: the stored row {other} started from another SFT policy than "
        f"{run.loaded.sft_policy} is now (other settings, other code, or another CPU), so the two cannot be compared; "
        f"delete the lines of seed {run.seed} in {results / run.table / FILE} to run all its rows again, or name "
        "another --seed"
    )


def _is_finished(run: Run, stored: Stored) -> bool:
    earlier = stored.get((run.row, run.seed))
    if earlier is None or earlier["settings"] != as_stored(run.settings):
        return False
    return run.figure in earlier["figures"] and (run.measure is None or run.measure in earlier)


def _cold_start(run: Run) -> str | None:
    """Make the data and the SFT policy that a run starts from; the scripts skip finished work.
    Return the sha256 of the policy's weights."""
    log = Path(run.loaded.sft_policy).parent / "log.txt"
    say(f"seed {run.seed}: data and SFT, unless they are there; log: {log}")
    with _PREPARING:
        _call([sys.executable, "data/prepare.py", *run.cold_start], log, f"seed {run.seed}")
    launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", "1"] if run.loaded.sft.deepspeed else []
    _call([sys.executable, *launcher, "train_sft.py", *run.cold_start], log, f"seed {run.seed}")
    return _sft_hash(run)


def _sft_hash(run: Run) -> str | None:
    """Return the sha256 of the SFT policy's weights in runs/; None if they are not there."""
    sha256 = hash_weights(run.loaded.sft_policy)
    return None if sha256 == run.loaded.sft_policy else sha256


class _Training:
    """RL of one policy. Rows with policy_of share it: it runs once, and if it fails, all of them fail."""

    def __init__(self) -> None:
        self._lock, self._outcome = Lock(), Future[None]()

    def finish(self, run: Run, label: str) -> None:
        with self._lock:
            if not self._outcome.done():
                try:
                    _call([sys.executable, "train_rl.py", *run.training], run.trained.run_dir / "log.txt", label)
                except _RunFailed as error:
                    self._outcome.set_exception(error)
                else:
                    self._outcome.set_result(None)
        self._outcome.result()


def _train_and_evaluate(
    run: Run, cold_start: Future[str | None], training: _Training, results: Path, pending: Collection[RunKey]
) -> dict[str, Any]:
    """Train and evaluate one row and seed; return its record for `store`."""
    sft_hash, config, label = cold_start.result(), run.loaded, f"{run.row}, seed {run.seed}"
    if problem := _mixed_policies(run, results, sft_hash, pending):
        raise _RunFailed(problem)
    if not run.trains and (config.run_dir / "rl").exists():
        problem = "holds RL that the row no longer has, whose curve, calls and seconds would count as the row's"
        raise _RunFailed(f"{label}: {config.run_dir / 'rl'} {problem}; delete it")
    _refuse_changed_code(run, label)
    log = config.run_dir / "log.txt"
    say(f"{label}: begins; log: {log}")
    if run.checkpoint == "rl":
        training.finish(run, label)
    _call([sys.executable, "evaluate.py", *run.options], log, label)
    record = _record(run, label)
    return record | {"provenance": record["provenance"] | {SFT_HASH: sft_hash}}


def _refuse_changed_code(run: Run, label: str) -> None:
    """Refuse RL that began with other code of the user: the scripts resume it, to repair a crash."""
    folder = run.trained.run_dir / "rl"
    try:
        start = read_start(folder)
    except UserError as error:
        raise _RunFailed(f"{label}: {error}") from error
    if start and (names := start.changed_code(code_hashes(asdict(run.trained)))):
        raise _RunFailed(f"{label}: {folder} was trained with an earlier version of {', '.join(names)}; delete it")


def _record(run: Run, label: str) -> dict[str, Any]:
    """Return a finished run's record for `store`, from the files of its scripts."""
    config = run.loaded
    summary = read_json(config.results_dir / "summary.json")
    figures, greedy = summary[run.checkpoint]["sampled"], summary[run.checkpoint].get("greedy")
    known = [name for name in shown_figures(figures) if figures[name]["mean"] is not None]
    if run.figure not in known:
        advice = "; a win rate needs stored baselines and verdicts" if run.figure == "win_rate" else ""
        missing = f"evaluation has no figure {run.figure}; it has {', '.join(known)}{advice}"
        raise _RunFailed(f"{label}: {missing}")
    kept = [name for name in (*shown_figures(figures), *KEPT_BY_TABLES) if name in figures]
    means = {name: figures[name]["mean"] for name in kept}
    means |= {f"greedy_{run.figure}": greedy[run.figure]["mean"]} if greedy else {}
    at_k = enumerate(figures.get("pass_at_k", {}).get(run.figure, []), start=1)
    means |= {f"pass_at_{k}": value["mean"] for k, value in at_k if k > 1 and (k < 5 or k.bit_count() == 1)}
    steps = [entry for entry in training_log(config.run_dir / "rl") if "judge/calls_per_group" in entry]
    means |= _training_reward(steps)
    dimensions = figures.get("by_dimension", {}).items()
    curve = config.run_dir / "rl" / "curve.jsonl"
    points = read_steps(curve) if curve.is_file() else ()
    groups = [config.rl.groups + step.get("rollout/replaced_groups", 0) for step in steps]
    calls = round(sum(step["judge/calls_per_group"] * count for step, count in zip(steps, groups, strict=True)))
    per_call = tokens_per_call(config) if calls else None
    record = {
        "row": run.row,
        "seed": run.seed,
        "config": run.config,
        "settings": run.settings,
        "figures": means,
        "by_subtask": {name: of[run.figure]["mean"] for name, of in figures["by_subtask"].items() if run.figure in of},
        "by_dimension": {name: {figure: value["mean"] for figure, value in of.items()} for name, of in dimensions},
        "by_judge": _by_judge(config.judge.eval, figures.get("by_judge", [])),
        "judge_calls": calls,
        "judge_tokens": None if per_call is None else round(calls * per_call),
        "curve": [{name: value for name, value in point.items() if name != "ci"} for point in points],
        "seconds": summary["seconds"],
        "peak_memory_gb": summary["peak_memory_gb"],
        "judge": summary["judge"],
        "date": time.strftime("%Y-%m-%d"),
        "provenance": summary["provenance"],
    }
    if run.measure == "discrimination":
        from arenarl.studies.signal_and_noise import measure  # imported here because it loads torch

        try:
            record["discrimination"] = measure(config)
        except UserError as error:  # the other runs go on
            raise _RunFailed(f"{label}: {error}") from error
    elif run.measure == "onset":
        record["onset"] = watched_series(config.run_dir / "rl")
        if not record["onset"]["step"]:
            where = config.run_dir / "rl" / "watch.jsonl"
            raise _RunFailed(f"{label}: no trajectory has scores of judge.train and judge.watch ({where})")
    return record


def _training_reward(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the world's mean reward of the trajectories of the last quarter of RL's steps, if the world gives one.

    >>> _training_reward([{"rollout/world_reward": step / 8} for step in range(8)])
    {'training_reward': 0.8125}
    >>> _training_reward([{"loss": 0.1}])
    {}
    """
    rewards = [step["rollout/world_reward"] for step in steps if "rollout/world_reward" in step]
    return {"training_reward": round(fmean(last_quarter(rewards)), 4)} if rewards else {}


def _by_judge(judges: Sequence[JudgeConfig], figures: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the win rate by each judge's model or name; judges with the same name are numbered."""
    names = [judge.model or judge.name for judge in judges]
    if len(set(names)) < len(names):
        names = [f"{name} {number}" for number, name in enumerate(names, start=1)]
    return {name: figure["mean"] for name, figure in zip(names, figures, strict=False)}


def _call(command: Sequence[str], log: Path, name: str) -> None:
    """Run a script with its output in `log`. The script also ends when this process is killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | owned()
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False)
    if (code := done.returncode) < 0:  # a signal, which the last line of the log does not name
        raise _RunFailed(f"{name}: killed by signal {-code} ({log})")
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise _RunFailed(f"{name}: {lines[-1]} ({log})")
