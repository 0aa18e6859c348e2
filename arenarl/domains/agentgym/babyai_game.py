"""BabyAI's game as text: minigrid's levels, the agent's view in words, and AgentGym's actions.

Besides the game's own actions, AgentGym's go to, pick up or go through a thing in view, along the shortest way through
the visible cells. The actions, their order, their effect and their reward follow AgentGym's server, oddities included
(docs/differences.md). The words of observations and the code are ours.
"""

import io
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import gymnasium
import minigrid
import numpy as np
from minigrid.core.constants import DIR_TO_VEC, IDX_TO_COLOR, IDX_TO_OBJECT

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)  # the game's own actions
LEVELS = tuple(
    "GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock "
    "GoToSeqS5R2 GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug "
    "OpenDoorsOrderN4Debug Pickup UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4 "
    "PutNextS7N4Carrying Unlock UnlockLocalDist KeyInBox UnlockPickupDist BlockedUnlockPickup UnlockToUnlock "
    "ActionObjDoor FindObjS7 KeyCorridorS6R3 OneRoomS20 MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq "
    "MiniBossLevel BossLevel BossLevelNoUnlock".split()
)
DOOR_STATES = ("open", "closed", "locked")
SOLID = ("wall", "box", "ball", "key")  # planned ways go around these, but through doors
STEPS = tuple((int(x), int(y)) for x, y in DIR_TO_VEC)  # by direction
NO_WAY = "No way leads there."
Cell = tuple[int, int]
Pose = tuple[Cell, int]  # the agent's cell and direction

_printing = Lock()


