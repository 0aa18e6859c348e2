"""Published data sets as this repository's splits: the authors' Open-Travel and Open-DeepResearch, DeepWriting-20K,
from a folder or the hub.

`data.source` names them and data/prepare.py writes what `read_public_data` returns; from then on they are splits like
any other. The authors published queries for RL, and test queries with a stored baseline each, but neither SFT
trajectories nor a truth: the queries have no `constraints`, so an LLM has to judge. A data set without splits
(DeepWriting-20K) is divided here. Which shapes of a record are understood stands in data/README.md.
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
    read_query,
    read_records,
    read_trajectory,
    tools_of,
)
from arenarl.rollout.environment import Schema
from arenarl.system.atomic_files import hash_files
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_turns, same_query

ENDS = (".jsonl", ".parquet")
# a file's split: the first of which a word is in its name or folder
SPLITS = {"sft": ("sft",), "test": ("test",), "rl": ("train", "rl")}


@dataclass
class PublicData:
    """The splits by file name, where they come from, and what a reader of them should know."""

    splits: dict[str, list[Any]]
    origin: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class Source:
    """The JSONL and Parquet files of a data set, on this disk;
    `revision` is the hub's commit, `unread` is what is of no split."""

    name: str
    folder: Path
    files: list[Path]
    revision: str | None = None
    unread: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """What the ids of its records start with."""
        return Path(self.name.partition("@")[0]).resolve().name.removesuffix(".jsonl").removesuffix(".parquet")

    def to_record(self) -> dict[str, Any]:
        hashes = {str(path.relative_to(self.folder)): hash_files([path]) for path in self.files}
        return {"source": self.name, "revision": self.revision, "files": hashes}


def read_public_data(config: DataConfig, domain: str, tools: Sequence[Schema]) -> PublicData:
    """All of the sources' files as splits, no query in two of them:
    what a test query repeats is left out of the others.

    `domain` says whose rubric judges the queries. Tool calls of tools that are not among `tools` are kept, and counted.
    With `divide`, what is neither called after tests nor after SFT is divided.

    Raises:
        UserError: names the source, or the file and line, and what to do.
    """
    found = [find_source(source, config.divide) for source in config.source]
    records: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for source in found:
        for path in source.files:
            inside = path.relative_to(source.folder)
            label = "-".join([source.label, *inside.with_suffix("").parts])
            records[split_of(inside) or "rl"] += read_records(path, label)
    notes = list(_divide(records, domain, config)) if config.divide else []
    for split in ("test", "rl"):
        if not records[split]:
            names = ", ".join(str(path.relative_to(source.folder)) for source in found for path in source.files)
            called = f"a file or its folder must be called {' or '.join(SPLITS[split])}"
            raise UserError(f"data.source: no {split} queries in {names}; {called}")
    splits = _make_splits(records, domain)
    for split, name in (("rl", "rl_queries"), ("sft", "sft")):
        if records[split] and not splits[name]:
            taken = f"all {split} queries ({len(records[split])}) stand in another split already"
            raise UserError(f"data.source: {taken}; name files with others")
    if unread := [str(path.relative_to(source.folder)) for source in found for path in source.unread]:
        words = ", ".join(word for words in SPLITS.values() for word in words)
        notes.append(f"not read, as no word of their names is {words}: {', '.join(unread)}")
    notes += _describe_records(records, splits)
    notes += _describe_trajectories(splits, {tool["function"]["name"] for tool in tools})
    return PublicData(splits, [source.to_record() for source in found], notes)


def find_source(name: str, is_divided: bool = False) -> Source:
    """A folder, a JSONL or a Parquet file on this disk, or else the hub's data set `owner/name` or
    `owner/name@revision`.

    Raises:
        UserError: there is neither, or it holds no such file, or none of a split where it is not to be divided.
    """
    path, revision = local_path(name), None
    if path and path.is_file():
        folder, candidates = path.parent, [path]
    else:
        folder, revision = (path, None) if path else _download(name)
        candidates = [path for end in ENDS for pattern in ("*", "*/*") for path in folder.glob(pattern + end)]
    files = [path for path in sorted(candidates) if is_divided or _is_of_a_split(path.relative_to(folder))]
    if folders := [path for path in files if not path.is_file()]:
        raise UserError(f"data.source: {folders[0]} is no file; move it away, or put the data there")
    if not files:
        kind = "a .jsonl or .parquet file" if is_divided else "train.jsonl, test.jsonl or the like"
        raise UserError(f"data.source: {name} has no {kind}; name the folder that holds them")
    return Source(name, folder, files, revision, tuple(path for path in sorted(candidates) if path not in files))


def local_path(name: str) -> Path | None:
    """Where a source lies on this disk; None for a data set of the hub.
    Raises UserError for a path that leads nowhere."""
    path = Path(name).expanduser()
    if not path.exists() and (path.is_absolute() or path.suffix in ENDS or name.startswith(".")):
        raise UserError(f"data.source: {name} does not exist")
    return path if path.exists() else None


def split_of(path: Path) -> str | None:
    """Which split a file is of, by the words of its path.

    >>> split_of(Path("train/train.jsonl")), split_of(Path("train_sft.jsonl")), split_of(Path("test/direction.jsonl"))
    ('rl', 'sft', 'test')
    """
    words = set(re.split(r"[^a-z]+", str(path.with_suffix("")).lower()))
    return next((split for split, names in SPLITS.items() if words & set(names)), None)


