"""ScienceWorld, AgentGym-RL's SciWorld: elementary science in a text game, one action a turn,
with a score from 0 to 100.

The game is a Java program that the package scienceworld brings. The package's own `step` lists all valid actions after
each and takes ten times as long, so actions go to the Java program bare. Each game is a process, which ends at `close`,
or with the process that started it. The world does not show its score, and is the same each time: the truth takes the
actions of a trajectory once more, in half a second.

An item is a variation of a task, counted through AgentGym's 23 of the 30 tasks. Without a user's copy of the official
lists, items are drawn from ScienceWorld's own parts of each task's variations.
"""

import asyncio
import logging
import random
import shutil
import subprocess
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain, islice, zip_longest
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.agentgym.world import TOOLS, Progress, World, WorldDomain, item_of, read_whole_action
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient


class Task(NamedTuple):
    """A task: its name, its column of AgentGym-RL's table, and how many variations it has, of which the first `train`
    are for training, and those from `test` on for tests.
    """

    name: str
    subtask: str
    variations: int
    train: int
    test: int

    def part(self, name: str) -> range:
        """Variations for training ("train"), for tests ("test") or for neither ("between"), as ScienceWorld has it."""
        ends = {"train": (0, self.train), "between": (self.train, self.test), "test": (self.test, self.variations)}
        return range(*ends[name])


# tasks that stand side by side with the same numbers
_TASKS = (
    ("boil melt freeze change-the-state-of-matter-of", "Change-state", 30, 14, 21),
    ("use-thermometer", "Use-thermometer", 540, 270, 405),
    ("measure-melting-point-known-substance", "Measure-melting", 436, 218, 327),
    ("measure-melting-point-unknown-substance", "Measure-melting", 300, 150, 225),
    ("power-component power-component-renewable-vs-nonrenewable-energy", "Circuit", 20, 10, 15),
    ("test-conductivity", "Test-Cond", 900, 450, 675),
    ("test-conductivity-of-unknown-substances", "Test-Cond", 600, 300, 450),
    ("find-living-thing find-non-living-thing find-plant find-animal", "Find", 300, 150, 225),
    ("chemistry-mix", "Chem-Mix", 32, 16, 24),
    ("chemistry-mix-paint-secondary-color chemistry-mix-paint-tertiary-color", "Chem-Mix", 36, 18, 27),
    (
        "lifespan-longest-lived lifespan-shortest-lived lifespan-longest-lived-then-shortest-lived",
        "Lifespan",
        125,
        62,
        93,
    ),
    ("identify-life-stages-1", "Life-stages", 14, 6, 9),
    ("identify-life-stages-2", "Life-stages", 10, 4, 6),
)
TASKS = tuple(Task(name, *numbers) for names, *numbers in _TASKS for name in names.split())
# AgentGym-RL's test items
COLUMNS = {"Test-Cond": 83, "Find": 44, "Measure-melting": 28, "Use-thermometer": 25, "Lifespan": 15, "Chem-Mix": 5}
TRAIN_COUNT = 2120  # its items for training, some of them of tasks that are in no column
_FIRST = (0, *accumulate(task.variations for task in TASKS))  # item of each task's variation 0
ITEMS = _FIRST[-1]


def place_of(item: int) -> tuple[Task, int]:
    """(task, variation) of an item.

    >>> place_of(3491)[0].name, place_of(3491)[1]
    ('find-non-living-thing', 255)
    """
    if not 0 <= item < ITEMS:
        raise UserError(f"sciworld_{item} is no item: they go from sciworld_0 to sciworld_{ITEMS - 1}")
    number = bisect_right(_FIRST, item) - 1
    return TASKS[number], item - _FIRST[number]


def items_of(part: str) -> dict[Task, list[int]]:
    """The items of a part of each task's variations."""
    return {task: [first + one for one in task.part(part)] for task, first in zip(TASKS, _FIRST, strict=False)}


MAX_MOVES = 100  # after which AgentGym's worlds are over; to look around at first is one, to wait eleven
PATIENCE_S = 120  # a game that does not answer for so long has crashed
NOT_UNDERSTOOD = ("No known action matches that input.", "Ambiguous request:")
NEEDLESS = ("look around", "inventory", "examine everything")
# hashCode=2: objects have no number of their own, by which Java would order sets,
# so that an item is the same world each time
_JAVA = "-Xmx512m -XX:+UseSerialGC -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"


@cache
def java_fault() -> str:
    """Why the java on the PATH does not run; empty if it does."""
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or f"it ends with {done.returncode}").splitlines()[0] if done.returncode else ""


