"""vLLM as a server on separate GPUs: the command that starts it, and the client for turns and weights.

    python -m arenarl.rollout.vllm_server --config configs/travel/rl_arenarl_qwen3_8b.yaml [--
        --tensor-parallel-size 2 ...]

serves the policy that RL starts from, at `rollout.server_url`; flags after -- are passed to `vllm serve`. A turn is an
HTTP request with token ids in and out, so the trajectories of all processes share the server's batch. Weights reach the
server as a checkpoint on a shared disk. This works with any parallelism and device, and nothing hangs when one side
dies, unlike an NCCL broadcast. Without a shared disk, `rollout.server_sync: nccl` broadcasts them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from transformers import AutoConfig

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import NoRoom, load_tokenizer, require_model
from arenarl.rollout.vllm_generation import longest, lora_options, sampling_of, shape_differences
from arenarl.rollout.vllm_internals import disable_onednn_packing, require_vllm, run_server
from arenarl.system.errors import GO_ON, UserError, one_line, run_cli

_TURN_S, _LOAD_S, _REQUEST_S = 3600.0, 1800.0, 30.0  # timeouts: of a turn, of loading weights, of other requests
ADAPTER = "policy"  # the name of the adapter that the server has
_START = "python -m arenarl.rollout.vllm_server --config <the run's YAML>"
_INFO = "/server_info?config_format=json"
Read = TypeVar("Read")


class _Refused(UserError):
    """The server refuses a request for its content, with status 400."""


class VLLMServer:
    """A client of the server at `url`. Every failure is a UserError that names the server."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def require(self, policy: str, dtype: str) -> None:
        """Raise UserError unless the server runs with our options and serves the policy's shape and dtype."""
        info = asyncio.run(self._options())["model_config"]
        if not info.keys() >= {"logprobs_mode", "dtype", "model"}:
            raise self._foreign()
        if (mode := info["logprobs_mode"]) != "processed_logprobs":
            raise self._unfit(f"returns {mode}, not the logprobs of the sampling distribution")
        if dtype not in str(info["dtype"]):
            raise self._unfit(f"computes in {info['dtype']}, the trainer in {dtype} (policy.dtype)")
        try:
            differences = shape_differences(policy, AutoConfig.from_pretrained(info["model"]))
        except (OSError, ValueError) as error:
            raise self._unfit(f"serves {info['model']}, whose config cannot be read here") from error
        if differences:
            raise self._unfit(f"serves another model ({info['model']}) than {policy}: {', '.join(differences)}")

    def require_nccl(self) -> None:
        """Raise UserError unless the server was started to receive weights by NCCL."""
        if not asyncio.run(self._options()).get("weight_transfer_config"):
            settings = " --set rollout.backend=vllm_server --set rollout.server_sync=nccl"
            raise self._unfit("does not receive weights by NCCL", settings)

    def _unfit(self, problem: str, settings: str = "") -> UserError:
        """Return an error with the problem and the command that starts a fitting server."""
        return UserError(f"the vLLM server at {self.url} {problem}; start it with: {_START}{settings}")

    async def _options(self) -> dict[str, Any]:
        info = await self.request("GET", _INFO)
        options = info.get("vllm_config") if isinstance(info, dict) else None
        if not isinstance(options, dict) or not isinstance(options.get("model_config"), dict):
            raise self._foreign()
        return options

    def _foreign(self) -> UserError:
        return UserError(f"{self.url} is not a vLLM server that can load weights; start one with: {_START}")

    async def has_room(self, tokens: int) -> bool:
        """Return False if the server says that so long a sequence is longer than it reads."""
        with suppress(UserError, KeyError):
            return tokens <= (await self._options())["model_config"]["max_model_len"]
        return True

    def load(self, policy: str) -> None:
        """Load the weights of a hub id, or of a folder that the server can read too, and clear the prefix cache."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": _absolute(policy)}}
        asyncio.run(self.request("POST", "/collective_rpc", call, _LOAD_S))
        self.clear_prefix_cache()

    def require_adapters(self, lora_rank: int) -> None:
        """Raise UserError unless the server takes adapters of this rank."""
        lora = asyncio.run(self._options()).get("lora_config") or {"max_lora_rank": 0}
        if lora["max_lora_rank"] < lora_rank:
            settings = f" --set rollout.send_adapter=true --set policy.lora_rank={lora_rank}"
            raise self._unfit(f"does not take adapters of rank {lora_rank}", settings)

    def load_adapter(self, folder: str) -> None:
        """Load the adapter in a folder that the server can read too, in place of the last one, even of another run."""
        models = self.request("GET", "/v1/models", read=lambda reply: [model["id"] for model in reply["data"]])
        if ADAPTER in asyncio.run(models):
            asyncio.run(self.request("POST", "/v1/unload_lora_adapter", {"lora_name": ADAPTER}))
        load = {"lora_name": ADAPTER, "lora_path": _absolute(folder)}
        asyncio.run(self.request("POST", "/v1/load_lora_adapter", load, _LOAD_S))
        self.clear_prefix_cache()

    def clear_prefix_cache(self) -> None:
        """Clear the prefix cache of older weights. Raises UserError if the server still uses it."""
        if not asyncio.run(self.request("POST", "/reset_prefix_cache", read=lambda reply: reply["success"])):
            problem = "keeps the cache of older weights, because others use it"
            raise UserError(f"the vLLM server at {self.url} {problem}; start a server for this run alone")

    async def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _REQUEST_S,
        read: Callable[[Any], Read] = lambda reply: reply,
    ) -> Read:  # fmt: skip
        """Return `read(reply)`; the reply is JSON, or None for an empty reply or a text. Each request opens a new
        connection, because idle connections may close. Raises UserError if no readable reply arrives in time."""
        import aiohttp  # only this back end needs it

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_REQUEST_S)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
                session.request(method, self.url + path, json=body) as reply,
            ):
                if reply.status != 200:
                    raise self._refusal(path, reply.status, await reply.text())
                is_json = reply.content_type == "application/json" and await reply.read()
                return read(await reply.json() if is_json else None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            is_late = isinstance(error, TimeoutError)
            problem = f"did not answer within {timeout_s:.0f} s" if is_late else f"cannot be reached ({error})"
            raise self._unfit(problem, f"; {GO_ON}") from error
        except (ValueError, LookupError, TypeError) as error:  # not JSON, or without the keys that `read` reads
            raise self._unfit(f"sent an unreadable reply to {path} ({one_line(repr(error))})") from error

    def _refusal(self, path: str, status: int, text: str) -> UserError:
        if status == 404 and path.startswith("/server_info"):
            return self._foreign()
        request, kind = f"{path.split('?')[0]} ({status})", _Refused if status == 400 else UserError
        return kind(f"the vLLM server at {self.url} refused {request}: {one_line(text, 300)}; {GO_ON}")


class ServerGenerator:
    """Sends each turn as a request; the server batches the requests of all processes.
    `adapter` names the LoRA adapter to use, None the server's own weights."""

    adapter: str | None = None

    def __init__(self, server: VLLMServer, eos_id: int):
        self.server = server
        self.eos_id = eos_id

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        """Return the turn. Raises NoRoom for a prompt that leaves no room for it on the server."""
        body = {"prompt": request.token_ids, "return_token_ids": True, **sampling_of(request, self.eos_id)}
        body |= {"model": self.adapter} if self.adapter else {}
        try:
            turn = await self.server.request("POST", "/v1/completions", body, _TURN_S, _read_turn)
        except _Refused as error:
            prompt, most = len(request.token_ids), request.max_tokens
            if await self.server.has_room(prompt + most):
                raise
            both = f"a prompt of {prompt:,} tokens and a turn of {most:,}"
            remedy = "lower rollout.max_tokens, or start it with a larger --max-model-len"
            raise NoRoom(f"{both} are more than the vLLM server at {self.server.url} reads; {remedy}") from error
        if turn is None:
            raise UserError(f"the vLLM server at {self.server.url} aborted a turn; {GO_ON}")
        return turn


