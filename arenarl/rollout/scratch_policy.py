"""A policy from nothing: a tiny Qwen3 with a tokenizer that is trained on SFT's texts.

The tokenizer keeps JSON scaffolding whole and splits numbers evenly, so a trajectory of several tool calls takes some
200 tokens.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from arenarl.config.schema import PolicyConfig, ScratchConfig
from arenarl.rollout.arguments import is_text
from arenarl.rollout.policy import require_model
from arenarl.run.marks import MARK, damage, write_mark
from arenarl.system.atomic_files import atomic_path, remove
from arenarl.system.errors import UserError
from arenarl.system.progress import say

_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TAGS = [f"<{slash}{tag}>" for tag in ("think", "tool_call", "tool_response", "answer") for slash in ("", "/")]
_PIECES = "|".join(  # text that is copied from a tool's result has the same few tokens in every context
    [
        r" ?[A-Za-z]+",
        r" (?=\d{4}-)|\d{4}(?=-)|-\d\d(?![\d:])",  # dates: 2026 -05 -20
        r"[ -]?\d\d:00|[ -]?\d\d(?=:\d\d)|:\d\d",  # times: 09:00 -21:00, 13 :30 -18 :05
        r" \d\.\d(?!\d|km)|\.\d(?:km)?(?!\d)",  # ratings, and the decimals of a distance
        r" ?¥?\d{1,2}(?=(?:\d\d)*(?!\d))",  # other numbers two digits at a time: ¥12 90
        r"\s|[^\sA-Za-z\d]+?",
    ]
)


def prepare_initial_policy(
    config: PolicyConfig, folder: Path, texts: Iterable[str], tools: list[dict], seed: int
) -> str:
    """Return the path that SFT starts from: `policy.model`, or a scratch policy, built once and saved in `folder`."""
    if config.model is not None:
        return require_model(config.model)
    if problem := damage(folder):
        say(f"{folder} is damaged: {problem}; building it again")
        remove(folder)
    if not (folder / MARK).is_file():
        remove(folder)
        tokenizer = train_tokenizer(texts, tools, config.scratch.vocab_size)
        torch.manual_seed(seed)
        with atomic_path(folder) as partial:
            build_scratch_model(config.scratch, tokenizer).save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            write_mark(partial)
    return str(folder)


def build_scratch_model(config: ScratchConfig, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """Initialise a random Qwen3. transformers' own builders would wait for ZeRO-3's other processes."""
    return Qwen3ForCausalLM(scratch_config(config, tokenizer))


def scratch_config(config: ScratchConfig, tokenizer: PreTrainedTokenizerBase, **overrides: Any) -> Qwen3Config:
    """Return the Qwen3Config of a scratch policy's shape; `overrides` replace its values."""
    values = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": True,
        "initializer_range": config.hidden_size**-0.5,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return Qwen3Config(**values | overrides)


def train_tokenizer(texts: Iterable[str], tools: list[dict], vocab_size: int) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer on SFT's texts; Qwen3's control tokens and the tools' JSON are added tokens.
    Raises UserError if `vocab_size` has no room for bytes and added tokens."""
    from trl.chat_template_utils import qwen3_training_chat_template  # imported late: it loads datasets and pandas

    scaffolds = _scaffolds(tools)
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    reserved, alphabet = len(_SPECIAL) + len(_TAGS) + len(scaffolds), pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < (least := reserved + len(alphabet)):
        needed = f"bytes, tags and the tools' JSON alone take {least}"
        raise UserError(f"policy.scratch.vocab_size={vocab_size} is too small: {needed}; raise it")
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - reserved, initial_alphabet=alphabet, show_progress=False)
    boundary = re.compile("|".join(re.escape(s) for s in sorted(scaffolds + _TAGS + _SPECIAL, key=len, reverse=True)))
    tokenizer.train_from_iterator((piece for text in texts for piece in boundary.split(text) if piece), trainer)
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _TAGS + scaffolds])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=qwen3_training_chat_template,
        clean_up_tokenization_spaces=False,
    )


def _scaffolds(tools: list[dict]) -> list[str]:
    """Return the fixed strings around a tool call's values and a turn's blocks; each becomes one token."""
    strings = ["<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_start|>user\n<tool_response>\n", "<think>\n"]
    strings += ["\n</think>\n\n<answer>\n", "\n</answer>", '"}}\n</tool_call>', "}}\n</tool_call>"]
    for tool in (tool["function"] for tool in tools):
        start = f'\n</think>\n\n<tool_call>\n{{"name": {_as_json(tool["name"])}, "arguments": {{'
        properties = tool["parameters"].get("properties", {})
        for position, (argument, schema) in enumerate(properties.items()):
            value = f"{_as_json(argument)}: " + ('"' if is_text(schema, tool["parameters"]) else "")
            strings += [f'", {value}', f", {value}"] if position else [start + value]
        strings += [] if properties else [start]
    return list(dict.fromkeys(strings))


def _as_json(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
