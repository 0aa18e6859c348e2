"""The subgoals of a BabyAI mission, and an expert that reaches them with full view of the level.

A mission is one instruction, or several in an order or in any order. An instruction is to go to, open, pick up or put
down a thing; its subgoals are to find, to face and to handle that thing. minigrid 2.3.1 has no bot: this expert plans
the shortest way in the game's own actions, then takes the text action that leads farthest along it.
"""

from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    BeforeInstr,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    SeqInstr,
)

from arenarl.domains.agentgym import babyai_game as game
from arenarl.domains.agentgym.babyai_game import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Cell, Pose, View, moved

NAMES = {LEFT: "turn left", RIGHT: "turn right", FORWARD: "move forward", TOGGLE: "toggle", DROP: "drop"}
THINGS = ("key", "ball", "box")


def phases(instruction: Any) -> list[list[Any]]:
    """Return the single instructions by phase. Phases are met in order, the instructions of a phase in any order."""
    if isinstance(instruction, BeforeInstr):
        return phases(instruction.instr_a) + phases(instruction.instr_b)
    if isinstance(instruction, AfterInstr):
        return phases(instruction.instr_b) + phases(instruction.instr_a)
    if isinstance(instruction, AndInstr):
        both = phases(instruction.instr_a) + phases(instruction.instr_b)
        return [[single for phase in both for single in phase]]
    return [[instruction]]


def met_parts(instruction: Any) -> tuple[bool, ...]:
    """Return for each part of a compound instruction whether the game counts it as met; empty for a single one."""
    if not isinstance(instruction, SeqInstr):
        return ()
    parts = met_parts(instruction.instr_a) + met_parts(instruction.instr_b)
    return instruction.a_done == "success", instruction.b_done == "success", *parts


def _subgoals_of(instruction: Any, level: Any, seen: set[Cell]) -> dict[str, bool]:
    """Return subgoal → True if it holds, for a single instruction. The last subgoal completes the instruction."""
    front = tuple(int(at) for at in level.front_pos)

    def is_found(thing: Any) -> bool:
        return level.carrying in thing.obj_set or any(tuple(at) in seen for at in thing.obj_poss)

    if isinstance(instruction, PutNextInstr):
        thing, target = instruction.desc_move, instruction.desc_fixed
        is_held = level.carrying in thing.obj_set
        near = {beside for at in target.obj_poss for beside in _beside(tuple(at))}
        is_put = not is_held and any(tuple(each.cur_pos) in near for each in thing.obj_set)
        return {"find": is_found(thing), "hold": is_held, "find the other": is_found(target), "put": is_put}
    thing = instruction.desc
    is_faced = any(tuple(at) == front for at in thing.obj_poss)
    if isinstance(instruction, PickupInstr):
        is_held = level.carrying in thing.obj_set
        return {"find": is_found(thing), "face": is_held or is_faced, "hold": is_held}
    subgoals = {"find": is_found(thing), "face": is_faced}
    if isinstance(instruction, OpenInstr):
        subgoals["open"] = is_faced and any(door.is_open for door in thing.obj_set)
    return subgoals


class Subgoals:
    """The reached subgoals of a level's mission."""

    def __init__(self, level: Any, view: View):
        self._level, self._phases = level, phases(level.instrs)
        singles = [single for phase in self._phases for single in phase]
        self._all = {(id(single), name) for single in singles for name in _subgoals_of(single, level, set())}
        self._reached: set[tuple[int, str]] = set()
        self._met: set[int] = set()  # ids of instructions
        self._is_met = False
        self.update(view, is_met=False)
        self._met.clear()  # the game checks instructions only after an action

    @property
    def open(self) -> list[Any]:
        """The unmet instructions of the first phase that has any; the last phase if all instructions seem met."""
        unmet = ([single for single in phase if id(single) not in self._met] for phase in self._phases)
        return next((phase for phase in unmet if phase), self._phases[-1])

    @property
    def left(self) -> int:
        """Number of open subgoals, at least 1 until the game reports the mission as met."""
        return max(len(self._all) - len(self._reached), int(not self._is_met))

    def update(self, view: View, is_met: bool) -> None:
        """Record the subgoals that hold after an action; `is_met` is the game's report on the mission.
        Before its phase is due, only the "find" subgoals of an instruction count. A met instruction counts in full."""
        self._is_met = self._is_met or is_met
        if is_met:
            self._reached = set(self._all)
            return
        seen, is_due = {thing.cell for thing in view.things}, True
        for phase in self._phases:
            for single in phase:
                subgoals = _subgoals_of(single, self._level, seen)
                holding = {name for name, holds in subgoals.items() if holds and (is_due or name.startswith("find"))}
                if is_due and list(subgoals.values())[-1]:
                    self._met.add(id(single))
                    holding = set(subgoals)
                self._reached |= {(id(single), name) for name in holding}
            is_due = is_due and all(id(single) in self._met for single in phase)


