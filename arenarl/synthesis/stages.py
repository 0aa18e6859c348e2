"""Run the stages of a build: queries, trajectories, inspect, split. Files go to runs/<run>/build, logs to the terminal.

A stage is done if its record, written last, has the hash of the present settings and files, the user's own prompts and
code included. Otherwise it runs from the start, with the replies that are already stored.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.judges.factory import make_judge
from arenarl.llm.reply_store import cost_text
from arenarl.run.stage import lock_folder
from arenarl.synthesis import estimates
from arenarl.synthesis.build import BUILT, Build
from arenarl.synthesis.card import write_card
from arenarl.synthesis.inspection import Inspected, RewritingEngine, inspect, inspection_rows
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.queries import TEST_SEED, QueryDrawer
from arenarl.synthesis.splits import shared_entities, without_leaks
from arenarl.synthesis.trajectories import Teacher
from arenarl.system.atomic_files import hash_files, json_hash, read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.own_code import code_hashes
from arenarl.system.progress import say
from arenarl.system.prompt_files import prompt_hashes
from arenarl.trajectory import SPLIT_FILES, Query, Trajectory, read_jsonl, read_queries, write_jsonl

FROZEN = ("test_queries", "test_baselines")
_FROZEN = "{} is frozen, but these settings {}; delete {}, or name another data.folder"


@dataclass(frozen=True)
class Stage:
    """A stage of a build."""

    run: Callable[[Build], dict[str, Any]]  # does the work and returns counts for log and record
    estimate: Callable[[Build], list[estimates.Calls]]
    files: tuple[str, ...]  # written to the build's folder; the last stage writes to `data.folder`
    is_last: bool = False

    def hashes(self, build: Build) -> dict[str, str] | None:
        """Return the hashes of its files; None if one is missing."""
        folder = Path(build.config.data.folder) if self.is_last else build.folder
        paths = [folder / f"{name}.jsonl" for name in self.files]
        return {path.stem: hash_files([path]) for path in paths} if all(path.is_file() for path in paths) else None


def run(config: Config, wanted: Sequence[str]) -> Build:
    """Run the wanted stages in their order. Raises UserError if an earlier stage is not done."""
    build = Build(config, asks_models=any(not STAGES[name].is_last for name in wanted))
    lock_folder(build.folder)
    keys = asdict(config)
    del keys["environment"]["timeout_s"]  # no file depends on it
    settings = {name: keys[name] for name in ("build", "data", "environment", "rollout")}
    settings["judge"] = keys["judge"]["train"]
    settings |= code_hashes(settings) | prompt_hashes(config.prompts.folder)
    seeds = [Path(path) for path in (build.build.seeds, build.build.test_seeds) if path]
    made_by = json_hash([settings, hash_files(seeds)])
    for name, stage in STAGES.items():
        made_by = json_hash([name, made_by])
        record = read_json(build.path(f"{name}.json"), dict[str, Any], "delete it; the stage then runs again")
        is_done = record and record.get("made_by") == made_by and record.get("files") == stage.hashes(build)
        if name not in wanted:
            if not is_done and any(later in wanted for later in list(STAGES)[list(STAGES).index(name) :]):
                problem = "is not done, or was done with other settings"
                raise UserError(f"stage {name} {problem}; run it first with --stage {name}")
        elif is_done:
            say(f"{name}: done already")
        else:
            record = _run_stage(build, name, stage, made_by)
        made_by = json_hash([made_by, record and record.get("files")])
    return build


def _run_stage(build: Build, name: str, stage: Stage, made_by: str) -> dict[str, Any]:
    spent = build.client.store.spent(build.client.stage)
    before = f"so far {spent.calls:,} calls, cost {cost_text(spent.cost)}"
    say(f"{name}: {estimates.summary(stage.estimate(build))}; {before}")
    started = time.monotonic()
    counts = stage.run(build)
    build.client.check()
    say("\n".join(f"  {key}: {value}" for key, value in counts.items() if not isinstance(value, list | dict)))
    say(f"  {build.client.report()}")
    seconds = round(time.monotonic() - started, 1)
    record = {"made_by": made_by, "seconds": seconds, "counts": counts, "files": stage.hashes(build)}
    write_json(build.path(f"{name}.json"), record)
    return record


def draw_queries(build: Build) -> dict[str, Any]:
    """Write queries.jsonl: draw queries until the quotas are filled."""
    tools, wanted = next(iter(build.tools.values())), build.wanted
    drawer = QueryDrawer(build.build, build.domain, tools, build.client, build.config.data.seed)
    drawn = drawer.draw(build.seeds, wanted)
    build.client.check()
    write_jsonl(build.path("queries.jsonl"), map(asdict, drawn))
    _refuse_empty(build.split_of, "add seeds or generators, or raise build.near_duplicate")
    have = Counter(Cell(each.query.subtask, each.query.language) for each in drawn if each.origin != TEST_SEED)
    missing = [cell for cell, count in wanted.items() if have[cell] < count]
    short = {f"{cell.subtask}, {cell.language}": f"{have[cell]} of {wanted[cell]}" for cell in missing}
    for cell, share in short.items():
        say(f"  {cell}: only {share} queries; add seeds or generators, or raise build.near_duplicate")
    return {"wanted": wanted.total(), "queries": len(drawn), **drawer.counts, "short": short}


def make_trajectories(build: Build) -> dict[str, Any]:
    """Write trajectories.jsonl and baselines.jsonl: the teacher's chosen attempts at SFT and test queries.
    A baseline with a problem by the rules is left out, and so is its query."""
    config, split_of = build.config, build.split_of
    _refuse_other_tests(Path(config.data.folder), split_of["test"])
    chooses = config.judge.train.name != "embedded"
    judge = make_judge(config.judge.train, build.domain, None, build.client) if chooses else None
    rules = build.inspector.by_rules
    teacher = Teacher(build.engines(build.build.teacher), judge, rules, config.rollout.temperature, config.data.seed)
    solved = teacher.solve(split_of["sft"], build.build.attempts, "best")
    baselines = teacher.solve(split_of["test"], config.data.baseline_attempts, "median")
    build.client.check()
    problems = [rules(query, baseline) for query, baseline in zip(split_of["test"], baselines, strict=True)]
    sound = [baseline for baseline, found in zip(baselines, problems, strict=True) if not found]
    dropped_for = _listed(problem.rule for found in problems for problem in found)
    how = f"their baselines are dropped for: {dropped_for}; name another build.teacher, or raise data.baseline_attempts"
    _refuse_empty({"test": sound}, how)
    write_jsonl(build.path("trajectories.jsonl"), (trajectory.to_record() for trajectory in solved))
    write_jsonl(build.path("baselines.jsonl"), (trajectory.to_record() for trajectory in sound))
    valid = sum(trajectory.valid for trajectory in solved)
    return {"SFT trajectories": len(solved), "valid SFT trajectories": valid, "test queries": len(baselines),
            "baselines": len(sound), "baselines dropped for": dropped_for}  # fmt: skip


def _listed(rules: Iterable[str]) -> str:
    """Return each rule with its count, most frequent first; "nothing" for no rules."""
    return ", ".join(f"{rule} {count}" for rule, count in Counter(rules).most_common()) or "nothing"


def _refuse_empty(splits: Mapping[str, Sequence[Any]], how: str) -> None:
    """Raise UserError if a split would be empty."""
    if empty := [name for name, records in splits.items() if not records]:
        raise UserError(f"no query is left for the split {' and '.join(empty)}: {how}")


def _refuse_other_tests(folder: Path, drawn: Sequence[Query]) -> None:
    """Raise UserError if a frozen test query was not drawn again. Runs before any paid call."""
    path = folder / "test_queries.jsonl"
    if (read_json(folder / BUILT) or {}).get("test_queries") and path.is_file():
        if {query.query for query in read_queries(path)} - {query.query for query in drawn}:
            raise UserError(_FROZEN.format(path, "draw other test queries", folder))


def inspect_trajectories(build: Build) -> dict[str, Any]:
    """Write inspected.jsonl: the trajectories with the problems that each round of inspection found."""
    config = build.config
    by_id = {query.query_id: query for query in build.split_of["sft"]}
    records = read_jsonl(build.path("trajectories.jsonl"))
    cases = [Inspected(by_id[record["query_id"]], Trajectory.from_record(record)) for record in records]
    engines = build.engines(build.build.rewriting_llm, RewritingEngine)
    inspect(cases, build.inspector, engines, build.build.rounds, config.rollout.temperature, config.data.seed)
    build.client.check()
    write_jsonl(build.path("inspected.jsonl"), (case.to_record() for case in cases))
    passed = [case for case in cases if case.passed]
    dropped_for = _listed(problem.rule for case in cases if not case.passed for problem in case.rounds[-1])
    return {"inspected": len(cases), "passed": len(passed),
            "passed as they were": sum(len(case.rounds) == 1 for case in passed),
            "dropped for": dropped_for, "rounds": inspection_rows(cases)}  # fmt: skip


def split(build: Build) -> dict[str, Any]:
    """Write the splits and their card to `data.folder`."""
    config, folder = build.config, Path(build.config.data.folder)
    baselines = {record["query_id"]: record for record in read_jsonl(build.path("baselines.jsonl")) if record["valid"]}
    cases = map(Inspected.from_record, read_jsonl(build.path("inspected.jsonl")))
    passed = {case.query.query_id: case.trajectory for case in cases if case.passed}
    have = dict(build.split_of)
    for name, solved in {"test": baselines, "sft": passed}.items():
        have[name] = [query for query in have[name] if query.query_id in solved]
    kept, leaks = without_leaks(have, build.build.near_duplicate)
    kept["sft"] = kept["sft"][: config.data.sft_size]
    earlier = {name: read_json(build.path(f"{name}.json"))["counts"] for name in ("queries", "trajectories", "inspect")}
    dropped_for = earlier["inspect"]["dropped for"]
    why = f"{len(leaks)} are like one of another split, inspection dropped trajectories for: {dropped_for}"
    _refuse_empty(kept, f"{why}; add seeds, or name another teacher or rewriter")
    files = {
        "test_queries": kept["test"],
        "test_baselines": [baselines[query.query_id] for query in kept["test"]],
        "rl_queries": kept["rl"],
        "sft": [passed[query.query_id].to_record() for query in kept["sft"]],
    }
    hashes = _write_splits(folder, files)
    wanted = {"test": build.quotas["test"].total(), "sft": config.data.sft_size, "rl": config.data.rl_size}
    counts = {name: f"{len(kept[name])} of {wanted[name]}" for name in kept}
    if len(kept["sft"]) < config.data.sft_size:
        say("  too few trajectories passed; raise build.spare for more queries, or build.rounds for more rewriting")
    counts |= {"like one of another split, left out": len(leaks), "leaks": leaks,
               "shared": shared_entities(kept), "hashes": hashes}  # fmt: skip
    write_card(folder / "README.md", config, earlier | {"split": counts}, kept)
    return counts


def _write_splits(folder: Path, files: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Write the files, then their hashes. Raises UserError if frozen test queries or baselines would change."""
    paths, before = {name: folder / f"{name}.jsonl" for name in files}, read_json(folder / BUILT) or {}
    for name in FROZEN:
        records = [asdict(record) if isinstance(record, Query) else record for record in files[name]]
        if name in before and paths[name].is_file() and list(read_jsonl(paths[name])) != records:
            raise UserError(_FROZEN.format(paths[name], "make another", folder))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BUILT, before)  # marks the folder as this build's, even after a kill
    for name, records in files.items():
        write_jsonl(paths[name], records)
    hashes = {name: hash_files([path]) for name, path in paths.items()}
    write_json(folder / BUILT, hashes)
    return hashes


STAGES = {
    "queries": Stage(draw_queries, estimates.of_queries, ("queries",)),
    "trajectories": Stage(make_trajectories, estimates.of_trajectories, ("trajectories", "baselines")),
    "inspect": Stage(inspect_trajectories, estimates.of_inspection, ("inspected",)),
    "split": Stage(split, lambda build: [], SPLIT_FILES, is_last=True),
}
