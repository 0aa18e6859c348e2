"""ScienceWorld, AgentGym-RL's SciWorld: a text game of elementary science with a score from 0 to 100.

The game is a Java program from the package scienceworld. Actions go straight to that program, because the package's own
`step` also lists all valid actions and takes ten times as long. A game is a process that ends at `close`, or with the
process that started it. The observations hide the score. A game is deterministic, so the truth replays a trajectory, in
half a second.

An item is a variation of a task, counted through AgentGym's 23 of the 30 tasks. Without a user's copy of the official
lists, items are drawn from ScienceWorld's own parts (training, development, test) of each task's variations.
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
from typing import Any, NamedTuple, Self

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.agentgym.world import TOOLS, Progress, World, WorldDomain, item_of, read_whole_action
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory


class Task(NamedTuple):
    """A task with its number of variations: below `train` for training, from `test` on for tests."""

    name: str
    subtask: str  # column of AgentGym-RL's table
    variations: int
    train: int
    test: int

    def part(self, name: str) -> range:
        """Return ScienceWorld's variations for training ("train"), development ("between") or tests ("test")."""
        ends = {"train": (0, self.train), "between": (self.train, self.test), "test": (self.test, self.variations)}
        return range(*ends[name])


# consecutive tasks with equal numbers share a row
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
    ("lifespan-longest-lived lifespan-shortest-lived", "Lifespan", 125, 62, 93),
    ("lifespan-longest-lived-then-shortest-lived", "Lifespan", 125, 62, 93),
    ("identify-life-stages-1", "Life-stages", 14, 6, 9),
    ("identify-life-stages-2", "Life-stages", 10, 4, 6),
)
TASKS = tuple(Task(name, *numbers) for names, *numbers in _TASKS for name in names.split())
# number of AgentGym-RL's test items
COLUMNS = {"Test-Cond": 83, "Find": 44, "Measure-melting": 28, "Use-thermometer": 25, "Lifespan": 15, "Chem-Mix": 5}
TRAIN_COUNT = 2120  # number of its training items, some of tasks without a column
_FIRST = (0, *accumulate(task.variations for task in TASKS))  # item of each task's variation 0
ITEMS = _FIRST[-1]


def place_of(item: int) -> tuple[Task, int]:
    """Return (task, variation) of an item. Raises UserError if the item does not exist.

    >>> place_of(3491)[0].name, place_of(3491)[1]
    ('find-non-living-thing', 255)
    """
    if not 0 <= item < ITEMS:
        raise UserError(f"sciworld_{item} is not a valid item; valid ids are sciworld_0 to sciworld_{ITEMS - 1}")
    number = bisect_right(_FIRST, item) - 1
    return TASKS[number], item - _FIRST[number]


def items_of(part: str) -> dict[Task, list[int]]:
    """Return each task's items in the part "train", "between" or "test"."""
    return {task: [first + index for index in task.part(part)] for task, first in zip(TASKS, _FIRST, strict=False)}


MAX_MOVES = 100  # AgentGym's limit; the first look around counts as 1 move, waiting as 11
PATIENCE_S = 120  # without an answer for this long, a game counts as crashed
NOT_UNDERSTOOD = ("No known action matches that input.", "Ambiguous request:")
NEEDLESS = ("look around", "inventory", "examine everything")
# hashCode=2 makes an item deterministic: Java orders sets by object hashes, which otherwise are random
_JAVA = "-Xmx512m -XX:+UseSerialGC -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"


@cache
def java_fault() -> str:
    """Return why the java on the PATH does not run; "" if it runs."""
    try:
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (java.stderr.strip() or f"exit status {java.returncode}").splitlines()[0] if java.returncode else ""


