"""What AgentGym-RL's worlds have in common: the one tool, how an action is read, item lists, an environment with one
action a turn, a truth by replay, a scripted expert's trajectories, data.

An item is a number; AgentGym-RL's id of it is `<world>_<number>`. By default the lists are those that the world's
module makes; a user's copy of the official files (`data.items`: AgentItemId of AgentGym-RL at e182a6b, with eval/ and
train/) replaces them. The truth is what share of an item's subgoals were reached, less the actions that were wasted or
refused: it tells apart trajectories of which the world's reward says the same.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.domain import Domain, Truth, median_of, teacher_skills
from arenarl.domains.rubrics import domain_rubric
from arenarl.rollout.environment import Step, ToolError, check_call, tool_schema
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import text_of_file
from arenarl.trajectory import Query, Trajectory, Turn, parse_json, prompt_messages, read_turns, tool_message

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

HERE = Path(__file__).parent
TURNS = 20  # of an expert's trajectory, at most: the paper's rounds in TextCraft and BabyAI
SLIPS = 0.5  # chance that an expert without any skill does something else than the best, each turn
LONGEST = 300  # characters of an action; more is no action of any world
_ACTION = {"type": "string", "description": "in the words of the rules"}
TOOLS = [tool_schema("act", "Does one action in the world.", {"action": _ACTION})]


@cache
def need_package(name: str, pinned: str) -> None:
    """Raises UserError where the package is missing or of another version, in which items may be other ones."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    if found != pinned:
        what = f"is {found}, not {pinned}" if found else "is not installed"
        raise UserError(f"{name} {what}; install the worlds of AgentGym-RL with: pip install -e .[agentgym]")


def item_of(query: Query, count: int) -> int:
    """The query's item. Raises UserError where it names none of so many."""
    item = query.constraints.get("item")
    if type(item) is not int or not 0 <= item < count:
        known = f"{query.domain} has items from 0 to {count - 1}"
        raise UserError(f"query {query.query_id}: constraints.item is {item!r}; {known}")
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