def best_action(level: Any, view: View, subgoals: Subgoals) -> tuple[str, str]:
    """Return the expert's (thought, action) for the first open instruction to which a way leads."""
    for instruction in subgoals.open:
        if plan := _plan(level, instruction):
            thought, way, last = plan
            return thought, _farthest_action(level, view, way, last) if way else _action_here(view, last)
    return "look around", "turn left"


_Plan = tuple[str, list[int], int | None]  # thought, the game's actions that lead there, and the action to do there


def _plan(level: Any, instruction: Any) -> _Plan | None:
    is_put = isinstance(instruction, PutNextInstr)
    if is_put and level.carrying in instruction.desc_move.obj_set:
        target = instruction.desc_fixed
        free = {cell for at in target.obj_poss for cell in _beside(tuple(at)) if level.grid.get(*cell) is None}
        return _go(level, free, f"put it next to {_name(target)}", DROP)
    if is_put or isinstance(instruction, PickupInstr):
        thing = instruction.desc_move if is_put else instruction.desc
        if level.carrying is not None and level.carrying not in thing.obj_set:
            return _drop(level)
        # "a grey object" means doors too
        places = {tuple(each.cur_pos) for each in thing.obj_set if each.can_pickup()}
        return _go(level, places, f"pick up {_name(thing)}", PICKUP)
    verb, last = ("open", TOGGLE) if isinstance(instruction, OpenInstr) else ("go to", None)
    return _go(level, {tuple(at) for at in instruction.desc.obj_poss}, f"{verb} {_name(instruction.desc)}", last)


def _drop(level: Any) -> _Plan | None:
    """Plan to drop the carried thing on an empty cell that is not beside a door."""
    by_doors = {beside for cell, kind, _ in _grid(level) if kind == "door" for beside in _beside(cell)}
    return _go(level, {cell for cell, kind, _ in _grid(level) if not kind and cell not in by_doors}, "drop it", DROP)


def _go(level: Any, goals: set[Cell], thought: str, last: int | None) -> _Plan | None:
    """Plan to face one of the goals. If a locked door or a thing is in the way, plan to remove that first."""
    if (way := _way(level, goals)) is not None:
        return thought, way, last
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
    """Return the fewest game actions after which the agent faces a goal, or None if no goal can be reached.
    The way opens closed doors, and locked doors if the agent carries the key."""
    start: Pose = game.pose_of(level)
    waiting, seen = deque([(start, ())]), {start}
    while waiting:
        pose, actions = waiting.popleft()
        if game.ahead_of(pose) in goals:
            return list(actions)
        for action in (FORWARD, LEFT, RIGHT):
            after = moved(pose, action)
            before = _actions_before_entry(level, after[0], through_things) if action == FORWARD else ()
            if before is not None and after not in seen:
                seen.add(after)
                waiting.append((after, (*actions, *before, action)))
    return None


def _actions_before_entry(level: Any, cell: Cell, through_things: bool) -> tuple[int, ...] | None:
    """Return the actions needed before the agent can enter the cell; None if it cannot."""
    thing = level.grid.get(*cell)
    if thing is None or thing.can_overlap():
        return ()
    if thing.type == "door":
        held = level.carrying
        has_key = held is not None and (held.type, held.color) == ("key", thing.color)
        return (TOGGLE,) if has_key or not thing.is_locked else None
    return () if through_things and thing.type != "wall" else None


def _farthest_action(level: Any, view: View, way: list[int], last: int | None) -> str:
    """Return the text action whose end lies farthest along the way."""
    poses = list(accumulate(way, moved, initial=view.pose))
    number_of = {pose: number for number, pose in enumerate(poses)}
    best, farthest = NAMES[way[0]], 1
    for name, actions in view.actions.items():
        end = _end(level, view.pose, actions)
        is_last = name.startswith("pickup") and last == PICKUP and end == poses[-1]
        if end in number_of and (not name.startswith("pickup") or is_last) and number_of[end] + is_last > farthest:
            best, farthest = name, number_of[end] + is_last
    return best


def _action_here(view: View, last: int | None) -> str:
    """Return the text name of the action at the end of the way."""
    if last == PICKUP:
        return next((name for name, actions in view.actions.items() if actions == [PICKUP]), "turn left")
    return NAMES[last] if last is not None else "turn left"  # faced from the start: turn away, then back


def _end(level: Any, pose: Pose, actions: list[int]) -> Pose | None:
    """Return the pose after the actions on the real grid; None if something blocks them."""
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
    """Yield (cell, kind, thing) row by row; an empty cell has the kind ""."""
    for y in range(level.height):
        for x in range(level.width):
            thing = level.grid.get(x, y)
            yield (x, y), thing.type if thing else "", thing


def _beside(cell: Cell) -> list[Cell]:
    x, y = cell
    return [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]


def _name(thing: Any) -> str:
    return " ".join(part for part in ("the", thing.color, thing.type or "object") if part)
