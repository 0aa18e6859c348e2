"""Convert published data sets into our splits: Open-Travel, Open-DeepResearch, DeepWriting-20K, or a folder of yours.

`data.source` names the data sets; data/prepare.py writes the splits that `read_public_data` returns. The authors
published RL queries, and test queries with one stored baseline each. They published no SFT trajectories. Published
queries have no `constraints`, so only an LLM can judge them. A data set without splits (DeepWriting-20K) is divided
here. data/README.md lists the accepted record formats.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import DataConfig
from arenarl.domains.published_records import (
    BASELINE_FIELDS,
    READ_FIELDS,
    TRAJECTORY_FIELDS,
    Record,
    has_further_messages,
    has_trajectory,
    read_query,
    read_records,
    read_trajectory,
    tools_of,
)
from arenarl.rollout.environment import Schema
from arenarl.system.atomic_files import hash_files
from arenarl.system.errors import MOST_SHOWN, UserError, missing, one_line
from arenarl.trajectory import Query, read_turns, text_key

ENDS = (".jsonl", ".parquet")
# split -> words; a file belongs to the first split with a word in the file's path
SPLITS = {"sft": ("sft",), "test": ("test",), "rl": ("train", "rl")}


@dataclass
class PublicData:
    """The splits by file name, their source files, and notes for the user."""

    splits: dict[str, list[Any]]
    origin: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class Source:
    """The local JSONL and Parquet files of a data set. `revision` is the hub's commit; `unread` files have no split."""

    name: str
    folder: Path
    files: list[Path]
    revision: str | None = None
    unread: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """The first part of the ids of its records."""
        return Path(self.name.partition("@")[0]).resolve().name.removesuffix(".jsonl").removesuffix(".parquet")

    def to_record(self) -> dict[str, Any]:
        hashes = {str(path.relative_to(self.folder)): hash_files([path]) for path in self.files}
        return {"source": self.name, "revision": self.revision, "files": hashes}


def read_public_data(config: DataConfig, domain: str, tools: Sequence[Schema]) -> PublicData:
    """Read all sources into splits. A query of several splits stays in the first of test, RL and SFT.

    `domain` has the rubric that judges the queries. Calls of tools that are not in `tools` are kept, and counted in a
    note. With `divide`, records of files not named after tests or SFT are divided. A UserError names the source, or the
    file and line, and the fix.
    """
    sources = [find_source(source, config.divide) for source in config.source]
    records: dict[str, list[Record]] = {split: [] for split in SPLITS}
    labels: set[str] = set()
    for source in sources:
        for path in source.files:
            inside = path.relative_to(source.folder)
            label = "-".join([source.label, *inside.with_suffix("").parts])
            while label in labels:  # a label of another source, or of train.jsonl beside train.parquet
                label += "+"
            labels.add(label)
            records[split_of(inside) or "rl"] += read_records(path, label)
    notes = list(_divide(records, domain, config)) if config.divide else []
    for split in ("test", "rl"):
        if not records[split]:
            names = ", ".join(str(path.relative_to(source.folder)) for source in sources for path in source.files)
            rule = f"a file or its folder must be called {' or '.join(SPLITS[split])}"
            raise UserError(f"data.source: no {split} queries in {names}; {rule}")
    splits = _make_splits(records, domain, config.divide)
    for split, name in (("rl", "rl_queries"), ("sft", "sft")):
        if records[split] and not splits[name]:
            what = f"all {split} queries ({len(records[split])}) are also in another split"
            raise UserError(f"data.source: {what}; name files with other queries")
    if unread := [str(path.relative_to(source.folder)) for source in sources for path in source.unread]:
        words = ", ".join(word for words in SPLITS.values() for word in words)
        notes.append(f"not read, because no word of their names is {words}: {', '.join(unread)}")
    notes += _describe_records(records, splits)
    notes += _describe_trajectories(splits, {tool["function"]["name"] for tool in tools})
    notes = [one_line(note, MOST_SHOWN) for note in notes]
    return PublicData(splits, [source.to_record() for source in sources], notes)


