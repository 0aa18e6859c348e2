"""One vLLM engine split over the GPUs of several processes, each of which rolls out trajectories of its own.

Each process has a part of the weights and a scheduler of its own, and vLLM computes right only if all of them see the
same requests in the same order at every step. Here requests come whenever a trajectory is ready for its next turn, in
another order in every process. So nobody hands his to his engine by himself: before each step the processes tell each
other what they ask for and whom they give up, do all of it in the order of their ranks, and take the step together,
until none of them has anything left to ask.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

import torch

from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.vllm_generation import VLLMGenerator
from arenarl.system.errors import UserError

IDLE_S = 0.001  # between two looks at whether a trajectory is back from its tools, when the engine has nothing to do
Result = TypeVar("Result")


@dataclass
class Said:
    """What a process tells the others before a step."""

    asks: dict[str, TurnRequest] = field(default_factory=dict)
    gives_up: list[str] = field(default_factory=list)
    is_over: bool = False
    drawn: int = 0  # a checksum of the turns that the last step ended here


class SharedVLLMGenerator(VLLMGenerator):
    """`tell` gives what every process of the engine said, in the order of their ranks, once all have spoken."""

    def __init__(self, eos_id: int, llm: Any, rank: str, tell: Callable[[Said], list[Said]]):
        super().__init__(eos_id, llm)
        self.rank, self.tell = rank, tell
        self._said = Said()

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        name = f"{self.rank}-{next(self._numbers)}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._said.asks[name] = TurnRequest(request.token_ids, request.max_tokens, request.temperature, request.seed)
        try:
            return await future
        finally:
            del self._waiting[name]
            if future.cancelled():
                self._said.gives_up.append(name)

    async def serve(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """What the coroutine returns or raises, once the other processes are through with theirs:
        to be called on all of them together."""
        work, engine = asyncio.ensure_future(coroutine), self.llm.llm_engine
        while True:
            await asyncio.sleep(0 if engine.has_unfinished_requests() else IDLE_S)
            if work.done() and work.exception():
                for task in asyncio.all_tasks() - {asyncio.current_task()}:  # whose turns nobody wants any more
                    task.cancel()
            self._said.is_over = work.done() and not self._waiting
            said, self._said = self._said, Said()
            heard = self.tell(said)
            _require_equal_turns(heard)
            for one in heard:
                self._do(one)
            if all(one.is_over for one in heard):
                return work.result()
            if engine.has_unfinished_requests():
                self._said.drawn = crc32(repr(self.step()).encode())

    def _do(self, said: Said) -> None:
        for name, request in said.asks.items():
            try:
                self.submit(name, request)
            except UserError as error:  # every process refuses it; the one whose it is learns of it
                future = self._waiting.get(name)
                if future is not None and not future.done():
                    future.set_exception(error)
        if said.gives_up:
            self.llm.llm_engine.abort_request(said.gives_up)


def _require_equal_turns(heard: list[Said]) -> None:
    if len({one.drawn for one in heard}) > 1:
        raise UserError(
            f"the {len(heard)} processes of a vLLM engine drew different tokens from the same requests, "
            "so what they compute together is wrong; leave rollout.vllm_tensor_parallel out, "
            "or set rollout.backend=vllm_server"
        )


def tell_engine(said: Said) -> list[Said]:
    """Over the CPUs, in the group of the processes that vLLM has split its engine over."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    heard: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(heard, said, group=group.cpu_group)
    return heard
