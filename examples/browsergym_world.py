"""A browser as an environment of your own, through BrowserGym: WebArena's tasks, MiniWoB's pages, and others.

    python train_rl.py --config mine.yaml --set environment.name=examples.browsergym_world:BrowserGymEnvironment

A query's constraints name the `task` as BrowserGym does, without the first part ("webarena.310", "miniwob.click-test"),
and the `seed` of a task that has several forms. The policy sees the goal and the page's accessibility tree, and acts by
BrowserGym's calls. Playwright wants one process per browser, so each environment has its own; one that dies takes no
other along. docs/domains.md says what to install.
"""

import asyncio
import importlib
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from arenarl.config.schema import EnvironmentConfig
from arenarl.rollout.environment import Step, ToolError, check_call, tool_schema
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

# alone it wants an older lxml
INSTALL = "pip install --no-deps browsergym-core==0.14.3 && pip install playwright==1.44 beautifulsoup4 pyparsing"
LONGEST = 20_000  # characters of a page that are shown. Our choice
LONGEST_ACTION = 300  # characters
PLAYWRIGHTS = Path.home() / ".cache" / "ms-playwright"  # where `playwright install chromium` puts its browser


class BrowserGymEnvironment:
    """Start a process with the first `reset`, and a browser with each.

    Raises:
        UserError: BrowserGym or a browser is missing.
    """

    tools = [
        tool_schema(
            "act",
            "Does one action in the world.",
            {"action": {"type": "string", "description": "in the words of the rules"}},
        )
    ]
    reusable = True
    needs_answer = False
    one_call_a_turn = True

    def __init__(self, config: EnvironmentConfig, language: str):
        need_package("browsergym-core", "0.14.3", INSTALL)
        if not _has_browser() and shutil.which("chromium") is None:
            raise UserError("BrowserGym needs a browser: playwright install chromium, or Debian's package chromium")
        self._process = ProcessPoolExecutor(1, get_context("spawn"))

    async def reset(self, query: Query) -> str:
        """The goal and the page. Raises UserError for a task that cannot be had."""
        task, seed = query.constraints.get("task"), query.constraints.get("seed")
        if not isinstance(task, str) or "." not in task or type(seed) not in (int, type(None)):
            raise UserError(
                f"query {query.query_id}: constraints must have a task, such as miniwob.click-test, "
                "and may have a seed, a whole number"
            )
        return await self._do(_begin, task, seed)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        action = check_call(self.tools, name, arguments)["action"].strip()
        if len(action) > LONGEST_ACTION:
            raise ToolError(f"an action has at most {LONGEST_ACTION} characters.")
        return await self._do(_act, action)

    async def _do(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._process, function, *arguments)

    def close(self) -> None:
        """End the browser and its process."""
        try:
            self._process.submit(_end).result()
        except Exception:  # it is gone already
            pass
        self._process.shutdown()


@cache
def need_package(name: str, pinned: str, how: str) -> None:
    """Raise UserError if the package is missing or of another version."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    if found != pinned:
        raise UserError(
            f"{name} {f'is {found}, not {pinned}' if found else 'is not installed'}; install it with: {how}"
        )


_open: list[Any] = []  # in a browser's own process: BrowserGym's environment


def _begin(task: str, seed: int | None) -> str:
    _end()
    family = task.partition(".")[0]
    _prepare(family)
    try:
        importlib.import_module(f"browsergym.{family}")
    except ImportError as error:
        raise UserError(f"{task}: {error}; pip install --no-deps browsergym-{family}==0.14.3") from error
    except Exception as error:  # WebArena's package fetches data of its own as it is loaded
        raise UserError(f"{task}: browsergym-{family} could not be loaded: {_in_one_line(error)}") from error
    import gymnasium

    try:
        _open.append(gymnasium.make(f"browsergym/{task}", headless=True))
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(f"BrowserGym has no task {task}: {error}") from error
    try:
        seen, _ = _open[0].reset(seed=seed)
    except AssertionError as error:  # so it says that an address is not set
        raise UserError(f"{task}: {_in_one_line(error)}") from error
    return f"{seen['goal']}\n{_shown(seen)}"


def _act(action: str) -> Step:
    seen, reward, is_met, is_cut, _ = _open[0].step(action)
    return Step(_shown(seen), is_met or is_cut, float(reward))


def _end() -> None:
    if _open:
        _open.pop().close()


def _shown(seen: dict[str, Any]) -> str:
    """What went wrong with the last action, and the page; of a long one the beginning."""
    from browsergym.utils.obs import flatten_axtree_to_str

    page = flatten_axtree_to_str(seen["axtree_object"])
    error = f"Error: {seen['last_action_error']}\n" if seen["last_action_error"] else ""
    return error + (page if len(page) <= LONGEST else f"{page[:LONGEST]}\n… {len(page) - LONGEST} characters more")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _has_browser() -> bool:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or PLAYWRIGHTS
    return folder == "0" or any(Path(folder).glob("chromium-*"))  # 0: beside the package itself


def _prepare(family: str) -> None:
    """MiniWoB's pages are those of its package, if no server is named;
    Debian's Chromium stands in where Playwright has no browser."""
    if family == "miniwob" and not os.environ.get("MINIWOB_URL"):
        need_package("miniwob", "1.1.0", "pip install miniwob==1.1.0")
        import miniwob

        os.environ["MINIWOB_URL"] = (Path(miniwob.__file__).parent / "html" / "miniwob").as_uri() + "/"
    if not _has_browser():
        from browsergym.core import _get_global_playwright

        os.environ["PLAYWRIGHT_BROWSERS_PATH"] = tempfile.mkdtemp(prefix="browsers-")
        place = Path(_get_global_playwright().chromium.executable_path)
        place.parent.mkdir(parents=True)
        place.symlink_to(shutil.which("chromium"))
