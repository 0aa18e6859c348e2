"""BabyAI: a mission in a grid of rooms, as text (AgentGym's form of minigrid's levels).

The package minigrid has the levels, `babyai_game` writes the text. The query states the mission; an observation states
the view and the available actions. The game pays 1 for a met mission, less up to .9 for the steps taken; a payment
above .5 ends the trajectory. A trajectory's reward is the payment of its last action, so a step's reward is the change.
"""

import random
from collections.abc import Hashable, Iterator
from itertools import count as count_from
from typing import Any

from arenarl.domains.agentgym.world import World, WorldDomain, item_of
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

# AgentGym's levels with test items, 5 each, out of 40
OFFICIAL_LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 30, 31, 33, 36)
COLUMN = dict.fromkeys(range(1, 12), "GoTo") | dict.fromkeys(range(19, 22), "Pickup")
COLUMN |= {30: "AOD", 31: "Find", 33: "Room", 36: "SLoc"}
ITEMS = 1_000_000
PRACTICE = 1000  # first seed of SFT's items, above all official seeds


class BabyAIEnvironment(World):
    packages = {"minigrid": "2.3.1", "gymnasium": "1.4.0"}

    def reset(self, query: Query) -> str:
        from arenarl.domains.agentgym import babyai_game as game
        from arenarl.domains.agentgym import babyai_mission as mission

        self._game, self._mission = game, mission
        self._level, self._image = game.start_level(item_of(query, ITEMS))
        self._reward = 0.0
        self._view = game.View(self._level, self._image)
        self._subgoals = mission.Subgoals(self._level, self._view)
        return self._observation(f"Your goal: {game.goal_of(self._level)}\n{self._view.describe()}")

    def act(self, action: str) -> Step:
        action, is_check = action.lower(), "check" in action.lower()
        self.is_refused = not is_check and action not in self._view.actions
        if self.is_refused:
            return self._step_without_move(self._view.refusals.get(action, "There is no such action here."))
        if is_check:
            return self._step_without_move(f"You can: {', '.join(self._view.actions)}.")
        moves = self._view.actions[action]
        return self._do(moves) if moves else self._step_without_move("Nothing changes.")

    def _do(self, moves: list[int]) -> Step:
        """Take the game's own actions until an action has no visible effect. The last action's reward counts."""
        for move in moves:
            seen, reward, is_over, *_ = self._level.step(move)
            before, self._image = self._image, seen["image"]
            if (before == self._image).all():
                break
        earned, self._reward = float(reward) - self._reward, float(reward)
        is_met = is_over and reward > 0
        self._view = self._game.View(self._level, self._image)
        self._subgoals.update(self._view, is_met)
        text = self._view.describe() + "\nThe goal is met." * is_met
        return Step(self._observation(text), is_over and reward > 0.5, earned)

    def _step_without_move(self, text: str) -> Step:
        return Step(self._observation(text), False, 0.0)

    def _observation(self, text: str) -> str:
        actions = ", ".join(f'"{action}"' for action in self._view.actions)
        return f"{text}\nAvailable actions: [{actions}]"

    @property
    def subgoals_left(self) -> int:
        return self._subgoals.left

    @property
    def state(self) -> bytes:
        """The grid, the agent's pose and the carried thing."""
        held = self._level.carrying
        pose = repr((self._view.pose, held and (held.type, held.color)))
        return self._level.grid.encode().tobytes() + pose.encode()

    @property
    def signature(self) -> Hashable:
        """The state and the met parts of the mission: equal states may have different parts left."""
        return super().signature, self._mission.met_parts(self._level.instrs)

    def best_action(self) -> tuple[str, str]:
        return self._mission.best_action(self._level, self._view, self._subgoals)

    def careless_action(self, rng: random.Random) -> str:
        return rng.choice([*self._view.actions, *self._view.refusals])


class BabyAIDomain(WorldDomain):
    name = "babyai"
    world = BabyAIEnvironment
    columns = {"GoTo": 55, "Pickup": 15, "AOD": 5, "Find": 5, "Room": 5, "SLoc": 5}
    train_count = 810
    item_count = ITEMS

    def column(self, item: int) -> str:
        if item % 40 + 1 not in COLUMN or not 0 <= item < ITEMS:
            valid = f"valid ids are babyai_0 to babyai_{ITEMS - 1}, of the levels in AgentGym-RL's tests"
            raise UserError(f"babyai_{item} is not a valid item; {valid}")
        return COLUMN[item % 40 + 1]

    def _opening(self, item: int) -> tuple[str, Any]:
        self.world.check_packages()
        from arenarl.domains.agentgym.babyai_game import opening

        return opening(item)

    def text(self, item: int) -> str:
        return f"{self._opening(item)[0].capitalize()}."

    def default_items(self, split: str) -> tuple[int, ...]:
        """Return as many items of each level as AgentGym-RL has: seeds 0 to 44 for training, 45 to 49 for tests."""
        seeds = range(45, 50) if split == "test" else range(45)
        return tuple(seed * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in seeds)

    def task(self, query: Query) -> Any:
        return self._opening(query.constraints["item"])[1]

    def cut(self, queries: list[Query], count: int) -> list[Query]:
        """Choose test queries evenly from the column's levels, which follow one another in `queries`."""
        chosen = min(count, len(queries))
        return [queries[index * len(queries) // chosen] for index in range(chosen)]

    def practice(self) -> Iterator[dict[str, int]]:
        """Yield items of later seeds, except those with the start of a test or an RL item: small rooms repeat."""
        levels = [level for level in OFFICIAL_LEVELS if COLUMN[level] in self.subtasks]
        used = {self._opening(item)[1] for split in ("test", "train") for item in self.items(split)}
        items = (seed * 40 + level - 1 for seed in count_from(PRACTICE) for level in levels)
        yield from ({"item": item} for item in items if self._opening(item)[1] not in used)
