"""How a conversation becomes tokens: a chat template that can be trained on, and the token that ends a turn.

SFT's labels, rollouts and the trainer have to agree on both, so both are settled where a tokenizer is loaded. A model's
own template often cannot be trained on: it drops earlier thoughts, marks no assistant turns or shows no tool results.
And `eos_token` is often not what ends a turn: Qwen3-*-Base has `<|endoftext|>` there, and a policy that waits for it
never ends one.
"""

import re
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from arenarl.system.errors import UserError
from arenarl.system.progress import say

_CHATML = ("<|im_start|>", "<|im_end|>")  # what Qwen3's training template writes around a message
_MARK = re.compile(r"{%-?\s*generation\b")  # what the policy says stands behind one
_ASKED = {"role": "user", "content": "what is asked"}
_TURN = {"role": "assistant", "content": "<think>\nwhat is thought\n</think>\n\nwhat is said"}
_SEEN = {"role": "tool", "content": "what is seen"}


def make_trainable(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Give a tokenizer a template that can be trained on: its own, TRL's variant or Qwen3's. `eos_token` ends turns.
    Raises UserError if there is no template, or none that fits."""
    own = tokenizer.chat_template
    if not own:
        remedy = "save one with its tokenizer, or start from a checkpoint that train_sft.py wrote"
        raise UserError(f"{path} has no chat template; {remedy}")
    template = own["default"] if isinstance(own, dict) else own
    end = turn_end(tokenizer, template) if _MARK.search(template) else None
    if end is None:
        template, end = _replacement(tokenizer, path)
    if end is None:
        problem = "cannot be trained on: thoughts, tool results or the end of a turn get lost in it"
        remedy = "save a prefix-preserving one with generation markers with its tokenizer"
        raise UserError(f"{path}: its chat template {problem}; {remedy}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template, tokenizer.eos_token = template, end


def _replacement(tokenizer: PreTrainedTokenizerBase, path: str) -> tuple[str | None, str | None]:
    """TRL's variant of the tokenizer's template, or Qwen3's, and what ends a turn then; None if neither fits."""
    # loads datasets and pandas
    from trl.chat_template_utils import get_training_chat_template, qwen3_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except (ValueError, TemplateError):  # one that TRL does not know
        template = None
    end = template and turn_end(tokenizer, template)
    has_chatml = all(tokenizer.convert_tokens_to_ids(token) not in (None, tokenizer.unk_token_id) for token in _CHATML)
    if end is None and has_chatml:
        template, end = qwen3_training_chat_template, turn_end(tokenizer, qwen3_training_chat_template)
        say(f"{path}: its chat template cannot be trained on; Qwen3's training template takes its place")
    return template, end


def turn_end(tokenizer: PreTrainedTokenizerBase, template: str) -> str | None:
    """The special token that ends an assistant's turn; None if the template loses or mislabels a part of it."""

    def render(*messages: dict[str, Any], prompt: bool = False, **options: Any) -> Any:
        options |= {"chat_template": template, "add_generation_prompt": prompt}
        return tokenizer.apply_chat_template(list(messages), **options)

    try:
        said = render(_ASKED, prompt=True, tokenize=False) + _TURN["content"]
        turn = render(_ASKED, _TURN, tokenize=False)
        seen = render(_ASKED, _TURN, _SEEN, prompt=True, tokenize=False)
        marked = render(_ASKED, _TURN, return_dict=True, return_assistant_tokens_mask=True)
    except (TemplateError, TypeError, ValueError):  # templates refuse roles in ways of their own
        return None
    rest = turn[len(said) :]
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    end = min((token for token in special if token in rest), key=rest.index, default=None)
    if end is None or not turn.startswith(said):
        return None
    whole = turn[: turn.index(end, len(said)) + len(end)]
    tokens = zip(marked["input_ids"], marked["assistant_masks"], strict=True)
    own = tokenizer.decode([token for token, is_own in tokens if is_own])
    shows_results = seen.startswith(whole) and _SEEN["content"] in seen[len(whole) :]
    marks_turn = own.startswith(whole[len(said) - len(_TURN["content"]) :])
    return end if shows_results and marks_turn else None
