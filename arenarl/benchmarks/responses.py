"""What a policy writes for a benchmark's items, each response in a file of its own from the moment it ends, so that
nothing is lost to a kill.

Rolled out by the engine of training and evaluation, with the research tools or with none. A response is generated again
only if what it depends on changed: weights, settings, code, item, prompt.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from arenarl.benchmarks.benchmark import Item, Verdict
from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.environments import environment_maker
from arenarl.llm.client import LLMClient
from arenarl.rollout.backends import make_policy_engine
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.system_prompt import system_prompt
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.database import json_hash
from arenarl.system.progress import Bar
from arenarl.trajectory import Trajectory


@dataclass
class Response:
    """A policy's response to an item with its verdicts, stored in one file.

    `number` is the item's in the official file, counted from 0; `made_by` the fingerprint of what generates it.
    """

    number: int
    repeat: int
    item: Item
    attempt: Attempt = field(repr=False)
    folder: Path
    made_by: str
    trajectory: Trajectory | None = field(default=None, repr=False)
    verdict: Verdict | None = None

    @property
    def text(self) -> str:
        return response_text(self.trajectory)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.number}-{self.repeat}.json"

    @property
    def fingerprint(self) -> str:
        return json_hash([self.made_by, asdict(self.attempt)])

    def read(self) -> None:
        """Take the trajectory of an earlier start, if it still counts."""
        record = read_json(self.path)
        if record and record["made_by"] == self.fingerprint:
            self.trajectory = Trajectory.from_record(record["trajectory"])

    def write(self) -> None:
        record = {"item": asdict(self.item), "made_by": self.fingerprint, "response": self.text}
        record |= {"verdict": self.verdict, "trajectory": self.trajectory.to_record()}
        write_json(self.path, record)


def respond(responses: Sequence[Response], make_engine: Callable[[], RolloutEngine], title: str) -> None:
    """Give each its trajectory, from its file or generated; the engine is made only if one is missing."""
    for response in responses:
        response.read()
    missing = [response for response in responses if response.trajectory is None]
    with Bar(f"{title}: responses", len(responses), len(responses) - len(missing)) as bar:

        def keep(index: int, trajectory: Trajectory) -> None:
            missing[index].trajectory = trajectory
            missing[index].write()
            bar.update()

        if missing:
            make_engine().roll_out([response.attempt for response in missing], keep)


def response_text(trajectory: Trajectory) -> str:
    """What a judge is shown: the <answer>, or else the last turn's text, without thoughts;
    '' where that ends in a tool call or amid thinking.

    The official prompts ask for no <answer>, so a response needs none.
    """
    last = trajectory.messages[-1]
    if trajectory.answer or last["role"] != "assistant" or last.get("tool_calls"):
        return trajectory.answer
    # with words around it, or without an end
    inner = re.search(r"<answer>(.*?)(?:</answer>|\Z)", last["content"], re.DOTALL)
    text = (inner[1] if inner else last["content"]).strip()
    return "" if text.startswith(("<think>", "<tool_call>")) else text


def settings_of(config: Config, has_search: bool) -> Config:
    """The run's config with the benchmark's tools: research, over the engine that `environment.search` names, or a
    class of the user's own; or none.

    Without tools there is one turn, and the policy is told nothing before the query unless `rollout.system_prompt` says
    so.
    """
    world, rollout = config.environment, config.rollout
    if has_search:
        world = world if ":" in world.name else replace(world, name="research", actions="tool_calls")
        return replace(config, environment=world)
    rollout = replace(rollout, force_answer=False, max_turns=1, system_prompt=rollout.system_prompt or "none")
    return replace(config, environment=replace(world, name="none", actions="tool_calls"), rollout=rollout)


def make_benchmark_engine(
    config: Config, policy: str | LLMConfig, has_search: bool, client: LLMClient
) -> RolloutEngine:
    """The engine of a policy with these tools. Raises UserError if what they search cannot be had."""
    settings = settings_of(config, has_search)
    make = environment_maker(settings.environment, settings.data.language, client, settings.judge)
    engine = make_policy_engine(settings, policy, make, client)
    if not has_search:
        engine.system = system_prompt(settings)  # what a model behind an API is told by default is about tools
    return engine