def find_source(name: str, is_divided: bool = False) -> Source:
    """Find a local folder or file (JSONL, Parquet), or download the hub's data set `owner/name[@revision]`.

    Raises UserError if the source is missing, has no such file, or (unless `is_divided`) has no file of a split.
    """
    path, revision = local_path(name), None
    if path and path.is_file():
        folder, candidates = path.parent, [path]
    else:
        folder, revision = (path, None) if path else _download(name)
        candidates = [path for end in ENDS for pattern in ("*", "*/*") for path in folder.glob(pattern + end)]
    files = [path for path in sorted(candidates) if is_divided or _is_of_a_split(path.relative_to(folder))]
    if folders := [path for path in files if not path.is_file()]:
        raise UserError(f"data.source: {folders[0]} is a folder, not a file; move it away, or put the data there")
    if not files:
        kind = "a .jsonl or .parquet file" if is_divided else "train.jsonl, test.jsonl or the like"
        raise UserError(f"data.source: {name} has no {kind}; name the folder that holds them")
    return Source(name, folder, files, revision, tuple(path for path in sorted(candidates) if path not in files))


def local_path(name: str) -> Path | None:
    """Return the local path of a source, None for a hub data set; raise UserError for a path that does not exist."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or path.suffix in ENDS or name.startswith(".")):
        raise UserError(f"data.source: {missing(name)}")
    return path if path.exists() else None


def split_of(path: Path) -> str | None:
    """Return a file's split by the words of its path; None without such a word.

    >>> split_of(Path("train/train.jsonl")), split_of(Path("train_sft.jsonl")), split_of(Path("test/direction.jsonl"))
    ('rl', 'sft', 'test')
    """
    words = set(re.split(r"[^a-z]+", str(path.with_suffix("")).lower()))
    return next((split for split, names in SPLITS.items() if words & set(names)), None)


def _is_of_a_split(path: Path) -> bool:
    """Return whether a file belongs to a split. Its folder must be named after a split too, or `data` as on the hub.

    Other subfolders hold other data sets.
    """
    return split_of(path) is not None and (path.parent in (Path(), Path("data")) or split_of(path.parent) is not None)


def _download(name: str) -> tuple[Path, str]:
    """Download a hub data set into the hub's cache; return its folder and commit."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    options = {"repo_type": "dataset", "revision": revision or None, "allow_patterns": [f"*{end}" for end in ENDS]}
    try:
        folder = Path(snapshot_download(repository, **options))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, FileMetadataError, httpx.HTTPError) as error:
        reason = f"the hub's data set of this name cannot be downloaded: {one_line(error)}"
        raise UserError(f"data.source: {name} is not a local folder, and {reason}") from error
    return folder, folder.name


def _divide(records: dict[str, list[Record]], domain: str, config: DataConfig) -> Iterator[str]:
    """Move records of `rl` to SFT, and to tests if the sources have none, by the config's sizes; yield notes.

    Raises UserError for too few records.
    """
    test_texts = {text_key(read_query(record, domain).query) for record in records["test"]}
    pool = {text_key(read_query(record, domain).query): record for record in records["rl"]}
    drawn = [record for text, record in sorted(pool.items()) if text not in test_texts]
    random.Random(f"divide{config.seed}").shuffle(drawn)
    sizes = {"test": 0 if test_texts else config.test_per_subtask, "sft": config.sft_size, "rl": config.rl_size}
    if not any(has_trajectory(record, TRAJECTORY_FIELDS) for record in drawn):
        sizes["sft"] = 0
        yield "no record has a trajectory: no stored baselines, so evaluation compares with the first policy"
    if len(drawn) <= sizes["test"] + sizes["sft"]:
        what = f"data.test_per_subtask={sizes['test']} and data.sft_size={sizes['sft']}, and some for RL"
        raise UserError(f"data.divide: {len(drawn)} different queries are too few for {what}; lower these sizes")
    yield f"divided by data.seed={config.seed}: {len(records['rl'])} records, {len(drawn)} different queries"
    records["rl"] = []
    for split, size in sizes.items():
        records[split] += drawn[:size]
        if len(drawn) < size:
            yield f"{split}: {len(drawn)} queries instead of data.{split}_size={size}; the data set has no more"
        drawn = drawn[size:]


