"""Closed models as policies, for evaluation only (the first rows of Table 3), with the tools and budgets of all others.

The engine's turn loop is unchanged; a turn is a chat completion with the tools' JSON schemas instead of token ids.
Native tool calls and Qwen3's `<tool_call>` text both work. The system prompt is always configs/prompts/policy_*.yaml,
because `rollout.system_prompt` is for trained policies. Calls go through `llm/client.py`: reruns are free.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from arenarl.config.schema import Config, LLMConfig, RolloutConfig
from arenarl.llm.client import LLMClient, NoReply, RunStopped
from arenarl.llm.requests import Message, chat_request
from arenarl.rollout.engine import Attempt, Progress, RolloutEngine, Tick
from arenarl.rollout.environment import Environment, Step
from arenarl.rollout.system_prompt import default_prompt
from arenarl.system.errors import UserError
from arenarl.trajectory.messages import ToolCall, assistant_message, native_calls, reply_message
from arenarl.trajectory.text import MAX_RECORD_NESTING, parse_json, text_of
from arenarl.trajectory.vocabulary import Query, RolloutGroup, StopReason, Trajectory, prompt_messages


@dataclass
class ApiProgress(Progress):
    """A trajectory in progress. `sent` is the conversation in the API's form; token counts are the API's."""

    sent: list[Message] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)  # of the last turn's native calls, which precede calls in text
    meta: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    own_tokens: int = 0
    all_tokens: int = 0

    @property
    def length(self) -> int:
        """Number of tokens after the prompt; at least the policy's own, because APIs drop earlier thoughts."""
        return max(self.own_tokens, self.all_tokens - self.prompt_tokens)

    @property
    def policy_tokens(self) -> int:
        return self.own_tokens

    def send_back(self, reply: dict[str, Any], calls: Sequence[tuple[str, ToolCall]]) -> None:
        """Add a reply to the next request, with arguments as valid JSON.

        A reply with tool calls keeps its thoughts and signatures: DeepSeek, Kimi (`reasoning_content`), Gemini
        (`extra_content` of a call) and OpenRouter (`reasoning_details`) need them. A reply without calls loses its
        thoughts, as with all APIs.
        """
        message: Message = {"role": "assistant", "content": text_of(reply.get("content")) or None}
        if calls:
            message |= {name: reply[name] for name in ("reasoning_content", "reasoning_details") if reply.get(name)}
            message["tool_calls"] = []
        for raw, (call_id, call) in zip(reply["tool_calls"] if calls else [], calls, strict=True):
            arguments = call.arguments if isinstance(call.arguments, dict) else {"malformed": call.arguments}
            function = {"name": call.name or "unknown", "arguments": json.dumps(arguments, ensure_ascii=False)}
            extra = {name: value for name, value in raw.items() if name not in ("id", "type", "function", "index")}
            message["tool_calls"].append({**extra, "id": call_id, "type": "function", "function": function})
        self.sent.append(message)
        self.call_ids = [call_id for call_id, _ in calls]

    def end(self, query_id: str, stop_reason: StopReason) -> Trajectory:
        trajectory = super().end(query_id, stop_reason)
        trajectory.meta |= self.meta
        return trajectory