class Game(World):
    """A running game. Whatever it raises means that its process is gone, or no longer answers:
    then only `close` is of use."""

    packages = {"scienceworld": "1.2.3", "py4j": "0.10.9.9"}
    read = staticmethod(read_whole_action)
    state = ("", "")  # the last action and what it showed: the same once more is of no use
    score = 0  # -100 after a wrong focus
    _solved: tuple[int, list[str]] = (-1, [])  # the last item whose solution was asked for, and that

    @classmethod
    def check_packages(cls) -> None:
        super().check_packages()
        if shutil.which("java") is None:
            how = "install a Java runtime, such as Debian's default-jre-headless"
            raise UserError(f"SciWorld needs Java, and there is no java on the PATH; {how}")
        if fault := java_fault():
            raise UserError(f"SciWorld needs Java, and the java on the PATH does not run: {fault}")

    def __init__(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what it raises
        options = {"cwd": BASEPATH, "die_on_exit": True, "enable_auth": True, "return_proc": True}
        port, token, self.process = launch_gateway(classpath=JAR_PATH, javaopts=_JAVA.split(), **options)
        # Without memory management the Java program keeps what it returned, a list now and then, and is not told of
        # each object that Python drops.
        options = {"port": port, "auth_token": token, "read_timeout": PATIENCE_S, "enable_memory_management": False}
        gateway = JavaGateway(gateway_parameters=GatewayParameters(**options))
        self.close = weakref.finalize(self, self._end, self.process, gateway)
        self.server = gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @staticmethod
    def _end(process: subprocess.Popen, gateway: Any) -> None:
        process.kill()
        process.wait()
        process.stdin.close()
        gateway.close()

    def reset(self, query: Query) -> str:
        """The item's task, and what is seen first."""
        self._item, self._taken, self._expected = item_of(query, ITEMS), 0, ""
        seen = self._load(self._item)
        return f"{self.server.getTaskDescription()}\n{seen}"

    def act(self, action: str) -> Step:
        observation, before = self.server.step(action), self.score
        self.score = round(100 * self.server.getScore())
        self.is_refused = observation.startswith(NOT_UNDERSTOOD)
        self.state = action, observation
        self._taken += action == self._expected
        is_over = self.server.getCompleted() or self.score < 0 or self.server.getNumMoves() > MAX_MOVES
        return Step(observation, is_over, (self.score - before) / 100)

    @property
    def left(self) -> int:
        """Points of the score, which counts subgoals; a wrong focus loses all."""
        return 100 - max(0, self.score)

    def best(self) -> tuple[str, str]:
        """The next action of the game's own solution. To be asked before the first action:
        finding the solution starts the item anew."""
        solution = self._solution(self._item)
        self._expected = solution[min(self._taken, len(solution) - 1)]
        return f"Next: {self._expected}.", self._expected

    def slip(self, rng: random.Random) -> str:
        return rng.choice(NEEDLESS)

    def _load(self, item: int, with_solution: bool = False) -> str:
        task, variation = place_of(item)
        self.server.load(task.name, variation, "", with_solution)
        seen = self.server.step("look around")
        self.score, self.state = 0, ("look around", seen)
        return seen

    def _solution(self, item: int) -> list[str]:
        if self._solved[0] != item:
            self._load(item, with_solution=True)
            self._solved = item, list(self.server.getGoldActionSequence())
            self._load(item)
        return self._solved[1]


class SciWorldEnvironment:
    """An `Environment` over a game that starts with the first `reset`, in seconds,
    and then serves one trajectory after another."""

    tools = TOOLS
    reusable = True
    needs_answer = False
    one_call_a_turn = True

    def __init__(self) -> None:
        self._is_closed, self._changing = False, Lock()

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> Self:
        """Raises UserError if the package or Java is missing."""
        Game.check_packages()
        return cls()

    @cached_property
    def world(self) -> Game:
        """Raises RuntimeError after `close`."""
        with self._changing:
            if self._is_closed:
                raise RuntimeError("this world is closed")
            return Game()

    async def reset(self, query: Query) -> str:
        return await asyncio.to_thread(lambda: self.world.reset(query))

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return await asyncio.to_thread(self.world.call, name, arguments)

    def score(self) -> float:
        """The game's by 100: 1 for a task that is done, -1 after a wrong focus."""
        return self.world.score / 100

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
        if world := self.__dict__.pop("world", None):
            world.close()


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
        """So many test items of each column, the tasks of a column in turn; all training items."""
        if split == "train":
            return tuple(chain.from_iterable(items_of("train").values()))
        rng, drawn = random.Random(f"sciworld{self.data.seed}-{split}"), []
        for column, count in COLUMNS.items():
            pools = [rng.sample(pool, len(pool)) for task, pool in items_of("test").items() if task.subtask == column]
            in_turn = (item for turn in zip_longest(*pools) for item in turn if item is not None)
            drawn += islice(in_turn, count)
        return tuple(drawn)

    def practice(self) -> Iterator[dict[str, int]]:
        """Items that ScienceWorld has for neither training nor tests: its development part."""
        taken = {*self.items("test"), *self.items("train")}
        items = [item for item in chain.from_iterable(items_of("between").values()) if item not in taken]
        yield from ({"item": item} for item in random.Random(f"sciworld{self.data.seed}-sft").sample(items, len(items)))
        rest = f"SciWorld has {len(items)} items that are neither RL's nor tests"
        raise UserError(f"data.sft_size={self.data.sft_size}: {rest}; lower it")

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
