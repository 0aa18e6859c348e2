"""The trainer's weights to vLLM, after every update, and the check that they arrived.

Beside `training` the only place that knows TRL's insides: its `VLLMGeneration` walks the weights, gathering them under
ZeRO-3, and loads them into an engine of the same process. What TRL leaves to vLLM when it opens an engine itself (the
dtype: vLLM takes bfloat16 for float32 weights), how it reaches a server (by NCCL; here also by a disk) and how it
merges LoRA (in place, which leaves its roundings in the frozen weights) is replaced here, through the methods it has
for that.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from safetensors.torch import save_file
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import ensure_master_addr_port

from arenarl.config.schema import Config
from arenarl.rollout.engine import RolloutEngine, longest_prompt
from arenarl.rollout.parity import PROMPTS, Parity, measure_parity, require_parity
from arenarl.rollout.policy import lora_layers, merged_weight
from arenarl.rollout.vllm_generation import forget, open_engine
from arenarl.rollout.vllm_server import VLLMServer
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

_SHARD_BYTES = 4 << 30


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
        sleeps = config.rollout.vllm_sleep
        super().__init__(
            trainer.model, trainer.accelerator, trainer.processing_class, mode="colocate", enable_sleep_mode=sleeps
        )

    def _init_vllm(self) -> None:
        accelerator, rollout = self.accelerator, self.config.rollout
        os.environ["RANK"], os.environ["LOCAL_RANK"] = (
            str(accelerator.process_index),
            str(accelerator.local_process_index),
        )
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
        super().__init__(trainer.model, trainer.accelerator, trainer.processing_class, mode="server")

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
            self.server.load(str(self.folder.resolve()))
        self.accelerator.wait_for_everyone()  # or another process would generate with the old ones

    def _write(self, shard: dict[str, torch.Tensor]) -> None:
        save_file(
            shard, self.folder / f"model-{len(list(self.folder.iterdir())):05}.safetensors", metadata={"format": "pt"}
        )


class BroadcastWeights(MergedWeights):
    """TRL's own way to a server: an NCCL broadcast from the first process's GPU to the server's.
    Needs GPUs, and was never run."""

    def __init__(self, trainer: GRPOTrainer, server: VLLMServer):
        self.server = server
        super().__init__(
            trainer.model, trainer.accelerator, trainer.processing_class, mode="server", server_base_url=server.url
        )

    def sync_weights(self) -> None:
        super().sync_weights()
        if self.accelerator.is_main_process:
            self.server.forget()  # TRL asks for it too, and does not read whether it was done
        self.accelerator.wait_for_everyone()


def require_room(engine: RolloutEngine, queries: Sequence[Query], positions: int) -> None:
    """Raises UserError if a trajectory that takes its whole budget would be longer than what vLLM keeps room for,
    and be cut by it."""
    prompt, room = longest_prompt(engine, queries), min(engine.config.longest, positions)
    if prompt + engine.config.max_tokens > room:
        raise UserError(
            f"a prompt of {prompt:,} tokens and rollout.max_tokens={engine.config.max_tokens} are more than the "
            f"{room:,} that vLLM has room for; set rollout.max_tokens to {room - prompt} or less"
        )


class VLLMWeights:
    """Keeps vLLM at the trainer's weights; the first time, and once `parity_steps` steps lie behind a check,
    checks that both agree."""

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
