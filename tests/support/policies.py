"""Policies with prepared turns, an environment that echoes its calls, and requests to generators."""

import asyncio
import json
import random

from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.trajectory import Query, read_turns


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


def random_requests(count, temperature, max_tokens=12):
    """Requests with random prompts; `temperature` is a number, or a list that the rows take in turn."""
    rng, temperatures = random.Random(count), temperature if isinstance(temperature, list) else [temperature]
    prompts = [[rng.randrange(10, 600) for _ in range(rng.randint(1, 30))] for _ in range(count)]
    rows = enumerate(prompts)
    return [TurnRequest(prompt, max_tokens, temperatures[row % len(temperatures)], row) for row, prompt in rows]


def generate(generator, requests, catch=False):
    """The turns of concurrent requests; with `catch`, exceptions in their place."""

    async def run():
        return await asyncio.gather(*map(generator.generate, requests), return_exceptions=catch)

    return asyncio.run(asyncio.wait_for(run(), timeout=600))


def observations_of(trajectory):
    """The observations of each turn."""
    return [turn.observations for turn in read_turns(trajectory.messages)]
