"""What a BabyAI mission asks for: its subgoals, and an expert that reaches them, knowing the whole level.

A mission is one instruction or two or more, in an order or in any. Each is to go to, open, pick up or put something:
find it, face it, and handle it are its subgoals. minigrid 2.3.1 has no bot of its own; this one searches the shortest
way for the game's actions and rides along it on those that do several at once.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    BeforeInstr,
    GoToInstr,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from arenarl.domains.agentgym.babyai_game import (
    DROP,
    FORWARD,
    LEFT,
    PICKUP,
    RIGHT,
    TOGGLE,
    Cell,
    Pose,
    View,
    ahead_of,
    moved,
    pose_of,
)

NAMES = {LEFT: "turn left", RIGHT: "turn right", FORWARD: "move forward", TOGGLE: "toggle", DROP: "drop"}


def phases(instruction: Any) -> list[list[Any]]:
    """The single instructions, in the order in which they must be met; those of one phase in any order."""
    if isinstance(instruction, BeforeInstr):
        return phases(instruction.instr_a) + phases(instruction.instr_b)
    if isinstance(instruction, AfterInstr):
        return phases(instruction.instr_b) + phases(instruction.instr_a)
    if isinstance(instruction, AndInstr):
        return [[one for part in (instruction.instr_a, instruction.instr_b) for phase in phases(part) for one in phase]]
    return [[instruction]]


def _steps(one: Any, level: Any, seen: set[Cell]) -> list[tuple[str, bool]]:
    """(subgoal, whether it holds now) of a single instruction; the last one meets it."""
    front = tuple(int(at) for at in level.front_pos)

    def found(thing: Any) -> bool:
        return level.carrying in thing.obj_set or any(tuple(at) in seen for at in thing.obj_poss)

    def faced(thing: Any) -> bool:
        return any(tuple(at) == front for at in thing.obj_poss)

    if isinstance(one, GoToInstr):
        return [("find", found(one.desc)), ("face", faced(one.desc))]
    if isinstance(one, OpenInstr):
        is_open = any(thing.is_open for thing in one.desc.obj_set)
        return [("find", found(one.desc)), ("face", faced(one.desc)), ("open", faced(one.desc) and is_open)]
    if isinstance(one, PickupInstr):
        is_held = level.carrying in one.desc.obj_set
        return [("find", found(one.desc)), ("face", is_held or faced(one.desc)), ("hold", is_held)]
    assert isinstance(one, PutNextInstr)
    is_held = level.carrying in one.desc_move.obj_set
    near = {beside for at in one.desc_fixed.obj_poss for beside in _beside(tuple(at))}
    is_put = not is_held and any(tuple(thing.cur_pos) in near for thing in one.desc_move.obj_set)
    return [
        ("find", found(one.desc_move)),
        ("hold", is_held),
        ("find the other", found(one.desc_fixed)),
        ("put", is_put),
    ]


class Subgoals:
    """Which subgoals of the level's mission were reached so far."""

    def __init__(self, level: Any, view: View):
        self._level, self._phases = level, phases(level.instrs)
        self._names = {
            (id(one), name) for phase in self._phases for one in phase for name, _ in _steps(one, level, set())
        }
        self._reached: set[tuple[int, str]] = set()
        self._met: set[int] = set()
        self._is_met = False
        self.update(view, is_met=False)
        self._met.clear()  # the game looks whether something is met after an action only

    @property
    def open(self) -> list[Any]:
        """The single instructions that are next; the last ones again where all look met,
        but the game did not see it."""
        unmet = ([one for one in phase if id(one) not in self._met] for phase in self._phases)
        return next((phase for phase in unmet if phase), self._phases[-1])

    @property
    def left(self) -> int:
        """None only once the game itself says that the mission is met."""
        return max(len(self._names) - len(self._reached), int(not self._is_met))

    def update(self, view: View, is_met: bool) -> None:
        """After an action: what holds now. Of what is not yet due, only finding counts;
        what has been met makes all its subgoals reached."""
        self._is_met = self._is_met or is_met
        if is_met:
            self._reached = set(self._names)
            return
        seen, is_due = {thing.cell for thing in view.things}, True
        for phase in self._phases:
            for one in phase:
                steps = _steps(one, self._level, seen)
                self._reached |= {
                    (id(one), name) for name, holds in steps if holds and (is_due or name.startswith("find"))
                }
                if is_due and steps[-1][1]:
                    self._met.add(id(one))
                    self._reached |= {(id(one), name) for name, _ in steps}
            is_due = is_due and all(id(one) in self._met for one in phase)


def best_action(level: Any, view: View, subgoals: Subgoals) -> tuple[str, str]:
    """(thought, action) of the expert: the shortest way to what is next,
    and of what can be done here what leads farthest along it."""
    for one in subgoals.open:
        if plan := _plan(level, one):
            wanted, way, last = plan
            return wanted, _ride(level, view, way, last)
    return "look around", "turn left"


_Plan = tuple[str, list[int], int | None]  # what for, the game's actions that lead there, and the one to do there


def _plan(level: Any, one: Any) -> _Plan | None:
    if isinstance(one, PutNextInstr):
        if level.carrying in one.desc_move.obj_set:
            free = {
                cell for at in one.desc_fixed.obj_poss for cell in _beside(tuple(at)) if level.grid.get(*cell) is None
            }
            return _go(level, free, f"put it next to {_name(one.desc_fixed)}", DROP)
        return _hold(level, one.desc_move)
    if isinstance(one, PickupInstr):
        return _hold(level, one.desc)
    places = {tuple(at) for at in one.desc.obj_poss}
    if isinstance(one, OpenInstr):
        return _go(level, places, f"open {_name(one.desc)}", TOGGLE)
    return _go(level, places, f"go to {_name(one.desc)}", None)


