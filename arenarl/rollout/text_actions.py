"""Text actions in place of tool calls (`environment.actions: text`): `Thought: … Action: …`, as ReAct and AgentGym.

A message keeps the policy's text and also the tool calls that its actions mean, so judges, truths and reports read both
forms in one way. Observations are user messages.
"""

import re
from typing import Any

from arenarl.rollout.arguments import is_text
from arenarl.rollout.environment import Schema
from arenarl.system.errors import UserError
from arenarl.trajectory import ACTION_BEGINS, assistant_message, parse_turn

_ACTION = re.compile(ACTION_BEGINS.pattern + r"\s*(.*?)\s*$", re.MULTILINE)


def action_tool(tools: list[Schema]) -> tuple[str, str]:
    """Return (name, argument) of the environment's only tool, which takes one text. Raises UserError for others."""
    functions = [tool["function"] for tool in tools]
    properties = functions[0]["parameters"].get("properties", {}) if len(functions) == 1 else {}
    if len(properties) == 1 and is_text(next(iter(properties.values())), functions[0]["parameters"]):
        return functions[0]["name"], next(iter(properties))
    names = ", ".join(function["name"] for function in functions) or "none"
    problem = f"needs an environment with one tool that takes one text, and this one has {names}"
    raise UserError(f"environment.actions=text {problem}; set environment.actions=tool_calls")


def action_message(text: str, tool: tuple[str, str]) -> dict[str, Any]:
    """Parse a generated turn into a chat message: the unchanged text, and a call of `tool` for each action.

    >>> action_message("Thought:\\nWood.\\n\\nAction:\\nget 1 oak log", ("act", "action"))["actions"]
    [{'name': 'act', 'arguments': {'action': 'get 1 oak log'}}]
    >>> action_message("Thought: Action: up failed.\\n**Action:** down", ("act", "action"))["actions"]
    [{'name': 'act', 'arguments': {'action': 'down'}}]
    """
    message = assistant_message(text)
    if "tool_calls" not in message:
        (name, argument), actions = tool, filter(None, _ACTION.findall(message["content"]))
        message["actions"] = [{"name": name, "arguments": {argument: action}} for action in actions]
    return message


def as_text_action(message: dict[str, Any]) -> dict[str, Any]:
    """Convert a message of a trajectory with one tool call per turn to text, with the thought after `Thought:`.
    Raises UserError for a turn with several calls, or a call with several arguments."""
    if message["role"] == "tool":
        return {"role": "user", "content": message["content"]}
    if message["role"] != "assistant" or "actions" in message or not (calls := parse_turn(message).tool_calls):
        return message
    if len(calls) > 1 or not isinstance(calls[0].arguments, dict) or len(calls[0].arguments) != 1:
        problem = "a trajectory has a turn that is not one call with one argument"
        raise UserError(f"environment.actions=text: {problem}; set environment.actions=tool_calls, or change the data")
    (action,) = calls[0].arguments.values()
    text = f"Thought:\n{message.get('reasoning_content', '')}\n\nAction:\n{action}"
    actions = [{"name": calls[0].name, "arguments": calls[0].arguments}]
    return {"role": "assistant", "reasoning_content": "", "content": text, "actions": actions}
