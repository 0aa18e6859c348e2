"""Chat template, end-of-turn token and untrusted text: how a conversation becomes tokens.

SFT's labels, rollouts and the trainer must agree on template and end, so both are set when a tokenizer is loaded. A
model's own template is often not trainable: it drops earlier thoughts, marks no assistant turns or shows no tool
results. Its `eos_token` often does not end a turn: Qwen3-*-Base has `<|endoftext|>`, which its turns never contain.

`ChatEncoder` makes the tokens of SFT, rollouts and evaluation. It puts tools that the template ignores into the system
message, and breaks up control tokens in untrusted text.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import TemplateError
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from arenarl.config.value_types import ActionForm
from arenarl.system.errors import UserError, one_line
from arenarl.system.progress import say, say_once
from arenarl.trajectory.text import storable

DOCS = "docs/chat_templates.md"
LEAST_ROOM = 1024  # tokens; far more than a word has that the cut splits
_CHATML = ("<|im_start|>", "<|im_end|>")  # around each message in Qwen3's training template
_MARKER = re.compile(r"{%-?\s*generation\b")  # starts the policy's own tokens in a template
_QUERY = {"role": "user", "content": "what is asked"}
_TURN = {"role": "assistant", "content": "<think>\nwhat is thought\n</think>\n\nwhat is said"}
_SHORT_TURN = {"role": "assistant", "content": "what is said"}
_RESULT = {"role": "tool", "content": "what is seen"}
_SYSTEM = {"role": "system", "content": "what is set"}
ANY_TOOL = {
    "type": "function",
    "function": {"name": "a_tool_of_the_run", "parameters": {"type": "object", "properties": {}}},
}
_TAG = re.compile(r"</?[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]")
_OWN_TAG = re.compile(r"\s*</?(think|tool_call|tool_response|answer)>\s*")
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_SCHEMAS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""  # as in Qwen3's template, in the form that the policy's turns are parsed


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
        problem += _refusal(tokenizer) or ", or ends a prompt with a blank"
        remedy = f"save a prefix-preserving template with generation markers beside the tokenizer ({DOCS})"
        raise UserError(f"{path}: the chat template {problem}; {remedy}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template, tokenizer.eos_token = template, end


def _refusal(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return why the tokenizer's own template cannot render a turn with a result, in brackets; "" if it can."""
    if not tokenizer.is_fast:
        return " (its tokenizer has no tokenizer.json)"
    try:
        tokenizer.apply_chat_template([_QUERY, _TURN, _RESULT], tokenize=False)
    except _TEMPLATE_ERRORS as error:
        return f" ({one_line(error)})"
    return ""


def _replacement(tokenizer: PreTrainedTokenizerBase, path: str) -> tuple[str | None, str | None]:
    """Return TRL's variant of the tokenizer's template, or Qwen3's, and its end-of-turn token; None if neither fits."""
    # imported here, as it loads datasets and pandas
    from trl.chat_template_utils import get_training_chat_template, qwen3_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except _TEMPLATE_ERRORS:  # TRL has no variant of this template, or the template raises
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
        marked = render(_QUERY, _TURN, _RESULT, _TURN, return_dict=True, return_assistant_tokens_mask=True)
        prompt_ids = render(_QUERY, prompt=True, return_dict=False)
    except _TEMPLATE_ERRORS:  # templates raise various errors for a role that they lack
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
    marks_turn = own.startswith(whole[len(prefix) - len(_TURN["content"]) :]) and own.count("what is said") == 2
    marks_others = any(message["content"] in own for message in (_QUERY, _RESULT))
    # no token of the prompt may merge with the turn's first token
    is_split = marked["input_ids"][: len(prompt_ids)] == list(prompt_ids)
    is_token = tokenizer.convert_tokens_to_ids(end) in marked["input_ids"]
    return end if shows_results and marks_turn and not marks_others and is_split and is_token else None


