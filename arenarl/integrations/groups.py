"""Groups of other trainers: split conversations with one prompt, and give every trajectory a number as its reward."""

from collections.abc import Sequence
from typing import Any

from arenarl.rank import RankedGroup

Messages = Sequence[dict[str, Any]]


def split_chats(chats: Sequence[Messages]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Return the messages before the first turn of the model, and what follows in each conversation.

    Raises ValueError if the conversations have different prompts.

    >>> user, yes, no = ({"role": role, "content": text} for role, text in
    ...                  [("user", "?"), ("assistant", "yes"), ("assistant", "no")])
    >>> split_chats([[user, yes], [user, no]]) == ([user], [[yes], [no]])
    True
    """
    lengths = [
        next((n for n, message in enumerate(chat) if message["role"] == "assistant"), len(chat)) for chat in chats
    ]
    prompts = [list(chat[:length]) for chat, length in zip(chats, lengths, strict=True)]
    if any(prompt != prompts[0] for prompt in prompts):
        raise ValueError("the conversations of a group must share their prompt: the messages before the model's first")
    return prompts[0], [list(chat[length:]) for chat, length in zip(chats, lengths, strict=True)]


def neutral_rewards(ranked: RankedGroup) -> list[float]:
    """Return the rewards, with 0.5 for a trajectory without a rank. Print how many have none.
    0.5 is the mean of the rewards of any ranked group, so GRPO gives such a trajectory the advantage 0."""
    if missing := ranked.rewards.count(None):
        problem = f"{missing} of {len(ranked.rewards)} trajectories have no rank, reward 0.5"
        # every process prints, because each ranks its own groups
        print(f"tournament: {problem}; {ranked.failed_calls} of {ranked.calls} judge calls failed", flush=True)
    return [0.5 if reward is None else reward for reward in ranked.rewards]
