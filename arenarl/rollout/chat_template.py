"""Chat template and end-of-turn token: how a conversation becomes tokens.

SFT's labels, rollouts and the trainer must agree on both, so both are set when a tokenizer is loaded. A model's own
template is often not trainable: it drops earlier thoughts, marks no assistant turns or shows no tool results. Its
`eos_token` often does not end a turn: Qwen3-*-Base has `<|endoftext|>`, which its turns never contain.
"""

import re
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from arenarl.system.errors import UserError
from arenarl.system.progress import say

_CHATML = ("<|im_start|>", "<|im_end|>")  # around each message in Qwen3's training template
_MARKER = re.compile(r"{%-?\s*generation\b")  # starts the policy's own tokens in a template
_QUERY = {"role": "user", "content": "what is asked"}
_TURN = {"role": "assistant", "content": "<think>\nwhat is thought\n</think>\n\nwhat is said"}
_RESULT = {"role": "tool", "content": "what is seen"}


def make_trainable(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Set a trainable chat template (its own, TRL's variant or Qwen3's) and the end-of-turn token as `eos_token`.
    Raises UserError without a trainable template."""
    template = tokenizer.chat_template
    if not template:
        remedy = "save one with its tokenizer, or start from a checkpoint that train_sft.py wrote"
        raise UserError(f"{path} has no chat template; {remedy}")
    template = template["default"] if isinstance(template, dict) else template
    end = turn_end(tokenizer, template) if _MARKER.search(template) else None
    if end is None:
        template, end = _replacement(tokenizer, path)
    if end is None:
        problem = "is not trainable, because it loses thoughts, tool results or the end of a turn"
        remedy = "save a prefix-preserving template with generation markers beside the tokenizer"
        raise UserError(f"{path}: the chat template {problem}; {remedy}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template, tokenizer.eos_token = template, end


def _replacement(tokenizer: PreTrainedTokenizerBase, path: str) -> tuple[str | None, str | None]:
    """Return TRL's variant of the tokenizer's template, or Qwen3's, and its end-of-turn token; None if neither fits."""
    # imported here, as it loads datasets and pandas
    from trl.chat_template_utils import get_training_chat_template, qwen3_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except (ValueError, TemplateError):  # TRL has no variant of this template
        template = None
    end = template and turn_end(tokenizer, template)
    has_chatml = all(tokenizer.convert_tokens_to_ids(token) not in (None, tokenizer.unk_token_id) for token in _CHATML)
    if end is None and has_chatml:
        template, end = qwen3_training_chat_template, turn_end(tokenizer, qwen3_training_chat_template)
        say(f"{path}: the chat template is not trainable; Qwen3's training template replaces it")
    return template, end


def turn_end(tokenizer: PreTrainedTokenizerBase, template: str) -> str | None:
    """Return the special token that ends an assistant turn, or None if the template loses or mislabels a part."""

    def render(*messages: dict[str, Any], prompt: bool = False, **options: Any) -> Any:
        options |= {"chat_template": template, "add_generation_prompt": prompt}
        return tokenizer.apply_chat_template(list(messages), **options)

    try:
        prefix = render(_QUERY, prompt=True, tokenize=False) + _TURN["content"]
        turn = render(_QUERY, _TURN, tokenize=False)
        with_result = render(_QUERY, _TURN, _RESULT, prompt=True, tokenize=False)
        marked = render(_QUERY, _TURN, return_dict=True, return_assistant_tokens_mask=True)
    except (TemplateError, TypeError, ValueError):  # templates raise various errors for a role that they lack
        return None
    rest = turn[len(prefix) :]
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    end = min((token for token in special if token in rest), key=rest.index, default=None)
    if end is None or not turn.startswith(prefix):
        return None
    whole = turn[: turn.index(end, len(prefix)) + len(end)]
    tokens = zip(marked["input_ids"], marked["assistant_masks"], strict=True)
    own = tokenizer.decode([token for token, is_own in tokens if is_own])
    shows_results = with_result.startswith(whole) and _RESULT["content"] in with_result[len(whole) :]
    marks_turn = own.startswith(whole[len(prefix) - len(_TURN["content"]) :])
    return end if shows_results and marks_turn else None
