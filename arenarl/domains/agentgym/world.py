"""What AgentGym-RL's worlds have in common: an environment with one action a turn, a truth by replay, a scripted
expert's trajectories, data.

The truth is what share of an item's subgoals were reached, less the actions that were wasted or refused: it tells apart
trajectories of which the world's reward says the same.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym.items import TOOLS, need_package, official_items, one_action, read_action
from arenarl.domains.domain import Domain, Truth, median_of, teacher_skills
from arenarl.domains.rubrics import domain_rubric
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.trajectory import Query, Trajectory, prompt_messages, read_turns, tool_message

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

HERE = Path(__file__).parent
TURNS = 20  # of an expert's trajectory, at most: the paper's rounds in TextCraft and BabyAI
SLIPS = 0.5  # chance that an expert without any skill does something else than the best, each turn


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
        if unknown := [name for name in chosen if name not in self.columns]:
            raise UserError(f"data.subtasks: {self.name} has no {unknown[0]}; choose of {', '.join(self.columns)}")
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
        items = tuple(item for item, column in columns.items() if self.data.subtasks is None or column in self.subtasks)
        if not items:
            raise UserError(
                f"data.subtasks={self.data.subtasks}: {self.name}'s {split} list has no item of these; choose others"
            )
        return items

    def task(self, query: Query) -> Hashable:
        """What two queries have in common that are the same task."""
        return query.constraints["item"]

    def compare(self, test: Sequence[Query], rl: Sequence[Query], sft: Sequence[Query]) -> str:
        """The sizes of the splits, and what they share.
        Raises UserError if an item is in both lists, and that is not AgentGym-RL's own leak."""
        numbers = [{query.constraints["item"] for query in split} for split in (test, rl)]
        if not self.has_leak and (both := set.intersection(*numbers)):
            first = f"{self.name}_{min(both)}"
            raise UserError(
                f"the training list has {len(both)} of the test list's items, first {first}; "
                "take AgentGym-RL's lists as they are"
            )
        tasks = {
            name: {self.task(query) for query in split} for name, split in (("test", test), ("RL", rl), ("SFT", sft))
        }
        shared = [(len(tasks[one] & tasks[other]), one, other) for one, other in combinations(tasks, 2)]
        told = "; ".join(f"{other} has {count} of the {one} items too" for count, one, other in shared if count)
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
            function = {"type": "function", "function": {"name": "act", "arguments": {"action": action}}}
            messages.append(
                {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": [function]}
            )
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
        test = [self.query({"item": item}) for item in self.items("test")]
        test = [
            query
            for name in self.subtasks
            for query in self.cut([one for one in test if one.subtask == name], data.test_per_subtask)
        ]
        rl = [self.query({"item": item}) for item in self.items("train")]
        random.Random(f"{seed}-rl").shuffle(rl)
        rl, practice = rl[: data.rl_size], self.practice()
        sft = [self.query(next(practice)) for _ in range(data.sft_size)]
        say(self.compare(test, rl, sft))
        yield "test_queries", test
        rng = random.Random(f"{seed}-baselines")
        yield "test_baselines", [self._median(query, environment, rng).to_record() for query in watch(test)]
        yield "rl_queries", rl
        rng = random.Random(f"{seed}-teacher")
        skills = teacher_skills(data, rng, len(sft))
        yield (
            "sft",
            [
                self.solve(query, environment, rng, skill).to_record()
                for query, skill in zip(watch(sft), skills, strict=True)
            ],
        )

    def _median(self, query: Query, environment: World, rng: random.Random) -> Trajectory:
        """The attempt of median quality."""
        solved = [
            self.solve(query, environment, rng, self.data.baseline_skill) for _ in range(self.data.baseline_attempts)
        ]
        total = domain_rubric(self.name, "en").total
        quality = [total(self.examine(query, trajectory.messages).dimensions()) for trajectory in solved]
        return median_of(solved, quality)
