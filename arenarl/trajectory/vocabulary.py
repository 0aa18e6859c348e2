"""Queries, trajectories and rollout groups: the data that all packages exchange.

A trajectory is a list of chat messages (Eq. 1: thought z_k, tool call a_k, observation o_k, answer y).
"""

import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, with_config

from arenarl.trajectory.messages import answer_of, with_system_prompt
from arenarl.trajectory.text import composed, harmless, is_blank

StopReason = Literal[
    "answer", "done", "horizon", "no_answer", "max_turns", "max_tokens", "tool_crash", "max_seconds", "no_room"
]
VALID_ENDS = ("answer", "done", "horizon")
VOID_ENDS = ("tool_crash", "max_seconds", "no_room")
# answer: one <answer>…</answer> ended it · done: a stateful world ended it · horizon: such a world's turns ran out ·
# no_answer: a turn with neither a tool call nor exactly one closed answer · max_turns, max_tokens: a budget ran out ·
# tool_crash: a tool raised an unexpected exception twice · max_seconds: a training trajectory took too long · no_room:
# the prompt, with the world's first observation, is too long for the policy. These three are void, as they say nothing
# of the policy.
# A turn with both tool calls and an answer runs the calls; its answer does not count.


def _check_storable(value: Any) -> Any:
    """Return a JSON value. Raises ValueError if a text in it holds a lone surrogate, which JSON escapes can contain."""
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _check_text(text: str) -> str:
    """Return the text. Raises ValueError if it is blank."""
    if is_blank(_check_storable(text)):
        raise ValueError("is blank")
    return text


def _check_language(text: str) -> str:
    if not re.fullmatch(r"[a-z]{2,3}", text):
        raise ValueError(f"{text[:40]!r} must be zh or en, or another language's code in lower case without a region")
    return text


@with_config(ConfigDict(extra="forbid"))  # an unknown key in a file is an error
@dataclass(frozen=True)
class Query:
    """A task for the policy. `constraints` repeats the query's wishes in a form that the embedded judge can check."""

    query_id: Annotated[str, AfterValidator(_check_text)]
    domain: Annotated[str, AfterValidator(_check_storable)]
    subtask: Annotated[str, AfterValidator(_check_storable)]
    language: Annotated[str, AfterValidator(_check_language)]
    query: Annotated[str, AfterValidator(_check_text)]
    constraints: Annotated[dict[str, Any], AfterValidator(_check_storable)] = field(default_factory=dict, hash=False)

    @property
    def task(self) -> str:
        """The text plus the constraints (such as a world's item): a key that duplicate queries share."""
        return composed(f"{self.query} {json.dumps(self.constraints, sort_keys=True, ensure_ascii=False)}")


@dataclass
class Trajectory:
    """A complete multi-turn attempt at a query.

    `completion_ids` (T,) is everything after the prompt, observations included. `policy_mask_T` is 1 for tokens that
    the policy chose. `logprobs_T` holds each token's logprob under the sampling distribution, or None where the back
    end gives none. All are empty for a trajectory that was read from disk, and in evaluation.
    """

    query_id: str
    messages: list[dict[str, Any]]
    stop_reason: StopReason
    is_anchor: bool = False
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    policy_mask_T: list[int] = field(default_factory=list)
    logprobs_T: list[float | None] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """True if the trajectory ended with an answer, or in a regular way in a stateful world (`VALID_ENDS`)."""
        return self.stop_reason in VALID_ENDS

    @property
    def is_void(self) -> bool:
        """True if one of `VOID_ENDS` ended it: it is neither judged nor scored, only counted by its stop reason."""
        return self.stop_reason in VOID_ENDS

    @property
    def answer(self) -> str:
        """The text of the answer, or "" without one."""
        return answer_of(self.messages)

    @property
    def policy_tokens(self) -> int:
        """Number of tokens that the policy wrote. A stored trajectory keeps this number without the tokens."""
        return self.meta.get("policy_tokens", sum(self.policy_mask_T))

    def drop_tokens(self) -> None:
        """Free the token lists, nine tenths of a long trajectory's memory: only training reads them."""
        self.prompt_ids, self.completion_ids, self.policy_mask_T, self.logprobs_T = [], [], [], []

    def to_record(self, tools: list[dict] | None = None) -> dict[str, Any]:
        """Return the JSONL form: `query_id, messages, tools, valid, meta`."""
        meta = {"stop_reason": self.stop_reason, "is_anchor": self.is_anchor, **self.meta}
        record = {"query_id": self.query_id, "messages": self.messages, "tools": tools or []}
        return record | {"valid": self.valid, "meta": meta}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Trajectory":
        """Rebuild a trajectory from a record that `to_record` made."""
        meta = dict(record["meta"])
        ends = {"stop_reason": meta.pop("stop_reason"), "is_anchor": meta.pop("is_anchor", False)}
        return cls(record["query_id"], record["messages"], **ends, meta=meta)


@dataclass
class RolloutGroup:
    """The N trajectories of one query; row 0 is the anchor if there is one."""

    query: Query
    trajectories: list[Trajectory] = field(repr=False)  # TRL prints a row that has no reward


def prompt_messages(
    query: Query, system: str | None = None, first_observation: str | None = None
) -> list[dict[str, str]]:
    """Return the messages before the first turn, the same in SFT, RL and evaluation.
    `first_observation` is the text that the environment's `reset` returned."""
    text = f"{query.query}\n\n{harmless(first_observation)}" if first_observation else query.query
    return with_system_prompt([{"role": "user", "content": text}], system)
