"""The stages in their order: what each reads and writes under runs/<run>/build, what it says before and after,
and when it need not run again.

A stage is done when its record, written last, was made by the same settings from the same files. Otherwise it runs from
its beginning, and takes from the store what was paid for.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.judges.factory import make_judge
from arenarl.synthesis import estimates
from arenarl.synthesis.build import BUILT, Build
from arenarl.synthesis.card import write_card
from arenarl.synthesis.inspection import Inspected, Inspector, inspect, inspection_rows
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.queries import TEST_SEED, QueryDrawer
from arenarl.synthesis.rewriting import RewritingEngine
from arenarl.synthesis.splits import shared_entities, without_leaks
from arenarl.synthesis.trajectories import Teacher
from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.trajectory import Query, Trajectory, read_jsonl, read_queries, write_jsonl

SPLIT_FILES = ("test_queries", "test_baselines", "rl_queries", "sft")
FROZEN = SPLIT_FILES[:2]


@dataclass(frozen=True)
class Stage:
    """`run` does the work and returns what is to be told of it, `estimate` says what it will cost; `files` are what it
    leaves, in the run's folder or in `data.folder`."""

    run: Callable[[Build], dict[str, Any]]
    estimate: Callable[[Build], estimates.Estimate]
    files: tuple[str, ...]
    is_last: bool = False

    def hashes(self, build: Build) -> dict[str, str] | None:
        """Of its files; None if one is not there."""
        folder = Path(build.config.data.folder) if self.is_last else build.folder
        paths = [folder / f"{name}.jsonl" for name in self.files]
        return {path.stem: hash_files([path]) for path in paths} if all(path.is_file() for path in paths) else None


def run(config: Config, wanted: Sequence[str]) -> Build:
    """Run these stages, in their order."""
    build = Build(config, asks_models=any(not STAGES[name].is_last for name in wanted))
    made_by = json_hash(
        [_settings(config), hash_files(Path(path) for path in (build.build.seeds, build.build.test_seeds) if path)]
    )
    for name, stage in STAGES.items():
        made_by = json_hash([name, made_by])
        record = read_json(build.path(f"{name}.json"))
        is_done = record and record["made_by"] == made_by and record["files"] == stage.hashes(build)
        if name not in wanted:
            if not is_done and any(later in wanted for later in list(STAGES)[list(STAGES).index(name) :]):
                raise UserError(
                    f"stage {name} is to be run first: it is not done, or was done with other settings (--stage {name})"
                )
        elif is_done:
            say(f"{name}: done already")
        else:
            record = _run_stage(build, name, stage, made_by)
        made_by = json_hash([made_by, record and record["files"]])
    return build


def _run_stage(build: Build, name: str, stage: Stage, made_by: str) -> dict[str, Any]:
    spent = build.client.store.spent(build.client.stage)
    say(f"{name}: {stage.estimate(build)}; so far {spent.calls:,} calls, cost {spent.cost:.2f}")
    started = time.monotonic()
    counts = stage.run(build)
    build.client.check()
    say("\n".join(f"  {key}: {value}" for key, value in counts.items() if not isinstance(value, list | dict)))
    say(f"  {build.client.report()}")
    record = {
        "made_by": made_by,
        "seconds": round(time.monotonic() - started, 1),
        "counts": counts,
        "files": stage.hashes(build),
    }
    write_json(build.path(f"{name}.json"), record)
    return record


def draw_queries(build: Build) -> dict[str, Any]:
    drawer = QueryDrawer(
        build.build, build.domain, next(iter(build.tools.values())), build.client, build.config.data.seed
    )
    wanted = sum(build.quotas.values(), Counter())
    if build.build.test_seeds:
        wanted -= build.quotas["test"]
    drawn = drawer.draw(build.seeds, wanted)
    build.client.check()
    write_jsonl(build.path("queries.jsonl"), (one.to_record() for one in drawn))
    have = Counter(Cell(one.query.subtask, one.query.language) for one in drawn if one.origin != TEST_SEED)
    short = {
        f"{cell.subtask}, {cell.language}": f"{have[cell]} of {count}"
        for cell, count in wanted.items()
        if have[cell] < count
    }
    for cell, found in short.items():
        say(f"  {cell}: {found} queries; more seeds or generators, or a higher build.near_duplicate, bring more")
    return {"wanted": wanted.total(), "queries": len(drawn), **drawer.counts, "short": short}


def make_trajectories(build: Build) -> dict[str, Any]:
    config, split_of = build.config, build.split_of
    _refuse_other_tests(Path(config.data.folder), split_of["test"])
    judge = (
        make_judge(config.judge.train, build.domain, None, build.client)
        if config.judge.train.name != "embedded"
        else None
    )
    teacher = Teacher(build.engines(build.build.teacher), judge, config.rollout.temperature, config.data.seed)
    solved = teacher.solve(split_of["sft"], build.build.attempts, "best")
    baselines = teacher.solve(split_of["test"], config.data.baseline_attempts, "median")
    build.client.check()
    write_jsonl(build.path("trajectories.jsonl"), (trajectory.to_record() for trajectory in solved))
    write_jsonl(build.path("baselines.jsonl"), (trajectory.to_record() for trajectory in baselines))
    return {"SFT trajectories": len(solved), "valid SFT trajectories": sum(one.valid for one in solved),
            "baselines": len(baselines), "valid baselines": sum(one.valid for one in baselines)}  # fmt: skip


def _refuse_other_tests(folder: Path, drawn: Sequence[Query]) -> None:
    """Before anything is paid for: frozen test queries that are not among those drawn,
    of which some may fall out later, cannot stay."""
    path = folder / "test_queries.jsonl"
    if (read_json(folder / BUILT) or {}).get("test_queries") and path.is_file():
        if {query.query for query in read_queries(path)} - {query.query for query in drawn}:
            raise UserError(
                f"{path} is frozen, and these settings draw other test queries; delete {folder}, "
                "or name another data.folder"
            )


