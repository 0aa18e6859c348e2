"""What a stage of a run takes: bytes of each GPU, and whether they are there; tokens; hours.

Upper bounds by arithmetic, nothing of it measured: every trajectory takes its whole token budget. Training takes 6
FLOPs a parameter and token, 2 more to recompute under gradient checkpointing, 2 for the reference policy, 2 for old
logprobs where updates share rollouts or vLLM generates, to weigh its probabilities, and for attention what the length
makes it, at an assumed utilisation. Rollouts are bound by memory: each decoding step reads the weights once and every
trajectory's cache, at an assumed share of the bandwidth; as many decode at once as `rollout.batch_size` or vLLM's cache
lets. Without vLLM's CUDA graphs a step takes at least the time in which its kernels are started. Judging is taken to be
hidden behind generation, and a vLLM server to generate as one on every training GPU would.
"""

from dataclasses import dataclass, replace

from arenarl.config.checks import check_groups, check_tensor_parallel
from arenarl.config.schema import VLLM_ALONE, Config, PolicyConfig
from arenarl.plan.estimate import count_sft_trajectories, count_test_queries
from arenarl.plan.memory import ENGINE, Shape, Training, gb, generation, kv_bytes, shape_of, vllm_cache, vllm_part
from arenarl.run.trainer_arguments import check_deepspeed
from arenarl.system.errors import UserError

STAGES = ("sft", "rl", "evaluate")
RESERVE = {"CUDA, libraries, collectives": 2e9}  # An assumption


@dataclass(frozen=True)
class Hardware:
    """One GPU. Speeds are an H20's, the paper's: 148 TFLOPS in bfloat16 and 4 TB/s as its maker gives them;
    the shares are assumed."""

    memory_gb: float = 80.0
    tflops: float = 148.0
    bandwidth_tb_s: float = 4.0
    utilisation: float = 0.35  # of the TFLOPS, in training and forward passes. An assumption
    bandwidth_share: float = 0.5  # of the bandwidth, in decoding. An assumption
    # in which the transformers back end starts a layer's kernels. An assumption; two layers took 4.4 on an H200
    layer_ms: float = 1.0


