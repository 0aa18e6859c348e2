"""Teacher trajectories → token ids and labels for SFTTrainer: loss on the policy's own tokens only.

The chat template marks assistant turns. All other tokens (prompt, observations) get the label -100, and so does the
line break after a turn's end, which the policy never generates. Tool calls are stored as text, because Arrow would add
the arguments of all other calls as nulls. Trajectories that `max_length` cuts are counted and reported.
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
from arenarl.rollout.chat_template import chat_encoder
from arenarl.rollout.policy import Limit
from arenarl.rollout.text_actions import as_text_actions
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.trajectory import assistant_text, harmless, read_trajectories, read_turns, with_system_prompt

IGNORED = -100
MOST_CUT, MANY_CUT = 0.5, 0.02  # shares of cut trajectories: above the first SFT is refused, above the second it warns
_CONTROL_TOKEN = re.compile(r"<(?=\|\w+\|>|/?think>)")


def as_text(messages: list[dict]) -> list[dict[str, str]]:
    """Return messages for the chat template: turns as the policy generates them, observations as in rollouts.

    Control tokens that a turn spells out are escaped: SFT would teach the policy to end the turn there, and templates
    drop the text before </think>.
    """

    def content(message: dict) -> str:
        if message["role"] == "assistant":
            return assistant_text(message, lambda text: _CONTROL_TOKEN.sub("< ", text))
        return harmless(message["content"]) if message["role"] == "tool" else message["content"]

    return [{"role": message["role"], "content": content(message)} for message in messages]


def training_texts(path: Path, actions: ActionForm = "tool_calls") -> Iterator[str]:
    """Yield the texts of all messages, to train a tokenizer."""
    for record in read_trajectories(path):
        for message in as_text(as_text_actions(record["messages"]) if actions == "text" else record["messages"]):
            yield message["content"]


def tokenize_trajectories(
    path: Path, tokenizer: PreTrainedTokenizerBase, tools: list[dict] | None, max_length: int,
    system: str | None = None, actions: ActionForm = "tool_calls",
) -> Dataset:  # fmt: skip
    """Return a dataset of `input_ids` and `labels`, cut to `max_length` tokens, and `length`, the uncut length.

    Args:
        tools: schemas in the prompt, unless the trajectory has its own tools; None for a prompt without tools.
        system: replaces the trajectory's system message, as in rollouts.

    Raises:
        UserError: no token has a label, because the chat template marks no assistant turn or `max_length` is too small;
            or a turn makes several calls although `actions` is "text".
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
    """Print the tools that the policy cannot learn: no prompt lists them and no trajectory calls them."""
    turns = (turn for record in read_trajectories(path) for turn in read_turns(record["messages"]))
    called = {call.name for turn in turns for call in turn.tool_calls}
    if untaught := [tool["function"]["name"] for tool in tools if tool["function"]["name"] not in called]:
        say(
            f"{path} never calls {', '.join(untaught)}, and no prompt names it: "
            "set environment.schemas_in_prompt=true to list all tools in the prompt"
        )


def in_training_order(dataset: Dataset, epochs: float, batch_size: int, seed: int) -> Dataset:
    """Return the rows of all epochs in order, so that resuming needs no sampler state.

    Each epoch is shuffled, with rows of similar length together. Rows without a label are left out, because a batch of
    such rows has the loss NaN.
    """
    rows = [row for row, labels in enumerate(dataset["labels"]) if _has_target(labels)]
    lengths = dataset.select(rows)["length"]
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(math.ceil(epochs)):
        # a data loader draws this number before each epoch: the order equals Trainer's own
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        order += [rows[index] for index in get_length_grouped_indices(lengths, batch_size, generator=generator)]
    return dataset.select(order[: round(epochs * len(rows))])


def _has_target(labels: list[int]) -> bool:
    return any(label != IGNORED for label in labels)


def tokenize(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict], tools: list[dict] | None, max_length: int
) -> dict:
    """Return one trajectory's `input_ids`, `labels` (-100 for tokens that are not the policy's) and uncut `length`."""
    encoded = chat_encoder(tokenizer).encode(
        as_text(messages), tools, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, turn_end = encoded["input_ids"], tokenizer.eos_token_id
    labels = [
        token if is_own and before != turn_end else IGNORED
        for before, token, is_own in zip([None, *ids[:-1]], ids, encoded["assistant_masks"], strict=True)
    ]
    return {"input_ids": ids[:max_length], "labels": labels[:max_length], "length": len(ids)}


def check_lengths(dataset: Dataset, max_length: int, max_tokens: int, limit: Limit | None) -> None:
    """Warn if `max_length` cuts many trajectories.

    Raises:
        UserError: most trajectories are cut, or a row, or a prompt with rollouts' `max_tokens`, is longer than `limit`.
    """
    lengths = dataset["length"]
    cut = sum(length > max_length for length in lengths)
    problem = f"sft.max_length={max_length} cuts {cut} of {len(lengths)} trajectories"
    remedy = f"raise it to {max(lengths)}, the longest trajectory, or leave out long trajectories"
    if limit and max(lengths) > limit.tokens:
        remedy = f"leave out long trajectories: the longest has {max(lengths):,} tokens, more than {limit}"
    if cut > MOST_CUT * len(lengths):
        raise UserError(f"{problem}, and the policy never learns to answer; {remedy}")
    if cut > MANY_CUT * len(lengths):
        say(f"warning: {problem}; their ends, with the answers, are not trained on; {remedy}")
    if limit is None:
        return
    if (longest := min(max(lengths), max_length)) > limit.tokens:
        remedy = f"set sft.max_length to {limit.tokens} or less, or name another model"
        raise UserError(f"SFT's trajectories of up to {longest:,} tokens are more than {limit}; {remedy}")
    prompts = [
        next((place for place, label in enumerate(labels) if label != IGNORED), 0) for labels in dataset["labels"]
    ]
    limit.require_room(max(prompts), max_tokens)


def count_cut(dataset: Dataset, max_length: int, path: Path) -> None:
    """Write and print how many trajectories are cut at `max_length`, and how many have no label and are left out."""
    lengths = dataset["length"]
    cut, left_out = sum(n > max_length for n in lengths), sum(not _has_target(labels) for labels in dataset["labels"])
    counts = {"trajectories": len(lengths), "cut": cut, "left_out": left_out, "max_length": max_length}
    write_json(path, counts | {"longest": max(lengths), "tokens": sum(lengths)})
    print(
        f"SFT data: {len(lengths)} trajectories, {sum(lengths)} tokens, longest {max(lengths)}; {cut} cut at "
        f"sft.max_length={max_length}, {left_out} without a token to train on left out"
    )