def _is_of_a_split(path: Path) -> bool:
    """And its folder, if it is in one, is called after a split, or `data` as on the hub:
    what lies deeper down is of other data sets."""
    return split_of(path) is not None and (path.parent in (Path(), Path("data")) or split_of(path.parent) is not None)


def _download(name: str) -> tuple[Path, str]:
    """The files of a data set of the hub, in its cache, and the commit that they are of."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    wanted = {"repo_type": "dataset", "revision": revision or None, "allow_patterns": [f"*{end}" for end in ENDS]}
    try:
        folder = Path(snapshot_download(repository, **wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, FileMetadataError, httpx.HTTPError) as error:
        reason = f"the hub's data set of that name cannot be had: {str(error).splitlines()[0]}"
        raise UserError(f"data.source: {name} is no folder here, and {reason}") from error
    return folder, folder.name


def _divide(records: dict[str, list[Record]], domain: str, config: DataConfig) -> Iterator[str]:
    """Draw the records for SFT, RL and, without others, tests from what stands under `rl`, by the sizes of the config;
    notes on it.
    Raises UserError if there are too few of them."""
    tested = {same_query(read_query(record, domain).query) for record in records["test"]}
    pool = {same_query(read_query(record, domain).query): record for record in records["rl"]}
    drawn = [record for text, record in sorted(pool.items()) if text not in tested]
    random.Random(f"divide{config.seed}").shuffle(drawn)
    sizes = {"test": 0 if tested else config.test_per_subtask, "sft": config.sft_size, "rl": config.rl_size}
    if len(drawn) <= sizes["test"] + sizes["sft"]:
        raise UserError(
            f"data.divide: {len(drawn)} different queries are too few for data.test_per_subtask={sizes['test']} and "
            f"data.sft_size={sizes['sft']}, and some for RL; lower them"
        )
    yield f"divided by data.seed={config.seed}: {len(records['rl'])} records, {len(drawn)} different queries"
    records["rl"] = []
    for split, size in sizes.items():
        records[split] += drawn[:size]
        if len(drawn) < size:
            yield f"{split}: {len(drawn)} in place of data.{split}_size={size}: there are no more"
        drawn = drawn[size:]


def _make_splits(records: dict[str, list[Record]], domain: str) -> dict[str, list[Any]]:
    """The splits by file name. A query counts where it stands first: test, RL, SFT;
    there it may have several trajectories."""
    taken: set[str] = set()

    def unique(split: str) -> Iterator[tuple[Record, Query]]:
        for record, query in ((record, read_query(record, domain)) for record in records[split]):
            if same_query(query.query) not in taken:
                taken.add(same_query(query.query))
                yield record, query

    test = list(unique("test"))
    splits: dict[str, list[Any]] = {
        "test_queries": [query for _, query in test],
        "test_baselines": [read_trajectory(record, query, BASELINE_FIELDS).to_record() for record, query in test],
        "rl_queries": [query for _, query in unique("rl")],
    }
    if records["sft"]:
        pairs = [(record, read_query(record, domain)) for record in records["sft"]]
        splits["sft"] = [
            read_trajectory(record, query, TRAJECTORY_FIELDS).to_record(tools_of(record))
            for record, query in pairs
            if same_query(query.query) not in taken
        ]
    return splits


def _describe_records(records: dict[str, list[Record]], splits: dict[str, list[Any]]) -> Iterator[str]:
    kept = {"test": len(splits["test_queries"]), "rl": len(splits["rl_queries"]), "sft": len(splits.get("sft", []))}
    dropped = {split: len(records[split]) - count for split, count in kept.items()}
    if told := [f"{count} {split}" for split, count in dropped.items() if count > 0]:
        yield f"left out: {', '.join(told)} records whose query stands in their own or another split already"
    fields = Counter(name for split in records.values() for record in split for name in record.fields)
    if unused := Counter({name: count for name, count in fields.items() if name not in READ_FIELDS}):
        yield f"fields that are not used: {_counts(unused)}"
    if not records["sft"]:
        how = "add a file of some to data.source, its name with sft in it, or start RL from a model with rl.init"
        yield f"no SFT trajectories: {how}"
    yield "these queries have no truth to be judged by: take LLM judges, the embedded one refuses"


def _describe_trajectories(splits: dict[str, list[Any]], known: set[str]) -> Iterator[str]:
    """How many have no answer, and how many call tools that the environment has not."""
    for name in ("test_baselines", "sft"):
        trajectories = splits.get(name, [])
        if unanswered := sum(not trajectory["valid"] for trajectory in trajectories):
            yield f"{name}: {unanswered} of {len(trajectories)} end without an answer"
        calls = (
            [call.name for turn in read_turns(one["messages"]) for call in turn.tool_calls] for one in trajectories
        )
        called = [Counter(name for name in of_one if name not in known) for of_one in calls]
        if unknown := sum(called, Counter()):
            some = f"{sum(map(bool, called))} of {len(trajectories)}"
            yield f"{name}: {some} call tools that the environment lacks, and are kept: {_counts(unknown)}"


def _counts(counter: Counter) -> str:
    return ", ".join(f"{name or 'malformed'} ({count})" for name, count in counter.most_common())
