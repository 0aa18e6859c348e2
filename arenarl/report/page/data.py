"""Data of the report's page: every evaluated query and every stored training group, in one format.

Both are items: a query, its entrants (trajectories) and the tournaments that they played. The fields for filters and
sorting go into an index. The items go into compressed blocks, which the page opens one by one on demand. Turns and
match scores are computed here with training's functions, so the page only draws.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import to_json
from arenarl.system.errors import EVALUATE_AGAIN, UserError, one_line
from arenarl.tournament.ranking import Match
from arenarl.tournament.schedules import Place
from arenarl.trajectory import Trajectory, read_jsonl, read_steps, read_turns

BLOCK_CHARACTERS = 250_000  # JSON per block: opens in a few milliseconds and compresses well

Item = dict[str, Any]


def evaluated_items(folder: Path, entrants: list[str]) -> Iterator[Item]:
    """Yield the test queries of runs/<run>/evaluate; the first entrant is the stored baseline, or its stand-in.
    Raises UserError if the files come from different evaluations, or from an earlier version."""
    files = [
        read_evaluated_lines(folder / f"{name.replace(' ', '_')}.jsonl", {"query_id", "findings"}) for name in entrants
    ]
    by_query: dict[str, list[dict]] = {}
    for record in read_evaluated_lines(folder / "tournaments.jsonl", {"query_id", "entrants"}):
        by_query.setdefault(record["query_id"], []).append(record)
    is_one = all(record["entrants"] == entrants for records in by_query.values() for record in records)
    if not is_one or any([record["query_id"] for record in file] != list(by_query) for file in files):
        raise UserError(f"{folder}: the files come from different evaluations; {EVALUATE_AGAIN}")
    for records in zip(*files, strict=True):
        with _record_of(folder, EVALUATE_AGAIN):
            tournaments = by_query[records[0]["query_id"]]
            pairs = zip(entrants, records, strict=True)
            trajectories = [{"name": name, **trajectory_data(record), **record["findings"]} for name, record in pairs]
            judges = [f"judge {record['judge'] + 1}" if len(tournaments) > 1 else "" for record in tournaments]
            results = [tournament_data(*pair, pair[0]["topology"]) for pair in zip(tournaments, judges, strict=True)]
            item = {**_heading(records[0]), "entrants": trajectories, "tournaments": results}
        yield item


@contextmanager
def _record_of(path: Path, remedy: str) -> Iterator[None]:
    """Raise UserError, with `remedy`, if a record lacks a field or has one of another form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} has a damaged record ({type(error).__name__}: {one_line(error)}); {remedy}") from error


def read_evaluated_lines(path: Path, keys: set[str]) -> list[dict[str, Any]]:
    """Read a file of the evaluation. Raises UserError if it is missing, empty or damaged, or a record lacks one of the
    keys, as in a file of an earlier version."""
    try:
        records = list(read_jsonl(path))
    except UserError as error:
        raise UserError(f"{path} is missing or damaged; {EVALUATE_AGAIN}") from error
    if not records:
        raise UserError(f"{path} is empty; {EVALUATE_AGAIN}")
    if any(not keys <= record.keys() for record in records):
        raise UserError(f"{path} was written by an earlier version; {EVALUATE_AGAIN}")
    return records


def training_items(path: Path, topology: str) -> Iterator[Item]:
    """Yield the groups of runs/<run>/rl/groups.jsonl."""
    for record in read_steps(path):
        with _record_of(path, "restore it, or delete it: the page then has no training groups"):
            item = _training_item(record, topology)
        yield item


def _training_item(record: dict[str, Any], topology: str) -> Item:
    ranking = record["ranking"] or {"ranks_G": record["ranks"], "scores_G": record["rewards"], "matches": []}
    quality = record["quality"] or [None] * len(record["rewards"])
    triples = zip(record["trajectories"], quality, record["rewards"], strict=True)
    entrants = []
    for g, (trajectory, true_quality, reward) in enumerate(triples):
        name = {"name": sample_name(g, trajectory["meta"]["is_anchor"])}
        entrants.append(name | trajectory_data(trajectory) | {"quality": true_quality, "reward": reward})
    tournaments = [tournament_data(ranking, "", topology)]
    return {**_heading(record), "step": record["step"], "entrants": entrants, "tournaments": tournaments}