class Game(World):
    """A running game. After an exception from py4j its process has ended or hangs; then call only `close`."""

    packages = {"scienceworld": "1.2.3", "py4j": "0.10.9.9"}
    read = staticmethod(read_whole_action)
    state = ("", "")  # the last action and its observation
    score = 0  # -100 after a wrong focus
    _solved: tuple[int, list[str]] = (-1, [])  # the last item that was solved, and its solution

    @classmethod
    def check_packages(cls) -> None:
        super().check_packages()
        if shutil.which("java") is None:
            remedy = "install a Java runtime, such as Debian's default-jre-headless"
            raise UserError(f"SciWorld needs Java, but no java is on the PATH; {remedy}")
        if fault := java_fault():
            raise UserError(f"SciWorld needs Java, but the java on the PATH does not run: {fault}; repair it")

    def __init__(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it also logs the errors that it raises
        options = {"cwd": BASEPATH, "die_on_exit": True, "enable_auth": True, "return_proc": True}
        port, token, self.process = launch_gateway(classpath=JAR_PATH, javaopts=_JAVA.split(), **options)
        # Without memory management the Java program keeps the few lists that it returned, and Python sends no message
        # for each object that it drops.
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
        """Start the item; return its task and the first view."""
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
    def subgoals_left(self) -> int:
        """Points missing from 100. The score counts subgoals; a wrong focus loses all of them."""
        return 100 - max(0, self.score)

    def best_action(self) -> tuple[str, str]:
        """Return the next action of the game's own solution.
        The first call for an item must precede its first action, because finding the solution restarts the item."""
        solution = self._solution(self._item)
        self._expected = solution[min(self._taken, len(solution) - 1)]
        return f"Next: {self._expected}.", self._expected

    def careless_action(self, rng: random.Random) -> str:
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
    """An `Environment` over one game. The game starts at the first `reset`, which takes seconds, and is then reused."""

    tools = TOOLS
    reusable = True
    needs_answer = False
    one_call_a_turn = True

    def __init__(self) -> None:
        self._is_closed, self._lock = False, Lock()

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: Any = None) -> Self:
        """Return an environment. Raises UserError if the package or Java is missing."""
        Game.check_packages()
        return cls()

    @cached_property
    def world(self) -> Game:
        """The game, started at the first access. Raises RuntimeError after `close`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this world is closed")
            return Game()

    async def reset(self, query: Query) -> str:
        return await asyncio.to_thread(lambda: self.world.reset(query))

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return await asyncio.to_thread(self.world.call, name, arguments)

    def score(self) -> float:
        """Return the game's score / 100: 1 for a completed task, -1 after a wrong focus."""
        return self.world.score / 100

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if world := self.__dict__.pop("world", None):
            world.close()


@dataclass(frozen=True)
class SciWorldProgress(Progress):
    """Counts from the replay of one trajectory; a subgoal is a point of the game's score, 0 to 100."""

    is_unseen: bool = False  # the item is in the official test list and not in the official training list

    def figures(self) -> dict[str, float]:
        figures = super().figures()
        return figures | ({"success_unseen": figures["success"]} if self.is_unseen else {})


class SciWorldDomain(WorldDomain):
    name = "sciworld"
    world = Game
    columns = COLUMNS
    train_count = TRAIN_COUNT
    item_count = ITEMS
    has_leak = True  # 61 items

    def __init__(self, environment: EnvironmentConfig, data: DataConfig):
        super().__init__(environment, data)
        self._replaying = Lock()

    def column(self, item: int) -> str:
        return place_of(item)[0].subtask

    def text(self, item: int) -> str:
        return f"Carry out this task of elementary science ({place_of(item)[0].name.replace('-', ' ')})."

    def default_items(self, split: str) -> tuple[int, ...]:
        """Return all training items, or random test items: `COLUMNS` per column, alternating between its tasks."""
        if split == "train":
            return tuple(chain.from_iterable(items_of("train").values()))
        rng, drawn = random.Random(f"sciworld{self.data.seed}-{split}"), []
        for column, count in COLUMNS.items():
            pools = [rng.sample(pool, len(pool)) for task, pool in items_of("test").items() if task.subtask == column]
            in_turn = (item for turn in zip_longest(*pools) for item in turn if item is not None)
            drawn += islice(in_turn, count)
        return tuple(drawn)

    def practice(self) -> Iterator[dict[str, int]]:
        """Yield items of ScienceWorld's development part, shuffled. Raises UserError after the last one."""
        used = {*self.items("test"), *self.items("train")}
        items = [item for item in chain.from_iterable(items_of("between").values()) if item not in used]
        yield from ({"item": item} for item in random.Random(f"sciworld{self.data.seed}-sft").sample(items, len(items)))
        available = f"SciWorld has only {len(items)} items outside training and tests"
        raise UserError(f"data.sft_size={self.data.sft_size}: {available}; lower it")

    @cached_property
    def _training_items(self) -> frozenset[int]:
        """Items of the official training list; empty without a user's copy."""
        return frozenset(self.items("train") if self.data.items else ())

    @cached_property
    def _game(self) -> Game:
        return super().replay_world()

    def replay_world(self) -> Game:
        return self._game

    def solve(self, query: Query, environment: SciWorldEnvironment, rng: random.Random, skill: float) -> Trajectory:
        """Play the game's own solution, at most `TURNS` turns."""
        return super().solve(query, environment.world, rng, skill)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> SciWorldProgress:
        """Replay the actions in a game that is kept for replays; after a crash, once more in a new game."""
        from py4j.protocol import Py4JError

        with self._replaying:
            try:
                progress = super().examine(query, messages)
            except Py4JError:
                self._game.close()
                del self._game
                progress = super().examine(query, messages)
        is_unseen = bool(self._training_items) and query.constraints["item"] not in self._training_items
        fields = vars(progress) | {"success": progress.kept == progress.needed, "is_unseen": is_unseen}
        return SciWorldProgress(**fields)