def inspect_trajectories(build: Build) -> dict[str, Any]:
    config = build.config
    by_id = {query.query_id: query for query in build.split_of["sft"]}
    cases = [
        Inspected(by_id[record["query_id"]], Trajectory.from_record(record))
        for record in read_jsonl(build.path("trajectories.jsonl"))
    ]
    inspector = Inspector(build.build.inspector, build.client, build.domain, build.tools)
    engines = build.engines(build.build.who_rewrites, RewritingEngine)
    inspect(cases, inspector, engines, build.build.rounds, config.rollout.temperature, config.data.seed)
    build.client.check()
    write_jsonl(build.path("inspected.jsonl"), (case.to_record() for case in cases))
    reasons = Counter(problem.rule for case in cases if not case.passed for problem in case.rounds[-1])
    passed = [case for case in cases if case.passed]
    return {
        "inspected": len(cases),
        "passed": len(passed),
        "passed as they were": sum(len(case.rounds) == 1 for case in passed),
        "dropped for": ", ".join(f"{rule} {count}" for rule, count in reasons.most_common()) or "nothing",
        "rounds": inspection_rows(cases),
    }


def split(build: Build) -> dict[str, Any]:
    config, folder = build.config, Path(build.config.data.folder)
    baselines = {record["query_id"]: record for record in read_jsonl(build.path("baselines.jsonl")) if record["valid"]}
    passed = {
        case.query.query_id: case
        for case in map(Inspected.from_record, read_jsonl(build.path("inspected.jsonl")))
        if case.passed
    }
    split_of = build.split_of
    have = split_of | {
        "test": [query for query in split_of["test"] if query.query_id in baselines],
        "sft": [query for query in split_of["sft"] if query.query_id in passed],
    }
    kept, leaks = without_leaks(have, build.build.near_duplicate)
    kept["sft"] = kept["sft"][: config.data.sft_size]
    stored = [baselines[query.query_id] for query in kept["test"]]
    taught = [passed[query.query_id].trajectory.to_record() for query in kept["sft"]]
    hashes = _write_splits(folder, dict(zip(SPLIT_FILES, (kept["test"], stored, kept["rl"], taught), strict=True)))
    wanted = {"test": build.quotas["test"].total(), "sft": config.data.sft_size, "rl": config.data.rl_size}
    counts = {name: f"{len(kept[name])} of {wanted[name]}" for name in kept}
    if len(kept["sft"]) < config.data.sft_size:
        say("  too few trajectories passed: a higher build.spare brings more queries, a higher build.rounds mends more")
    counts |= {
        "like one of another split, left out": len(leaks),
        "leaks": leaks,
        "shared": shared_entities(kept),
        "hashes": hashes,
    }
    earlier = {name: read_json(build.path(f"{name}.json"))["counts"] for name in ("queries", "inspect")}
    write_card(folder / "README.md", config, earlier | {"split": counts}, kept)
    return counts


def _write_splits(folder: Path, files: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Write them, and their hashes last. Raises UserError if test queries or baselines that are there would change."""
    paths, before = {name: folder / f"{name}.jsonl" for name in files}, read_json(folder / BUILT) or {}
    for name in FROZEN:
        records = [asdict(record) if isinstance(record, Query) else record for record in files[name]]
        if name in before and paths[name].is_file() and list(read_jsonl(paths[name])) != records:
            raise UserError(
                f"{paths[name]} is frozen, and these settings make another; delete {folder}, "
                "or name another data.folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BUILT, before)  # from here on the folder is this build's, whenever it is killed
    for name, records in files.items():
        write_jsonl(paths[name], records)
    hashes = {name: hash_files([path]) for name, path in paths.items()}
    write_json(folder / BUILT, hashes)
    return hashes


def _estimate_queries(build: Build) -> estimates.Estimate:
    return estimates.of_queries(
        build.build, sum(build.quotas.values(), Counter()).total(), len(build.seeds), build.prompt_tokens
    )


def _estimate_trajectories(build: Build) -> estimates.Estimate:
    data, judge, split_of = build.config.data, build.config.judge.train, build.split_of
    count = len(split_of["sft"]) * build.build.attempts + len(split_of["test"]) * data.baseline_attempts
    matches = (
        len(split_of["sft"]) * (build.build.attempts - 1)
        + len(split_of["test"]) * data.baseline_attempts * (data.baseline_attempts - 1) // 2
    )
    return estimates.of_trajectories(build.build.teacher, count, build.prompt_tokens) + estimates.of_matches(
        judge, matches
    )


def _estimate_inspection(build: Build) -> estimates.Estimate:
    trajectories = [Trajectory.from_record(record) for record in read_jsonl(build.path("trajectories.jsonl"))]
    return estimates.of_inspection(build.build, trajectories, build.prompt_tokens)


def _settings(config: Config) -> dict[str, Any]:
    """What decides what comes out."""
    settings = asdict(config)
    return {key: settings[key] for key in ("build", "data", "environment", "rollout")} | {
        "judge": settings["judge"]["train"]
    }


STAGES = {
    "queries": Stage(draw_queries, _estimate_queries, ("queries",)),
    "trajectories": Stage(make_trajectories, _estimate_trajectories, ("trajectories", "baselines")),
    "inspect": Stage(inspect_trajectories, _estimate_inspection, ("inspected",)),
    "split": Stage(split, lambda build: estimates.Estimate(), SPLIT_FILES, is_last=True),
}
