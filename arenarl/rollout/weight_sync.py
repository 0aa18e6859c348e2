"""The trainer's weights to vLLM, after every update, and the check that they arrived.

If vLLM does not compute what the trainer computes, RL learns from the tokens of another policy than the one it updates.
So on a few fixed prompts vLLM generates greedily, and the trainer reads the same tokens. Both give each token's logprob
at temperature 1, and whether it is the most likely one. Token ids go in and come out: no tokenizer and no chat template
can come between the two.

Beside `training` the only place that knows TRL's insides: its `VLLMGeneration` walks the weights, gathering them under
ZeRO-3, and loads them into an engine of the same process. What TRL leaves to vLLM when it opens an engine itself (the
dtype: vLLM takes bfloat16 for float32 weights), how it reaches a server (by NCCL; here also by a disk) and how it
merges LoRA (in place, which leaves its roundings in the frozen weights) is replaced here, through the methods it has
for that.
"""

import asyncio
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from safetensors.torch import save_file
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import ensure_master_addr_port

from arenarl.config.schema import Config
from arenarl.rollout.engine import RolloutEngine, longest_prompt
from arenarl.rollout.generation import Generator, TurnRequest, run_turns
from arenarl.rollout.policy import lora_layers, merged_weight
from arenarl.rollout.vllm_generation import forget, open_engine
from arenarl.rollout.vllm_server import VLLMServer
from arenarl.system.errors import GO_ON, UserError
from arenarl.trajectory import Query

_SHARD_BYTES = 4 << 30
PROMPTS, TOKENS = 4, 32  # queries, and tokens of each at most: enough for a mean, a second's work for 8B


def _parts(trainer: GRPOTrainer) -> tuple[Any, ...]:
    return trainer.model, trainer.accelerator, trainer.processing_class


class MergedWeights(VLLMGeneration):
    """TRL's way to walk the weights, in which LoRA is merged into what is sent and never into the model."""

    is_asleep = False  # then vLLM has no weights

    def rest(self) -> None:
        """Nothing is generated until the next sync."""

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One at a time under the name that vLLM knows, gathered under ZeRO-3: on all processes together."""
        if not isinstance(self.model, PeftModel):
            yield from super()._iter_named_params()
            return
        layers = {f"{name}.base_layer.weight": layer for name, layer in lora_layers(self.model).items()}
        for name, weights in self.model.get_base_model().named_parameters():
            if self.model.prefix not in name:
                layer = layers.get(name)
                with self._dist.gather_params(list(layer.parameters()) if layer else [weights]):
                    yield name.replace(".base_layer", ""), merged_weight(layer) if layer else weights.data


class EngineWeights(MergedWeights):
    """TRL's weight sync into an engine of this process that `open_engine` opens."""

    def __init__(self, trainer: GRPOTrainer, config: Config):
        self.config = config
        super().__init__(*_parts(trainer), mode="colocate", enable_sleep_mode=config.rollout.vllm_sleep)

    def _init_vllm(self) -> None:
        accelerator, rollout = self.accelerator, self.config.rollout
        os.environ["RANK"] = str(accelerator.process_index)
        os.environ["LOCAL_RANK"] = str(accelerator.local_process_index)
        os.environ["WORLD_SIZE"] = str(accelerator.num_processes)
        ensure_master_addr_port()
        rows = self.config.rl.groups // accelerator.num_processes * rollout.group_size
        self.llm = open_engine(self.model.name_or_path, self.config, rows, beside_trainer=True)
        self.rest()
        accelerator.wait_for_everyone()

    def rest(self) -> None:
        """With `rollout.vllm_sleep` the memory of weights and cache goes to the trainer. Level 2: what was in it is
        lost, but for the buffers."""
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self.is_asleep = True

    def sync_weights(self) -> None:
        """TRL's, which begins by taking the weights' memory back; the cache's is taken once they are in it."""
        super().sync_weights()
        forget(self.llm)
        if self.is_asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.is_asleep = False
        # NCCL is through with the trainer's collectives before a shared engine's begin (TRL's issue 3671)
        self.accelerator.wait_for_everyone()


class ServedWeights(MergedWeights):
    """TRL's way to walk the weights, with a disk in place of its NCCL broadcast (vllm_server.py says why)."""

    def __init__(self, trainer: GRPOTrainer, server: VLLMServer, folder: Path):
        self.server, self.folder = server, folder
        super().__init__(*_parts(trainer), mode="server")

    def _init_vllm(self) -> None:
        """Nothing to open: requests and weights have their own ways to the server."""

    def sync_weights(self) -> None:
        """Every process walks the weights, because gathering needs all;
        the main one writes them and tells the server."""
        is_main = self.accelerator.is_main_process
        if is_main:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
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
        self.accelerator.wait_for_everyone()  # or another process would generate with the old ones

    def _write(self, shard: dict[str, torch.Tensor]) -> None:
        file = self.folder / f"model-{len(list(self.folder.iterdir())):05}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})


class BroadcastWeights(MergedWeights):
    """TRL's NCCL broadcast from the first process's GPU to the server's. Needs GPUs, and was never run."""

    def __init__(self, trainer: GRPOTrainer, server: VLLMServer):
        self.server = server
        super().__init__(*_parts(trainer), mode="server", server_base_url=server.url)

    def sync_weights(self) -> None:
        super().sync_weights()
        if self.accelerator.is_main_process:
            self.server.forget()  # TRL asks for it too, and does not read whether it was done
        self.accelerator.wait_for_everyone()


