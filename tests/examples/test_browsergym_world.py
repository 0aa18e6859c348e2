"""A browser through BrowserGym: MiniWoB's pages in a real Chromium, with BrowserGym's calls."""

import asyncio
import re
import shutil

import psutil
import pytest

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym import world
from arenarl.domains.environments import environment_maker
from arenarl.rollout.environment import ToolCrash, step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query
from examples import browsergym_world

make = environment_maker(EnvironmentConfig(name="examples.browsergym_world:BrowserGymEnvironment"), "en")


def on(task, **constraints):
    return Query(task, "browser", task, "en", "Do what the page asks.", {"task": task} | constraints)


def children():
    processes = psutil.Process().children(recursive=True)
    return {process.pid for process in processes if "resource_tracker" not in " ".join(process.cmdline())}


@pytest.fixture
def environment():
    pytest.importorskip("browsergym.miniwob")
    if not browsergym_world._has_browser() and shutil.which("chromium") is None:
        pytest.skip("no Chromium")
    before, environment = children(), make()
    yield environment
    environment.close()
    assert children() <= before


async def act(environment, *actions):
    return [await step(environment, "act", {"action": action}) for action in actions]


@pytest.mark.browser
def test_a_page_is_filled_in_and_rewarded_and_the_environment_can_be_used_again(environment):
    async def fill():
        page = await environment.reset(on("miniwob.enter-text", seed=3))
        field, button = (re.search(rf"\[(\d+)\] {kind}", page)[1] for kind in ("textbox", "button 'Submit'"))
        text = page.split('"')[1]
        typed, sent = await act(environment, f"fill('{field}', '{text}')", f"click('{button}')")
        assert text in typed.observation and not typed.done and (sent.done, sent.reward) == (True, 1.0)
        assert await environment.reset(on("miniwob.enter-text", seed=3)) == page
        [empty] = await act(environment, f"click('{button}')")
        assert (empty.done, empty.reward) == (True, 0.0)
        page = await environment.reset(on("miniwob.click-test"))
        [clicked] = await act(environment, f"click('{re.search(r'.([0-9]+). button', page)[1]}')")
        assert clicked.reward == 1.0

    asyncio.run(fill())


@pytest.mark.browser
def test_a_wrong_action_is_an_observation_and_a_dead_browser_a_crash(environment):
    async def wrong():
        await environment.reset(on("miniwob.click-test", seed=1))
        steps = await act(environment, "click('999')", "jump()", "import os", "x" * 400)
        assert all(step.observation.startswith("Error: ") and not step.done for step in steps)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        with pytest.raises(ToolCrash):
            await act(environment, "noop()")

    asyncio.run(wrong())


@pytest.mark.browser
@pytest.mark.parametrize(
    ("query", "message"),
    [
        (on("miniwob.no-such-page"), "BrowserGym has no task miniwob.no-such-page"),
        (on("nothing.1"), "pip install --no-deps browsergym-nothing==0.14.3"),
        (on("click-test"), "constraints must have a task, such as miniwob.click-test"),
        (on("miniwob.click-test", seed="3"), "and may have a seed, a whole number"),
    ],
)
def test_an_unknown_task_is_a_one_line_error(environment, query, message):
    with pytest.raises(UserError, match=message):
        asyncio.run(environment.reset(query))


@pytest.mark.browser
@pytest.mark.parametrize(("has_data", "message"), [(True, "WA_"), (False, "browsergym-webarena could not be loaded: ")])
def test_webarena_without_servers_or_data_is_a_one_line_error(environment, has_data, message, tmp_path, monkeypatch):
    pytest.importorskip("webarena")
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path) if has_data else "")
    # without this proxy, the import of the package would download the data
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=message) as error:
        asyncio.run(environment.reset(on("webarena.310")))
    assert "\n" not in str(error.value)


def test_a_missing_package_or_browser_is_a_one_line_error(monkeypatch):
    monkeypatch.setattr(browsergym_world, "need_package", browsergym_world.need_package.__wrapped__)
    monkeypatch.setattr(world, "version", lambda name: "0.1.0")
    with pytest.raises(UserError, match="browsergym-core is 0.1.0, not 0.14.3; .* pip install"):
        make()
    monkeypatch.setattr(world, "version", lambda name: "0.14.3")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "no/such/folder")
    with pytest.raises(UserError, match="BrowserGym needs a browser: playwright install chromium"):
        make()
