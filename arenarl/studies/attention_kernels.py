"""This machine's GPU, and the attention kernels that torch chooses for this project's forward passes.

    python -m arenarl.studies.attention_kernels

torch chooses a kernel by device, dtype and mask. A Qwen3 of one layer with Qwen3-1.7B's heads makes the passes of
rollouts and training: prompts, a decoded token, the next turn's tokens, a training step. The last line is JSON.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config, Qwen3ForCausalLM

from arenarl.rollout.attention import prepare_attention
from arenarl.rollout.kv_cache import TrajectoryCache, encode_and_keep
from arenarl.system.errors import run_cli

HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}  # Qwen3-1.7B's
SIZES = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 256, "num_hidden_layers": 1}
CHOICE = "aten::_scaled_dot_product_"  # the profiler's prefix of torch's choice
WORDS = ("flash", "fmha", "efficient", "attention", "cudnn")  # parts of an attention kernel's name


def machine() -> dict[str, Any]:
    """Return the card, its driver and memory, and torch's version; the card is missing without a GPU."""
    if not torch.cuda.is_available():
        return {"card": None, "torch": torch.__version__}
    query, drivers = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], []
    if shutil.which(query[0]):
        drivers = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    card = torch.cuda.get_device_properties(0)
    figures = {"card": card.name, "driver": drivers[0] if drivers else None}
    figures |= {"memory_gb": round(card.total_memory / 1e9, 1), "capability": f"{card.major}.{card.minor}"}
    return figures | {"torch": torch.__version__, "cuda": torch.version.cuda}


def passes(model: Qwen3ForCausalLM, length: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each pass's name and the pass. Call them in this order, because turns continue prompts."""
    ids = torch.randint(model.config.vocab_size, (4, 2 * length)).tolist()
    turns, caches = [row[: length - 10 * k] for k, row in enumerate(ids)], [TrajectoryCache() for _ in ids]
    yield "prompts", lambda: encode_and_keep(model, turns, caches)
    batch = encode_and_keep(model, turns, caches)
    yield "a decoded token", lambda: batch.step(model, torch.zeros(len(ids), dtype=torch.long, device=model.device))
    yield "the next turn", lambda: encode_and_keep(model, ids, caches)

    def train() -> None:
        with torch.enable_grad():
            model(torch.tensor(ids, device=model.device)).logits.float().mean().backward()

    yield "training", train


def kernels_of(run: Callable[[], Any]) -> list[str]:
    """Return the kernels that torch chose in a pass, such as `flash_attention`, then the names of GPU kernels."""
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
    with profile(activities=activities) as profiler, torch.no_grad():
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events = profiler.key_averages()
    names = {event.key for event in events}
    chosen = {name.removeprefix(CHOICE) for name in names if name.startswith(CHOICE) and not name.endswith("backward")}
    on_gpu = {event.key for event in events if event.device_type == DeviceType.CUDA}
    kernels = {name[:90] for name in on_gpu if any(word in name.lower() for word in WORDS)}
    return sorted(chosen) + sorted(kernels - {name for name in names if name.startswith("aten::")})


def main() -> None:
    prepare_attention()
    device, length = ("cuda", 1024) if torch.cuda.is_available() else ("cpu", 32)
    figures = machine()
    for dtype in (torch.bfloat16, torch.float32):
        with torch.device(device):
            config = Qwen3Config(**HEADS, **SIZES)
            model = Qwen3ForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")
        for name, run in passes(model, length):
            figures[f"{str(dtype).removeprefix('torch.')}, {name}"] = kernels = kernels_of(run)
            print(f"{dtype}, {name}:", *(kernels or ["none"]), sep="\n    ", flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    run_cli(main, goes_on=False)
