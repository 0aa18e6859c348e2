"""Memory, tokens and hours of a stage, and whether it fits its GPUs.

All numbers are calculated upper bounds, not measurements: every trajectory uses its whole token budget.
- Training takes 6 FLOPs per parameter and token, plus attention, at an assumed utilisation. Add 2 FLOPs each for
gradient checkpointing, the reference policy, and old logprobs (if updates share rollouts or vLLM generates).
- Decoding is bound by memory: each step reads the weights once and every trajectory's cache, at an assumed share of the
  bandwidth. `rollout.batch_size` or vLLM's cache limits the trajectories decoded at once. Without vLLM's CUDA graphs a
  step takes at least the time to start its kernels.
- Judging is assumed to run during generation, and a vLLM server to be as fast as vLLM on every training GPU.
- With `rl.steps_ahead: 1` generation and training overlap, except for the first rollout and the last updates. The sync
  of the weights is left out.
"""

from dataclasses import dataclass, replace

from arenarl.config.checks import check_groups, check_tensor_parallel, shared_gpu_problem
from arenarl.config.schema import VLLM_ALONE, Config, PolicyConfig
from arenarl.plan.estimate import count_attempts, count_sft_trajectories, count_test_queries
from arenarl.plan.memory import (
    ENGINE,
    Shape,
    Training,
    gb,
    generation,
    known_shape,
    kv_bytes,
    shape_of,
    vllm_cache,
    vllm_part,
)
from arenarl.run.trainer_arguments import check_deepspeed
from arenarl.system.errors import UserError

STAGES = ("sft", "rl", "evaluate")
RESERVE = {"CUDA, libraries, collectives": 2e9}  # An assumption


@dataclass(frozen=True)
class Hardware:
    """A GPU. The default speeds are the maker's figures for the paper's H20; the shares are assumptions."""

    memory_gb: float = 80.0
    tflops: float = 148.0
    bandwidth_tb_s: float = 4.0
    utilisation: float = 0.35  # share of the TFLOPS in training and forward passes. An assumption
    bandwidth_share: float = 0.5  # share of the bandwidth in decoding. An assumption
    layer_ms: float = 1.0  # time to start a layer's kernels without vLLM. An assumption; two layers took 4.4 on an H200


