"""Whole conversations as a prompt and its candidates."""

from collections.abc import Sequence
from typing import Any

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
