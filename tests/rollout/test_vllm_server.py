"""Requests to a vLLM server and its refusals, with an HTTP server that replies like vLLM.
tests/rollout/test_vllm.py uses a real server."""

import asyncio
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import judge_servers
import pytest
from aiohttp import web
from vllm_servers import serving

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.rollout.backends import require_sync
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import NoRoom
from arenarl.rollout.vllm_server import ServerGenerator, VLLMServer, serve_arguments
from arenarl.run.marks import MARK
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def info_of(folder, policy_path, **changes):
    """Replies of a server that fits the policy except for the changes; the model that it serves is in `folder`."""
    shape = json.loads((Path(policy_path) / "config.json").read_text())
    shape |= {key: changes.pop(key) for key in ("hidden_size", "vocab_size") if key in changes}
    (folder / "config.json").write_text(json.dumps(shape))
    model = {"model": str(folder), "dtype": "torch.float32", "logprobs_mode": "processed_logprobs"} | changes
    return {"/server_info": {"vllm_config": {"model_config": model}}}


def generate(url):
    return asyncio.run(ServerGenerator(VLLMServer(url), eos_id=2).generate(TurnRequest([7, 8], 3, 0.8, 11)))


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_size": 4096}, "serves another model .* than .*: hidden_size 4096 instead of 32; start it with"),
    ({"vocab_size": 151936}, "vocab_size 151936 instead of"),
    ({"dtype": "torch.bfloat16"}, r"computes in torch.bfloat16, the trainer in float32 .policy.dtype"),
    ({"model": "/nowhere"}, "serves /nowhere, whose config cannot be read here"),
    ({"logprobs_mode": "raw_logprobs"}, "returns raw_logprobs, not the logprobs of the sampling distribution"),
])  # fmt: skip
def test_a_server_that_does_not_fit_is_refused_with_the_reason(policy_path, tmp_path, changes, message):
    with serving(info_of(tmp_path, policy_path)) as (url, _):
        VLLMServer(url + "/").require(policy_path, "float32")  # fits
    with serving(info_of(tmp_path, policy_path, **changes)) as (url, _), pytest.raises(UserError, match=message):
        VLLMServer(url).require(policy_path, "float32")


def test_a_missing_or_another_server_is_refused_with_the_command_that_starts_it(policy_path):
    missing = "at http://127.0.0.1:1 cannot be reached .*; start it with: python -m arenarl.rollout.vllm_server"
    with pytest.raises(UserError, match=missing):
        VLLMServer("http://127.0.0.1:1").require(policy_path, "float32")
    older = {"vllm_config": {"model_config": {"model": "m"}}}
    infos = (None, {"version": "1"}, {"vllm_config": "model='m'"}, {"vllm_config": {}}, older)
    for replies in ({}, *({"/server_info": info} for info in infos)):
        other = pytest.raises(UserError, match="is not a vLLM server that can load weights; start one with")
        with serving(replies) as (url, _), other:
            VLLMServer(url).require(policy_path, "float32")


@pytest.mark.parametrize("body", ["{", "[]", "null", "", '{"choices": []}', '{"choices": [{"finish_reason": "stop"}]}'])
def test_a_reply_that_is_not_what_vllm_sends_is_an_error_in_one_line(body):
    async def answer(_):
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with judge_servers.serving(app) as v1:
        url = v1.removesuffix("/v1")
        for path, call in (
            ("/v1/completions", lambda: generate(url)),
            ("/reset_prefix_cache", VLLMServer(url).clear_prefix_cache),
        ):
            words = f"the vLLM server at {url} sent an unreadable reply to {path} .*; start it with: "
            with pytest.raises(UserError, match=words):
                call()


def test_a_server_that_cannot_receive_weights_by_nccl_is_refused(policy_path, tmp_path):
    replies = info_of(tmp_path, policy_path)
    refusal = "does not receive weights by NCCL; start it with: .* --set rollout.server_sync=nccl"
    with serving(replies) as (url, _), pytest.raises(UserError, match=refusal):
        VLLMServer(url).require_nccl()
    replies["/server_info"]["vllm_config"]["weight_transfer_config"] = {"backend": "nccl"}
    with serving(replies) as (url, _):
        VLLMServer(url).require_nccl()


def test_token_ids_go_in_and_token_ids_and_logprobs_come_out():
    choice = {"token_ids": [4, 5, 2], "logprobs": {"token_logprobs": [-0.5, -0.25, 0.0]}, "finish_reason": "stop"}
    with serving({"/v1/completions": {"choices": [choice]}}) as (url, requests):
        assert generate(url) == GeneratedTurn([4, 5, 2], [-0.5, -0.25, 0.0])
    ((_, body),) = requests
    assert body["prompt"] == [7, 8] and body["return_token_ids"] is True
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.8, 11, 3)
    assert body["stop_token_ids"] == [2] and body["ignore_eos"]
    # the model's own defaults do not apply
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1, 0, 0, 1)


