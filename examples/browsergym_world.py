"""A browser as your own environment, through BrowserGym: WebArena, MiniWoB and others.

    python train_rl.py --config mine.yaml --set environment.name=examples.browsergym_world:BrowserGymEnvironment

A query's constraints hold the `task` by BrowserGym's name without "browsergym/" ("webarena.310", "miniwob.click-test"),
and the `seed` of a task with several forms. The policy reads the goal and the page's accessibility tree, and acts by
BrowserGym's calls. Playwright needs one process per browser, so each environment has its own, and a crash affects only
one environment. docs/domains.md lists the packages to install.
"""

import asyncio
import importlib
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym.world import TOOLS, need_package, read_whole_action
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

# --no-deps, because its dependencies pin an older lxml
INSTALL = "pip install --no-deps browsergym-core==0.14.3 && pip install playwright==1.44 beautifulsoup4 pyparsing"
LONGEST = 20_000  # characters of a page in an observation. Our choice
PLAYWRIGHTS = Path.home() / ".cache" / "ms-playwright"  # the target of `playwright install chromium`


class BrowserGymEnvironment:
    """An environment that starts a process at its first `reset`, and a new browser at every `reset`.

    The constructor raises UserError if BrowserGym or a browser is missing.
    """

    tools = TOOLS
    reusable = True
    needs_answer = False
    one_call_a_turn = True

    def __init__(self, config: EnvironmentConfig, language: str):
        need_package("browsergym-core", "0.14.3", f"it with: {INSTALL}")
        if not _has_browser() and shutil.which("chromium") is None:
            raise UserError("BrowserGym needs a browser: playwright install chromium, or Debian's package chromium")
        self._process = ProcessPoolExecutor(1, get_context("spawn"))

    async def reset(self, query: Query) -> str:
        """Return the goal and the page; raise UserError for a task that does not exist or cannot start."""
        task, seed = query.constraints.get("task"), query.constraints.get("seed")
        if not isinstance(task, str) or "." not in task or type(seed) not in (int, type(None)):
            rule = "constraints must have a task, such as miniwob.click-test, and may have a seed, a whole number"
            raise UserError(f"query {query.query_id}: {rule}")
        return await self._run(_begin, task, seed)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return await self._run(_act, read_whole_action(name, arguments))

    async def _run(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._process, function, *arguments)

    def close(self) -> None:
        """End the browser and its process."""
        try:
            self._process.submit(_end).result()
        except Exception:  # the process has already died
            pass
        self._process.shutdown()


_open: list[Any] = []  # BrowserGym's environment, in the browser's process


def _begin(task: str, seed: int | None) -> str:
    _end()
    family = task.partition(".")[0]
    _prepare(family)
    try:
        importlib.import_module(f"browsergym.{family}")
    except ImportError as error:
        raise UserError(f"{task}: {error}; pip install --no-deps browsergym-{family}==0.14.3") from error
    except Exception as error:  # WebArena's package downloads data on import
        raise UserError(f"{task}: browsergym-{family} could not be loaded: {error}") from error
    import gymnasium

    try:
        _open.append(gymnasium.make(f"browsergym/{task}", headless=True))
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(f"BrowserGym has no task {task}: {error}") from error
    try:
        state, _ = _open[0].reset(seed=seed)
    except AssertionError as error:  # a server's address is not set
        raise UserError(f"{task}: {error}") from error
    return f"{state['goal']}\n{_observation(state)}"


def _act(action: str) -> Step:
    state, reward, terminated, truncated, _ = _open[0].step(action)
    return Step(_observation(state), terminated or truncated, float(reward))


def _end() -> None:
    if _open:
        _open.pop().close()


def _observation(state: dict[str, Any]) -> str:
    """Return the error of the last action, if any, and the page, cut to LONGEST characters."""
    from browsergym.utils.obs import flatten_axtree_to_str

    page = flatten_axtree_to_str(state["axtree_object"])
    error = f"Error: {state['last_action_error']}\n" if state["last_action_error"] else ""
    return error + (page if len(page) <= LONGEST else f"{page[:LONGEST]}\n… {len(page) - LONGEST} characters more")


def _has_browser() -> bool:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or PLAYWRIGHTS
    return folder == "0" or any(Path(folder).glob("chromium-*"))  # 0: inside the playwright package


def _prepare(family: str) -> None:
    """Point MiniWoB to its package's pages unless MINIWOB_URL is set, and Playwright to Debian's Chromium if needed."""
    if family == "miniwob" and not os.environ.get("MINIWOB_URL"):
        need_package("miniwob", "1.1.0", "it with: pip install miniwob==1.1.0")
        import miniwob

        os.environ["MINIWOB_URL"] = (Path(miniwob.__file__).parent / "html" / "miniwob").as_uri() + "/"
    if not _has_browser():
        from browsergym.core import _get_global_playwright

        os.environ["PLAYWRIGHT_BROWSERS_PATH"] = tempfile.mkdtemp(prefix="browsers-")
        place = Path(_get_global_playwright().chromium.executable_path)
        place.parent.mkdir(parents=True)
        place.symlink_to(shutil.which("chromium"))