def start_level(item: int) -> tuple[Any, np.ndarray]:
    """Start level `item % 40` with seed `item // 40`; return it and the image of the first view."""
    name = f"BabyAI-{LEVELS[item % 40]}-v0"
    if name not in gymnasium.registry:
        minigrid.register_minigrid_envs()  # gymnasium 1 no longer does it by itself
    with _printing, redirect_stdout(io.StringIO()):  # a level prints each layout that it rejects
        level = gymnasium.make(name, disable_env_checker=True)
        seen, _ = level.reset(seed=item // 40)
    return level.unwrapped, seen["image"]


@cache
def opening(item: int) -> tuple[str, tuple[str, bytes, Pose]]:
    """Return the item's goal and its start (mission, grid, pose). Items of small levels may share a start."""
    level, _ = start_level(item)
    return goal_of(level), (level.mission, level.grid.encode().tobytes(), pose_of(level))


def goal_of(level: Any) -> str:
    """Return the mission in AgentGym's words, which do not say in which order two things are to be done."""
    return level.mission.replace("then", "and").replace("after you", "and")


@dataclass(frozen=True)
class Thing:
    """Something in view; `ahead` and `right` are steps from the agent."""

    name: str  # red ball, grey closed door
    kind: str  # wall, door, key, ball or box
    cell: Cell
    ahead: int
    right: int


class View:
    """The things that the agent sees, nearest first, and its available actions."""

    def __init__(self, level: Any, image: np.ndarray):
        self.pose = pose_of(level)
        self.carried = level.carrying
        self.things = sorted(_things(level, image), key=lambda thing: thing.ahead + abs(thing.right))
        ahead = (thing for thing in self.things if thing.kind in ("wall", "box") and thing.right == 0)
        self.barrier = next(ahead, None)
        self._blocked = {thing.cell for thing in self.things if thing.kind in SOLID}
        self._columns, self._rows = _search_area(level)
        self.way = cache(self._search)
        self.refusals: dict[str, str] = {}  # plausible but unavailable action -> the reason
        self.actions = dict(self._actions())  # action -> the game's own actions, in AgentGym's order

    @property
    def numbered(self) -> list[tuple[Thing, str]]:
        """Things other than walls with their names in observations: the nearest red ball is "red ball 1"."""
        count: Counter[str] = Counter()
        named = []
        for thing in self.things:
            if thing.kind != "wall":
                count[thing.name] += 1
                named.append((thing, f"{thing.name} {count[thing.name]}"))
        return named

    def describe(self) -> str:
        """Return the observation's text about the view and the carried thing."""
        seen = []
        for thing, name in self.numbered:
            side = f" {abs(thing.right)} {'right' if thing.right > 0 else 'left'}" if thing.right else ""
            seen.append(f"{name} {thing.ahead} ahead{side}")
        lines = [f"You see: {', '.join(seen)}." if seen else "You see nothing but walls."]
        if self.barrier:
            lines.append(f"A {self.barrier.kind} is {self.barrier.ahead} ahead.")
        lines.append(f"You carry a {self.carried.color} {self.carried.type}." if self.carried else "You carry nothing.")
        return " ".join(lines)

    def _actions(self) -> Iterator[tuple[str, list[int]]]:
        yield "turn left", [LEFT]
        yield "turn right", [RIGHT]
        if self.barrier is None or self.barrier.ahead > 1:
            yield "move forward", [FORWARD]
        else:
            self.refusals["move forward"] = "Something is in the way."
        if self.carried is None:
            self.refusals["drop"] = "You carry nothing."
            yield from self._approaches("pickup", ("key", "ball", "box"), [PICKUP])
        elif any(thing.ahead == 1 and thing.right == 0 and thing.kind in SOLID for thing in self.things):
            self.refusals["drop"] = "There is no room for it ahead."
        else:
            yield "drop", [DROP]
        yield from self._door_actions()
        yield from self._approaches("go to", ("door", "key", "ball", "box"), [])
        yield "check available actions", []

    def _approaches(self, verb: str, kinds: tuple[str, ...], last: list[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield the actions that face a thing and end with `last`. Like AgentGym, number only reachable things."""
        count: Counter[str] = Counter()
        for thing in self.things:
            if thing.kind in kinds:
                way = self.way(thing.cell)
                name = f"{verb} {thing.name} {count[thing.name] + 1}"
                if way is None:
                    self.refusals[name] = NO_WAY
                else:
                    count[thing.name] += 1
                    yield name, way + last

    def _door_actions(self) -> Iterator[tuple[str, list[int]]]:
        for thing, name in self.numbered:
            if thing.kind != "door":
                continue
            color, state, _ = thing.name.split()
            through = f"toggle and go through {name}"
            if state == "open":
                if (way := self.way(thing.cell, onto=True)) is None:
                    self.refusals[f"go through {name}"] = NO_WAY
                else:
                    yield f"go through {name}", way
                continue
            self.refusals[f"go through {name}"] = "The door is not open."
            has_key = self.carried is not None and self.carried.type == "key" and self.carried.color == color
            if state == "locked" and not has_key:
                self.refusals[through] = f"The door is locked, and you carry no {color} key."
            elif (way := self.way(thing.cell)) is None:
                self.refusals[through] = NO_WAY
            else:
                yield through, [*way, TOGGLE, FORWARD]
                if not way:
                    yield "toggle", [TOGGLE]

    def _search(self, goal: Cell, onto: bool = False) -> list[int] | None:
        """Return the game's actions to face the goal, or with `onto` to stand on it; None if the goal is unreachable.

        Breadth first, through cells that the view does not show as blocked. Among equally short ways, the last one
        found wins, as in AgentGym.
        """
        came: dict[Pose, tuple[Pose, int]] = {}
        waiting, done = deque([self.pose]), set()
        while waiting:
            pose = waiting.popleft()
            done.add(pose)
            if (pose[0] if onto else ahead_of(pose)) == goal:
                actions = []
                while pose != self.pose:
                    pose, action = came[pose]
                    actions.append(action)
                return actions[::-1]
            for action in (FORWARD, LEFT, RIGHT):
                after = moved(pose, action)
                x, y = after[0]
                if after not in done and (x, y) not in self._blocked and x in self._columns and y in self._rows:
                    waiting.append(after)
                    came[after] = pose, action
        return None


def pose_of(level: Any) -> Pose:
    return tuple(int(at) for at in level.agent_pos), int(level.agent_dir)


def moved(pose: Pose, action: int) -> Pose:
    """Return the pose after one of the game's actions, with nothing in the way."""
    cell, direction = pose
    if action == FORWARD:
        return ahead_of(pose), direction
    return cell, (direction + {LEFT: -1, RIGHT: 1}.get(action, 0)) % 4


def ahead_of(pose: Pose) -> Cell:
    (x, y), direction = pose
    return x + STEPS[direction][0], y + STEPS[direction][1]


def _things(level: Any, image: np.ndarray) -> Iterator[Thing]:
    """Yield the things in the view's image, row by row from the far end. The agent's own cell is left out, because the
    image shows there what the agent carries."""
    size, (x, y), direction = level.agent_view_size, *pose_of(level)
    forward, rightward = STEPS[direction], STEPS[(direction + 1) % 4]
    for row in range(size):
        for column in range(size):
            kind = IDX_TO_OBJECT[int(image[column, row, 0])]
            ahead, right = size - 1 - row, column - size // 2
            cell = x + forward[0] * ahead + rightward[0] * right, y + forward[1] * ahead + rightward[1] * right
            if kind not in ("wall", "door", "key", "ball", "box") or (ahead, right) == (0, 0) or min(cell) < 0:
                continue
            state = f"{DOOR_STATES[image[column, row, 2]]} " if kind == "door" else ""
            yield Thing(f"{IDX_TO_COLOR[image[column, row, 1]]} {state}{kind}", kind, cell, ahead, right)


def _search_area(level: Any) -> tuple[range, range]:
    """Return the columns and rows to search for ways: the visible area, and one more column or row if the view faces
    right or down, as in AgentGym."""
    size = level.agent_view_size
    corner = level.agent_pos + level.dir_vec * (size - 1) - level.right_vec * (size // 2)
    border = corner + size * (level.right_vec - level.dir_vec)
    x, y = (range(int(min(end, start)), int(max(end, start + 1))) for start, end in zip(corner, border, strict=True))
    return x, y