def _hold(level: Any, thing: Any) -> _Plan | None:
    if level.carrying is not None and level.carrying not in thing.obj_set:
        return _drop(level)
    places = {tuple(one.cur_pos) for one in thing.obj_set if one.can_pickup()}  # "a grey object" is said of doors too
    return _go(level, places, f"pick up {_name(thing)}", PICKUP)


def _drop(level: Any) -> _Plan | None:
    """Where there is room, which is not in a doorway."""
    return _go(
        level,
        {cell for cell in _cells(level) if level.grid.get(*cell) is None and not _is_by_a_door(level, cell)},
        "drop it",
        DROP,
    )


def _go(level: Any, goals: set[Cell], wanted: str, last: int | None) -> _Plan | None:
    """To face one of the goals; or, where locked doors or things are in the way, first to what removes one of these."""
    if (way := _way(level, goals)) is not None:
        return wanted, way, last
    locked = [
        level.grid.get(*cell)
        for cell in _cells(level)
        if _kind(level, cell) == "door" and level.grid.get(*cell).is_locked
    ]
    for cell in _cells(level):
        if _kind(level, cell) == "key" and any(door.color == level.grid.get(*cell).color for door in locked):
            if (way := _way(level, {cell})) is not None:
                return ("fetch the key", way, PICKUP) if level.carrying is None else _drop(level)
    way = _way(level, goals, through_things=True)
    blocked = next(
        (cell for cell in _on_the_way(level, way or []) if _kind(level, cell) in ("key", "ball", "box")), None
    )
    if blocked is None or (way := _way(level, {blocked})) is None:
        return None
    return ("clear the way", way, PICKUP) if level.carrying is None else _drop(level)


def _way(level: Any, goals: set[Cell], through_things: bool = False) -> list[int] | None:
    """The game's actions, fewest first, that lead to where a goal is faced.
    A closed door is opened first, a locked one with its key."""
    start: Pose = pose_of(level)
    waiting, seen = deque([(start, ())]), {start}
    while waiting:
        pose, actions = waiting.popleft()
        if ahead_of(pose) in goals:
            return list(actions)
        for action in (FORWARD, LEFT, RIGHT):
            after = moved(pose, action)
            needed = _needed(level, after[0], through_things) if action == FORWARD else ()
            if needed is not None and after not in seen:
                seen.add(after)
                waiting.append((after, (*actions, *needed, action)))
    return None


def _needed(level: Any, cell: Cell, through_things: bool) -> tuple[int, ...] | None:
    """What has to be done before one can step there; None if one cannot."""
    thing = level.grid.get(*cell)
    if thing is None or thing.can_overlap():
        return ()
    if thing.type == "door":
        has_key = level.carrying is not None and level.carrying.type == "key" and level.carrying.color == thing.color
        return (TOGGLE,) if has_key or not thing.is_locked else None
    return () if through_things and thing.type != "wall" else None


def _ride(level: Any, view: View, way: list[int], last: int | None) -> str:
    """The action whose end lies farthest along the way."""
    start, poses = view.pose, {}
    pose = start
    for number, action in enumerate(way, start=1):
        pose = moved(pose, action) if action in (LEFT, RIGHT, FORWARD) else pose
        poses[pose] = number
    if not way:
        return _do(view, last)
    best, farthest = NAMES[way[0]], 1
    for name, actions in view.actions.items():
        end = _end(level, start, actions)
        is_last = name.startswith("pickup") and last == PICKUP and end == pose
        if end in poses and (not name.startswith("pickup") or is_last) and poses[end] + is_last > farthest:
            best, farthest = name, poses[end] + is_last
    return best


def _do(view: View, last: int | None) -> str:
    """What is to be done where one is, by its name in the text."""
    if last == PICKUP:
        return next((name for name, actions in view.actions.items() if actions == [PICKUP]), "turn left")
    return NAMES[last] if last is not None else "turn left"  # faced already, and not by an action: turn away and back


def _end(level: Any, pose: Pose, actions: list[int]) -> Pose | None:
    """Where these lead on the real grid; None if something stops them."""
    opened = None
    for action in actions:
        after = moved(pose, action) if action in (LEFT, RIGHT, FORWARD) else pose
        thing = level.grid.get(*after[0]) if action == FORWARD else None
        if thing is not None and not thing.can_overlap() and after[0] != opened:
            return None
        opened = ahead_of(pose) if action == TOGGLE else opened
        pose = after
    return pose


def _on_the_way(level: Any, way: list[int]) -> Iterator[Cell]:
    pose: Pose = pose_of(level)
    for action in way:
        pose = moved(pose, action) if action in (LEFT, RIGHT, FORWARD) else pose
        yield pose[0]


def _cells(level: Any) -> Iterator[Cell]:
    return ((x, y) for y in range(level.height) for x in range(level.width))


def _kind(level: Any, cell: Cell) -> str | None:
    thing = level.grid.get(*cell)
    return thing.type if thing else None


def _is_by_a_door(level: Any, cell: Cell) -> bool:
    return any(_kind(level, beside) == "door" for beside in _beside(cell) if _is_inside(level, beside))


def _beside(cell: Cell) -> list[Cell]:
    x, y = cell
    return [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]


def _is_inside(level: Any, cell: Cell) -> bool:
    return 0 <= cell[0] < level.width and 0 <= cell[1] < level.height


def _name(thing: Any) -> str:
    return " ".join(part for part in ("the", thing.color, thing.type or "object") if part)
