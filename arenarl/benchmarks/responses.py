"""A policy's responses to a benchmark's items, each stored in its own file as soon as it ends, so a kill loses nothing.

The engine of training and evaluation rolls them out, with the research tools or without tools. A response is generated
again only if its inputs changed: weights, settings, code, item or prompt.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from arenarl.benchmarks.benchmark import Item, Verdict
from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.environments import environment_maker
from arenarl.llm.client import LLMClient
from arenarl.rollout.backends import make_policy_engine
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.system_prompt import system_prompt
from arenarl.system.atomic_files import as_stored, json_hash, read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import Bar, say
from arenarl.trajectory import Trajectory


@dataclass(frozen=True)
class _Stored:
    """The parts of a stored response that are read again."""

    made_by: str
    trajectory: dict[str, Any]
    sha256: str | None = None  # of the trajectory; earlier versions stored none


@dataclass
class Response:
    """A policy's response to an item with its verdict, stored in one file."""

    number: int  # position of the item in the official file, from 0
    repeat: int
    item: Item
    attempt: Attempt = field(repr=False)
    folder: Path
    made_by: str  # fingerprint of the weights, settings and code that generate it
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
        """Load the stored trajectory if its fingerprint is still the same."""
        try:
            record = read_json(self.path, _Stored)
        except UserError:
            say(f"{self.path} is damaged; generating the response again")
            return
        if record is None or record.made_by != self.fingerprint:
            return
        if record.sha256 in (None, json_hash(record.trajectory)):
            self.trajectory = Trajectory.from_record(record.trajectory)
        else:
            say(f"{self.path} was changed; generating the response again")

    def write(self) -> None:
        record = {"item": asdict(self.item), "made_by": self.fingerprint, "response": self.text}
        trajectory = as_stored(self.trajectory.to_record())
        record |= {"verdict": self.verdict, "trajectory": trajectory, "sha256": json_hash(trajectory)}
        write_json(self.path, record)


def respond(responses: Sequence[Response], make_engine: Callable[[], RolloutEngine], title: str) -> None:
    """Load or generate the trajectory of each response; make the engine only if a trajectory is missing."""
    for response in responses:
        response.read()
    missing = [response for response in responses if response.trajectory is None]
    with Bar(f"{title}: responses", len(responses), len(responses) - len(missing)) as bar:

        def keep(index: int, trajectory: Trajectory) -> None:
            trajectory.drop_tokens()
            missing[index].trajectory = trajectory
            missing[index].write()
            bar.update()

        if missing:
            engine, attempts = make_engine(), [response.attempt for response in missing]
            engine.require_room([attempt.query for attempt in attempts])  # it may serve several benchmarks
            engine.roll_out(attempts, keep)


def response_text(trajectory: Trajectory) -> str:
    """Return the text for the judge: the <answer>, else the last turn without thoughts. The official prompts demand no
    <answer>. Returns "" if the last turn is a tool call or breaks off in its thoughts."""
    last = trajectory.messages[-1]
    if trajectory.answer or last["role"] != "assistant" or last.get("tool_calls"):
        return trajectory.answer
    # text around the <answer>, or no closing tag
    inner = re.search(r"<answer>(.*?)(?:</answer>|\Z)", last["content"], re.DOTALL)
    text = (inner[1] if inner else last["content"]).strip()
    return "" if text.startswith(("<think>", "<tool_call>")) else text


def settings_of(config: Config, has_search: bool) -> Config:
    """Return the run's config with the benchmark's tools.

    With search: the user's own environment class, else the research tools over `environment.search`. Without: no tools,
    one turn, and no system prompt unless `rollout.system_prompt` names one.
    """
    environment, rollout = config.environment, config.rollout
    if has_search:
        is_own = ":" in environment.name
        searching = environment if is_own else replace(environment, name="research", actions="tool_calls")
        return replace(config, environment=searching)
    rollout = replace(rollout, force_answer=False, max_turns=1, system_prompt=rollout.system_prompt or "none")
    return replace(config, environment=replace(environment, name="none", actions="tool_calls"), rollout=rollout)


def make_benchmark_engine(
    config: Config, policy: str | LLMConfig, has_search: bool, client: LLMClient
) -> RolloutEngine:
    """Return the engine of a policy with the benchmark's tools. Raises UserError if the search corpus is missing."""
    settings = settings_of(config, has_search)
    make = environment_maker(settings.environment, settings.data.language, client, settings.judge)
    engine = make_policy_engine(settings, policy, make, client)
    if not has_search:
        engine.system = system_prompt(settings)  # the default for API models describes tools
    return engine
