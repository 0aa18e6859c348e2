"""A browser through BrowserGym: pages of MiniWoB in a real Chromium, acted on by BrowserGym's calls."""

import asyncio
import re
import shutil

import psutil
import pytest

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.environments import environment_maker
from arenarl.rollout.environment import ToolCrash, step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query
from examples import browsergym_world

make = environment_maker(EnvironmentConfig(name="examples.browsergym_world:BrowserGymEnvironment"), "en")


def on(task, **constraints):
    return Query(task, "browser", task, "en", "Do what the page asks.", {"task": task} | constraints)


def children():
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    }


@pytest.fixture
def environment():
    pytest.importorskip("browsergym.miniwob")
    if not browsergym_world._has_browser() and shutil.which("chromium") is None:
        pytest.skip("no Chromium")
    before = children()
    one = make()
    yield one
    one.close()
    assert children() <= before


async def act(environment, *actions):
    return [await step(environment, "act", {"action": action}) for action in actions]


@pytest.mark.browser
def test_a_page_is_filled_in_sent_and_pays_and_another_follows_in_the_same_environment(environment):
    async def fill():
        seen = await environment.reset(on("miniwob.enter-text", seed=3))
        field, button, wanted = (
            re.search(r"\[(\d+)\] textbox", seen)[1],
            re.search(r"\[(\d+)\] button 'Submit'", seen)[1],
            seen.split('"')[1],
        )
        typed, sent = await act(environment, f"fill('{field}', '{wanted}')", f"click('{button}')")
        assert wanted in typed.observation and not typed.done and (sent.done, sent.reward) == (True, 1.0)
        assert await environment.reset(on("miniwob.enter-text", seed=3)) == seen
        [empty] = await act(environment, f"click('{button}')")
        assert (empty.done, empty.reward) == (True, 0.0)
        again = await environment.reset(on("miniwob.click-test"))
        [clicked] = await act(environment, f"click('{re.search(r'.([0-9]+). button', again)[1]}')")
        assert clicked.reward == 1.0

    asyncio.run(fill())


@pytest.mark.browser
def test_a_wrong_action_is_told_and_changes_nothing_and_a_dead_browser_is_a_crash(environment):
    async def wrong():
        await environment.reset(on("miniwob.click-test", seed=1))
        steps = await act(environment, "click('999')", "jump()", "import os", "x" * 400)
        assert all(one.observation.startswith("Error: ") and not one.done for one in steps)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        with pytest.raises(ToolCrash):
            await act(environment, "noop()")

    asyncio.run(wrong())


@pytest.mark.browser
@pytest.mark.parametrize(
    ("query", "said"),
    [
        (on("miniwob.no-such-page"), "BrowserGym has no task miniwob.no-such-page"),
        (on("nothing.1"), "pip install --no-deps browsergym-nothing==0.14.3"),
        (on("click-test"), "constraints must have a task, such as miniwob.click-test"),
        (on("miniwob.click-test", seed="3"), "and may have a seed, a whole number"),
    ],
)
def test_a_task_that_cannot_be_had_is_one_line(environment, query, said):
    with pytest.raises(UserError, match=said):
        asyncio.run(environment.reset(query))


@pytest.mark.browser
@pytest.mark.parametrize(("has_data", "said"), [(True, "WA_"), (False, "browsergym-webarena could not be loaded: ")])
def test_webarena_without_its_servers_or_its_data_is_one_line(environment, has_data, said, tmp_path, monkeypatch):
    pytest.importorskip("webarena")
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path) if has_data else "")
    # the data is fetched as the package is loaded, wherever there is a network
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=said) as failed:
        asyncio.run(environment.reset(on("webarena.310")))
    assert "\n" not in str(failed.value)


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(browsergym_world, "need_package", browsergym_world.need_package.__wrapped__)
    monkeypatch.setattr(browsergym_world, "version", lambda name: "0.1.0")
    with pytest.raises(UserError, match="browsergym-core is 0.1.0, not 0.14.3; .* pip install"):
        make()
    monkeypatch.setattr(browsergym_world, "version", lambda name: "0.14.3")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "no/such/folder")
    with pytest.raises(UserError, match="BrowserGym needs a browser: playwright install chromium"):
        make()
