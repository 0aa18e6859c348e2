"""ScienceWorld, AgentGym-RL's SciWorld: elementary science in a text game, one action a turn,
with a score from 0 to 100.

The game is a Java program that the package scienceworld brings. The package's own `step` lists all valid actions after
each and takes ten times as long, so actions go to the Java program bare. Each game is a process, which ends at `close`,
or with the process that started it.
"""

import asyncio
import logging
import random
import shutil
import subprocess
import weakref
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym.items import TOOLS, item_of, read_whole_action
from arenarl.domains.agentgym.sciworld_items import ITEMS, place_of
from arenarl.domains.agentgym.world import World
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

    from arenarl.llm.client import LLMClient

MAX_MOVES = 100  # after which AgentGym's worlds are over; to look around at first is one, to wait eleven
PATIENCE_S = 120  # a game that does not answer for so long has crashed
NOT_UNDERSTOOD = ("No known action matches that input.", "Ambiguous request:")
NEEDLESS = ("look around", "inventory", "examine everything")
_JAVA = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
# hashCode=2: objects have no number of their own, by which Java would order sets,
# so that an item is the same world each time


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
            raise UserError(
                "SciWorld needs Java, and there is no java on the PATH; install a Java runtime, "
                "such as Debian's default-jre-headless"
            )
        if fault := java_fault():
            raise UserError(f"SciWorld needs Java, and the java on the PATH does not run: {fault}")

    def __init__(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what it raises
        port, token, self.process = launch_gateway(
            classpath=JAR_PATH, javaopts=list(_JAVA), die_on_exit=True, enable_auth=True, cwd=BASEPATH, return_proc=True
        )
        # Without memory management the Java program keeps what it returned, a list now and then, and is not told of
        # each object that Python drops.
        parameters = GatewayParameters(
            port=port, auth_token=token, read_timeout=PATIENCE_S, enable_memory_management=False
        )
        gateway = JavaGateway(gateway_parameters=parameters)
        self.close = weakref.finalize(self, _end, self.process, gateway)
        self.server = gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

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


def _end(process: subprocess.Popen, gateway: "JavaGateway") -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    gateway.close()


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