@dataclass(frozen=True)
class Stage:
    """A stage of a run (one of `STAGES`) on `gpus` GPUs."""

    config: Config
    name: str
    gpus: int = 1
    gpu: Hardware = Hardware()

    @property
    def model(self) -> str | None:
        """The policy's model: `rl.init`, if set, for RL and evaluation. None: `policy.scratch`.

        For evaluation, it is the largest of `evaluate.checkpoints`, except those that are not trained yet.
        """
        if self.name == "sft":
            return self.config.policy.model
        named = self.config.evaluate.checkpoints.values() if self.name == "evaluate" else ()
        sizes = {shape.parameters: model for model in named if (shape := known_shape(model))}
        return sizes[max(sizes)] if sizes else self.config.rl.init or self.config.policy.model

    @property
    def shape(self) -> Shape:
        return shape_of(replace(self.config.policy, model=self.model))

    @property
    def length(self) -> int:
        """Maximum tokens of a trajectory."""
        return self.config.sft.max_length if self.name == "sft" else self.config.rollout.max_tokens

    @property
    def trajectories(self) -> int:
        """Number of trajectories that SFT trains on, or that RL, or evaluation with local policies, generates."""
        config = self.config
        if self.name == "sft":
            return round(count_sft_trajectories(config) * config.sft.epochs)
        if self.name == "rl":
            return config.rl.rollouts * config.rl.groups_at_most * config.rollout.group_size
        own = [policy for policy in config.evaluated.values() if isinstance(policy, str)]
        return count_test_queries(config) * count_attempts(config) * len(own)

    @property
    def rows(self) -> int:
        """Trajectories that a GPU generates at once: the GPU's share of a training step or of an evaluation.

        An evaluation generates one trajectory per test query at once; with vLLM, all trajectories of a policy.
        """
        rl, rollout = self.config.rl, self.config.rollout
        if self.name == "rl":
            rows = rl.groups * rollout.group_size // self.gpus
        else:
            parts = count_attempts(self.config) if rollout.backend == "vllm" else 1
            rows = -(-count_test_queries(self.config) * parts // self.gpus)
        return max(1, min(rows, rollout.batch_size) if rollout.backend == "transformers" else rows)

    @property
    def rows_at_most(self) -> int:
        """The larger of `rows` and the number of rows in RL's evaluation curve."""
        rl = self.config.rl
        of_curve = -(-rl.eval_queries // self.gpus) if self.name == "rl" and rl.eval_steps else 0
        return max(self.rows, min(of_curve, self.config.rollout.batch_size))

    @property
    def vllm_share(self) -> float:
        """Bytes of a GPU for vLLM in the training process."""
        shares = {"rl": self.config.rollout.vllm_memory, "evaluate": VLLM_ALONE}
        return self.gpu.memory_gb * 1e9 * shares.get(self.name, 0.0) if self.config.rollout.backend == "vllm" else 0.0

    @property
    def at_once(self) -> int:
        """Trajectories that one engine (one or more GPUs) decodes at once, at half their length on average."""
        engine = self.config.rollout.vllm_tensor_parallel
        room = vllm_cache(self.shape, self.vllm_share, engine) * 2 // self.length if self.vllm_share else self.rows
        return max(1, min(self.rows * engine, room))

    @property
    def training(self) -> Training:
        """The training of SFT or RL. Raises UserError for an unusable DeepSpeed JSON."""
        policy, section = self.config.policy, getattr(self.config, self.name)
        zero = check_deepspeed(f"{self.name}.deepspeed", section.deepspeed, f"train_{self.name}.py", is_check=True)
        if self.name == "sft":
            rows, reference, critic = section.batch_size, False, False
        else:
            rows = max(section.micro_batch_size, 2 if section.method == "dpo" else 1)  # DPO needs a pair
            reference = section.method == "dpo" or section.method == "online" and section.beta > 0
            critic = section.advantage == "gae"
        kept = (policy.lora_rank, policy.gradient_checkpointing, reference, critic)
        return Training(self.shape, rows * self.length, self.gpus, zero, *kept)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """Phase → part → bytes on each GPU. A policy behind an API or on a vLLM server takes none."""
        rollout, shape = self.config.rollout, self.shape
        engine, beside, parts = RESERVE | {"vLLM's share": self.vllm_share}, self.vllm_share, {}
        if self.name == "evaluate":
            alone = RESERVE | {"parameters": shape.width * shape.parameters} | generation(shape, self.rows, self.length)
            by_backend = {"vllm": {"generating": engine}, "transformers": {"generating": alone}}
            return by_backend.get(rollout.backend, {}) if self.trajectories else {}
        if self.name == "rl" and rollout.backend == "transformers":
            parts["generating"] = RESERVE | self.training.generating(self.rows_at_most, self.length)
        if self.name == "rl" and rollout.backend == "vllm" and rollout.vllm_sleep:
            parts["generating"], beside = engine | self.training.waiting(), ENGINE
        return parts | {"training": RESERVE | {"vLLM's share": beside} | self.training.updating()}

    @property
    def misfits(self) -> list[str]:
        """The reasons why the stage does not fit; empty if it fits."""
        shape, memory, rollout = self.shape, self.gpu.memory_gb * 1e9, self.config.rollout
        sums = {phase: sum(parts.values()) for phase, parts in self.phases.items()}
        problems = [f"{phase} takes {gb(size)} of {gb(memory)} GB" for phase, size in sums.items() if size > memory]
        longest, engine = min(shape.positions, rollout.longest), rollout.vllm_tensor_parallel
        if self.vllm_share and vllm_cache(shape, self.vllm_share, engine) < longest:  # vLLM refuses to start
            taken = f"its weights with a cache of {longest:,} tokens take {gb(vllm_part(shape, engine, longest))}"
            problems.append(f"vLLM has {gb(self.vllm_share)} GB, and {taken}")
        if self.name != "sft" and rollout.max_tokens >= shape.positions:
            room = f"no room in the {shape.positions:,} tokens that the model reads"
            problems.append(f"rollout.max_tokens={rollout.max_tokens} leaves a prompt {room}")
        try:
            if self.name == "rl":
                check_groups(self.config, self.gpus)
            if self.name != "sft":
                check_tensor_parallel(rollout, self.gpus)
        except UserError as error:
            problems.append(str(error).split(";")[0])
        return problems

    @property
    def refusal(self) -> str:
        """Why the stage does not start on GPUs, or "". The plan does not know whether the run will have GPUs."""
        return shared_gpu_problem(self.config.rollout, self.config.rl.steps_ahead) if self.name == "rl" else ""

    @property
    def flops(self) -> float:
        """FLOPs of training for each of `trajectories`; RL does not train on what `rl.resample_equal` replaces."""
        rl, shape = self.config.rl, self.shape
        flops = training_flops(self.config.policy, shape, self.length) if self.name != "evaluate" else 0.0
        if self.name == "rl":
            is_generated_by_trainer = self.config.rollout.backend == "transformers" and not rl.steps_ahead
            # otherwise the update itself computes them
            old_logprobs = rl.updates_per_rollout > 1 or not is_generated_by_trainer
            flops += forward_flops(shape, self.length) * ((rl.beta > 0) + old_logprobs)
            flops *= rl.groups / rl.groups_at_most
        return flops

    @property
    def decoding_seconds(self) -> float:
        """Decoding time per trajectory: the batch's time divided by its number of trajectories."""
        shape, gpu = self.shape, self.gpu
        read = decoding_bytes(shape, self.length, self.at_once) / (gpu.bandwidth_tb_s * 1e12 * gpu.bandwidth_share)
        started = self.length * shape.layers * gpu.layer_ms / 1e3 / self.at_once
        return max(read, started) if self.config.rollout.backend == "transformers" else read

    @property
    def hours(self) -> float:
        """Hours of the stage; for RL without the curve's evaluations."""
        training = self.flops / (self.gpu.tflops * 1e12 * self.gpu.utilisation)
        decoding = self.decoding_seconds if self.name != "sft" else 0.0
        rl, seconds = self.config.rl, training + decoding
        if self.name == "rl" and rl.steps_ahead:
            seconds = max(training, decoding) + min(training, decoding) / rl.rollouts
        return self.trajectories * seconds / self.gpus / 3600


def forward_flops(shape: Shape, tokens: int) -> float:
    """Return a trajectory's FLOPs: 2 per token and parameter outside the embedding, and the attention of each token to
    half the trajectory."""
    multiplying = shape.parameters - (0 if shape.tied else shape.table_parameters)
    return tokens * (2.0 * multiplying + 2.0 * shape.layers * shape.queries * tokens)


def training_flops(policy: PolicyConfig, shape: Shape, tokens: int) -> float:
    """Return the FLOPs of one trajectory. LoRA saves half of the backward pass: frozen weights need no gradients."""
    passes = 1 + (1 if policy.lora_rank else 2) + policy.gradient_checkpointing
    return passes * forward_flops(shape, tokens)


def decoding_bytes(shape: Shape, tokens: int, at_once: int) -> float:
    """Return the bytes read per trajectory: its share of the weights per step, and its cache, half full on average."""
    return tokens * (shape.width * shape.parameters / at_once + kv_bytes(shape) * tokens / 2)
