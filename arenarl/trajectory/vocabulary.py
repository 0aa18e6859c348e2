"""Queries, trajectories and rollout groups.

A trajectory is a list of chat messages (Eq. 1: thought z_k, tool call a_k, observation o_k, answer y).
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, with_config

from arenarl.trajectory.messages import answer_of, told
from arenarl.trajectory.text import harmless

StopReason = Literal["answer", "done", "horizon", "no_answer", "max_turns", "max_tokens", "tool_crash"]
VALID_ENDS = ("answer", "done", "horizon")
# answer: ended with one <answer>…</answer> · done: a world with a state ended it · horizon: the turns were up in such a
# world · no_answer: a turn with neither a tool call nor one closed answer · max_turns, max_tokens: a budget ran out ·
# tool_crash: a tool raised what is no ToolError, and did so again from the start, which says nothing of the policy:
# void. A turn with both calls and an answer runs the calls; its answer does not count.


def _written(text: str) -> str:
    """Raises ValueError for what names and asks nothing, or no tokenizer takes."""
    if not text.strip():
        raise ValueError("is blank")
    text.encode()  # a lone surrogate, which JSON can spell, is a ValueError
    return text


@with_config(ConfigDict(extra="forbid"))  # where a record is read
@dataclass(frozen=True)
class Query:
    """A task for the policy. `constraints` is what the query's text says,
    in a form that the embedded judge can check."""

    query_id: Annotated[str, AfterValidator(_written)]
    domain: str
    subtask: str
    language: str
    query: Annotated[str, AfterValidator(_written)]
    constraints: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def task(self) -> str:
        """What two queries have in common that count as one:
        the text, and what its constraints say, such as a world's item."""
        return f"{self.query} {json.dumps(self.constraints, sort_keys=True)}"


@dataclass
class Trajectory:
    """One complete multi-turn attempt at a query.

    `completion_ids` (T,) is everything after the prompt, observations included; `policy_mask_T` is 1 where the policy
    itself chose the token; `logprobs_T` is the token's logprob where the back end tells what it was sampled with, else
    None. All three are empty for trajectories that were read from disk.
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
        """Whether the attempt ended as it should."""
        return self.stop_reason in VALID_ENDS

    @property
    def is_void(self) -> bool:
        """Nobody's doing: it is neither judged nor scored, and counts in no figure but those of crashes."""
        return self.stop_reason == "tool_crash"

    @property
    def answer(self) -> str:
        """The text of its answer; "" if it has none."""
        return answer_of(self.messages)

    @property
    def policy_tokens(self) -> int:
        """How many tokens the policy wrote itself; a stored trajectory has lost the tokens, but keeps their number."""
        return self.meta.get("policy_tokens", sum(self.policy_mask_T))

    def to_record(self, tools: list[dict] | None = None) -> dict[str, Any]:
        """The JSONL form: `query_id, messages, tools, valid, meta`."""
        meta = {"stop_reason": self.stop_reason, "is_anchor": self.is_anchor, **self.meta}
        record = {"query_id": self.query_id, "messages": self.messages, "tools": tools or []}
        return record | {"valid": self.valid, "meta": meta}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Trajectory":
        """The trajectory of a record that `to_record` made."""
        meta = dict(record["meta"])
        ends = {"stop_reason": meta.pop("stop_reason"), "is_anchor": meta.pop("is_anchor", False)}
        return cls(record["query_id"], record["messages"], **ends, meta=meta)


@dataclass
class RolloutGroup:
    """The N trajectories of one query; row 0 is the anchor if there is one."""

    query: Query
    trajectories: list[Trajectory] = field(repr=False)  # TRL prints a row that has no reward


def prompt_messages(query: Query, system: str | None = None, seen: str | None = None) -> list[dict[str, str]]:
    """The messages a policy starts from, the same in SFT, RL and evaluation; `seen`: what a world shows first."""
    return told([{"role": "user", "content": f"{query.query}\n\n{harmless(seen)}" if seen else query.query}], system)