def require_room(engine: RolloutEngine, queries: Sequence[Query], positions: int) -> None:
    """Raises UserError if vLLM has no room for a trajectory that takes its whole budget, and would cut it."""
    prompt, room = longest_prompt(engine, queries), min(engine.config.longest, positions)
    if prompt + engine.config.max_tokens > room:
        needed = f"a prompt of {prompt:,} tokens and rollout.max_tokens={engine.config.max_tokens}"
        remedy = f"set rollout.max_tokens to {room - prompt} or less"
        raise UserError(f"{needed} are more than the {room:,} that vLLM has room for; {remedy}")


class VLLMWeights:
    """Keeps vLLM at the trainer's weights; checks at first, and every `parity_steps` steps, that both agree."""

    def __init__(self, trainer: GRPOTrainer, engine: RolloutEngine, queries: Sequence[Query], config: Config):
        self.trainer, self.generator, self.rollout = trainer, engine.generator, config.rollout
        self.prompts = [engine.prompt_ids(query) for query in queries[:PROMPTS]]
        self.first: Parity | None = None
        self._checked = -1
        if config.rollout.backend == "vllm":
            require_room(engine, queries, trainer.model.config.get_text_config().max_position_embeddings)
            trainer.vllm_generation = EngineWeights(trainer, config)
            self.generator.llm = trainer.vllm_generation.llm
        elif config.rollout.server_sync == "nccl":
            trainer.vllm_generation = BroadcastWeights(trainer, self.generator.server)
        else:
            folder = Path(config.rollout.server_weights or config.run_dir / "rl" / "served")
            trainer.vllm_generation = ServedWeights(trainer, self.generator.server, folder)
        # TRL then syncs before each rollout and corrects for vLLM's probabilities
        trainer.use_vllm, trainer._last_loaded_step = True, -1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """vLLM generates with the trainer's weights. On all processes together."""
        self._bring_up_to_date()
        yield
        self.trainer.vllm_generation.rest()

    def _bring_up_to_date(self) -> None:
        """TRL has done it already where it starts a rollout itself."""
        step = self.trainer.state.global_step
        if self.trainer._last_loaded_step != step or self.trainer.vllm_generation.is_asleep:
            self.trainer.vllm_generation.sync_weights()
            self.trainer._last_loaded_step = step
        if self.first is None or step - self._checked >= self.rollout.parity_steps:
            self._check(step)

    def _check(self, step: int) -> None:
        """The worst of all processes counts, so that all of them stop."""
        model = self.trainer.model
        found: list[Parity] = gather_object([measure_parity(self.generator, model, self.prompts)])
        is_tied = model.config.get_text_config().tie_word_embeddings
        for parity in found:
            require_parity(parity, self.first, self.rollout.parity_bound, step, is_tied)
        worst = max(found, key=lambda parity: parity.mean_difference)
        self.first, self._checked = self.first or worst, step
        for name, value in worst.metrics.items():
            self.trainer._metrics["train"][name].append(value)


@dataclass(frozen=True)
class Parity:
    """Differences of logprobs in nats; the share of vLLM's greedy tokens that the trainer would choose too."""

    max_difference: float
    mean_difference: float
    equal_greedy: float

    @property
    def metrics(self) -> dict[str, float]:
        return {f"parity/{name}": value for name, value in asdict(self).items()}


def measure_parity(
    generator: Generator, model: PreTrainedModel, prompts: Sequence[list[int]], max_tokens: int = TOKENS
) -> Parity:
    """Compare vLLM's greedy turns with the model's figures for them. Under ZeRO-3 all processes take part."""

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
    """(T, V): the model's logprobs, at temperature 1, of every token that could stand where `token_ids` (T,) do."""
    was_training = model.training
    model.eval()
    input_ids = torch.tensor([prompt + token_ids], device=model.device)
    logits = model(input_ids=input_ids, use_cache=False, logits_to_keep=len(token_ids) + 1).logits
    model.train(was_training)
    return torch.log_softmax(logits[0, :-1].float(), dim=-1)


def require_parity(parity: Parity, first: Parity | None, bound: float, step: int, is_tied: bool) -> None:
    """Raises UserError if the mean difference is above the bound. `first`: what this process's first check found."""
    if parity.mean_difference <= bound:
        return
    differ = f"logprobs differ by {parity.mean_difference:.3g} nats a token (rollout.parity_bound={bound:g})"
    figures = f"{differ}, at most {parity.max_difference:.3g}, {parity.equal_greedy:.0%} of the greedy tokens are equal"
    cause = _likely_cause(parity, first, is_tied)
    raise UserError(f"vLLM and the trainer disagree at step {step}: {figures}. {cause}; {GO_ON}")


def _likely_cause(parity: Parity, first: Parity | None, is_tied: bool) -> str:
    """What the figures point to: a cause that was there from the start, or one that came with the updates."""
    if not math.isfinite(parity.mean_difference):
        remedy = "go back to an earlier checkpoint with a lower learning rate"
        return f"A logprob is not a number: most likely the weights overflowed; {remedy}"
    if first is None and parity.equal_greedy < 0.5:
        cause = "vLLM holds another model than the trainer, or its weights were never synced"
        return f"From the start, with other tokens: most likely {cause}"
    if first is None:
        cause = "From the start, with the same tokens: most likely the same weights in another precision"
        remedy = "keep policy.dtype and vLLM's dtype equal, or raise rollout.parity_bound"
        return f"{cause}; {remedy} if the difference stays as it is"
    cause = "updated weights did not reach vLLM" + ", or of the tied embeddings only one copy" * is_tied
    remedy = "start the run (and a vLLM server) again, and use the versions of requirements.txt and docs/paper_scale.md"
    return f"It began with {first.mean_difference:.3g}: most likely {cause}; {remedy}"
