"""Code shared by AgentGym-RL's worlds: the tool `act`, item lists, the environment base class, the truth, the scripted
expert and the splits.

An item is a number; its id in AgentGym-RL is `<world>_<number>`. Each world's module makes default lists. A user's copy
of the official files (`data.items`: AgentItemId of AgentGym-RL at e182a6b, with eval/ and train/) replaces them.
The truth replays a trajectory. It is the share of the item's subgoals that were reached, less wasted and refused
actions, so it ranks trajectories to which the world gives the same reward.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations, islice
from pathlib import Path
from typing import Any, ClassVar

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.domain import Domain, Split, Truth, Watch
from arenarl.rollout.environment import Step, ToolError, check_call, tool_schema
from arenarl.system.errors import UserError, missing
from arenarl.system.progress import say
from arenarl.system.user_input import text_of_file
from arenarl.trajectory import Query, Trajectory, Turn, call_messages, parse_json, prompt_messages, read_turns

HERE = Path(__file__).parent
TURNS = 20  # most turns of an expert's trajectory: the paper's rounds in TextCraft and BabyAI
SLIPS = 0.5  # chance per turn that an expert with skill 0 does not take the best action
LONGEST = 300  # characters of an action; no action of any world is longer
_ACTION = {"type": "string", "description": "in the words of the rules"}
TOOLS = [tool_schema("act", "Does one action in the world.", {"action": _ACTION})]


@cache
def need_package(
    name: str, pinned: str, how: str = "the worlds of AgentGym-RL with: pip install -e .[agentgym]"
) -> None:
    """Raise UserError if the package is missing, or has another version, because its items may differ."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = None
    if installed != pinned:
        problem = f"is {installed}, not {pinned}" if installed else "is not installed"
        raise UserError(f"{name} {problem}; install {how}")


def item_of(query: Query, count: int | None = None) -> int:
    """Return the query's item. Raises UserError unless `constraints.item` is a whole number from 0, below `count`."""
    item = query.constraints.get("item")
    if type(item) is not int or not 0 <= item < (count or math.inf):
        valid = f"{query.domain} has items from 0 to {count - 1}" if count else "make it the item's number in AgentGym"
        raise UserError(f"query {query.query_id}: constraints.item is {item!r}; {valid}")
    return item


def read_whole_action(name: str, arguments: dict[str, Any] | str) -> str:
    """Return a call's action as written. Raises ToolError for another tool, a missing action or one above `LONGEST`."""
    action = check_call(TOOLS, name, arguments)["action"].strip()
    if len(action) > LONGEST:
        raise ToolError(f"an action has at most {LONGEST} characters.")
    return action


def read_action(name: str, arguments: dict[str, Any] | str) -> str:
    """Return a call's action as AgentGym-RL's clients send it to most worlds: letters, digits, commas, single blanks.
    Raises ToolError like `read_whole_action`.

    >>> read_action("act", {"action": " get 2  oak_log!"})
    'get 2 oaklog'
    """
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", read_whole_action(name, arguments)).split())


def action_of_turn(turn: Turn, read: Callable[[str, Any], str] = read_action) -> str | None:
    """Return the turn's action; None unless the turn has exactly one call and `read` accepts it."""
    try:
        return read(turn.tool_calls[0].name, turn.tool_calls[0].arguments) if len(turn.tool_calls) == 1 else None
    except ToolError:
        return None


