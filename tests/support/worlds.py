"""A world with a state, a counter that must reach the query's goal, and a class of worlds that crash."""

import random

from arenarl.rollout.environment import Step, ToolError, tool_schema


def played(*actions):
    """The messages of turns with these actions; None is a turn without a call."""
    turns = []
    for action in actions:
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": action}}}
        turn = {"role": "assistant", "reasoning_content": "", "content": ""}
        turns.append(turn if action is None else turn | {"tool_calls": [call]})
    return turns


class Counter:
    """The counter. `act("up")` and `act("down")` move it and pay 0.1; the goal pays 1 more and ends the trajectory."""

    needs_answer = False
    one_call_a_turn = True
    tools = [tool_schema("act", "Moves the counter.", {"action": {"type": "string", "enum": ["up", "down"]}})]
    made, closed = 0, 0  # over all instances of a class; each subclass counts its own

    def __init__(self, config=None, language="en"):
        type(self).made += 1
        self.is_closed = False

    def reset(self, query):
        self.value, self.goal = 0, query.constraints.get("goal", 2)
        return f"The counter stands at 0. Goal: {self.goal}."

    def call(self, name, arguments):
        assert not self.is_closed
        if not isinstance(arguments, dict) or arguments.get("action") not in ("up", "down"):
            raise ToolError("up or down.")
        self.value += 1 if arguments["action"] == "up" else -1
        return Step(f"It stands at {self.value}.", done=self.value == self.goal, reward=0.1 + (self.value == self.goal))

    def close(self):
        assert not self.is_closed
        self.is_closed = True
        type(self).closed += 1


def mortal(share, kind=Counter, seed=0):
    """Return a subclass whose instances crash in this share of the calls."""
    rng = random.Random(seed)

    class Mortal(kind):
        made, closed, deaths = 0, 0, 0

        def call(self, name, arguments):
            if rng.random() < share:
                type(self).deaths += 1
                raise ConnectionError("the world is gone")
            return super().call(name, arguments)

    return Mortal