def official_items(
    folder: str, world: str, split: str, counts: Mapping[str, int], column: Callable[[int], str], names: str = ""
) -> tuple[int, ...]:
    """The items of `<folder>/eval/<world>_test.json` (split "test")
    or `<folder>/train/<world>_train.json`, in the file's order.

    `names` is what stands before an item's number in its id, with | between several; "": the world's name.

    `counts` says how many the file must hold of each column of the paper's table, or of all under "".

    Raises:
        UserError: no such file, no list of item ids, one twice, or other counts.
    """
    path = Path(folder) / {"test": "eval", "train": "train"}[split] / f"{world}_{split}.json"
    # where sciworld_train.json lies
    path = path if path.is_file() or not (above := Path(folder) / path.name).is_file() else above
    if not path.is_file():
        what = "the folder is a copy of AgentGym-RL's AgentItemId, with eval/ and train/"
        raise UserError(f"data.items: {path} does not exist; {what}")
    try:
        records = parse_json(text_of_file(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    names, items = names or world, []
    for record in records if isinstance(records, list) else [records]:
        name = record.get("item_id") if isinstance(record, dict) else None
        number = re.fullmatch(rf"(?:{names})_(\d{{1,9}})", name) if isinstance(name, str) else None
        if not number:
            raise UserError(f'{path} is no list of {{"item_id": "{names}_<number>"}}: {str(record)[:80]}')
        items.append(int(number[1]))
    if len(set(items)) < len(items):
        raise UserError(f"{path} names an item twice; take AgentGym-RL's file as it is")
    found = Counter("" if "" in counts else column(item) for item in items)
    if found != Counter(counts):
        has, wanted = (
            ", ".join(f"{name} {count}".strip() for name, count in sorted(each.items())) for each in (found, counts)
        )
        raise UserError(f"{path} holds other items than AgentGym-RL's: {has or 'none'} instead of {wanted}")
    return tuple(items)


class World:
    """An `Environment`; `reset` begins it anew. A subclass says what an item begins with and what an action does."""

    tools = TOOLS
    needs_answer = False
    one_call_a_turn = True
    packages: ClassVar[dict[str, str]] = {}  # and their versions
    read = staticmethod(read_action)  # how the action of a call is read
    is_refused = False  # the last action could not be carried out

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> "World":
        """Raises UserError as `check_packages`."""
        cls.check_packages()
        return cls()

    @classmethod
    def check_packages(cls) -> None:
        """Raises UserError if a package is missing or of another version."""
        for name, pinned in cls.packages.items():
            need_package(name, pinned)

    def reset(self, query: Query) -> str:
        """The first observation."""
        raise NotImplementedError

    def act(self, action: str) -> Step:
        raise NotImplementedError

    @property
    def left(self) -> int:
        """Subgoals of the item that are still to be reached."""
        raise NotImplementedError

    @property
    def state(self) -> Hashable:
        """An action is of use if it brings a subgoal nearer than before,
        or leads to a state that was not there before."""
        return None

    def best(self) -> tuple[str, str]:
        """(thought, action) of an expert's."""
        raise NotImplementedError

    def slip(self, rng: random.Random) -> str:
        """An action that is probably of no use."""
        raise NotImplementedError

    def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return self.act(self.read(name, arguments))


@dataclass(frozen=True)
class Progress(Truth):
    """`reached` of the `needed` subgoals at best, `kept` at the end; `useful` and `refused` of the `actions`. Success
    is what the world ends at.

    BabyAI's subgoals stay reached, so that there `kept` says nothing more.
    """

    success: bool
    needed: int
    reached: int
    kept: int
    actions: int
    useful: int
    refused: int

    def dimensions(self) -> dict[str, float]:
        taken = max(self.actions, 1)
        return {
            "path_progress": 10 * self.reached / self.needed,
            "path_economy": 10 * self.useful / taken,
            "path_validity": 10 * (self.actions - self.refused) / taken,
            "answer_goal": 10 * self.kept / self.needed,
        }

    def figures(self) -> dict[str, float]:
        return {"success": 100.0 * self.success, "subgoals": 100 * self.reached / self.needed}

    def passes(self) -> dict[str, bool]:
        return {"success": self.success}


class WorldDomain(Domain):
    """A world's items as queries. A subclass names the columns of the paper's table and says which items there are."""

    world: ClassVar[type[World]]
    columns: ClassVar[dict[str, int]]  # test items of each column of the paper's table
    train_count: ClassVar[int]
    has_leak: ClassVar[bool] = False  # AgentGym-RL's test and training lists share items
    compares_splits = True  # by item, before any is played
    sources = (HERE.parent / "domain.py", HERE.parent / "rubrics.py", *sorted(HERE.glob("*.py")))

    @property
    def subtasks(self) -> tuple[str, ...]:
        chosen = self.data.subtasks or list(self.columns)
        if unknown := next((name for name in chosen if name not in self.columns), ""):
            raise UserError(f"data.subtasks: {self.name} has no {unknown}; choose of {', '.join(self.columns)}")
        return tuple(name for name in self.columns if name in chosen)

    def column(self, item: int) -> str:
        """Raises UserError if there is no such item."""
        raise NotImplementedError

    def text(self, item: int) -> str:
        """The query's."""
        raise NotImplementedError

    def default_items(self, split: str) -> tuple[int, ...]:
        """Of "test" or "train", where the user has no copy of the official lists."""
        raise NotImplementedError

    def practice(self) -> Iterator[dict[str, int]]:
        """Constraints of SFT's queries, as many as one likes; none is a test or an RL query."""
        raise NotImplementedError

    def items(self, split: str) -> tuple[int, ...]:
        """Of a split, in the chosen subtasks. Raises UserError if the user's copy holds others than AgentGym-RL's,
        or none is left."""
        counts = self.columns if split == "test" else {"": self.train_count}
        copy = self.data.items
        listed = official_items(copy, self.name, split, counts, self.column) if copy else self.default_items(split)
        columns = {item: self.column(item) for item in listed}
        chosen = self.data.subtasks
        items = tuple(item for item, column in columns.items() if chosen is None or column in self.subtasks)
        if not items:
            raise UserError(f"data.subtasks={chosen}: {self.name}'s {split} list has no item of these; choose others")
        return items

    def task(self, query: Query) -> Hashable:
        """What two queries have in common that are the same task."""
        return query.constraints["item"]

    def compare(self, test: Sequence[Query], rl: Sequence[Query], sft: Sequence[Query]) -> str:
        """The sizes of the splits, and what they share.
        Raises UserError if an item is in both lists, and that is not AgentGym-RL's own leak."""
        both = {query.constraints["item"] for query in test} & {query.constraints["item"] for query in rl}
        if both and not self.has_leak:
            shared = f"the training list has {len(both)} of the test list's items, first {self.name}_{min(both)}"
            raise UserError(f"{shared}; take AgentGym-RL's lists as they are")
        tasks = {name: set(map(self.task, split)) for name, split in {"test": test, "RL": rl, "SFT": sft}.items()}
        counts = {(one, other): len(tasks[one] & tasks[other]) for one, other in combinations(tasks, 2)}
        told = "; ".join(
            f"{other} has {count} of the {one} items too" for (one, other), count in counts.items() if count
        )
        return f"{len(test)} test, {len(rl)} RL and {len(sft)} SFT items: {told or 'no two splits share one'}"

    def cut(self, queries: list[Query], count: int) -> list[Query]:
        """At most `count` of a column's test queries."""
        return queries[:count]

    def query(self, constraints: dict[str, int]) -> Query:
        item, *rest = constraints.values()
        query_id = ".".join([f"{self.name}_{item}", *map(str, rest)])
        return Query(query_id, self.name, self.column(item), "en", self.text(item), constraints)

    def has_truth(self, query: Query) -> bool:
        return "item" in query.constraints

    def replay_world(self) -> World:
        """A world to replay a trajectory in."""
        return self.world.from_config(self.environment, self.data.language)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> Progress:
        """Replays the actions in a fresh world; a turn without exactly one action counts as a refused one."""
        world = self.replay_world()
        world.reset(query)
        needed, fewest, seen = world.left, world.left, {world.state}
        actions = useful = refused = 0
        is_over = False
        for turn in read_turns(messages):
            actions += 1
            action = one_action(turn, self.world.read)
            is_over = action is not None and world.act(action).done
            if action is None or world.is_refused:
                refused += 1
                continue
            useful += world.left < fewest or world.state not in seen
            seen.add(world.state)
            fewest = min(fewest, world.left)
            if is_over:
                break
        return Progress(is_over, needed, needed - fewest, max(0, needed - world.left), actions, useful, refused)

    def solve(self, query: Query, environment: World, rng: random.Random, skill: float) -> Trajectory:
        """The expert's: each turn, with chance (1 - skill) / 2, something of no use in place of the best action."""
        messages, reward = prompt_messages(query, seen=environment.reset(query)), 0.0
        for _ in range(TURNS):
            thought, action = environment.best()
            if rng.random() < SLIPS * (1 - skill):
                action = environment.slip(rng)
            call = {"type": "function", "function": {"name": "act", "arguments": {"action": action}}}
            turn = {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": [call]}
            messages.append(turn)
            step = environment.call("act", {"action": action})
            messages.append(tool_message(step.observation))
            reward += step.reward
            if step.done:
                break
        return Trajectory(query.query_id, messages, "done" if step.done else "horizon", meta={"reward": reward})

    def splits(
        self, environment: World, watch: Callable[[list], Iterable] = iter, client: "LLMClient | None" = None
    ) -> Iterator[tuple[str, list[Any]]]:
        """The official test and RL items, at most `data.test_per_subtask` a column and `data.rl_size`;
        the expert's trajectories for SFT.

        What is wrong with the items is found, and what the splits share is told, before the first is played.
        """
        data, seed = self.data, f"{self.name}{self.data.seed}"
        items = [self.query({"item": item}) for item in self.items("test")]
        by_column = [[query for query in items if query.subtask == name] for name in self.subtasks]
        test = [query for queries in by_column for query in self.cut(queries, data.test_per_subtask)]
        rl = [self.query({"item": item}) for item in self.items("train")]
        random.Random(f"{seed}-rl").shuffle(rl)
        rl, sft = rl[: data.rl_size], list(map(self.query, islice(self.practice(), data.sft_size)))
        say(self.compare(test, rl, sft))
        yield "test_queries", test
        rng, total = random.Random(f"{seed}-baselines"), domain_rubric(self.name, "en").total
        baselines = []
        for query in watch(test):
            tries = range(data.baseline_attempts)
            solved = [self.solve(query, environment, rng, data.baseline_skill) for _ in tries]
            quality = [total(self.examine(query, trajectory.messages).dimensions()) for trajectory in solved]
            baselines.append(median_of(solved, quality).to_record())
        yield "test_baselines", baselines
        yield "rl_queries", rl
        rng = random.Random(f"{seed}-teacher")
        pairs = zip(watch(sft), teacher_skills(data, rng, len(sft)), strict=True)
        yield "sft", [self.solve(query, environment, rng, skill).to_record() for query, skill in pairs]
