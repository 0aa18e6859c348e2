"""JSONL files of candidates and of their ranks.

A line of candidates has `prompt` (a text) or `messages` (a chat), `candidates` (texts or chats), and maybe an `id`. A
line of ranks has the number of that line, and the results of the ranking. Ranks are appended in the order of the
candidates, so a killed command leaves a file that the same command completes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arenarl.rank.ranker import RankedGroup, read_group
from arenarl.system.atomic_files import hash_files, to_json
from arenarl.system.errors import UserError
from arenarl.system.locks import try_lock
from arenarl.system.user_input import is_stream, lines_of
from arenarl.tournament.ranking import Match
from arenarl.trajectory import MAX_RECORD_NESTING, json_problem, parse_json, storable_json
from arenarl.trajectory.chats import Chat

_SHOWN = 5  # malformed lines in one message
_START = b'{"line": '  # first bytes of a line of ranks


@dataclass(frozen=True)
class Group:
    """One line of candidates."""

    line: int  # from 1
    prompt: Chat
    candidates: Sequence[Chat]
    id: Any = None

    def in_form(self, role: str, text: Chat) -> Chat:
        """Return the prompt or a candidate; a text becomes a message if another of the group is a list of messages."""
        is_chat = any(not isinstance(other, str) for other in (self.prompt, *self.candidates))
        return [{"role": role, "content": text}] if is_chat and isinstance(text, str) else text


@dataclass(frozen=True)
class Candidates:
    """A file of candidates whose lines were all checked."""

    path: Path
    skipped: dict[int, str]  # malformed line -> its problem
    count: int  # of well-formed lines
    digest: str  # of the file's bytes

    def __iter__(self) -> Iterator[Group]:
        for number, text in _numbered(self.path):
            if number not in self.skipped:
                yield _read_line(number, text)


def read_candidates(path: Path, language: str, skip_malformed: bool = False) -> Candidates:
    """Check every line of a file of candidates. Raises UserError if the file cannot be read more than once, has no
    well-formed line, or has a malformed one that must not be skipped."""
    if is_stream(path):
        raise UserError(f"{path} is a pipe or device, which can be read only once; save the candidates in a file")
    skipped: dict[int, str] = {}
    count = 0
    for number, text in _numbered(path):
        try:
            group = _read_line(number, text)
            read_group(group.prompt, group.candidates, language)
            count += 1
        except ValueError as error:
            skipped[number] = str(error)
    if skipped and not skip_malformed:
        lines = "; ".join(f"line {number}: {problem}" for number, problem in list(skipped.items())[:_SHOWN])
        more = f"; and {len(skipped) - _SHOWN:,} more" if len(skipped) > _SHOWN else ""
        raise UserError(f"{path}: {lines}{more}. Correct these lines, or leave them out with --skip-malformed")
    if not count:
        raise UserError(f"{path} has no line of candidates; docs/ranking.md describes the format")
    return Candidates(path, skipped, count, hash_files([path]))


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) for each line that is not blank."""
    return ((number, text) for number, text in enumerate(lines_of(path), start=1) if text.strip())


def _read_line(number: int, text: str) -> Group:
    """Parse one line. Raises ValueError if it is malformed."""
    try:
        record = storable_json(parse_json(text, MAX_RECORD_NESTING))
    except ValueError as error:
        raise ValueError(f"not JSON: {json_problem(error)}") from error
    if not isinstance(record, dict):
        raise ValueError("not an object")
    keys = [key for key in ("prompt", "messages") if record.get(key)]
    if len(keys) != 1:
        raise ValueError(f"needs prompt or messages, and has {' and '.join(keys) or 'neither'}")
    if keys == ["messages"] and isinstance(record["messages"], str):
        raise ValueError("messages must be a list of messages; a text belongs under prompt")
    return Group(number, record[keys[0]], record.get("candidates"), record.get("id"))


def to_record(group: Group, ranked: RankedGroup, run: str) -> dict[str, Any]:
    """Return the line of ranks of one group."""
    found = asdict(ranked.ranking)
    return {
        "line": group.line,
        **({} if group.id is None else {"id": group.id}),
        "ranks": ranked.ranks,
        "qualities": ranked.qualities,
        "best": ranked.best,
        "calls": ranked.calls,
        "failed_calls": ranked.failed_calls,
        "paid_calls": ranked.paid_calls,
        "cost": round(ranked.cost, 6),
        "run": run,
        **{key: found[key] for key in ("matches", "bracket", "group_calls") if found.get(key)},
    }


class RankFile:
    """The file of ranks of one run: finished lines are kept, new ones are appended. Raises UserError if another command
    is writing it, and if it holds ranks of other candidates or settings."""

    def __init__(self, path: Path, run: str):
        self.path, self.run = path, run
        if is_stream(path):
            raise UserError(f"{path} is a pipe or device, but finished lines are read again; choose a file for --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.last_line = self.done = 0
        self._file = path.open("ab")
        if not try_lock(self._file):
            how = "wait until it ends, or choose another --out"
            raise UserError(f"{path} is being written by another command; {how}")
        self._file.truncate(self._read_finished())

    def _read_finished(self) -> int:
        """Read the finished lines and return their number of bytes; after a kill, a part of a line may follow them."""
        size = 0
        with self.path.open("rb") as lines:
            for text in lines:
                if not text.endswith(b"\n") and text[: len(_START)] == _START[: len(text)]:
                    break
                try:
                    record = parse_json(text.decode(), MAX_RECORD_NESTING)
                    self.last_line, run = record["line"], record["run"]
                except (ValueError, LookupError, TypeError) as error:
                    raise UserError(f"{self.path} exists and holds no ranks; choose another --out") from error
                if run != self.run:
                    problem = "holds ranks of other candidates or settings"
                    raise UserError(f"{self.path} {problem}; remove it, or choose another --out")
                self.done, size = self.done + 1, size + len(text)
        return size

    def write(self, record: dict[str, Any]) -> None:
        self._file.write((to_json(record) + "\n").encode())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_ranks(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a finished file of ranks."""
    for text in lines_of(path):
        yield parse_json(text, MAX_RECORD_NESTING)


def preference_pairs(groups: Iterable[tuple[Group, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield TRL's preference pairs (`prompt`, `chosen`, `rejected`): matches in which both orders name one winner."""
    for group, record in groups:
        for match in map(Match.from_record, record.get("matches", ())):
            if match.agreed:
                chosen, rejected = (group.in_form("assistant", group.candidates[row]) for row in match.agreed)
                yield {"prompt": group.in_form("user", group.prompt), "chosen": chosen, "rejected": rejected}


def best_candidates(groups: Iterable[tuple[Group, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the best candidate of each group that has one, in TRL's form (`prompt`, `completion`)."""
    for group, record in groups:
        if (best := record["best"]) is not None:
            completion = group.in_form("assistant", group.candidates[best])
            yield {"prompt": group.in_form("user", group.prompt), "completion": completion}
