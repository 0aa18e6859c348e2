"""Copy the trainer's weights to vLLM, or to a second process, after every update; check that both compute the same.

If they differ, RL learns from the tokens of another policy than it updates. For the check (parity), vLLM generates
greedily on a few fixed prompts, and the trainer reads the same token ids, without tokenizer or chat template. Both
compute each token's logprob at temperature 1, and the most likely token.

TRL's `VLLMGeneration` iterates over the weights, gathered under ZeRO-3, and loads them into an engine of this process.
Subclasses replace three parts: opening the engine (TRL's would take bfloat16 for float32 weights), reaching a server
(TRL only has NCCL), and merging LoRA (TRL merges in place, which leaves rounding errors in the frozen weights).
"""

import asyncio
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import ensure_master_addr_port

from arenarl.config.schema import Config
from arenarl.rollout.engine import RolloutEngine, longest_prompt
from arenarl.rollout.generation import Generator, TurnRequest, run_turns
from arenarl.rollout.policy import Limit, lora_layers, merged_weight
from arenarl.rollout.second_process import ProcessGenerator
from arenarl.rollout.vllm_generation import clear_prefix_cache, open_engine
from arenarl.rollout.vllm_internals import add_adapter
from arenarl.rollout.vllm_server import ADAPTER, VLLMServer
from arenarl.system.errors import GO_ON, UserError
from arenarl.trajectory import Query

_SHARD_BYTES = 4 << 30
PROMPTS, TOKENS = 4, 32  # prompts of a parity check, and tokens for each: enough for a mean; 8B takes a second


def _parts(trainer: GRPOTrainer) -> tuple[Any, ...]:
    return trainer.model, trainer.accelerator, trainer.processing_class


