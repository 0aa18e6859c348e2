"""What the worlds of AgentGym-RL share: item lists, the one tool, how an action is read,
and the versions of their packages.

An item is a number; AgentGym-RL's id of it is `<world>_<number>`. By default the lists are those that the world's
module makes; a user's copy of the official files (`data.items`: AgentItemId of AgentGym-RL at e182a6b, with eval/ and
train/) replaces them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arenarl.rollout.environment import ToolError, check_call, tool_schema
from arenarl.system.errors import UserError
from arenarl.system.user_input import text_of_file
from arenarl.trajectory import Query, Turn, parse_json

LONGEST = 300  # characters of an action; more is no action of any world
TOOLS = [
    tool_schema(
        "act",
        "Does one action in the world.",
        {"action": {"type": "string", "description": "in the words of the rules"}},
    )
]


@cache
def need_package(name: str, pinned: str, how: str = "pip install -e .[agentgym]") -> None:
    """Raises UserError where the package is missing or of another version, in which items may be other ones."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    if found != pinned:
        what = f"is {found}, not {pinned}" if found else "is not installed"
        raise UserError(f"{name} {what}; install the worlds of AgentGym-RL with: {how}")


def item_of(query: Query, count: int) -> int:
    """The query's item. Raises UserError where it names none of so many."""
    item = query.constraints.get("item")
    if type(item) is not int or not 0 <= item < count:
        raise UserError(
            f"query {query.query_id}: constraints.item is {item!r}; {query.domain} has items from 0 to {count - 1}"
        )
    return item


def read_whole_action(name: str, arguments: dict[str, Any] | str) -> str:
    """The action of a call as it stands. Raises ToolError: no such tool, no action, or one that is too long."""
    action = check_call(TOOLS, name, arguments)["action"].strip()
    if len(action) > LONGEST:
        raise ToolError(f"an action has at most {LONGEST} characters.")
    return action


def read_action(name: str, arguments: dict[str, Any] | str) -> str:
    """The action of a call as AgentGym-RL's clients send it to most worlds: letters, digits, commas, and single blanks.

    >>> read_action("act", {"action": " get 2  oak_log!"})
    'get 2 oaklog'

    Raises:
        ToolError: no such tool, no action, or one that is too long.
    """
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", read_whole_action(name, arguments)).split())


def one_action(turn: Turn, read: Callable[[str, Any], str] = read_action) -> str | None:
    """The action of a turn, or None for a turn that has not exactly one that can be read."""
    try:
        return read(turn.tool_calls[0].name, turn.tool_calls[0].arguments) if len(turn.tool_calls) == 1 else None
    except ToolError:
        return None


def numbers(ranges: str) -> tuple[int, ...]:
    """The numbers of a list of ranges, both ends included.

    >>> numbers("0-2 7 9-10")
    (0, 1, 2, 7, 9, 10)
    """
    ends = [[int(end) for end in part.split("-")] for part in ranges.split()]
    return tuple(number for one in ends for number in range(one[0], one[-1] + 1))


def official_items(
    folder: str,
    world: str,
    split: str,
    counts: Mapping[str, int],
    column: Callable[[int], str],
    names: str | None = None,
) -> tuple[int, ...]:
    """The items of `<folder>/eval/<world>_test.json` (split "test")
    or `<folder>/train/<world>_train.json`, in the file's order.

    `names` is what stands before an item's number in its id, with | between several; None: the world's name.

    `counts` says how many the file must hold of each column of the paper's table, or of all under "".

    Raises:
        UserError: no such file, no list of item ids, one twice, or other counts.
    """
    path = Path(folder) / {"test": "eval", "train": "train"}[split] / f"{world}_{split}.json"
    # where sciworld_train.json lies
    path = path if path.is_file() or not (above := Path(folder) / path.name).is_file() else above
    items = list(_read_ids(path, names or world))
    if len(set(items)) < len(items):
        raise UserError(f"{path} names an item twice; take AgentGym-RL's file as it is")
    check_counts(str(path), items, counts, column)
    return tuple(items)


def check_counts(where: str, items: Iterable[int], counts: Mapping[str, int], column: Callable[[int], str]) -> None:
    """Raises UserError unless the items are as many of each column as `counts` says; "" counts all."""
    found = Counter("" if "" in counts else column(item) for item in items)
    if found != Counter(counts):
        named = [
            ", ".join(f"{name} {count}".strip() for name, count in sorted(each.items())) for each in (found, counts)
        ]
        raise UserError(f"{where} holds other items than AgentGym-RL's: {named[0] or 'none'} instead of {named[1]}")


def _read_ids(path: Path, world: str) -> Iterator[int]:
    if not path.is_file():
        raise UserError(
            f"data.items: {path} does not exist; the folder is a copy of AgentGym-RL's "
            "AgentItemId, with eval/ and train/"
        )
    try:
        records = parse_json(text_of_file(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    for record in records if isinstance(records, list) else [records]:
        name = record.get("item_id") if isinstance(record, dict) else None
        number = re.fullmatch(rf"(?:{world})_(\d{{1,9}})", name) if isinstance(name, str) else None
        if not number:
            raise UserError(f'{path} is no list of {{"item_id": "{world}_<number>"}}: {str(record)[:80]}')
        yield int(number.group(1))