def _make_splits(records: dict[str, list[Record]], domain: str, is_divided: bool) -> dict[str, list[Any]]:
    """Return the splits by file name. A query of several splits stays in the first of test, RL and SFT.

    SFT keeps all trajectories of a query. Divided queries without any trajectory have no stored baselines.
    """
    taken: set[str] = set()

    def unique(split: str) -> Iterator[tuple[Record, Query]]:
        for record in records[split]:
            query = read_query(record, domain)
            if (key := text_key(query.query)) not in taken:
                taken.add(key)
                yield record, query

    test = list(unique("test"))
    splits: dict[str, list[Any]] = {
        "test_queries": [query for _, query in test],
        "rl_queries": [query for _, query in unique("rl")],
    }
    if not is_divided or any(has_trajectory(record, BASELINE_FIELDS) for record, _ in test):
        baselines = (read_trajectory(record, query, BASELINE_FIELDS) for record, query in test)
        splits["test_baselines"] = [baseline.to_record() for baseline in baselines]
    if records["sft"]:
        pairs = [(record, read_query(record, domain)) for record in records["sft"]]
        splits["sft"] = [
            read_trajectory(record, query, TRAJECTORY_FIELDS).to_record(tools_of(record))
            for record, query in pairs
            if text_key(query.query) not in taken
        ]
    return splits


def _describe_records(records: dict[str, list[Record]], splits: dict[str, list[Any]]) -> Iterator[str]:
    """Yield notes on records and messages left out, unused fields, missing SFT trajectories and the missing truth."""
    kept = {"test": len(splits["test_queries"]), "rl": len(splits["rl_queries"]), "sft": len(splits.get("sft", []))}
    dropped = {split: len(records[split]) - count for split, count in kept.items()}
    if counts := [f"{count} {split}" for split, count in dropped.items() if count > 0]:
        yield f"left out: {', '.join(counts)} records whose query is already in their own or another split"
    further = {split: sum(has_further_messages(record, split == "sft") for record in records[split]) for split in kept}
    if counts := [f"{count} {split}" for split, count in further.items() if count]:
        yield f"read without the messages after the first user message: {', '.join(counts)} queries"
    fields = Counter(name for split in records.values() for record in split for name in record.fields)
    if unused := Counter({name: count for name, count in fields.items() if name not in READ_FIELDS}):
        yield f"unused fields: {_counts(unused)}"
    if not records["sft"]:
        how = "add a file with sft in its name to data.source, or start RL from a model with rl.init"
        yield f"no SFT trajectories: {how}"
    yield "these queries have no truth: use LLM judges, because the embedded judge refuses them"


def _describe_trajectories(splits: dict[str, list[Any]], known: set[str]) -> Iterator[str]:
    """Yield how many trajectories have no answer, and how many call tools that are not `known`."""
    for name in ("test_baselines", "sft"):
        trajectories = splits.get(name, [])
        if unanswered := sum(not trajectory["valid"] for trajectory in trajectories):
            yield f"{name}: {unanswered} of {len(trajectories)} have no answer"
        turns = (read_turns(trajectory["messages"]) for trajectory in trajectories)
        names = ([call.name for turn in each for call in turn.tool_calls] for each in turns)
        counts = [Counter(tool for tool in each if tool not in known) for each in names]
        if unknown := sum(counts, Counter()):
            share = f"{sum(map(bool, counts))} of {len(trajectories)}"
            yield f"{name}: {share} call tools that the environment lacks, and are kept: {_counts(unknown)}"


def _counts(counter: Counter) -> str:
    return ", ".join(f"{name or 'malformed'} ({count})" for name, count in counter.most_common())