class ChatEncoder:
    """Encodes conversations by the tokenizer's chat template, for SFT, rollouts and evaluation.

    Tools that the template does not show are written into the system message. Untrusted text (queries, observations,
    tools) gets a blank inside each control token: a special token, an added token such as <think>, or one of the
    template's own marks. So no query, page or MCP server can end its message and speak as another role.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.name = tokenizer, tokenizer.name_or_path or "the policy"
        tokens = tokenizer.added_tokens_decoder.items()
        self._control = {number for number, token in tokens if _is_control(token)}
        # a turn contains tags, which are added tokens in some tokenizers
        self._ends = {number for number, token in tokens if token.special and not _OWN_TAG.fullmatch(token.content)}
        self._place_tools = lru_cache(maxsize=64)(self._place_tools)
        self._short_turn = lru_cache(maxsize=64)(self._short_turn)

    def encode(self, messages: Sequence[Mapping[str, str]], tools: list[dict] | None = None, **options: Any) -> Any:
        """Return what `apply_chat_template` returns. Raises UserError if the template refuses the messages."""
        messages, tools = self._with_tools([self._harmless_message(message) for message in messages], tools)
        return self._render(messages, tools, options)

    def observation_ids(
        self, observations: Sequence[Mapping[str, str]], tools: list[dict] | None, has_system: bool
    ) -> list[int]:
        """Return the tokens between two turns: the observations and the next turn's start."""
        messages = [*_before_observations(has_system), *observations]
        text = self.encode(messages, tools, tokenize=False, add_generation_prompt=True)
        start, end = self._short_turn(json.dumps(tools, ensure_ascii=False), has_system)
        return self._encode_behind(text[start:end], text[end:])

    def _short_turn(self, tools_json: str, has_system: bool) -> tuple[int, int]:
        """Return where the turn in front of the observations starts and ends in the text."""
        end = self.tokenizer.eos_token
        text = self.encode(_before_observations(has_system), json.loads(tools_json), tokenize=False)
        start = text.rindex(_SHORT_TURN["content"])
        return start, text.index(end, start) + len(end)

    def start_ids(self, text: str) -> list[int]:
        """Return the tokens of a text that begins a turn."""
        prompt = self._render([_QUERY], None, {"tokenize": False, "add_generation_prompt": True})
        return self._encode_behind(prompt, text)

    def _encode_behind(self, before: str, text: str) -> list[int]:
        """Return the tokens of `text` as they follow `before`: alone, some tokenizers would add a blank to it."""
        for head in (before, self.tokenizer.eos_token):  # no token merges with a special token before it
            ids, whole = (self.tokenizer.encode(part, add_special_tokens=False) for part in (head, head + text))
            if whole[: len(ids)] == ids:
                break
        return whole[len(ids) :]

    def require(self, system: str | None, tools: list[dict] | None, actions: ActionForm = "tool_calls") -> None:
        """Raise UserError if the template loses or refuses the system prompt, the tools or two results of a turn, or
        changes them once a turn follows."""
        hides_tools = bool(tools) and not self._shows(tools, has_system=False)
        if (system or hides_tools) and (problem := self._system_problem()):
            keys = ["rollout.system_prompt=none"] * bool(system)
            keys += ["environment.schemas_in_prompt=false"] * hides_tools
            remedy = f"set {' and '.join(keys)}, or save a template that shows it ({DOCS})"
            raise UserError(f"{self.name}: the chat template {problem}, which this run needs; {remedy}")
        head = [{"role": "system", "content": system}] if system else []
        results = [_RESULT] * 2 if actions == "tool_calls" else [_QUERY]
        prompt, later = (
            self.encode([*head, _QUERY, *turns], tools, tokenize=False, add_generation_prompt=True)
            for turns in ([], [_TURN, *results])
        )
        if not later.startswith(prompt + _TURN["content"]):
            problem = "writes another prompt once a turn follows it, so SFT and rollouts would differ"
            raise UserError(f"{self.name}: the chat template {problem}; save a prefix-preserving template ({DOCS})")

    def _system_problem(self) -> str:
        """Return why a system message cannot be used, or ""."""
        try:
            text = self.tokenizer.apply_chat_template([_SYSTEM, _QUERY], tokenize=False)
        except _TEMPLATE_ERRORS as error:
            return f"refuses a system message ({one_line(error)})"
        return "" if _SYSTEM["content"] in text else "drops the system message"

    def _render(self, messages: list[dict[str, str]], tools: list[dict] | None, options: Mapping[str, Any]) -> Any:
        try:
            return self.tokenizer.apply_chat_template(messages, tools=tools, **{"return_dict": False} | options)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            problem = f"the chat template refuses messages of roles {roles} ({one_line(error)})"
            raise UserError(f"{self.name}: {problem}; save a template that shows them ({DOCS})") from error

    def _with_tools(
        self, messages: list[dict[str, str]], tools: list[dict] | None
    ) -> tuple[list[dict[str, str]], list[dict] | None]:
        """Return (messages, tools) for the template; tools that it does not show are in the system message."""
        if not tools:
            return messages, None
        has_system = messages[0]["role"] == "system"
        shown, schemas = self._place_tools(json.dumps(tools, ensure_ascii=False), has_system)
        if schemas:
            system = f"{messages[0]['content']}\n\n{schemas}" if has_system else schemas
            messages = [{"role": "system", "content": system}, *messages[has_system:]]
        return messages, shown

    def _place_tools(self, tools_json: str, has_system: bool) -> tuple[list[dict] | None, str]:
        """Return (tools for the template, text for the system message); one of them is empty."""
        tools = self._harmless_values(json.loads(tools_json))
        if self._shows(tools, has_system):
            return tools, ""
        say_once(f"{self.name}: the chat template does not show the tools; the system message contains their schemas")
        return None, _SCHEMAS.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))

    def _shows(self, tools: list[dict], has_system: bool) -> bool:
        """Return True if the template writes the name of every tool, in a prompt and once a turn follows it."""
        head = [_SYSTEM, _QUERY] if has_system else [_QUERY]
        forms = [(name, json.dumps(name)[1:-1]) for name in (tool["function"]["name"] for tool in tools)]
        for messages in (head, [*head, _TURN, _RESULT]):
            try:
                plain = self.tokenizer.apply_chat_template(messages, tokenize=False)
                text = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
            except _TEMPLATE_ERRORS:
                return False
            if not all(any(text.count(form) > plain.count(form) for form in both) for both in forms):
                return False
        return True

    def harmless(self, text: str) -> str:
        """Return untrusted text with a blank inside each control token; a text without one is unchanged."""
        return self._break_tokens(self._marks.sub(lambda match: _broken(match[0]), storable(text)), self._control)

    def _harmless_message(self, message: Mapping[str, str]) -> dict[str, str]:
        """Return the message with harmless content. A turn of the assistant keeps its tags, but cannot end itself; the
        system message is the user's own."""
        content, role = message["content"], message["role"]
        if role == "assistant":
            content = self._break_tokens(content, self._ends)
        elif role != "system":
            content = self.harmless(content)
        return {**message, "content": content}

    def _harmless_values(self, value: Any) -> Any:
        """Return a JSON value with harmless keys and strings."""
        if isinstance(value, dict):
            return {self.harmless(key): self._harmless_values(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._harmless_values(inner) for inner in value]
        return self.harmless(value) if isinstance(value, str) else value

    def _break_tokens(self, text: str, control: set[int]) -> str:
        """Break the control tokens that the tokenizer reads in the text, in any spelling that it normalises."""
        attempt = 0
        while spans := self._spans(text, control):
            # some normalisers remove the blanks: after three attempts, remove the tokens
            for start, end in reversed(spans):
                text = text[:start] + (_broken(text[start:end]) if attempt < 3 else "") + text[end:]
            attempt += 1
        return text

    def _spans(self, text: str, control: set[int]) -> list[tuple[int, int]]:
        """Return the places of the control tokens in the text."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        tokens = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [span for token, span in tokens if token in control and self._spells(text[slice(*span)], token)]

    def _spells(self, text: str, token: int) -> bool:
        """Return True if the text spells the token. The unknown token also stands for characters without a token."""
        if token != self.tokenizer.unk_token_id:
            return True
        return self.tokenizer.unk_token.lower() in unicodedata.normalize("NFKC", text).lower()

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        """Return a pattern of the template's marks: tags around messages, and labels before them such as USER:."""
        marks = set(_TAG.findall(_SCHEMAS))
        for messages in ([_SYSTEM, _QUERY], [_QUERY, _SHORT_TURN, _RESULT, _SHORT_TURN], [_QUERY, _SHORT_TURN, _QUERY]):
            try:
                text = self.tokenizer.apply_chat_template(messages, tools=[ANY_TOOL], tokenize=False)
            except _TEMPLATE_ERRORS:
                continue
            marks.update(_TAG.findall(text))
            contents = "|".join(re.escape(message["content"]) for message in messages)
            for between in re.split(contents, text)[1:-1]:
                label = _TAG.sub("\n", between).rstrip().rpartition("\n")[2].strip()
                marks.update([label] if label.endswith((":", "：")) and 2 < len(label) <= 40 else [])
        return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")


def bounded_ids(encode: Callable[[int], list[int]], length: int, room: int) -> list[int]:
    """Return the tokens of a text of `length` characters, or of a part of it that has far more than `room` tokens.

    `encode(size)` returns the tokens of the first `size` characters. So a text that cannot fit is never tokenised
    whole. The part has more than twice the tokens that fit, because the rest of the text can change tokens at the cut.
    """
    room = max(room, LEAST_ROOM)
    size = 2 * room
    while size < length:
        if len(token_ids := encode(size)) > 2 * room:
            return token_ids
        size *= 2
    return encode(length)


def chat_encoder(tokenizer: PreTrainedTokenizerBase) -> ChatEncoder:
    """Return the encoder of a tokenizer with its present template, made once."""
    return _encoder(tokenizer, tokenizer.chat_template)


@lru_cache(maxsize=8)
def _encoder(tokenizer: PreTrainedTokenizerBase, template: str) -> ChatEncoder:
    return ChatEncoder(tokenizer)


def _before_observations(has_system: bool) -> list[dict[str, str]]:
    return [_SYSTEM, _QUERY, _SHORT_TURN] if has_system else [_QUERY, _SHORT_TURN]


def _is_control(token: AddedToken) -> bool:
    """Return True for a token that untrusted text must not contain: a special token, or an added one with a tag. Other
    added tokens, such as words, runs of blanks and pieces of JSON, are ordinary text."""
    core = re.sub(r"[\s▁]", "", token.content)
    has_tag = _TAG.search(core) or (core[:1] in "<[|" and re.search(r"[^\W\d_]", core))
    return len(core) > 1 and bool(token.special or has_tag)


def _broken(text: str) -> str:
    """Insert a blank behind the first visible character.

    >>> _broken("</s>")
    '< /s>'
    """
    start = len(text) - len(text.lstrip()) + 1
    return f"{text[:start]} {text[start:]}"
