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
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import AutoConfig

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import load_tokenizer, require_model
from arenarl.rollout.vllm_generation import longest, other_shape, sampling_of
from arenarl.rollout.vllm_internals import disable_onednn_packing, require_vllm, run_server
from arenarl.system.errors import GO_ON, UserError, guarded

# seconds after which a turn, a load of weights, any other request has failed
_TURN_S, _LOAD_S, _ASK_S = 3600.0, 1800.0, 30.0
_START = "python -m arenarl.rollout.vllm_server --config <the run's YAML>"


class VLLMServer:
    """The server at `url`. Every failure is a UserError that names it."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def require(self, policy: str, dtype: str) -> None:
        """Raises UserError unless it is there, started with what we need, and serves the policy's shape and dtype."""
        info = self._options()["model_config"]
        if (mode := info["logprobs_mode"]) != "processed_logprobs":
            raise self._unfit(f"gives {mode}, not the logprobs it samples with")
        if dtype not in str(info["dtype"]):
            raise self._unfit(f"computes in {info['dtype']}, the trainer in {dtype} (policy.dtype)")
        try:
            other = other_shape(policy, AutoConfig.from_pretrained(info["model"]))
        except (OSError, ValueError) as error:
            raise self._unfit(f"serves {info['model']}, whose config cannot be read here") from error
        if other:
            raise self._unfit(f"serves another model ({info['model']}) than {policy}: {', '.join(other)}")

    def require_nccl(self) -> None:
        """Raises UserError unless it was started to take weights by NCCL."""
        if not self._options().get("weight_transfer_config"):
            sets = "--set rollout.backend=vllm_server --set rollout.server_sync=nccl"
            raise self._unfit("does not take weights by NCCL", f" {sets}")

    def _unfit(self, problem: str, settings: str = "") -> UserError:
        """The error that names the server and the command that starts a fitting one."""
        return UserError(f"the vLLM server at {self.url} {problem}; start it with: {_START}{settings}")

    def _options(self) -> dict[str, Any]:
        return asyncio.run(self.ask("GET", "/server_info?config_format=json"))["vllm_config"]

    def load(self, policy: str) -> None:
        """Have it read the weights of a folder that it sees too, or of a hub id, and drop what others computed."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": _from_anywhere(policy)}}
        asyncio.run(self.ask("POST", "/collective_rpc", call, _LOAD_S))
        self.forget()

    def forget(self) -> None:
        """Have it drop what it computed with older weights."""
        if not asyncio.run(self.ask("POST", "/reset_prefix_cache"))["success"]:
            kept = "keeps what older weights computed, because others use it"
            raise UserError(f"the vLLM server at {self.url} {kept}; start one for this run")

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _ASK_S) -> Any:
        """Return the reply's JSON, None for an empty one. A connection for each: idle ones may have been closed."""
        import aiohttp  # which the other back ends do without

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_ASK_S)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                async with session.request(method, self.url + path, json=body) as reply:
                    if reply.status != 200:
                        raise self._refusal(path, reply.status, await reply.text())
                    return await reply.json(content_type=None) if await reply.read() else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            is_late = isinstance(error, TimeoutError)
            problem = f"did not answer within {timeout_s:.0f} s" if is_late else f"cannot be reached ({error})"
            raise self._unfit(problem, f"; {GO_ON}") from error

    def _refusal(self, path: str, status: int, text: str) -> UserError:
        if status == 404 and path.startswith("/server_info"):
            return UserError(f"{self.url} is no vLLM server that takes weights; start one with: {_START}")
        request, reason = f"{path.split('?')[0]} ({status})", " ".join(text.split())[:300]
        return UserError(f"the vLLM server at {self.url} refused {request}: {reason}; {GO_ON}")


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
    policy = _from_anywhere(policy)
    ours = ["--dtype", config.policy.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    room = ["--max-model-len", str(length)] if (length := longest(policy, config.rollout)) else []
    broadcast = ["--weight-transfer-config", '{"backend": "nccl"}'] if config.rollout.server_sync == "nccl" else []
    return ["--model", policy, *address, *ours, *room, *broadcast, *more]


def _from_anywhere(policy: str) -> str:
    """A folder's whole path; a hub id as it is."""
    return str(Path(policy).resolve()) if Path(policy).is_dir() else policy


def main() -> None:
    config, arguments = parse_arguments(
        __doc__, lambda parser: parser.add_argument("flags", nargs="*", help="after --, vLLM's own flags")
    )
    require_vllm()
    run_server(serve_arguments(config, arguments.flags))


if __name__ == "__mp_main__":  # vLLM computes in a process of its own, which reads this module first
    disable_onednn_packing()
if __name__ == "__main__":
    guarded(main)
