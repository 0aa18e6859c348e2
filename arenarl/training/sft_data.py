"""Teacher trajectories → token ids and labels for SFTTrainer: loss on the policy's own tokens only.

The chat template marks assistant turns; everything else (prompt, tool results) gets the label -100, and so does the
line break after a turn's end, which the template writes and no rollout asks for. Messages go in as text, because Arrow
would give every tool call the arguments of all others, as nulls. What `max_length` cuts is counted, not hidden.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from arenarl.config.value_types import ActionForm
from arenarl.rollout.text_actions import as_text_actions
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.trajectory import assistant_text, harmless, read_trajectories, read_turns, with_system_prompt

IGNORED = -100
_SPELLED = re.compile(r"<(?=\|\w+\|>|/?think>)")


def as_text(messages: list[dict]) -> list[dict[str, str]]:
    """Messages as the template shall see them: turns in the text form that the policy generates,
    observations as rollouts show them.

    A turn that spells a control token would be taught to end in its midst,
    and of one that spells </think> templates drop a part.
    """

    def content(message: dict) -> str:
        if message["role"] == "assistant":
            return assistant_text(message, lambda text: _SPELLED.sub("< ", text))
        return harmless(message["content"]) if message["role"] == "tool" else message["content"]

    return [{"role": message["role"], "content": content(message)} for message in messages]


def training_texts(path: Path, actions: ActionForm = "tool_calls") -> Iterator[str]:
    """The texts of all messages, for training a tokenizer."""
    for record in read_trajectories(path):
        for message in as_text(as_text_actions(record["messages"]) if actions == "text" else record["messages"]):
            yield message["content"]


def tokenize_trajectories(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict] | None,
    max_length: int,
    system: str | None = None,
    actions: ActionForm = "tool_calls",
) -> Dataset:
    """A dataset of `input_ids` and `labels`, cut to `max_length` tokens, and `length`, the tokens before the cut.

    A trajectory that brings tools of its own is shown with them instead of `tools`; with `tools` None the prompt tells
    of none. A system message of its own gives way to `system`, as rollouts have it.

    Raises:
        UserError: the chat template does not mark assistant turns, cutting leaves nothing to train on, or `actions` are
            text and a turn makes several calls.
    """
    rows = []
    for record in read_trajectories(path):
        messages = as_text_actions(record["messages"]) if actions == "text" else record["messages"]
        rows.append(
            tokenize(tokenizer, with_system_prompt(messages, system), tools and (record["tools"] or tools), max_length)
        )
    if not any(_has_target(row["labels"]) for row in rows):
        raise UserError(
            f"{path}: no assistant token to train on: the chat template marks none, or sft.max_length cuts them all"
        )
    return Dataset.from_list(rows)


def warn_of_untaught(path: Path, tools: list[dict]) -> None:
    """Say which tools the policy will not know of: the prompt tells of none, and no trajectory calls them."""
    turns = (turn for record in read_trajectories(path) for turn in read_turns(record["messages"]))
    called = {call.name for turn in turns for call in turn.tool_calls}
    if untaught := [tool["function"]["name"] for tool in tools if tool["function"]["name"] not in called]:
        say(
            f"{path} never calls {', '.join(untaught)}, and no prompt names it: "
            "environment.schemas_in_prompt=true tells the policy of all tools"
        )


def in_training_order(dataset: Dataset, epochs: float, batch_size: int, seed: int) -> Dataset:
    """All passes one after the other, so that resuming needs no sampler state;
    each shuffled, with rows of like length together.

    Rows without a token to train on, most of them cut before the first, are left out:
    alone in a batch, their loss would be NaN.
    """
    rows = [row for row, labels in enumerate(dataset["labels"]) if _has_target(labels)]
    lengths = dataset.select(rows)["length"]
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(math.ceil(epochs)):
        # a data loader draws so before each pass: Trainer's own order
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        order += [rows[index] for index in get_length_grouped_indices(lengths, batch_size, generator=generator)]
    return dataset.select(order[: round(epochs * len(rows))])


def _has_target(labels: list[int]) -> bool:
    return any(label != IGNORED for label in labels)


def tokenize(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict], tools: list[dict] | None, max_length: int
) -> dict:
    """One trajectory's `input_ids`, `labels` (-100 wherever the token is not the policy's own) and uncut `length`."""
    encoded = tokenizer.apply_chat_template(
        as_text(messages), tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, turn_end = encoded["input_ids"], tokenizer.eos_token_id
    labels = [
        token if is_own and before != turn_end else IGNORED
        for before, token, is_own in zip([None, *ids[:-1]], ids, encoded["assistant_masks"], strict=True)
    ]
    return {"input_ids": ids[:max_length], "labels": labels[:max_length], "length": len(ids)}


def count_cut(dataset: Dataset, max_length: int, path: Path) -> None:
    """Write and print how many trajectories are longer than `max_length`,
    and how many have no token to train on and are left out."""
    lengths = dataset["length"]
    cut, left_out = sum(n > max_length for n in lengths), sum(not _has_target(labels) for labels in dataset["labels"])
    counts = {"trajectories": len(lengths), "cut": cut, "left_out": left_out, "max_length": max_length}
    write_json(path, counts | {"longest": max(lengths), "tokens": sum(lengths)})
    print(
        f"SFT data: {len(lengths)} trajectories, {sum(lengths)} tokens, longest {max(lengths)}; {cut} cut at "
        f"sft.max_length={max_length}, {left_out} without a token to train on left out"
    )