def test_a_turn_names_the_adapter_and_the_server_must_take_its_rank(policy_path, tmp_path):
    config = load_config(
        ROOT / "configs" / "methods" / "lora.yaml",
        ["rollout.backend=vllm_server", "rollout.send_adapter=true", "policy.lora_rank=20", f"rl.init={policy_path}"],
    )
    assert serve_arguments(config)[-2:] == ["--enable-lora", "--max-lora-rank=32"]
    choice = {"token_ids": [2], "logprobs": {"token_logprobs": [0.0]}, "finish_reason": "stop"}
    replies = info_of(tmp_path, policy_path) | {"/v1/completions": {"choices": [choice]}}
    with serving(replies) as (url, requests):
        generator = ServerGenerator(VLLMServer(url), eos_id=2)
        for adapter in (None, "policy"):
            generator.adapter = adapter
            asyncio.run(generator.generate(TurnRequest([7], 3, 0.8, 11)))
        assert [body.get("model") for _, body in requests] == [None, "policy"]
        for lora, is_refused in ((None, True), ({"max_lora_rank": 16}, True), ({"max_lora_rank": 32}, False)):
            replies["/server_info"]["vllm_config"]["lora_config"] = lora
            words = "does not take adapters of rank 20; start it with: .* --set rollout.send_adapter=true"
            with pytest.raises(UserError, match=words) if is_refused else nullcontext():
                require_sync(replace(config.rollout, server_url=url), lora_rank=20)


def test_an_aborted_or_refused_turn_is_an_error_in_one_line():
    choice = {"token_ids": [4], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "abort"}
    refusal = {"error": {"message": "too\nlong"}}
    for reply, status, message in (
        ({"choices": [choice]}, 200, "aborted a turn; the same"),
        (refusal, 400, r"refused /v1/completions \(400\): .*too.*long"),
    ):
        with serving({"/v1/completions": reply}, status=status) as (url, _):
            with pytest.raises(UserError, match=message) as error:
                generate(url)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("status", "length", "is_room"), [
    (400, 4, False), (400, 5, True), (400, None, True), (500, 4, True),
])  # fmt: skip
def test_a_prompt_that_is_too_long_for_the_server_has_no_room(monkeypatch, status, length, is_room):
    server = VLLMServer("http://127.0.0.1:1")

    async def request(method, path, *_, **__):
        if path == "/v1/completions":
            raise server._refusal(path, status, "This model's maximum context length is 4 tokens.")
        return {"vllm_config": {"model_config": {"max_model_len": length} if length else {}}}

    monkeypatch.setattr(server, "request", request)
    refused = rf"refused /v1/completions \({status}\): This"
    words = refused if is_room else "a prompt of 2 tokens and a turn of 3 are more"
    with pytest.raises(UserError, match=words) as error:
        asyncio.run(ServerGenerator(server, eos_id=2).generate(TurnRequest([7, 8], 3, 0.8, 11)))
    assert isinstance(error.value, NoRoom) != is_room


def test_new_weights_are_loaded_before_the_prefix_cache_is_cleared():
    with serving({"/collective_rpc": {"results": [None]}, "/reset_prefix_cache": {"success": True}}) as (url, requests):
        VLLMServer(url).load("/dev/shm/policy")
    assert requests == [
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/dev/shm/policy"}}),
        ("/reset_prefix_cache", None)
    ]  # fmt: skip
    replies = {"/collective_rpc": {}, "/reset_prefix_cache": {"success": False}}
    with serving(replies) as (url, _), pytest.raises(UserError, match="others use it"):
        VLLMServer(url).load("/dev/shm/policy")


def test_the_server_serves_the_policy_that_rl_starts_from(policy_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config(name="x")
    config.rollout.server_url = "http://10.0.0.5:9000"
    with pytest.raises(UserError, match=r"no model at runs/x/sft \(the current folder is [^()]*\); train the stage"):
        serve_arguments(config)
    shape = json.loads((Path(policy_path) / "config.json").read_text()) | {"max_position_embeddings": 40_960}
    folder = Path(shutil.copytree(policy_path, "runs/x/sft", ignore=shutil.ignore_patterns(MARK)))
    (folder / "config.json").write_text(json.dumps(shape))
    words = serve_arguments(config, ["--tensor-parallel-size", "2"])
    assert words[:2] == ["--model", str(tmp_path / "runs/x/sft")] and words[-2:] == ["--tensor-parallel-size", "2"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--host"] == "10.0.0.5" and options["--port"] == "9000" and options["--dtype"] == "bfloat16"
    assert options["--max-model-len"] == str(16_384 + 4096)
    assert options["--logprobs-mode"] == "processed_logprobs" and options["--generation-config"] == "vllm"
    config.rollout.server_sync = "nccl"
    assert set(serve_arguments(config)) - set(words) == {"--weight-transfer-config", '{"backend": "nccl"}'}
    config.rollout.server_url = "http://10.0.0.5"
    with pytest.raises(UserError, match="rollout.server_url=http://10.0.0.5: name the port to serve at"):
        serve_arguments(config)
