"""Teacher trajectories → token ids and labels for SFTTrainer: loss on the policy's own tokens only.

The chat template marks assistant turns. All other tokens (prompt, observations) get the label -100, and so does the
line break after a turn's end, which the policy never generates. Tool calls are stored as text, because Arrow would add
the arguments of all other calls as nulls. Trajectories that `max_length` cuts are counted and reported.

The main process tokenizes once, into an Arrow file of 8 bytes a token. All processes map the file into memory.
"""

import math
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

import arenarl
from arenarl.config.value_types import ActionForm
from arenarl.rollout.chat_template import chat_encoder
from arenarl.rollout.policy import Limit
from arenarl.rollout.text_actions import as_text_action
from arenarl.run.marks import damage, files_beside_weights, read_mark, write_mark
from arenarl.system.atomic_files import atomic_path, hash_files, json_hash, remove, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, say
from arenarl.trajectory import assistant_text, harmless, read_trajectories, read_turns, with_system_prompt

IGNORED = -100
_ROWS = "rows.arrow"
MOST_CUT, MANY_CUT = 0.5, 0.02  # shares of cut trajectories: above the first SFT is refused, above the second it warns
_NO_LABEL = -1  # in the column `first_label`
_NUMBER = Value("int32")
_COLUMNS = Features(input_ids=List(_NUMBER), labels=List(_NUMBER), length=_NUMBER, first_label=_NUMBER)
_ROWS_AT_ONCE = 64  # rows that are written together; until then they are lists of Python numbers
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
        for message in as_text(_in_form(record["messages"], actions)):
            yield message["content"]


def _in_form(messages: list[dict], actions: ActionForm) -> list[dict]:
    return [as_text_action(message) for message in messages] if actions == "text" else messages


def tokenize_trajectories(
    path: Path, tokenizer: PreTrainedTokenizerBase, tools: list[dict] | None, max_length: int,
    system: str | None = None, actions: ActionForm = "tool_calls", store: Path | None = None,
) -> Dataset:  # fmt: skip
    """Return a dataset with the columns `input_ids`, `labels`, `length` and `first_label`.

    Ids and labels are cut to `max_length` tokens; `length` is the length before the cut. `first_label` is the place of
    the first label, -1 without one.

    Args:
        tools: schemas in the prompt, unless the trajectory has its own tools; None for a prompt without tools.
        system: replaces the trajectory's system message, as in rollouts.
        store: folder for the dataset; None keeps it in memory. It is written again if it is damaged, or if data,
            settings, tokenizer or code have changed. Call this function on the main process first.

    Raises UserError if no token has a label, or if a turn makes several calls although `actions` is "text".
    """

    def rows() -> Iterator[dict[str, Any]]:
        has_label, lengths = False, []
        for record in read_trajectories(path):
            messages = with_system_prompt(_in_form(record["messages"], actions), system)
            row = tokenize(tokenizer, messages, tools and (record["tools"] or tools), max_length)
            first_label = next((place for place, label in enumerate(row["labels"]) if label != IGNORED), _NO_LABEL)
            has_label = has_label or first_label != _NO_LABEL
            lengths.append(row["length"])
            yield row | {"first_label": first_label}
        if not has_label:
            cause = "the chat template marks none (docs/chat_templates.md)"
            if lengths and min(lengths) > max_length:  # a whole trajectory has a label if the template marks any
                sizes = f"{min(lengths)} to {max(lengths)} tokens{', with the schemas of all tools' if tools else ''}"
                remedy = "raise it, and policy.scratch.max_positions of a policy from scratch"
                cause = f"sft.max_length={max_length} cuts them off, as trajectories have {sizes}; {remedy}"
            raise UserError(f"{path}: no assistant token to train on: {cause}")

    if store is None:
        return Dataset.from_list(list(rows()), features=_COLUMNS)
    key = json_hash([hash_files([path]), _tokenizer_hashes(tokenizer), tools, max_length, system, actions])
    if not _holds(store, key):
        remove(store)
        with atomic_path(store) as partial:
            partial.mkdir()
            with ArrowWriter(path=f"{partial}/{_ROWS}", features=_COLUMNS, writer_batch_size=_ROWS_AT_ONCE) as writer:
                for row in rows():
                    writer.write(row)
                writer.finalize()
            write_mark(partial, start=key)
    return Dataset.from_file(f"{store}/{_ROWS}")


def _tokenizer_hashes(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return hashes of the tokenizer's files and of the code that uses it."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = files_beside_weights(Path(folder))
    code = sorted(Path(arenarl.__file__).parent.rglob("*.py"))
    return [files, hash_files(code), version("transformers"), version("tokenizers"), version("jinja2")]


def _holds(store: Path, key: str) -> bool:
    """Return True if a folder of tokens has this key. The main process also compares the file with its hash."""
    try:
        return read_mark(store).start == key and not (is_main_process() and damage(store))
    except UserError:  # no mark, or a damaged one
        return False


def warn_of_untaught(path: Path, tools: list[dict]) -> None:
    """Print the tools that the policy cannot learn: no prompt lists them and no trajectory calls them."""
    turns = (turn for record in read_trajectories(path) for turn in read_turns(record["messages"]))
    called = {call.name for turn in turns for call in turn.tool_calls}
    if untaught := [tool["function"]["name"] for tool in tools if tool["function"]["name"] not in called]:
        say(
            f"{path} never calls {', '.join(untaught)}, so the policy will not; "
            "if it should, set environment.schemas_in_prompt=true, which lists all tools in the prompt"
        )


def in_training_order(dataset: Dataset, epochs: float, batch_size: int, seed: int) -> Dataset:
    """Return the rows of all epochs in order, so that resuming needs no sampler state.

    Each epoch is shuffled, with rows of similar length together. Rows without a label are left out, because a batch of
    such rows has the loss NaN. Raises UserError if the epochs are less than one row.
    """
    rows = [row for row, first in enumerate(dataset["first_label"]) if first != _NO_LABEL]
    if not round(epochs * len(rows)):
        raise UserError(f"sft.epochs={epochs} times {len(rows)} trajectories is less than one; raise sft.epochs")
    lengths = dataset.select(rows)["length"]
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(math.ceil(epochs)):
        # a data loader draws this number before each epoch: the order equals Trainer's own
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        order += [rows[index] for index in get_length_grouped_indices(lengths, batch_size, generator=generator)]
    return dataset.select(order[: round(epochs * len(rows))])


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
    """Warn if `max_length` cuts many trajectories. Raises UserError if it cuts most of them, or if a row, or a prompt
    with rollouts' `max_tokens`, is longer than `limit`."""
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
    limit.require_room(max(0, *dataset["first_label"]), max_tokens)


def count_cut(dataset: Dataset, max_length: int, path: Path) -> None:
    """Write and print how many trajectories are cut at `max_length`, and how many have no label and are left out."""
    lengths = dataset["length"]
    cut, left_out = sum(n > max_length for n in lengths), list(dataset["first_label"]).count(_NO_LABEL)
    counts = {"trajectories": len(lengths), "cut": cut, "left_out": left_out, "max_length": max_length}
    write_json(path, counts | {"longest": max(lengths), "tokens": sum(lengths)})
    print(
        f"SFT data: {len(lengths)} trajectories, {sum(lengths)} tokens, longest {max(lengths)}; {cut} cut at "
        f"sft.max_length={max_length}, {left_out} without a token to train on left out"
    )
