"""Processes that share an engine, without vLLM: threads in their place, and engines that keep what they were told.
test_vllm.py has a real one."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.rollout.generation import TurnRequest, run_turns
from arenarl.rollout.tensor_parallel import SharedVLLMGenerator
from arenarl.system.errors import UserError

LONGEST = 100  # a prompt above it is refused


class Engine:
    """A token of every request a step: the request's seed, as many as it may have."""

    def __init__(self, wrong_at=None):
        self.running, self.log, self.wrong_at = {}, [], wrong_at

    def add_request(self, name, request):
        self.running[name] = (request, [])
        self.log.append(("add", name, request.token_ids))

    def abort_request(self, names):
        self.log.append(("abort", *names))
        for name in names:
            self.running.pop(name, None)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.log.append(("step", *self.running))
        for request, tokens in self.running.values():
            tokens.append(-1 if request.seed == self.wrong_at else request.seed)
        ended = {name: tokens for name, (request, tokens) in self.running.items() if len(tokens) == request.max_tokens}
        self.running = {name: one for name, one in self.running.items() if name not in ended}
        return [
            SimpleNamespace(
                request_id=name,
                finished=True,
                outputs=[
                    SimpleNamespace(
                        token_ids=tokens, logprobs=[{token: SimpleNamespace(logprob=-1.0)} for token in tokens]
                    )
                ],
            )
            for name, tokens in ended.items()
        ]


class Shared(SharedVLLMGenerator):
    def submit(self, name, request):
        if len(request.token_ids) > LONGEST:
            raise UserError("a prompt that is too long")
        self.llm.llm_engine.add_request(name, request)


def share(works, engines=None):
    """Each of `works`, a coroutine function of a generator, in a thread of its own;
    what each returned or raised, and the engines."""
    engines = engines or [Engine() for _ in works]
    heard, meet = [None] * len(works), threading.Barrier(len(works), timeout=20)

    def tell_as(place):
        def tell(said):
            heard[place] = said
            meet.wait()
            all_said = list(heard)
            meet.wait()
            return all_said

        return tell

    def run(place):
        generator = Shared(0, SimpleNamespace(llm_engine=engines[place]), str(place), tell_as(place))
        try:
            return run_turns(generator, works[place](generator))
        except (UserError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(run, range(len(works)))), engines


def rollout(seed, trajectories, turns):
    """Trajectories whose tools take as long as they like; each turn's tokens are the request's own."""

    async def work(generator):
        rng = random.Random(seed)

        async def trajectory(number):
            for turn in range(rng.randint(1, turns)):
                await asyncio.sleep(rng.choice([0, 0, 0.002]))
                own, tokens = 1000 * seed + 10 * number + turn, rng.randint(1, 5)
                assert (await generator.generate(TurnRequest([own], tokens, 0.8, own))).token_ids == [own] * tokens
            return number

        return await asyncio.gather(*(trajectory(number) for number in range(trajectories)))

    return work


@settings(derandomize=True, deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=2, max_size=4))
def test_every_engine_is_told_the_same_in_the_same_order_and_each_process_gets_its_own_turns(sizes):
    """Whatever each has to do, be it nothing, and whenever it is ready to ask."""
    results, engines = share([rollout(seed, *size) for seed, size in enumerate(sizes)])
    assert results == [list(range(trajectories)) for trajectories, _ in sizes]
    assert all(engine.log == engines[0].log for engine in engines) and not any(engine.running for engine in engines)


def test_who_fails_is_waited_for_no_longer_and_takes_nobody_with_him():
    """His other turns are given up in every engine; he ends with his error once the others are through."""

    async def failing(generator):
        async def fail():
            await generator.generate(TurnRequest([1], 2, 0.8, 1))
            raise RuntimeError("a tool fell off")

        await asyncio.gather(generator.generate(TurnRequest([2], 10**9, 0.8, 2)), fail())

    (error, done), engines = share([failing, rollout(1, 4, 4)])
    assert str(error) == "a tool fell off" and done == [0, 1, 2, 3]
    assert engines[0].log == engines[1].log and ("abort", "0-0") in engines[0].log


def test_a_refused_prompt_is_its_own_processs_error():
    async def too_long(generator):
        await generator.generate(TurnRequest([0] * (LONGEST + 1), 2, 0.8, 1))

    (error, done), engines = share([too_long, rollout(1, 3, 3)])
    assert isinstance(error, UserError) and done == [0, 1, 2] and engines[0].log == engines[1].log


def test_engines_that_draw_different_tokens_end_the_run_on_all_processes():
    results, _ = share([rollout(0, 2, 2), rollout(1, 2, 2)], [Engine(), Engine(wrong_at=1000)])
    for error in results:
        with pytest.raises(
            UserError,
            match="the 2 processes of a vLLM engine drew different tokens .* leave rollout.vllm_tensor_parallel out",
        ):
            raise error
