"""MiniWoB: pages of the package in a real Chromium, acted on in words."""

import asyncio
import re
import shutil

import psutil
import pytest

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym import items, miniwob
from arenarl.domains.agentgym.miniwob import MiniWoBEnvironment
from arenarl.system.errors import UserError
from arenarl.trajectory import Query


def on(page, seed=3):
    return Query(f"{page}_{seed}", "miniwob", page, "en", "Do what the page asks.", {"page": page, "seed": seed})


@pytest.fixture
def environment():
    pytest.importorskip("miniwob")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no Chromium")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    one = MiniWoBEnvironment.from_config(EnvironmentConfig(name="miniwob"), "en")
    yield one
    one.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


async def act(environment, *actions):
    return [await environment.call("act", {"action": action}) for action in actions]


@pytest.mark.browser
def test_a_page_is_filled_in_sent_and_pays_and_another_page_follows_in_the_same_environment(environment):
    async def fill():
        seen = await environment.reset(on("enter-text"))
        field, button, wanted = re.search(r"(\d+) input_text", seen)[1], re.search(r"(\d+) button Submit", seen)[1], seen.split('"')[1]
        typed, sent = await act(environment, f"type {field} {wanted}", f"click {button}")
        assert wanted in typed.observation and not typed.done and (sent.done, sent.reward) == (True, 1.0)
        assert await environment.reset(on("enter-text")) == seen
        empty = await act(environment, f"click {button}")
        assert (empty[0].done, empty[0].reward) == (True, -1.0)
        again = await environment.reset(on("click-test"))
        assert (await act(environment, f"click {re.search(r'([0-9]+) button', again)[1]}"))[0].reward == 1.0

    asyncio.run(fill())


@pytest.mark.browser
def test_an_action_that_there_is_not_says_which_there_are_and_a_dead_browser_is_a_crash(environment):
    async def wrong():
        await environment.reset(on("click-test"))
        steps = await act(environment, "click 99", "jump", "press <Nothing>", "press <Tab>")
        assert [step.observation.startswith("No such action. There are: click NUMBER") for step in steps] == [True] * 3 + [False]
        assert not any(step.done for step in steps)
        for child in psutil.Process().children(recursive=True):
            if child.name() in ("chromium", "chromedriver"):
                child.kill()
        with pytest.raises(Exception, match="."):
            await act(environment, "press <Tab>")

    asyncio.run(wrong())


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(miniwob, "need_package", items.need_package.__wrapped__)
    monkeypatch.setattr(items, "version", lambda name: "1.0.0")
    with pytest.raises(UserError, match="miniwob is 1.0.0, not 1.1.0; .* pip install miniwob==1.1.0"):
        miniwob.Browser.check_packages()
    monkeypatch.setattr(items, "version", lambda name: "1.1.0")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for variable in miniwob.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UserError, match="MiniWoB needs chromium, which is not on the PATH"):
        miniwob.Browser.check_packages()