class ApiRolloutEngine(RolloutEngine):
    """Rolls out queries with a model behind an OpenAI-compatible API.

    A request that the API refuses (too long, filtered) ends its trajectory without an answer; `meta["refused"]` has the
    reason. The evaluation stops if the share of refusals exceeds `judge.max_failure_share`, or if no reply comes.
    """

    def __init__(
        self, llm: LLMConfig, client: LLMClient, make_environment: Callable[[], Environment], config: RolloutConfig,
        language: str, **world: Any,
    ):  # fmt: skip
        super().__init__(None, None, make_environment, config, **world)  # text only: no generator, no tokenizer
        self.system = default_prompt(language, bool(self.instances.first.tools))
        self.llm, self.client = llm, client

    @classmethod
    def from_config(
        cls, config: Config, llm: LLMConfig, client: LLMClient, make: Callable[[], Environment], language: str
    ) -> Self:
        """Return an engine with the run's budgets and environment settings."""
        world = config.environment
        options = {"actions": world.actions, "max_instances": world.instances, "timeout_s": world.timeout_s}
        return cls(llm, client, make, config.rollout, language, **options)

    def roll_out_groups(self, *_: Any, **__: Any) -> list[RolloutGroup]:
        raise UserError(f"{self.llm.model} is behind an API and cannot be trained; set evaluate.api to evaluate it")

    def roll_out(self, attempts: Sequence[Attempt], tick: Tick | None = None) -> list[Trajectory]:
        trajectories = super().roll_out(attempts, tick)
        refused = [trajectory.meta["refused"] for trajectory in trajectories if "refused" in trajectory.meta]
        max_share = self.client.limits.max_failure_share
        if len(refused) > max_share * len(trajectories):
            share = f"{self.llm.model} refused {len(refused)} of {len(trajectories)} queries"
            raise UserError(f"{share}, above judge.max_failure_share={max_share}; the last refusal: {refused[-1]}")
        return trajectories

    def _start(self, query: Query, first_observation: str | None = None) -> ApiProgress:
        messages = prompt_messages(query, self.system, first_observation)
        return ApiProgress(messages, [], sent=list(messages))

    async def _take_turn(
        self, progress: ApiProgress, attempt: Attempt, turn_number: int, budget: int, must_answer: bool
    ) -> bool:
        """Request and append the policy's next message; with `must_answer` the request offers no tools."""
        tools = {} if must_answer or not self.tools else {"tools": self.tools}
        request = chat_request(self.llm, progress.sent, budget, attempt.temperature, **tools)
        reply = await self.client.complete(self.llm, request, attempt.seed if attempt.temperature else 0)
        if isinstance(reply, NoReply):
            return self._without_reply(progress, reply)
        try:
            message = parse_json(reply.text, MAX_RECORD_NESTING)
        except ValueError as error:
            return self._without_reply(progress, NoReply(str(error), is_refusal=True))
        numbered = enumerate(native_calls(message))
        calls = [(call_id or f"call_{turn_number}_{number}", call) for number, (call_id, call) in numbered]
        tokens_in, tokens_out = reply.tokens_in or 0, reply.tokens_out or 0
        progress.prompt_tokens = progress.prompt_tokens or tokens_in
        progress.own_tokens += tokens_out
        progress.all_tokens = tokens_in + tokens_out
        progress.meta["model"] = reply.model
        if self.action_tool:
            progress.messages.append(self._message(text_of(message.get("content"))))
        else:
            progress.messages.append(reply_message(message, [call for _, call in calls]))
        progress.send_back(message, calls)
        return message.get("finish_reason") != "length" and progress.length <= self.config.max_tokens

    def repeat_turn(self, progress: ApiProgress, message: dict[str, Any], turn_number: int) -> None:
        """Append an existing turn in place of a reply, without thoughts and signatures, which only its model reads."""
        functions = [call["function"] for call in message.get("tool_calls", [])]
        calls = [(f"call_{turn_number}_{number}", ToolCall(**call)) for number, call in enumerate(functions)]
        progress.messages.append(message)
        raw_calls = [{"function": function} for function in functions]
        progress.send_back({"content": message["content"], "tool_calls": raw_calls}, calls)

    def _without_reply(self, progress: ApiProgress, reply: NoReply) -> bool:
        self.client.check()
        if not reply.is_refusal:
            silence = f"no usable reply from {self.llm.model} for {self.llm.patience_s:g} s"
            raise RunStopped(f"{silence} ({reply.reason}); start the run again later")
        progress.meta["refused"] = reply.reason[:300]
        progress.messages.append(assistant_message(""))
        return True

    def _append_observations(self, progress: ApiProgress, steps: list[Step]) -> None:
        messages = progress.add_observations(steps)
        if self.action_tool:
            progress.sent += messages
            return
        native = len(progress.call_ids)
        for message, call_id in zip(messages[:native], progress.call_ids, strict=True):
            progress.sent.append(message | {"tool_call_id": call_id})
        if messages[native:]:  # results of calls in the text, in the form of Qwen3's chat template
            texts = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in messages[native:]]
            progress.sent.append({"role": "user", "content": "\n".join(texts)})
