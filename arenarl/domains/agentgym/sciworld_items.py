"""ScienceWorld's tasks as AgentGym numbers them: an item is a variation of a task,
counted through the tasks in their order.

AgentGym leaves seven of the thirty tasks out. Without a user's copy of the official lists, items are drawn from
ScienceWorld's own parts of each task's variations: those for training, and those for tests.
"""

import random
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, chain
from typing import NamedTuple

from arenarl.system.errors import UserError


class Task(NamedTuple):
    """A task: its name, its column of AgentGym-RL's table, and how many variations it has, of which the first `train`
    are for training, and those from `test` on for tests.
    """

    name: str
    subtask: str
    variations: int
    train: int
    test: int


TASKS = (
    Task("boil", "Change-state", 30, 14, 21),
    Task("melt", "Change-state", 30, 14, 21),
    Task("freeze", "Change-state", 30, 14, 21),
    Task("change-the-state-of-matter-of", "Change-state", 30, 14, 21),
    Task("use-thermometer", "Use-thermometer", 540, 270, 405),
    Task("measure-melting-point-known-substance", "Measure-melting", 436, 218, 327),
    Task("measure-melting-point-unknown-substance", "Measure-melting", 300, 150, 225),
    Task("power-component", "Circuit", 20, 10, 15),
    Task("power-component-renewable-vs-nonrenewable-energy", "Circuit", 20, 10, 15),
    Task("test-conductivity", "Test-Cond", 900, 450, 675),
    Task("test-conductivity-of-unknown-substances", "Test-Cond", 600, 300, 450),
    Task("find-living-thing", "Find", 300, 150, 225),
    Task("find-non-living-thing", "Find", 300, 150, 225),
    Task("find-plant", "Find", 300, 150, 225),
    Task("find-animal", "Find", 300, 150, 225),
    Task("chemistry-mix", "Chem-Mix", 32, 16, 24),
    Task("chemistry-mix-paint-secondary-color", "Chem-Mix", 36, 18, 27),
    Task("chemistry-mix-paint-tertiary-color", "Chem-Mix", 36, 18, 27),
    Task("lifespan-longest-lived", "Lifespan", 125, 62, 93),
    Task("lifespan-shortest-lived", "Lifespan", 125, 62, 93),
    Task("lifespan-longest-lived-then-shortest-lived", "Lifespan", 125, 62, 93),
    Task("identify-life-stages-1", "Life-stages", 14, 6, 9),
    Task("identify-life-stages-2", "Life-stages", 10, 4, 6),
)
# AgentGym-RL's test items
COLUMNS = {"Test-Cond": 83, "Find": 44, "Measure-melting": 28, "Use-thermometer": 25, "Lifespan": 15, "Chem-Mix": 5}
TRAIN_COUNT = 2120  # its items for training, some of them of tasks that are in no column
_FIRST = (0, *accumulate(task.variations for task in TASKS))  # item of each task's variation 0
ITEMS = _FIRST[-1]


def place_of(item: int) -> tuple[Task, int]:
    """(task, variation) of an item.

    >>> place_of(3491)[0].name, place_of(3491)[1]
    ('find-non-living-thing', 255)
    """
    if not 0 <= item < ITEMS:
        raise UserError(f"sciworld_{item} is no item: they go from sciworld_0 to sciworld_{ITEMS - 1}")
    number = bisect_right(_FIRST, item) - 1
    return TASKS[number], item - _FIRST[number]


def held_out_items(columns: Mapping[str, int], rng: random.Random) -> list[int]:
    """So many items of each column, from the variations for tests; the tasks of a column in turn."""
    drawn = []
    for subtask, count in columns.items():
        pools = [
            rng.sample(pool, len(pool))
            for task, pool in zip(TASKS, _pools("test", "variations"), strict=True)
            if task.subtask == subtask
        ]
        drawn += [pool[index] for index in range(max(map(len, pools))) for pool in pools if index < len(pool)][:count]
    return drawn


def training_items() -> list[int]:
    return list(chain.from_iterable(_pools("", "train")))


def between_items() -> list[int]:
    """Those that ScienceWorld has for neither: its development part."""
    return list(chain.from_iterable(_pools("train", "test")))


def _pools(start: str, end: str) -> list[range]:
    """Of each task, the items from one of its places to another; "" is its beginning."""
    return [
        range(first + getattr(task, start, 0), first + getattr(task, end))
        for task, first in zip(TASKS, _FIRST, strict=False)
    ]