def sample_name(g: int, is_anchor: bool) -> str:
    """Return the page's name for trajectory g of a training group."""
    return "anchor" if is_anchor else f"sample {g}"


def _heading(record: dict[str, Any]) -> Item:
    return {"id": record["query_id"], "subtask": record["subtask"], "query": record["query"]}


def trajectory_data(record: dict[str, Any]) -> dict[str, Any]:
    """Return turns, validity and stop reason. A turn without an answer also has its whole text."""
    trajectory = Trajectory.from_record(record)
    assistants = [message for message in trajectory.messages if message["role"] == "assistant"]
    turns = [asdict(turn) for turn in read_turns(trajectory.messages)]
    for turn, message in zip(turns, assistants, strict=True):
        turn["text"] = message["content"] if turn["answer"] is None else ""
    return {"turns": turns, "valid": trajectory.valid, "stop_reason": trajectory.stop_reason}


def tournament_data(ranking: dict[str, Any], judge: str, topology: str) -> dict[str, Any]:
    """Return a ranking for the page, from `dataclasses.asdict` of a `Ranking`."""
    matches = []
    for record in ranking["matches"]:
        match = Match.from_record(record)
        matches.append({**record, "scores": match.scores, "is_flip": match.is_flip})
    return {
        "judge": judge,
        "topology": topology,
        "ranks": ranking["ranks_G"],
        "scores": ranking["scores_G"],
        "matches": matches,
        "bracket": [[Place(*place)._asdict() for place in places] for places in ranking.get("bracket", [])],
        "group_calls": ranking.get("group_calls", []),
    }


def mark_identical(item: Item) -> Item:
    """Set each entrant's `same_as` to the first entrant with the same turns, possibly the entrant itself."""
    first: dict[str, int] = {}
    for index, entrant in enumerate(item["entrants"]):
        text = json.dumps(entrant["turns"]) if entrant["valid"] else f"invalid {index}"
        entrant["same_as"] = first.setdefault(text, index)
    return item


def index_row(item: Item, block: int, position: int) -> dict[str, Any]:
    """Return the fields for the list, its filters and its order.
    `outcomes` are against entrant 0: win, loss, draw, invalid, or none (no verdict)."""
    matches = item["tournaments"][0]["matches"]
    scores = {match["j"]: match["scores"] for match in matches if match["i"] == 0}
    scores |= {match["i"]: match["scores"] and match["scores"][::-1] for match in matches if match["j"] == 0}
    return {
        **{key: item[key] for key in ("id", "subtask", "query", "step") if key in item},
        "block": block,
        "position": position,
        "qualities": [entrant.get("quality") for entrant in item["entrants"]],
        "outcomes": [_outcome(entrant, scores) for entrant in item["entrants"]],
    }


def _outcome(entrant: dict[str, Any], scores: dict[int, Any]) -> str:
    if not entrant["valid"]:
        return "invalid"
    if entrant["same_as"] == 0:
        return "draw"
    pair = scores.get(entrant["same_as"])
    if pair is None:
        return "none"
    return "draw" if pair[0] == pair[1] else "win" if pair[1] > pair[0] else "loss"


def pack(items: Iterator[Item]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the index rows and the blocks; each block is a compressed JSON list of items in Base64."""
    rows: list[dict[str, Any]] = []
    blocks: list[str] = []
    texts: list[str] = []
    for item in map(mark_identical, items):
        rows.append(index_row(item, len(blocks), len(texts)))
        texts.append(to_json(item, separators=(",", ":")))
        if sum(map(len, texts)) > BLOCK_CHARACTERS:
            blocks.append(compress(f"[{','.join(texts)}]"))
            texts = []
    return rows, blocks + ([compress(f"[{','.join(texts)}]")] if texts else [])


def compress(text: str) -> str:
    """Return the text as gzip in Base64, which is safe in HTML; without a time stamp, so that bytes repeat."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
