"""Write the data card of built splits: models, outcome of each stage, names that splits share, and hashes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, LLMConfig
from arenarl.report import markdown
from arenarl.system.atomic_files import write_text
from arenarl.trajectory import Query


def write_card(
    path: Path, config: Config, counts: Mapping[str, Mapping[str, Any]], splits: Mapping[str, Sequence[Query]]
) -> None:
    """Write the card from the counts of each stage and the queries of each split."""
    inspected, split, solved = counts["inspect"], counts["split"], counts["trajectories"]
    dropped_baselines = solved.get("baselines dropped for", "unknown")  # older builds did not check baselines
    models = [[role, llm.model, llm.base_url or "OpenAI"] for role, llm in _roles(config) if llm.name == "llm"]
    contents = [[name, len(queries), _by_cell(queries)] for name, queries in splits.items()]
    drawn = [[name, count] for name, count in counts["queries"].items() if isinstance(count, int)]
    shared = [list(row.values()) for row in split["shared"]]
    parts = [
        f"# {config.environment.domain}, built by `data/build.py`",
        "Written by models in the stages of Section 5, ArenaRL. State here which licence the models' terms allow.",
        "## Models", _table(["part", "model", "at"], models),
        "## Splits", _table(["split", "queries", "by subtask and language"], contents),
        "## Outcome of the queries", _table(["", "queries"], drawn),
        "## Outcome of the inspection",
        inspection_table(inspected["rounds"]), f"Dropped for: {inspected['dropped for']}.",
        f"{solved['baselines']} stored baselines; dropped for: {dropped_baselines}.",
        "## Shared by splits",
        f"No query is nearly one of another split: {len(split['leaks'])} were left out. "
        "Names in the queries' constraints:",
        _table(list(split["shared"][0]), shared),
        "## Hashes",
        _table(["file", "SHA-256"], [[f"{name}.jsonl", value] for name, value in split["hashes"].items()]),
    ]  # fmt: skip
    write_text(path, "\n\n".join(parts) + "\n")


def inspection_table(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of `inspection_rows`, with a column for every kind of problem in any round."""
    ends = ("passed", "rewritten", "dropped")
    problems = sorted({key for row in rounds for key in row} - {"round", "inspected", *ends})
    columns = ["round", "inspected", *problems, *ends]
    return _table(columns, [[row.get(column, 0) for column in columns] for row in rounds])


def _roles(config: Config) -> list[tuple[str, LLMConfig]]:
    build = config.build
    return [
        *((f"queries, {generator.style}", generator) for generator in build.generators),
        ("refinement", build.refiner), ("constraints", build.extractor), ("trajectories", build.teacher),
        ("choice of attempts", config.judge.train), ("inspection", build.inspector), ("rewriting", build.rewriter),
    ]  # fmt: skip


def _by_cell(queries: Sequence[Query]) -> str:
    counts = Counter(f"{query.subtask} {query.language}" for query in queries)
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return markdown.table(list(head), [list(map(str, row)) for row in rows])