class MergedWeights(VLLMGeneration):
    """TRL's weight sync, with LoRA merged into the copies that are sent and never into the model."""

    is_asleep = False  # True while vLLM has no weights
    adapter: Any = None  # with `rollout.send_adapter`: the last adapter, for the next requests

    def release_memory(self) -> None:
        """Release what vLLM does not need until the next sync; by default nothing."""

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (vLLM's name, weight) one at a time, gathered under ZeRO-3; all processes call it together."""
        if not isinstance(self.model, PeftModel):
            yield from super()._iter_named_params()
            return
        layers = {f"{name}.base_layer.weight": layer for name, layer in lora_layers(self.model).items()}
        for name, weights in self.model.get_base_model().named_parameters():
            if self.model.prefix not in name:
                layer = layers.get(name)
                with self._dist.gather_params(list(layer.parameters()) if layer else [weights]):
                    yield name.replace(".base_layer", ""), merged_weight(layer) if layer else weights.data

    def write_adapter(self, folder: Path, is_writer: bool) -> None:
        """Write LoRA's adapter in PEFT's form, gathered under ZeRO-3; all processes call it together."""
        factors: dict[str, torch.Tensor] = {}
        for name, weights in self.model.named_parameters():
            if self.model.prefix in name:
                with self._dist.gather_params([weights]):
                    factors[name] = weights.detach().to("cpu", copy=True)
        if is_writer:
            state = get_peft_model_state_dict(self.model, factors, save_embedding_layers=False)
            save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            self.model.active_peft_config.save_pretrained(folder)


class EngineWeights(MergedWeights):
    """Weight sync into an engine of this process, opened by `open_engine`."""

    def __init__(self, trainer: GRPOTrainer, config: Config):
        self.config, self._numbers = config, itertools.count(1)
        super().__init__(*_parts(trainer), mode="colocate", enable_sleep_mode=config.rollout.vllm_sleep)

    def _init_vllm(self) -> None:
        accelerator, rollout = self.accelerator, self.config.rollout
        os.environ["RANK"] = str(accelerator.process_index)
        os.environ["LOCAL_RANK"] = str(accelerator.local_process_index)
        os.environ["WORLD_SIZE"] = str(accelerator.num_processes)
        ensure_master_addr_port()
        rows = self.config.rl.groups // accelerator.num_processes * rollout.group_size
        self.llm = open_engine(self.model.name_or_path, self.config, rows, beside_trainer=True)
        self.release_memory()
        accelerator.wait_for_everyone()

    def release_memory(self) -> None:
        """With `rollout.vllm_sleep`, free the memory of vLLM's weights and cache for the trainer.
        Sleep level 2 discards both and keeps only the model's buffers. With `rollout.send_adapter`, the base weights
        are not sent again, so level 1 keeps them in the CPU's memory."""
        if self.enable_sleep_mode:
            self.llm.sleep(level=1 if self.config.rollout.send_adapter else 2)
            self.is_asleep = True

    def sync_weights(self) -> None:
        """Sync as TRL does (it first wakes the memory of the weights), then wake the memory of the cache.
        With `rollout.send_adapter`, the engine of each process loads the adapter from a temporary folder."""
        if self.config.rollout.send_adapter:
            if self.is_asleep:
                self.llm.wake_up(tags=["weights"])
            with TemporaryDirectory(prefix="arenarl-adapter-") as folder:
                self.write_adapter(Path(folder), is_writer=True)
                self.adapter = add_adapter(self.llm, next(self._numbers), folder)
        else:
            super().sync_weights()
        clear_prefix_cache(self.llm)
        if self.is_asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.is_asleep = False
        # The trainer's NCCL collectives must finish before a shared engine's begin (TRL's issue 3671).
        self.accelerator.wait_for_everyone()


class ProcessWeights(MergedWeights):
    """Weight sync to the second process of `rl.steps_ahead: 1`; every training process has its own."""

    def __init__(self, trainer: GRPOTrainer, generator: ProcessGenerator):
        self.generator = generator
        super().__init__(*_parts(trainer), mode="server")

    def _init_vllm(self) -> None:
        """Open nothing: the process runs already."""

    def sync_weights(self) -> None:
        named = self._iter_named_params()
        self.generator.load({name: weights.detach().to("cpu", copy=True) for name, weights in named})


class ServedWeights(MergedWeights):
    """Weight sync to a server through a shared disk instead of TRL's NCCL broadcast; see vllm_server.py."""

    def __init__(self, trainer: GRPOTrainer, server: VLLMServer, folder: Path, send_adapter: bool = False):
        self.server, self.folder, self.send_adapter = server, folder, send_adapter
        super().__init__(*_parts(trainer), mode="server")

    def _init_vllm(self) -> None:
        """Open nothing: the server runs already."""

    def sync_weights(self) -> None:
        """Iterate over the weights on all processes, which gathering needs; the main process writes and loads them."""
        is_main = self.accelerator.is_main_process
        if is_main:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        if self.send_adapter:
            self.write_adapter(self.folder, is_main)
            if is_main:
                self.server.load_adapter(str(self.folder))
            self.adapter = ADAPTER
            self.accelerator.wait_for_everyone()
            return
        shard: dict[str, torch.Tensor] = {}
        for name, weights in self._iter_named_params():
            if is_main:
                shard[name] = weights.detach().to("cpu", copy=True)
                if sum(tensor.nbytes for tensor in shard.values()) > _SHARD_BYTES:
                    self._write(shard)
                    shard = {}
        if is_main:
            self._write(shard)
            self.server.load(str(self.folder))
        self.accelerator.wait_for_everyone()  # else another process would generate with old weights

    def _write(self, shard: dict[str, torch.Tensor]) -> None:
        file = self.folder / f"model-{len(list(self.folder.iterdir())):05}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})


class BroadcastWeights(MergedWeights):
    """Weight sync by TRL's NCCL broadcast from the first process's GPU to the server's. Never run: it needs GPUs."""

    def __init__(self, trainer: GRPOTrainer, server: VLLMServer):
        self.server = server
        super().__init__(*_parts(trainer), mode="server", server_base_url=server.url)

    def sync_weights(self) -> None:
        super().sync_weights()
        if self.accelerator.is_main_process:
            self.server.clear_prefix_cache()  # TRL requests it too, but ignores a failure
        self.accelerator.wait_for_everyone()


def require_room(engine: RolloutEngine, queries: Sequence[Query], positions: int) -> None:
    """Raise UserError if vLLM would cut a trajectory that uses its whole budget."""
    limit = Limit(min(engine.config.longest, positions), "that vLLM has room for")
    limit.require_room(longest_prompt(engine, queries), engine.config.max_tokens)


class GeneratorWeights:
    """Keeps a generator's weights equal to the trainer's; checks parity at the first rollout and every `parity_steps`.

    The generator is vLLM, or a second process with `rl.steps_ahead: 1`.

    Args:
        wait: returns once nothing is generated with the weights that a sync replaces.
    """

    def __init__(
        self, trainer: GRPOTrainer, engine: RolloutEngine, queries: Sequence[Query], config: Config,
        wait: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.trainer, self.rollout, self.wait = trainer, config.rollout, wait
        self.prompts = [engine.prompt_ids(query) for query in queries[:PROMPTS]]
        self.first: Parity | None = None
        self._last_check = -1
        self._times = 0.0, 0.0
        if config.rollout.backend == "transformers":
            engine.generator = ProcessGenerator(trainer.model.name_or_path, config, engine.tokenizer)
            self.sender = ProcessWeights(trainer, engine.generator)
        elif config.rollout.backend == "vllm":
            require_room(engine, queries, trainer.model.config.get_text_config().max_position_embeddings)
            self.sender = EngineWeights(trainer, config)
            engine.generator.llm = self.sender.llm
        elif config.rollout.server_sync == "nccl":
            self.sender = BroadcastWeights(trainer, engine.generator.server)
        else:
            folder = Path(config.rollout.server_weights or config.run_dir / "rl" / "served")
            self.sender = ServedWeights(trainer, engine.generator.server, folder, config.rollout.send_adapter)
        self.generator = engine.generator
        # TRL then calls `sync_weights` before each rollout, and corrects for the generator's probabilities
        trainer.vllm_generation, trainer.use_vllm, trainer._last_loaded_step = self, True, -1

    def sync_weights(self) -> None:
        """Wait, then send the weights. All processes call it together."""
        start = perf_counter()
        self.wait()
        ready = perf_counter()
        self.sender.sync_weights()
        waited_s, sent_s = self._times
        self._times = waited_s + ready - start, sent_s + perf_counter() - ready

    def take_times(self) -> tuple[float, float]:
        """Return the seconds of waiting and of sending since the last call."""
        times, self._times = self._times, (0.0, 0.0)
        return times

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Sync the weights (unless TRL has just done so), check parity when due, and free memory on exit.
        All processes call it together."""
        step = self.trainer.state.global_step
        if self.trainer._last_loaded_step != step or self.sender.is_asleep:
            self.sync_weights()
            self.trainer._last_loaded_step = step
        self.generator.adapter = self.sender.adapter
        if self.first is None or step - self._last_check >= self.rollout.parity_steps:
            self._check(step)
        yield
        self.sender.release_memory()

    def _check(self, step: int) -> None:
        """Measure parity on every process, and log the worst result. If one process fails the check, all processes stop
        together."""
        model = self.trainer.model
        parities: list[Parity] = gather_object([measure_parity(self.generator, model, self.prompts)])
        is_tied = model.config.get_text_config().tie_word_embeddings
        for parity in parities:
            require_parity(parity, self.first, self.rollout.parity_bound, step, is_tied)
        worst = max(parities, key=lambda parity: parity.mean_difference)
        self.first, self._last_check = self.first or worst, step
        for name, value in worst.metrics.items():
            self.trainer._metrics["train"][name].append(value)


@dataclass(frozen=True)
class Parity:
    """Differences of logprobs in nats, and the share of vLLM's greedy tokens that are the trainer's too."""

    max_difference: float
    mean_difference: float
    equal_greedy: float

    @property
    def metrics(self) -> dict[str, float]:
        return {f"parity/{name}": value for name, value in asdict(self).items()}


def measure_parity(
    generator: Generator, model: PreTrainedModel, prompts: Sequence[list[int]], max_tokens: int = TOKENS
) -> Parity:
    """Compare vLLM's greedy turns with the model's logprobs for them. Under ZeRO-3 all processes call it together."""

    async def generate():
        requests = (TurnRequest(prompt, max_tokens, 0.0, 0) for prompt in prompts)
        return await asyncio.gather(*map(generator.generate, requests))

    differences, equal = [], []
    for prompt, turn in zip(prompts, run_turns(generator, generate()), strict=True):
        logprobs_TV = _logprobs(model, prompt, turn.token_ids)
        tokens_T = torch.tensor(turn.token_ids, device=logprobs_TV.device)
        theirs_T = torch.tensor(turn.logprobs_T, device=logprobs_TV.device)
        differences.append((logprobs_TV.gather(1, tokens_T[:, None])[:, 0] - theirs_T).abs())
        equal.append(logprobs_TV.argmax(dim=1) == tokens_T)
    difference_T = torch.cat(differences)
    return Parity(difference_T.max().item(), difference_T.mean().item(), torch.cat(equal).float().mean().item())


@torch.no_grad()
def _logprobs(model: PreTrainedModel, prompt: list[int], token_ids: list[int]) -> torch.Tensor:
    """Return the model's logprobs (T, V), at temperature 1, at the positions of `token_ids` (T,)."""
    was_training = model.training
    model.eval()
    input_ids = torch.tensor([prompt + token_ids], device=model.device)
    logits = model(input_ids=input_ids, use_cache=False, logits_to_keep=len(token_ids) + 1).logits
    model.train(was_training)
    return torch.log_softmax(logits[0, :-1].float(), dim=-1)


def require_parity(parity: Parity, first: Parity | None, bound: float, step: int, is_tied: bool) -> None:
    """Raise UserError if the mean difference exceeds the bound. `first` is the result of the first check of this
    run."""
    if parity.mean_difference <= bound:
        return
    differ = f"logprobs differ by {parity.mean_difference:.3g} nats a token (rollout.parity_bound={bound:g})"
    figures = f"{differ}, at most {parity.max_difference:.3g}, {parity.equal_greedy:.0%} of the greedy tokens are equal"
    cause = _likely_cause(parity, first, is_tied)
    raise UserError(f"the generator and the trainer disagree at step {step}: {figures}. {cause}; {GO_ON}")


def _likely_cause(parity: Parity, first: Parity | None, is_tied: bool) -> str:
    """Return the likely cause of a difference, which depends on the first check, and its remedy."""
    if not math.isfinite(parity.mean_difference):
        remedy = "go back to an earlier checkpoint with a lower learning rate"
        return f"A logprob is not a number: most likely the weights overflowed; {remedy}"
    if first is None and parity.equal_greedy < 0.5:
        cause = "the generator has another model than the trainer, or its weights were never synced"
        return f"The first check has other greedy tokens: most likely {cause}"
    if first is None:
        cause = "The first check has equal greedy tokens: most likely the weights have another precision"
        remedy = "keep policy.dtype and the dtype of vLLM equal, or raise rollout.parity_bound"
        return f"{cause}; {remedy} if the difference does not grow"
    cause = "updated weights did not reach the generator" + ", or only one copy of the tied embeddings did" * is_tied
    remedy = "restart the run (and a vLLM server), and use the versions of requirements.txt and docs/paper_scale.md"
    return f"The first difference was {first.mean_difference:.3g}: most likely {cause}; {remedy}"
