"""Policies with prepared turns, and an environment that echoes its calls."""

import asyncio
import json

from arenarl.rollout.generation import GeneratedTurn
from arenarl.trajectory import Query


def think(body):
    return f"<think>\nhm\n</think>\n\n{body}"


def call(name="search_poi", **arguments):
    return think(f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


ANSWER = think("<answer>\nLotus Park ¥20\n</answer>")


class Scripted:
    """A generator of prepared turns. `scripts` maps a query's text in the prompt to its list of turns."""

    def __init__(self, tokenizer, scripts):
        self.tokenizer, self.scripts = tokenizer, scripts
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        prompt = self.tokenizer.decode(request.token_ids)
        script = next(turns for text, turns in self.scripts.items() if text in prompt)
        text = script[prompt.count("<|im_start|>assistant") - 1]
        token_ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        return GeneratedTurn(token_ids[: request.max_tokens])


class Echo:
    """An environment that returns a call's name and arguments, and records calls and resets.

    A call of `slow` returns after `patience` other calls.
    """

    tools = []

    def __init__(self, patience=0):
        self.patience, self.log, self.resets = patience, [], 0

    def reset(self, query):
        self.resets += 1
        self.query = query

    async def call(self, name, arguments):
        while name == "slow" and len(self.log) < self.patience:
            await asyncio.sleep(0.01)
        self.log.append(name)
        return f"{name} {arguments}"


def query(text="Find a quiet park.", query_id="q"):
    return Query(query_id, "travel", "Search", "en", text)


class HalfScripted:
    """A generator that runs the model on every request, but returns the scripted turn."""

    def __init__(self, model, scripted):
        self.model, self.scripted = model, scripted

    async def generate(self, request):
        await self.model.generate(request)
        return await self.scripted.generate(request)
