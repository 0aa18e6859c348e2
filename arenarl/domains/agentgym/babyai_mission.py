"""What a BabyAI mission asks for: its subgoals, and an expert that reaches them, knowing the whole level.

A mission is one instruction or two or more, in an order or in any. Each is to go to, open, pick up or put something:
find it, face it, and handle it are its subgoals. minigrid 2.3.1 has no bot of its own; this one searches the shortest
way for the game's actions and rides along it on those that do several at once.
"""

from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from minigrid.envs.babyai.core.verifier import AfterInstr, AndInstr, BeforeInstr, OpenInstr, PickupInstr, PutNextInstr

from arenarl.domains.agentgym import babyai_game as game
from arenarl.domains.agentgym.babyai_game import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Cell, Pose, View, moved

NAMES = {LEFT: "turn left", RIGHT: "turn right", FORWARD: "move forward", TOGGLE: "toggle", DROP: "drop"}
THINGS = ("key", "ball", "box")


def phases(instruction: Any) -> list[list[Any]]:
    """The single instructions, in the order in which they must be met; those of one phase in any order."""
    if isinstance(instruction, BeforeInstr):
        return phases(instruction.instr_a) + phases(instruction.instr_b)
    if isinstance(instruction, AfterInstr):
        return phases(instruction.instr_b) + phases(instruction.instr_a)
    if isinstance(instruction, AndInstr):
        return [[one for part in (instruction.instr_a, instruction.instr_b) for phase in phases(part) for one in phase]]
    return [[instruction]]


def _steps(one: Any, level: Any, seen: set[Cell]) -> dict[str, bool]:
    """The subgoals of a single instruction: whether each holds now; the last one meets it."""
    front = tuple(int(at) for at in level.front_pos)

    def found(thing: Any) -> bool:
        return level.carrying in thing.obj_set or any(tuple(at) in seen for at in thing.obj_poss)

    if isinstance(one, PutNextInstr):
        is_held = level.carrying in one.desc_move.obj_set
        near = {beside for at in one.desc_fixed.obj_poss for beside in _beside(tuple(at))}
        is_put = not is_held and any(tuple(thing.cur_pos) in near for thing in one.desc_move.obj_set)
        return {
            "find": found(one.desc_move), "hold": is_held, "find the other": found(one.desc_fixed), "put": is_put,
        }  # fmt: skip
    is_faced = any(tuple(at) == front for at in one.desc.obj_poss)
    if isinstance(one, PickupInstr):
        is_held = level.carrying in one.desc.obj_set
        return {"find": found(one.desc), "face": is_held or is_faced, "hold": is_held}
    steps = {"find": found(one.desc), "face": is_faced}
    if isinstance(one, OpenInstr):
        steps["open"] = is_faced and any(thing.is_open for thing in one.desc.obj_set)
    return steps


class Subgoals:
    """Which subgoals of the level's mission were reached so far."""

    def __init__(self, level: Any, view: View):
        self._level, self._phases = level, phases(level.instrs)
        self._names = {(id(one), name) for phase in self._phases for one in phase for name in _steps(one, level, set())}
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
                holding = {name for name in steps if steps[name] and (is_due or name.startswith("find"))}
                if is_due and list(steps.values())[-1]:
                    self._met.add(id(one))
                    holding = set(steps)
                self._reached |= {(id(one), name) for name in holding}
            is_due = is_due and all(id(one) in self._met for one in phase)


def best_action(level: Any, view: View, subgoals: Subgoals) -> tuple[str, str]:
    """(thought, action) of the expert: the shortest way to what is next,
    and of what can be done here what leads farthest along it."""
    for one in subgoals.open:
        if plan := _plan(level, one):
            wanted, way, last = plan
            return wanted, _ride(level, view, way, last) if way else _do(view, last)
    return "look around", "turn left"


_Plan = tuple[str, list[int], int | None]  # what for, the game's actions that lead there, and the one to do there