def _read_turn(reply: Any) -> GeneratedTurn | None:
    """Return the turn of a completion; None if the server aborted it, which has status 200 too."""
    choice = reply["choices"][0]
    if choice["finish_reason"] == "abort":
        return None
    return GeneratedTurn(choice["token_ids"], choice["logprobs"]["token_logprobs"])


def serve_arguments(config: Config, more: Sequence[str] = ()) -> list[str]:
    """Return the flags of `vllm serve` for the policy that RL starts from. Raises UserError if there is none, or if
    `rollout.server_url` names no port: vLLM would serve at port 8000, and its clients would use 80."""
    url = urlsplit(config.rollout.server_url)
    if url.port is None:
        example = "such as http://127.0.0.1:8000"
        raise UserError(f"rollout.server_url={config.rollout.server_url}: name the port to serve at, {example}")
    address = ["--host", url.hostname, "--port", str(url.port)]
    policy = require_model(config.sft_policy)
    load_tokenizer(policy)  # raises a clear error for an unusable chat template
    policy = _absolute(policy)
    ours = ["--dtype", config.policy.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    room = ["--max-model-len", str(length)] if (length := longest(policy, config.rollout)) else []
    broadcast = ["--weight-transfer-config", '{"backend": "nccl"}'] if config.rollout.server_sync == "nccl" else []
    lora = [f"--{name.replace('_', '-')}={value}" for name, value in lora_options(config).items() if value is not True]
    lora = ["--enable-lora", *lora] if lora else []
    return ["--model", policy, *address, *ours, *room, *broadcast, *lora, *more]


def _absolute(policy: str) -> str:
    """Return a folder's absolute path; return a hub id unchanged."""
    return str(Path(policy).resolve()) if Path(policy).is_dir() else policy


def main() -> None:
    config, arguments = parse_arguments(
        __doc__, lambda parser: parser.add_argument("flags", nargs="*", help="after --: flags of `vllm serve`")
    )
    require_vllm()
    run_server(serve_arguments(config, arguments.flags))


if __name__ == "__mp_main__":  # vLLM computes in a separate process, which imports this module first
    disable_onednn_packing()
if __name__ == "__main__":
    run_cli(main)