@dataclass(frozen=True)
class Stage:
    """One of `STAGES` by a config, on so many GPUs."""

    config: Config
    name: str
    gpus: int = 1
    gpu: Hardware = Hardware()

    @property
    def model(self) -> str | None:
        """Its policy's: RL and what follows start from `rl.init`, if it is set. None: `policy.scratch`."""
        init = self.config.rl.init if self.name != "sft" else None
        return init or self.config.policy.model

    @property
    def shape(self) -> Shape:
        """Of its policy."""
        return shape_of(replace(self.config.policy, model=self.model))

    @property
    def length(self) -> int:
        """Tokens that a trajectory takes at most."""
        return self.config.sft.max_length if self.name == "sft" else self.config.rollout.max_tokens

    @property
    def trajectories(self) -> int:
        """That it trains on, or makes to evaluate policies of our own;
        several updates share a step's rollouts out among them."""
        config = self.config
        if self.name == "sft":
            return round(count_sft_trajectories(config) * config.sft.epochs)
        if self.name == "rl":
            return config.rl.rollouts * config.rl.groups * config.rollout.group_size
        own = [policy for policy in config.evaluated.values() if isinstance(policy, str)]
        return count_test_queries(config) * len(config.evaluate.attempts) * len(own)

    @property
    def rows(self) -> int:
        """Trajectories that a GPU has under way at once: a step's, or its share of the test queries."""
        rl, rollout = self.config.rl, self.config.rollout
        is_rl = self.name == "rl"
        total = rl.groups * rollout.group_size if is_rl else count_test_queries(self.config)
        rows = total // self.gpus if is_rl else -(-total // self.gpus)
        return max(1, min(rows, rollout.batch_size) if rollout.backend == "transformers" else rows)

    @property
    def rows_at_most(self) -> int:
        """The same, or what RL's curve has."""
        rl = self.config.rl
        of_curve = -(-rl.eval_queries // self.gpus) if self.name == "rl" and rl.eval_steps else 0
        return max(self.rows, min(of_curve, self.config.rollout.batch_size))

    @property
    def vllm_share(self) -> float:
        """Bytes of a GPU that vLLM gets in this process."""
        shares = {"rl": self.config.rollout.vllm_memory, "evaluate": VLLM_ALONE}
        return self.gpu.memory_gb * 1e9 * shares.get(self.name, 0.0) if self.config.rollout.backend == "vllm" else 0.0

    @property
    def at_once(self) -> int:
        """Trajectories that a GPU, or those of one engine together, decodes at once,
        each half its length on average."""
        engine = self.config.rollout.vllm_tensor_parallel
        room = vllm_cache(self.shape, self.vllm_share, engine) * 2 // self.length if self.vllm_share else self.rows
        return max(1, min(self.rows * engine, room))

    @property
    def training(self) -> Training:
        """How SFT or RL trains. Raises UserError for a DeepSpeed JSON that cannot be used."""
        policy, section = self.config.policy, getattr(self.config, self.name)
        zero = check_deepspeed(f"{self.name}.deepspeed", section.deepspeed, f"train_{self.name}.py", is_check=True)
        if self.name == "sft":
            rows, reference, critic = section.batch_size, False, False
        else:
            rows = max(section.micro_batch_size, 2 if section.method == "dpo" else 1)  # a pair at least
            reference = section.method == "dpo" or section.method == "online" and section.beta > 0
            critic = section.advantage == "gae"
        kept = (policy.lora_rank, policy.gradient_checkpointing, reference, critic)
        return Training(self.shape, rows * self.length, self.gpus, zero, *kept)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """Phase → part → bytes of each GPU. A policy behind an API or on vLLM's server takes nothing here."""
        rollout, shape = self.config.rollout, self.shape
        engine, beside, found = RESERVE | {"vLLM's share": self.vllm_share}, self.vllm_share, {}
        if self.name == "evaluate":
            alone = RESERVE | {"parameters": shape.width * shape.parameters} | generation(shape, self.rows, self.length)
            by_backend = {"vllm": {"generating": engine}, "transformers": {"generating": alone}}
            return by_backend.get(rollout.backend, {}) if self.trajectories else {}
        if self.name == "rl" and rollout.backend == "transformers":
            found["generating"] = RESERVE | self.training.generating(self.rows_at_most, self.length)
        if self.name == "rl" and rollout.backend == "vllm" and rollout.vllm_sleep:
            found["generating"], beside = engine | self.training.waiting(), ENGINE
        return found | {"training": RESERVE | {"vLLM's share": beside} | self.training.updating()}

    @property
    def allocated(self) -> dict[str, float]:
        """Phase → bytes that torch allocates: all parts but the allowance for CUDA and libraries."""
        return {phase: sum(parts.values()) - sum(RESERVE.values()) for phase, parts in self.phases.items()}

    @property
    def misfits(self) -> list[str]:
        """Why it does not fit; empty if it does."""
        shape, memory, rollout = self.shape, self.gpu.memory_gb * 1e9, self.config.rollout
        sums = {phase: sum(parts.values()) for phase, parts in self.phases.items()}
        found = [f"{phase} takes {gb(size)} of {gb(memory)} GB" for phase, size in sums.items() if size > memory]
        longest, engine = min(shape.positions, rollout.longest), rollout.vllm_tensor_parallel
        if self.vllm_share and vllm_cache(shape, self.vllm_share, engine) < longest:  # vLLM refuses to start
            taken = f"its weights with a cache of {longest:,} tokens take {gb(vllm_part(shape, engine, longest))}"
            found.append(f"vLLM has {gb(self.vllm_share)} GB, and {taken}")
        if self.name != "sft" and rollout.backend != "transformers" and rollout.max_tokens >= shape.positions:
            room = f"no room in the {shape.positions:,} tokens that the model reads"
            found.append(f"rollout.max_tokens={rollout.max_tokens} leaves a prompt {room}")
        try:
            if self.name == "rl":
                check_groups(self.config, self.gpus)
            if self.name != "sft":
                check_tensor_parallel(rollout, self.gpus)
        except UserError as error:
            found.append(str(error).split(";")[0])
        return found

    @property
    def flops(self) -> float:
        """Of training on one trajectory."""
        rl, shape = self.config.rl, self.shape
        flops = training_flops(self.config.policy, shape, self.length) if self.name != "evaluate" else 0.0
        if self.name == "rl":
            # else they are those of the update itself
            old_logprobs = rl.updates_per_rollout > 1 or self.config.rollout.backend != "transformers"
            flops += forward_flops(shape, self.length) * ((rl.beta > 0) + old_logprobs)
        return flops

    @property
    def decoding_seconds(self) -> float:
        """A trajectory's share of what its batch takes."""
        shape, gpu = self.shape, self.gpu
        read = decoding_bytes(shape, self.length, self.at_once) / (gpu.bandwidth_tb_s * 1e12 * gpu.bandwidth_share)
        started = self.length * shape.layers * gpu.layer_ms / 1e3 / self.at_once
        return max(read, started) if self.config.rollout.backend == "transformers" else read

    @property
    def hours(self) -> float:
        """RL's without the curve's evaluations."""
        seconds = self.flops / (self.gpu.tflops * 1e12 * self.gpu.utilisation)
        seconds += self.decoding_seconds if self.name != "sft" else 0.0
        return self.trajectories * seconds / self.gpus / 3600


def forward_flops(shape: Shape, tokens: int) -> float:
    """Of one trajectory: 2 a parameter that multiplies and token, and attention,
    in which a token sees half of them on average."""
    # looking up an embedding multiplies nothing
    multiplying = shape.parameters - (0 if shape.tied else shape.table_parameters)
    return tokens * (2.0 * multiplying + 2.0 * shape.layers * shape.queries * tokens)


def training_flops(policy: PolicyConfig, shape: Shape, tokens: int) -> float:
    """Of one trajectory. LoRA needs no gradients of the weights that it leaves alone,
    which saves half of the backward pass."""
    passes = 1 + (1 if policy.lora_rank else 2) + policy.gradient_checkpointing
    return passes * forward_flops(shape, tokens)


def decoding_bytes(shape: Shape, tokens: int, at_once: int) -> float:
    """Read for one trajectory: its share of the weights at every step, and its own cache, half full on average."""
    return tokens * (shape.width * shape.parameters / at_once + kv_bytes(shape) * tokens / 2)