def _plan(level: Any, one: Any) -> _Plan | None:
    is_put = isinstance(one, PutNextInstr)
    if is_put and level.carrying in one.desc_move.obj_set:
        free = {cell for at in one.desc_fixed.obj_poss for cell in _beside(tuple(at)) if level.grid.get(*cell) is None}
        return _go(level, free, f"put it next to {_name(one.desc_fixed)}", DROP)
    if is_put or isinstance(one, PickupInstr):
        thing = one.desc_move if is_put else one.desc
        if level.carrying is not None and level.carrying not in thing.obj_set:
            return _drop(level)
        # "a grey object" is said of doors too
        places = {tuple(each.cur_pos) for each in thing.obj_set if each.can_pickup()}
        return _go(level, places, f"pick up {_name(thing)}", PICKUP)
    verb, last = ("open", TOGGLE) if isinstance(one, OpenInstr) else ("go to", None)
    return _go(level, {tuple(at) for at in one.desc.obj_poss}, f"{verb} {_name(one.desc)}", last)


def _drop(level: Any) -> _Plan | None:
    """Where there is room, which is not in a doorway."""
    by_doors = {beside for cell, kind, _ in _grid(level) if kind == "door" for beside in _beside(cell)}
    return _go(level, {cell for cell, kind, _ in _grid(level) if not kind and cell not in by_doors}, "drop it", DROP)


def _go(level: Any, goals: set[Cell], wanted: str, last: int | None) -> _Plan | None:
    """To face one of the goals; or, where locked doors or things are in the way, first to what removes one of these."""
    if (way := _way(level, goals)) is not None:
        return wanted, way, last
    locked = {thing.color for _, kind, thing in _grid(level) if kind == "door" and thing.is_locked}
    for cell, kind, thing in _grid(level):
        if kind == "key" and thing.color in locked and (way := _way(level, {cell})) is not None:
            return ("fetch the key", way, PICKUP) if level.carrying is None else _drop(level)
    kinds = {cell: kind for cell, kind, _ in _grid(level)}
    passed = accumulate(_way(level, goals, through_things=True) or [], moved, initial=game.pose_of(level))
    blocked = next((cell for cell, _ in passed if kinds[cell] in THINGS), None)
    if blocked is None or (way := _way(level, {blocked})) is None:
        return None
    return ("clear the way", way, PICKUP) if level.carrying is None else _drop(level)


def _way(level: Any, goals: set[Cell], through_things: bool = False) -> list[int] | None:
    """The game's actions, fewest first, that lead to where a goal is faced.
    A closed door is opened first, a locked one with its key."""
    start: Pose = game.pose_of(level)
    waiting, seen = deque([(start, ())]), {start}
    while waiting:
        pose, actions = waiting.popleft()
        if game.ahead_of(pose) in goals:
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
        held = level.carrying
        has_key = held is not None and (held.type, held.color) == ("key", thing.color)
        return (TOGGLE,) if has_key or not thing.is_locked else None
    return () if through_things and thing.type != "wall" else None


def _ride(level: Any, view: View, way: list[int], last: int | None) -> str:
    """The action whose end lies farthest along the way."""
    poses = list(accumulate(way, moved, initial=view.pose))
    number_of = {pose: number for number, pose in enumerate(poses)}
    best, farthest = NAMES[way[0]], 1
    for name, actions in view.actions.items():
        end = _end(level, view.pose, actions)
        is_last = name.startswith("pickup") and last == PICKUP and end == poses[-1]
        if end in number_of and (not name.startswith("pickup") or is_last) and number_of[end] + is_last > farthest:
            best, farthest = name, number_of[end] + is_last
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
        after = moved(pose, action)
        thing = level.grid.get(*after[0]) if action == FORWARD else None
        if thing is not None and not thing.can_overlap() and after[0] != opened:
            return None
        opened = game.ahead_of(pose) if action == TOGGLE else opened
        pose = after
    return pose


def _grid(level: Any) -> Iterator[tuple[Cell, str, Any]]:
    """(cell, kind, thing) of every cell, row by row; an empty cell has the kind ""."""
    for y in range(level.height):
        for x in range(level.width):
            thing = level.grid.get(x, y)
            yield (x, y), thing.type if thing else "", thing


def _beside(cell: Cell) -> list[Cell]:
    x, y = cell
    return [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]


def _name(thing: Any) -> str:
    return " ".join(part for part in ("the", thing.color, thing.type or "object") if part)
