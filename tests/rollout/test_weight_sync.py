"""Weight sync and parity check without vLLM, mostly for LoRA; tests/rollout/test_vllm.py has the tests with vLLM."""

import asyncio
import copy
import math
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl.generation.vllm_generation import VLLMGeneration
from vllm_servers import serving

from arenarl.config.schema import Config, RLConfig, RolloutConfig
from arenarl.rollout import weight_sync
from arenarl.rollout.generation import GeneratedTurn
from arenarl.rollout.policy import lora_config, save_policy
from arenarl.rollout.vllm_server import ADAPTER, VLLMServer
from arenarl.rollout.weight_sync import (
    GeneratorWeights,
    MergedWeights,
    Parity,
    ServedWeights,
    measure_parity,
    require_parity,
    require_room,
)
from arenarl.system.errors import UserError
from arenarl.trajectory import Query


class Unopened:
    def _init_vllm(self):
        """Open no engine."""


class Ours(Unopened, MergedWeights):
    pass


class TRLs(Unopened, VLLMGeneration):
    pass


def sent_weights(model, sync=Ours):
    return {name: weights.clone() for name, weights in sync(model, Accelerator(cpu=True), None)._iter_named_params()}


def adapted(model, dtype, rank, size, seed=0):
    """A copy of the model in a dtype, with LoRA whose two factors are random."""
    model = get_peft_model(copy.deepcopy(model).to(dtype), lora_config(rank))
    randomise(model, size, seed)
    return model


