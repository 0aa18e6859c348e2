"""MiniWoB: small web pages with a task each, in Debian's Chromium, acted on in words. Stands in for WebArena's sites, which need its servers.

A query's constraints name the `page`, as the package miniwob names it ("click-button"), and the `seed` that fills it. The pages lie in
the package. Their clock is stopped, as a policy takes longer to think than they allow; the reward is the page's, from -1 to 1.
"""

import os
import re
import shutil
from typing import Any

from arenarl.domains.agentgym.apart import Apart
from arenarl.domains.agentgym.items import need_package, read_whole_action
from arenarl.domains.agentgym.world import World
from arenarl.rollout.environment import Step
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

VARIABLES = {"MINIWOB_CHROME_BINARY": "chromium", "MINIWOB_CHROMEDRIVER": "chromedriver"}  # of the package -> programs of Debian's
_ACTION = re.compile(r"(click) (\d+)|(type) (\d+) (.+)|(press) (\S+)", re.DOTALL)
_WRONG = "No such action. There are: click NUMBER, type NUMBER TEXT, press KEY such as <Enter>; numbers are those of the elements shown."


class Browser(World):
    """A running browser. It begins anew where a query has another page than the last."""

    read = staticmethod(read_whole_action)
    _game: Any = None
    _page = ""

    @classmethod
    def check_packages(cls) -> None:
        need_package("miniwob", "1.1.0", "pip install miniwob==1.1.0")
        for name, program in VARIABLES.items():
            if not os.environ.get(name) and shutil.which(program) is None:
                raise UserError(f"MiniWoB needs {program}, which is not on the PATH; apt-get install chromium chromium-driver, or name it in {name}")

    def reset(self, query: Query) -> str:
        page, seed = query.constraints.get("page"), query.constraints.get("seed")
        if not isinstance(page, str) or type(seed) is not int:
            raise UserError(f"query {query.query_id}: constraints must have a page, such as click-button, and a seed, a whole number")
        if page != self._page:
            self.close()
            self._game, self._page = _open(page), page
        seen, _ = self._game.reset(seed=seed)
        return f"{seen['utterance']}\n{self._show(seen)}"

    def act(self, action: str) -> Step:
        chosen = self._chosen(action)
        self.is_refused = chosen is None
        if chosen is None:
            return Step(_WRONG, reward=0.0)
        seen, reward, is_over, *_ = self._game.step(chosen)
        return Step("The task is over." if is_over else self._show(seen), is_over, float(reward))

    def close(self) -> None:
        if self._game:
            self._game.close()
        self._game, self._page = None, ""

    def _show(self, seen: dict[str, Any]) -> str:
        """A line an element that has a text, a value or something to act on."""
        elements = [one for one in seen["dom_elements"] if one["text"] or one["value"] or one["tag"].startswith(("input", "button", "select", "a"))]
        self._numbers = {int(one["ref"]) for one in seen["dom_elements"]}
        return "\n".join(" ".join(filter(None, (f"{one['ref']}", one["tag"], one["text"], str(one["value"] or "")))) for one in elements)

    def _chosen(self, action: str) -> dict[str, Any] | None:
        """The package's form of an action; None of one that there is not."""
        found = _ACTION.fullmatch(action)
        if not found:
            return None
        keys = list(self._game.action_space_config.allowed_keys)
        kind = next(number for number, name in enumerate(("click", "type", "press")) if name in found.groups())
        number, key = found[2] or found[4], found[7]
        if (number and int(number) not in self._numbers) or (key and key not in keys):
            return None
        return {"action_type": kind, "ref": int(number or 0), "text": found[5] or "", "key": keys.index(key) if key else 0}


def _open(page: str) -> Any:
    """The package's environment of a page."""
    from miniwob.action import ActionSpaceConfig, ActionTypes
    from miniwob.environment import MiniWoBEnvironment as Package
    from miniwob.reward import get_raw_reward

    os.environ.update({name: os.environ.get(name) or shutil.which(program) for name, program in VARIABLES.items()})
    kinds = [ActionTypes.CLICK_ELEMENT, ActionTypes.FOCUS_ELEMENT_AND_TYPE_TEXT, ActionTypes.PRESS_KEY]
    game = Package(subdomain=page, reward_processor=get_raw_reward, action_space_config=ActionSpaceConfig(kinds))
    game.instance.driver.execute_script("core.EPISODE_MAX_TIME = 1e9;")
    return game


class MiniWoBEnvironment(Apart):
    world_class = Browser
