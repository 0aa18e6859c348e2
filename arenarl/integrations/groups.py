"""Groups of other trainers: split conversations with one prompt, and give every trajectory a number as its reward."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from arenarl.rank import RankedGroup

Messages = Sequence[dict[str, Any]]


def split_chats(chats: Sequence[Messages]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Return the messages before the model's first turn, and what follows in each conversation.

    A dialogue that all conversations share, up to a user's message, belongs to the prompt. Raises ValueError if the
    conversations have different prompts.

    >>> user, yes, no = ({"role": role, "content": text} for role, text in
    ...                  [("user", "?"), ("assistant", "yes"), ("assistant", "no")])
    >>> split_chats([[user, yes], [user, no]]) == ([user], [[yes], [no]])
    True
    >>> split_chats([[user, no, user, yes], [user, no, user, no]]) == ([user, no, user], [[yes], [no]])
    True
    """
    start = next((n for n, message in enumerate(chats[0]) if message["role"] == "assistant"), len(chats[0]))
    shared = list(takewhile(lambda step: all(message == step[0] for message in step), zip(*chats, strict=False)))
    if len(shared) < start or any(message["role"] != "assistant" for chat in chats for message in chat[start:][:1]):
        raise ValueError("the conversations of a group must share their prompt: the messages before the model's first")
    start = max([start, *(n for n, (message, *_) in enumerate(shared, start=1) if message["role"] == "user")])
    return list(chats[0][:start]), [list(chat[start:]) for chat in chats]


def neutral_rewards(ranked: RankedGroup) -> list[float]:
    """Return the rewards, with 0.5 for a trajectory without a rank. Print how many have none.
    0.5 is the mean of the rewards of any ranked group, so GRPO gives such a trajectory the advantage 0."""
    if missing := ranked.rewards.count(None):
        problem = f"{missing} of {len(ranked.rewards)} trajectories have no rank, reward 0.5"
        # every process prints, because each ranks its own groups
        print(f"tournament: {problem}; {ranked.failed_calls} of {ranked.calls} judge calls failed", flush=True)
    return [0.5 if reward is None else reward for reward in ranked.rewards]