def randomise(model, size, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_" in name:
                weights.copy_(size * torch.randn(weights.shape, generator=generator))


def frozen(model):
    return {name: weights.detach().clone() for name, weights in model.named_parameters() if "lora_" not in name}


class Prompts:
    """The part of an engine that makes prompts: a token for each letter of a query."""

    def __init__(self, max_tokens):
        self.config = RolloutConfig(max_tokens=max_tokens)

    def prompt_ids(self, query):
        return [0] * len(query.query)


@pytest.mark.parametrize(("max_tokens", "positions", "least"), [
    (28_672, 32_768, None), (28_673, 32_768, None), (32_000, 32_768, 28_768), (16_384, 32_768, None),
    (16_384, 16_384, 12_384),
])  # fmt: skip
def test_a_trajectory_that_vllm_would_cut_is_refused(max_tokens, positions, least):
    queries = [Query(str(length), "travel", "Search", "en", "x" * length) for length in (5, 4000, 7, 300)]
    refused = pytest.raises(UserError, match=f"a prompt of 4,000 tokens .* set rollout.max_tokens to {least} or less")
    with refused if least else nullcontext():
        require_room(Prompts(max_tokens), queries, positions)
    with pytest.raises(UserError, match="a prompt of 5,000 tokens"):
        require_room(Prompts(max_tokens), [*queries, Query("l", "travel", "Search", "en", "x" * 5000)], positions)


class Recorder:
    """The methods of vLLM's `LLM` that a weight sync calls; records their order."""

    def __init__(self):
        self.calls = []
        place = SimpleNamespace(model=SimpleNamespace(load_weights=lambda weights: self.note("load")))
        for name in ("model_runner", "driver_worker", "model_executor", "llm_engine"):
            place = SimpleNamespace(**{name: place})
        self.llm_engine = place.llm_engine

    def note(self, call):
        if self.calls[-1:] != [call]:
            self.calls.append(call)

    def sleep(self, level):
        self.note(f"sleep {level}")

    def wake_up(self, tags):
        self.note(f"wake {' '.join(tags)}")

    def reset_prefix_cache(self):
        self.note("forget")
        return True

    def add_adapter(self, llm, number, folder):
        """In place of vLLM's, which reads the folder at once."""
        self.note("adapter")
        self.adapters = [*getattr(self, "adapters", []), (number, load_file(f"{folder}/adapter_model.safetensors"))]
        return number


def weights_of(llm, model, monkeypatch, **rollout):
    """(GeneratorWeights of the engine, trainer at step 0)."""
    monkeypatch.setattr(weight_sync, "open_engine", lambda *_, **__: llm)
    monkeypatch.setattr(weight_sync, "add_adapter", llm.add_adapter)
    monkeypatch.setattr(weight_sync, "measure_parity", lambda *_: llm.note("check") or Parity(0.0, 0.0, 1.0))
    trainer = SimpleNamespace(
        model=model, accelerator=Accelerator(cpu=True), processing_class=None, state=SimpleNamespace(global_step=0),
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    config = Config(rollout=RolloutConfig(backend="vllm", max_tokens=16, **rollout), rl=RLConfig(groups=1))
    engine = Prompts(16)
    engine.generator = SimpleNamespace(llm=None)
    return GeneratorWeights(trainer, engine, [Query("q", "travel", "Search", "en", "x")], config), trainer


@pytest.mark.parametrize(("updates", "steps", "checked"), [
    (1, 20, [0, 6, 12, 18]), (4, 32, [0, 8, 16, 24]), (7, 21, [0, 7, 14]),
])  # fmt: skip
def test_parity_is_checked_at_the_first_rollout_after_parity_steps(model, monkeypatch, updates, steps, checked):
    llm, checks = Recorder(), []
    weights, trainer = weights_of(llm, model, monkeypatch, parity_steps=6)
    for step in range(0, steps, updates):
        trainer.state.global_step = step
        for _ in range(2):  # for example a rollout, then the evaluation of a curve
            llm.calls.clear()
            with weights.in_use():
                checks += [step] * ("check" in llm.calls)
    assert checks == checked


@pytest.mark.parametrize("sleeps", [False, True])
def test_an_engine_that_sleeps_wakes_syncs_and_is_checked_in_order(model, monkeypatch, sleeps):
    """A stand-in, as there are no GPUs. Sleep loses the weights, so they are sent again even at the same step."""
    llm = Recorder()
    weights, trainer = weights_of(llm, model, monkeypatch, vllm_sleep=sleeps)
    wake, full, rest = (["wake weights"], ["wake kv_cache"], ["sleep 2"]) if sleeps else ([], [], [])
    synced = [*wake, "load", "forget", *full]

    def calls(synced_by_trl):
        llm.calls.clear()
        if synced_by_trl:
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        with weights.in_use():
            llm.note("generate")
        return llm.calls[:]

    assert llm.calls == rest and weights.generator.llm is llm
    assert calls(synced_by_trl=False) == [*synced, "check", "generate", *rest]
    assert calls(synced_by_trl=False) == [*(synced if sleeps else []), "generate", *rest]
    trainer.state.global_step = 1
    assert calls(synced_by_trl=True) == [*synced, "generate", *rest]


@pytest.mark.parametrize("sleeps", [False, True])
def test_only_the_adapter_is_sent_under_a_new_number_and_is_checked(model, monkeypatch, sleeps):
    llm, trained = Recorder(), adapted(model, torch.float32, 2, 0.1)
    weights, trainer = weights_of(llm, trained, monkeypatch, vllm_sleep=sleeps, send_adapter=True)
    wake, full, rest = (["wake weights"], ["wake kv_cache"], ["sleep 1"]) if sleeps else ([], [], [])
    for step in range(3):
        trainer.state.global_step = step
        llm.calls.clear()
        with weights.in_use():
            assert weights.generator.adapter == step + 1
        assert llm.calls == [*wake, "adapter", "forget", *full, *["check"] * (step == 0), *rest]
        randomise(trained, 0.1, step + 1)
    numbers, sent = zip(*llm.adapters, strict=True)
    assert numbers == (1, 2, 3)
    assert not any(sent[0][name].equal(sent[2][name]) for name in sent[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_adapter_that_is_sent_is_the_trained_one_in_peft_s_form(model, tmp_path, dtype):
    trained = adapted(model, dtype, 2, 0.3)
    Ours(trained, Accelerator(cpu=True), None).write_adapter(tmp_path, is_writer=True)
    read = PeftModel.from_pretrained(copy.deepcopy(model).to(dtype), str(tmp_path)).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert read(ids).logits.equal(trained.eval()(ids).logits)
        assert not read(ids).logits.equal(copy.deepcopy(model).to(dtype)(ids).logits)
    sent = load_file(tmp_path / "adapter_model.safetensors")
    assert len(sent) == sum("lora_" in name for name, _ in trained.named_parameters()) > 0
    assert {name.split(".")[0] for name in sent} == {"base_model"} and not any("default" in name for name in sent)


def test_a_server_loads_each_adapter_in_place_of_the_last(model, tmp_path):
    """An HTTP server in place of vLLM's: it lists the adapter from the second sync on."""
    trained, replies = adapted(model, torch.float32, 2, 0.1), {"/reset_prefix_cache": {"success": True}}
    replies |= {"/v1/models": {"data": [{"id": "base"}]}, "/v1/load_lora_adapter": {}, "/v1/unload_lora_adapter": {}}
    trainer = SimpleNamespace(model=trained, accelerator=Accelerator(cpu=True), processing_class=None)
    with serving(replies) as (url, requests):
        weights = ServedWeights(trainer, VLLMServer(url), tmp_path / "served", send_adapter=True)
        for _ in range(2):
            weights.sync_weights()
            replies["/v1/models"]["data"].append({"id": ADAPTER})
    unload, load = ("/v1/unload_lora_adapter", {"lora_name": ADAPTER}), ("/v1/load_lora_adapter", ANY)
    forget, models = ("/reset_prefix_cache", None), ("/v1/models", None)
    assert requests == [models, load, forget, models, unload, load, forget]
    assert requests[1][1] == {"lora_name": ADAPTER, "lora_path": str(tmp_path / "served")}
    assert (tmp_path / "served" / "adapter_config.json").is_file() and weights.adapter == ADAPTER


@settings(max_examples=12)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32]), factors=st.sampled_from([torch.bfloat16, torch.float32]),
    rank=st.sampled_from([1, 2, 7]), size=st.sampled_from([1e-4, 1e-2, 0.3]), seed=st.integers(0, 99),
)  # fmt: skip
def test_sent_weights_are_the_sum_in_float32_rounded_once(model, dtype, factors, rank, size, seed):
    trained = adapted(model, dtype, rank, size, seed)
    for name, weights in trained.named_parameters():
        weights.data = weights.data.to(factors) if "lora_" in name else weights.data  # ZeRO-3 makes them bfloat16
    before, sent = frozen(trained), sent_weights(trained)
    assert sent.keys() == {name for name, _ in model.named_parameters()}
    assert all(weights.equal(before[name]) for name, weights in frozen(trained).items())
    for name, weights in sent.items():
        if "_proj" not in name:
            assert weights.equal(before[f"base_model.model.{name}"])
            continue
        exact = before[f"base_model.model.{name.replace('.weight', '.base_layer.weight')}"].double()
        layer = trained.get_base_model().get_submodule(name.removesuffix(".weight"))
        factors = layer.lora_B["default"].weight.double(), layer.lora_A["default"].weight.double()
        exact += layer.scaling["default"] * factors[0] @ factors[1]
        bound = 0.51 * torch.finfo(dtype).eps * exact.abs() + 1e-6 * exact.abs().max()
        assert weights.dtype == dtype and ((weights.double() - exact).abs() <= bound).all()


def test_names_and_order_are_those_of_trl(model):
    trained = adapted(model, torch.float32, 2, 0.1)
    ours, theirs = sent_weights(trained), sent_weights(trained, TRLs)
    assert list(ours) == list(theirs)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)
    assert list(sent_weights(model)) == list(sent_weights(model, TRLs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_saved_policy_equals_the_weights_sent_to_vllm(policy_path, tokenizer, tmp_path, dtype):
    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(policy_path, dtype=dtype), lora_config(2))
    randomise(trained, 0.1, 0)
    trainer = SimpleNamespace(
        model=trained, accelerator=Accelerator(cpu=True), processing_class=tokenizer,
        save_model=trained.save_pretrained, is_world_process_zero=lambda: True,
    )  # fmt: skip
    save_policy(trainer, tmp_path)
    saved, sent = load_file(tmp_path / "model.safetensors"), sent_weights(trained)
    assert saved.keys() == sent.keys()
    assert all(saved[name].equal(sent[name]) and saved[name].dtype == dtype for name in sent)


PROMPTS = [[5, 6, 7], [8, 9]]


class OwnEngine:
    """Returns the model's own greedy tokens, and its logprobs plus `error`.
    With `second_choice`, all tokens but the first are the second most likely."""

    def __init__(self, model, error=0.0, second_choice=False):
        self.model, self.error, self.second_choice = model, error, second_choice

    async def generate(self, request):
        assert request.temperature == 0
        token_ids, logprobs_T = list(request.token_ids), []
        for position in range(request.max_tokens):
            with torch.no_grad():
                logprobs_V = torch.log_softmax(self.model(torch.tensor([token_ids])).logits[0, -1], dim=-1)
            token_ids.append(int(logprobs_V.topk(2).indices[1 if self.second_choice and position else 0]))
            logprobs_T.append(float(logprobs_V[token_ids[-1]]) + self.error)
        await asyncio.sleep(0)
        return GeneratedTurn(token_ids[len(request.token_ids) :], logprobs_T)


def test_parity_measures_differences_of_logprobs_and_of_greedy_tokens(model):
    parity = measure_parity(OwnEngine(model), model.train(), PROMPTS, max_tokens=5)
    assert model.training and parity.max_difference < 1e-5 and parity.equal_greedy == 1
    assert set(parity.metrics) == {"parity/max_difference", "parity/mean_difference", "parity/equal_greedy"}
    model.eval()
    parity = measure_parity(OwnEngine(model, error=-0.25, second_choice=True), model, PROMPTS, max_tokens=4)
    assert [parity.mean_difference, parity.max_difference] == pytest.approx([0.25, 0.25], abs=1e-4)
    assert parity.equal_greedy == 0.25


@pytest.mark.parametrize(("parity", "first", "is_tied", "cause"), [
    (Parity(2.0, 1.0, 0.1), None, False, "the generator has another model"),
    (Parity(2.0, 1.0, 0.9), None, False, "another precision; keep policy.dtype"),
    (Parity(2.0, 1.0, 0.9), Parity(0.02, 0.01, 1.0), False,
     "difference was 0.01: most likely updated weights did not reach the generator;"),
    (Parity(2.0, 1.0, 0.9), Parity(0.02, 0.01, 1.0), True, "only one copy of the tied embeddings"),
    (Parity(math.nan, math.nan, 0.0), None, True, "overflowed"),
])  # fmt: skip
def test_a_difference_above_the_bound_stops_the_run_with_its_likely_cause(parity, first, is_tied, cause):
    require_parity(Parity(3.0, 0.1, 0.0), first, bound=0.1, step=0, is_tied=is_tied)
    with pytest.raises(UserError, match="disagree at step 40: logprobs differ by .*parity_bound=0.1") as error:
        require_parity(parity, first, bound=0.1, step=40, is_tied=is_tied)
    assert cause in str(error.value) and "\n" not in str(error.value)