def official_items(
    folder: str,
    world: str,
    split: str,
    counts: Mapping[str, int] | None = None,
    column: Callable[[int], str] = str,
    prefixes: str = "",
) -> tuple[int, ...]:
    """Read the items of `<folder>/eval/<world>_test.json` or `<folder>/train/<world>_train.json`, in the file's order.

    `counts` holds the required number of items by column of the paper's table, or of all items under ""; None allows
    any number. `prefixes`, separated by |, may precede the number in an item's id; by default the world's name. Raises
    UserError if the file is missing, is not a list of item ids, repeats an item, or has other counts.
    """
    path = Path(folder) / {"test": "eval", "train": "train"}[split] / f"{world}_{split}.json"
    if not path.is_file() and (Path(folder) / path.name).is_file():
        path = Path(folder) / path.name  # sciworld_train.json is not in train/
    if not path.is_file():
        remedy = "name a folder that is a copy of AgentGym-RL's AgentItemId, with eval/ and train/"
        raise UserError(f"data.items: {missing(path, f'; {remedy}')}")
    try:
        records = parse_json(text_of_file(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; copy AgentGym-RL's file again") from error
    prefixes, items = prefixes or world, []
    for record in records if isinstance(records, list) else [records]:
        item_id = record.get("item_id") if isinstance(record, dict) else None
        match = re.fullmatch(rf"(?:{prefixes})_(\d{{1,9}})", item_id) if isinstance(item_id, str) else None
        if not match:
            form = f'a list of {{"item_id": "{prefixes}_<number>"}}'
            raise UserError(f"{path} is not {form}: {str(record)[:80]}; copy AgentGym-RL's file again")
        items.append(int(match[1]))
    if len(set(items)) < len(items):
        raise UserError(f"{path} names an item twice; copy AgentGym-RL's file again")
    if counts is None:
        return tuple(items)
    present = Counter("" if "" in counts else column(item) for item in items)
    if present != Counter(counts):
        has, wanted = (
            ", ".join(f"{name} {count}".strip() for name, count in sorted(numbers.items())) or "none"
            for numbers in (present, counts)
        )
        raise UserError(f"{path} holds {has} instead of {wanted} items; copy AgentGym-RL's file again")
    return tuple(items)


class World:
    """Base class of the worlds: an `Environment` that `reset` starts for one item."""

    tools = TOOLS
    needs_answer = False
    one_call_a_turn = True
    packages: ClassVar[dict[str, str]] = {}  # name -> required version
    read = staticmethod(read_action)  # returns the action of a call
    is_refused = False  # the last action could not be carried out

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: Any = None) -> "World":
        """Return a world. Raises UserError like `check_packages`."""
        cls.check_packages()
        return cls()

    @classmethod
    def check_packages(cls) -> None:
        """Raise UserError if a package is missing or has another version."""
        for name, pinned in cls.packages.items():
            need_package(name, pinned)

    def reset(self, query: Query) -> str:
        """Start the query's item and return the first observation."""
        raise NotImplementedError

    def act(self, action: str) -> Step:
        """Carry out an action that `read` returned."""
        raise NotImplementedError

    @property
    def subgoals_left(self) -> int:
        """Number of the item's subgoals that are not yet reached."""
        raise NotImplementedError

    @property
    def state(self) -> Hashable:
        """The state that `examine` compares: an action that leads to a new state counts as useful."""
        return None

    @property
    def signature(self) -> Hashable:
        """The state on which everything that follows depends; GiGPO and RTMC compare turns in equal states."""
        return self.state, self.subgoals_left

    def best_action(self) -> tuple[str, str]:
        """Return an expert's (thought, action)."""
        raise NotImplementedError

    def careless_action(self, rng: random.Random) -> str:
        """Draw an action that is probably useless."""
        raise NotImplementedError

    def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return self.act(self.read(name, arguments))


@dataclass(frozen=True)
class Progress(Truth):
    """Counts from the replay of one trajectory."""

    success: bool  # the trajectory reached the goal
    needed: int  # subgoals of the item
    reached: int  # the largest number of subgoals reached at one time
    kept: int  # subgoals still reached at the end; in BabyAI they stay reached, so there it equals `reached`
    actions: int  # turns, with or without a readable action
    useful: int  # actions that came nearer to a subgoal than any before, or led to a new state
    refused: int  # actions that were unreadable or could not be carried out

    def dimensions(self) -> dict[str, float]:
        actions = max(self.actions, 1)
        return {
            "path_progress": 10 * self.reached / self.needed,
            "path_economy": 10 * self.useful / actions,
            "path_validity": 10 * (self.actions - self.refused) / actions,
            "answer_goal": 10 * self.kept / self.needed,
        }

    def figures(self) -> dict[str, float]:
        return {"success": 100.0 * self.success, "subgoals": 100 * self.reached / self.needed}

    def passes(self) -> dict[str, bool]:
        return {"success": self.success}

    def information(self) -> float:
        return float(self.reached)


class ItemDomain(Domain):
    """Base class of domains whose queries are numbered items of a world."""

    compares_splits = True
    item_count: int | None = None  # items of the world; None: only its server knows

    def read_split(self, name: str) -> list[Query]:
        """Read the queries. Raises UserError also for a query without a valid item, which would fail only in its
        rollout. A user's own world or tools may need no item."""
        queries, world = super().read_split(name), self.environment.name
        if ":" not in world and world != "mcp":
            count = self.item_count
            for query in queries:
                item_of(query, count)
        return queries


class WorldDomain(ItemDomain):
    """Base class of the worlds' domains: items become queries. A subclass defines the table's columns and the items."""

    world: ClassVar[type[World]]
    columns: ClassVar[dict[str, int]]  # test items of each column of the paper's table
    train_count: ClassVar[int]
    has_leak: ClassVar[bool] = False  # AgentGym-RL's test and training lists share items
    sources = (HERE.parent / "domain.py", HERE.parent / "rubrics.py", *sorted(HERE.glob("*.py")))

    @property
    def subtasks(self) -> tuple[str, ...]:
        chosen = self.data.subtasks or list(self.columns)
        if unknown := next((name for name in chosen if name not in self.columns), ""):
            raise UserError(f"data.subtasks: {self.name} has no {unknown}; choose from {', '.join(self.columns)}")
        return tuple(name for name in self.columns if name in chosen)

    def column(self, item: int) -> str:
        """Return the table column of an item. Raises UserError if the item does not exist."""
        raise NotImplementedError

    def text(self, item: int) -> str:
        """Return the text of the item's query."""
        raise NotImplementedError

    def default_items(self, split: str) -> tuple[int, ...]:
        """Return the items of "test" or "train" that stand in for the official lists."""
        raise NotImplementedError

    def practice(self) -> Iterator[dict[str, int]]:
        """Yield the constraints of SFT queries, none of which is a test or an RL query."""
        raise NotImplementedError

    def items(self, split: str) -> tuple[int, ...]:
        """Return the items of "test" or "train" in the chosen subtasks.
        Raises UserError if the user's copy differs from AgentGym-RL's list, or no item is left."""
        counts = self.columns if split == "test" else {"": self.train_count}
        copy, chosen = self.data.items, self.data.subtasks
        listed = official_items(copy, self.name, split, counts, self.column) if copy else self.default_items(split)
        columns = {item: self.column(item) for item in listed}
        items = tuple(item for item, column in columns.items() if chosen is None or column in self.subtasks)
        if not items:
            raise UserError(f"data.subtasks={chosen}: {self.name}'s {split} list has no such items; choose others")
        return items

    def task(self, query: Query) -> Hashable:
        """Return a key that is equal for two queries with the same task."""
        return query.constraints["item"]

    def compare(self, test: Sequence[Query], rl: Sequence[Query], sft: Sequence[Query]) -> str:
        """Describe the splits' sizes and the tasks that they share.
        Raises UserError if test and RL share an item, unless AgentGym-RL's own lists share items too (`has_leak`)."""
        leaked = {query.constraints["item"] for query in test} & {query.constraints["item"] for query in rl}
        if leaked and not self.has_leak:
            shared = f"the training list has {len(leaked)} of the test list's items, first {self.name}_{min(leaked)}"
            raise UserError(f"data.items: {shared}; copy AgentGym-RL's lists again")
        tasks = {name: set(map(self.task, split)) for name, split in {"test": test, "RL": rl, "SFT": sft}.items()}
        common = {pair: tasks[pair[0]] & tasks[pair[1]] for pair in combinations(tasks, 2)}
        shared = "; ".join(f"{' and '.join(pair)} share {len(both)}" for pair, both in common.items() if both)
        return f"{len(test)} test, {len(rl)} RL and {len(sft)} SFT items: {shared or 'no item is in two splits'}"

    def cut(self, queries: list[Query], count: int) -> list[Query]:
        """Choose at most `count` of a column's test queries."""
        return queries[:count]

    def query(self, constraints: dict[str, int]) -> Query:
        """Return the query of an item; further constraints, such as a variant, follow the item in its id."""
        item, *rest = constraints.values()
        query_id = ".".join([f"{self.name}_{item}", *map(str, rest)])
        return Query(query_id, self.name, self.column(item), "en", self.text(item), constraints)

    def has_truth(self, query: Query) -> bool:
        return "item" in query.constraints

    def replay_world(self) -> World:
        """Return the world in which `examine` replays a trajectory."""
        return self.world.from_config(self.environment, self.data.language)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> Progress:
        """Replay the actions from the item's start. A turn without exactly one action counts as refused."""
        world = self.replay_world()
        world.reset(query)
        needed, fewest, seen = world.subgoals_left, world.subgoals_left, {world.state}
        actions = useful = refused = 0
        is_over = False
        for turn in read_turns(messages):
            actions += 1
            action = action_of_turn(turn, self.world.read)
            is_over = action is not None and world.act(action).done
            if action is None or world.is_refused:
                refused += 1
                continue
            useful += world.subgoals_left < fewest or world.state not in seen
            seen.add(world.state)
            fewest = min(fewest, world.subgoals_left)
            if is_over:
                break
        kept = max(0, needed - world.subgoals_left)
        return Progress(is_over, needed, needed - fewest, kept, actions, useful, refused)

    def visits(self, query: Query, messages: list[dict[str, Any]]) -> list[tuple[Hashable, str | None]]:
        """Replay the actions from the item's start; return each turn's state before it, and its action.
        The action is None for a turn without exactly one readable action."""
        world = self.replay_world()
        world.reset(query)
        visits = []
        for turn in read_turns(messages):
            action = action_of_turn(turn, world.read)
            visits.append((world.signature, action))
            if action is not None and world.act(action).done:
                break
        return visits

    def solve(self, query: Query, environment: World, rng: random.Random, skill: float) -> Trajectory:
        """Play the expert: each turn takes the best action, or with chance (1 - skill) / 2 a careless one."""
        messages, reward = prompt_messages(query, first_observation=environment.reset(query)), 0.0
        for _ in range(TURNS):
            thought, action = environment.best_action()
            if rng.random() < SLIPS * (1 - skill):
                action = environment.careless_action(rng)
            step = environment.call("act", {"action": action})
            messages += call_messages(thought, "act", {"action": action}, step.observation)
            reward += step.reward
            if step.done:
                break
        return Trajectory(query.query_id, messages, "done" if step.done else "horizon", meta={"reward": reward})

    def splits(self, environment: World, watch: Watch = iter, client: Any = None) -> Iterator[Split]:
        """Yield test and RL items, at most `data.test_per_subtask` a column and `data.rl_size`, the test baselines, and
        the expert's trajectories for SFT. Before the first trajectory, check the items and log what splits share."""
        data = self.data
        items = [self.query({"item": item}) for item in self.items("test")]
        by_column = [[query for query in items if query.subtask == name] for name in self.subtasks]
        test = [query for queries in by_column for query in self.cut(queries, data.test_per_subtask)]
        rl = [self.query({"item": item}) for item in self.items("train")]
        random.Random(f"{self.name}{data.seed}-rl").shuffle(rl)
        rl, sft = rl[: data.rl_size], list(map(self.query, islice(self.practice(), data.sft_size)))
        say(self.compare(test, rl, sft))
        return self.make_splits(environment, watch, test, rl, sft)
