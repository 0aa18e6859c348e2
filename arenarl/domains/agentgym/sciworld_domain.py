"""SciWorld as a domain: AgentGym-RL's columns, items, and what a trajectory reached,
found by taking its actions once more.

The world does not show its score, and is the same each time;
to take the actions of a trajectory again is half a second.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.agentgym.sciworld import Game, SciWorldEnvironment
from arenarl.domains.agentgym.sciworld_items import (
    COLUMNS,
    TRAIN_COUNT,
    between_items,
    held_out_items,
    place_of,
    training_items,
)
from arenarl.domains.agentgym.world import Progress, WorldDomain
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory


@dataclass(frozen=True)
class SciWorldProgress(Progress):
    """In points of the score. `is_unseen`: an item of the official test list that the official training list does not
    have."""

    is_unseen: bool = False

    def figures(self) -> dict[str, float]:
        figures = super().figures()
        return figures | ({"success_unseen": figures["success"]} if self.is_unseen else {})


class SciWorldDomain(WorldDomain):
    name = "sciworld"
    world = Game
    columns = COLUMNS
    train_count = TRAIN_COUNT
    has_leak = True  # 61 items

    def __init__(self, environment: EnvironmentConfig, data: DataConfig):
        super().__init__(environment, data)
        self._replaying = Lock()

    def column(self, item: int) -> str:
        return place_of(item)[0].subtask

    def text(self, item: int) -> str:
        return f"Carry out this task of elementary science ({place_of(item)[0].name.replace('-', ' ')})."

    def default_items(self, split: str) -> tuple[int, ...]:
        rng = random.Random(f"sciworld{self.data.seed}-{split}")
        return tuple(held_out_items(COLUMNS, rng) if split == "test" else training_items())

    def practice(self) -> Iterator[dict[str, int]]:
        taken = {*self.items("test"), *self.items("train")}
        items = [item for item in between_items() if item not in taken]
        yield from ({"item": item} for item in random.Random(f"sciworld{self.data.seed}-sft").sample(items, len(items)))
        raise UserError(
            f"data.sft_size={self.data.sft_size}: SciWorld has {len(items)} items that "
            "are neither RL's nor tests; lower it"
        )

    @cached_property
    def _seen(self) -> frozenset[int]:
        """The official training list, if the user has one."""
        return frozenset(self.items("train") if self.data.items else ())

    @cached_property
    def _game(self) -> Game:
        Game.check_packages()
        return Game()

    def replay_world(self) -> Game:
        return self._game

    def solve(self, query: Query, environment: SciWorldEnvironment, rng: random.Random, skill: float) -> Trajectory:
        """The game's own solution, as far as the turns go."""
        return super().solve(query, environment.world, rng, skill)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> SciWorldProgress:
        """In a game that is kept for it, and begun again if it crashed."""
        from py4j.protocol import Py4JError

        with self._replaying:
            try:
                found = super().examine(query, messages)
            except Py4JError:
                self._game.close()
                del self._game
                found = super().examine(query, messages)
        is_unseen = bool(self._seen) and query.constraints["item"] not in self._seen
        return SciWorldProgress(**vars(found) | {"success": found.kept == found.needed, "is_unseen": is_unseen})
