"""The transformers back end in a second process, which generates while the trainer updates (`rl.steps_ahead: 1`).

The child process holds a copy of the policy. The rollout engine, the tools and the judge stay in the trainer's process:
only turns cross the pipe, token ids in, token ids and logprobs out. Trajectories keep their caches in the child.
"""

import signal
import weakref
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from safetensors.torch import load, save
from transformers import PreTrainedTokenizerBase

from arenarl.config.schema import Config
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.rollout.policy import load_to_generate, load_tokenizer
from arenarl.run.stage import fix_randomness
from arenarl.system.errors import GO_ON, UserError

# token ids, max_tokens, temperature, seed, number of the trajectory's cache
Row = tuple[list[int], int, float, int, int]


class ProcessGenerator(TransformersGenerator):
    """Batches requests as `TransformersGenerator` does; a child process generates each batch.

    `policy` is the path of the weights until the first `load`. The constructor waits until the child has loaded them.
    Errors of the child are raised here; UserError if it has died.
    """

    def __init__(self, policy: str, config: Config, tokenizer: PreTrainedTokenizerBase):
        super().__init__(None, tokenizer, config.rollout.batch_size)
        self._numbers: dict[int, int] = {}  # id of a live cache -> its number in the child
        self._count, self._ended = count(), list[int]()
        context = get_context("spawn")
        self._pipe, pipe_of_child = context.Pipe()
        arguments = (pipe_of_child, policy, config)
        self._process = context.Process(target=_serve, args=arguments, name="generator", daemon=True)
        self._process.start()
        pipe_of_child.close()  # otherwise this process would not notice the child's death
        self._call("generate", [], [])  # waits until the policy is loaded

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Replace the child's weights; names are those of the model's parameters."""
        self._call("load", save(weights))

    def _generate_all(self, requests: list[TurnRequest]) -> list[GeneratedTurn]:
        rows = [(one.token_ids, one.max_tokens, one.temperature, one.seed, self._number(one.cache)) for one in requests]
        ended, self._ended = self._ended, []
        return self._call("generate", rows, ended)

    def _number(self, cache: TrajectoryCache) -> int:
        if id(cache) not in self._numbers:
            self._numbers[id(cache)] = next(self._count)
            weakref.finalize(cache, self._forget, id(cache))
        return self._numbers[id(cache)]

    def _forget(self, place: int) -> None:
        self._ended.append(self._numbers.pop(place))

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the child's `_Policy`."""
        try:
            self._pipe.send((method, *arguments))
            reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            ended = f"the process that generates has ended with exit code {self._process.exitcode}"
            raise UserError(f"rl.steps_ahead=1: {ended}; {GO_ON}") from error
        if isinstance(reply, Exception):
            raise reply
        return reply


class _Policy:
    """The child's copy of the policy, with the caches of the trajectories that are under way."""

    def __init__(self, policy: str, config: Config):
        model, tokenizer = load_to_generate(policy, config.policy.dtype), load_tokenizer(policy)
        self.generator = TransformersGenerator(model, tokenizer, config.rollout.batch_size)
        self.generator.has_logprobs = True
        self.caches: dict[int, TrajectoryCache] = {}

    @torch.no_grad()
    def load(self, weights: bytes) -> None:
        by_name = load(weights)
        for name, parameter in self.generator.model.named_parameters():
            parameter.copy_(by_name[name])
        self.caches.clear()

    def generate(self, rows: list[Row], ended: list[int]) -> list[GeneratedTurn]:
        for number in ended:
            self.caches.pop(number, None)
        caches = [self.caches.setdefault(number, TrajectoryCache()) for *_, number in rows]
        requests = [TurnRequest(*row[:-1], cache) for row, cache in zip(rows, caches, strict=True)]
        return self.generator._generate_all(requests)


def _serve(pipe: Connection, path: str, config: Config) -> None:
    """Answer the trainer's calls until its end of the pipe closes, also by a kill."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; the trainer ends it
    policy = None
    with suppress(EOFError, OSError):
        while True:
            method, *arguments = pipe.recv()
            try:
                if policy is None:
                    fix_randomness(config)
                    policy = _Policy(path, config)
                reply = getattr(policy, method)(*arguments)
            except Exception as error:  # raised in the trainer's process
                reply = error
            pipe.send(reply)
