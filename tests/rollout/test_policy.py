"""Policies: the tiny policy's tokenizer, models that can or cannot be a policy, and saving a trained policy.
tests/scripts/test_real_model.py fetches and trains a packaged model."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from scripts import ENVIRONMENT
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, LlamaForCausalLM, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from trl import SFTConfig
from trl.trainer.utils import create_model_from_path

from arenarl.config.schema import PolicyConfig
from arenarl.rollout import policy
from arenarl.rollout.environment import check_tools
from arenarl.rollout.policy import (
    freeze_unread_parts,
    load_model,
    load_tokenizer,
    lora_config,
    require_model,
    require_trainable,
    save_policy,
    sequence_limit,
)
from arenarl.rollout.scratch_policy import train_tokenizer
from arenarl.system.errors import UserError
from arenarl.trajectory import assistant_text

PROPERTIES = {f"argument_{n}": {"type": "string"} for n in range(200)}
TOOLS = [{"function": {"name": "find", "parameters": {"properties": PROPERTIES}}}]


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("make", [tiny_models.qwen3_5, tiny_models.gemma3])
def test_exactly_the_parts_of_a_multimodal_model_that_read_text_are_trained(make, lora_rank):
    """DDP stops at a weight that is trained but gets no gradient."""
    model = tiny_models.build(make())
    model = get_peft_model(model, lora_config(lora_rank)) if lora_rank else model
    before = {name for name, weights in model.named_parameters() if weights.requires_grad}
    ids = torch.arange(5, 25)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    with_gradient = {name for name, weights in model.named_parameters() if weights.grad is not None}
    freeze_unread_parts(model)
    assert {name for name, weights in model.named_parameters() if weights.requires_grad} == with_gradient
    assert with_gradient < before


def test_a_vocabulary_without_room_for_the_tools_json_is_refused_with_the_minimum():
    with pytest.raises(UserError, match="policy.scratch.vocab_size=512 is too small: .* alone take 674; raise it"):
        train_tokenizer(["a b"], TOOLS, vocab_size=512)
    assert len(train_tokenizer(["a b"], TOOLS, vocab_size=674)) == 674


STRICT = {"type": "object", "additionalProperties": False}
PARAMETERS = [
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"properties": {"mode": {"enum": ["fast", "slow"]}, "level": {"enum": [1, "two", None]}, "kind": {"const": "x"}}},
    {"properties": {"any": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "one": {"oneOf": [{"type": "integer"}]}}},
    {"properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"type": "string"}}},
    STRICT | {"properties": {"place": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": STRICT | {"properties": {}}}},
    {"properties": {"all": {"allOf": [{"type": "string"}]}, "both": {"type": ["string", "null"]}, "free": {}}},
    {"properties": {"x": True, 'say "so"': {"description": "no type"}, "größe": {"type": ["string"]}}},
    {"properties": {}, "additionalProperties": {"type": "string"}},
]


def test_a_tokenizer_is_trained_for_tools_with_any_valid_schema():
    """A call's text is encoded as it would be without the tools' tokens."""
    tools = [{"function": {"name": f"tool_{n}", "parameters": schema}} for n, schema in enumerate(PARAMETERS)]
    check_tools(tools)
    tokenizer = train_tokenizer(["a b"], tools, vocab_size=900)
    for tool in (tool["function"] for tool in tools):
        arguments = dict.fromkeys(tool["parameters"].get("properties", {}), "a")
        text = assistant_text(turn_with_call(tool["name"], arguments))
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and len(ids) < 14 + 4 * len(arguments), tool


def turn_with_call(name, arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "reasoning_content": "a", "content": "", "tool_calls": [call]}


ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
ROPES = {  # rope_parameters, max_position_embeddings, limit
    "default": ({}, 64, 64),
    "linear": ({}, 64, 64),
    "yarn": ({}, 64, 128),
    "llama3": ({"low_freq_factor": 1.0, "high_freq_factor": 4.0}, 64, 64),
    "dynamic": ({}, 32, 32),
    "longrope": ({"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}, 128, 32),
    "proportional": ({}, 64, 64),
}


def test_a_models_limit_is_where_a_row_begins_to_depend_on_its_batch(tmp_path):
    """This covers all kinds of rotary embeddings of transformers."""
    assert set(ROPES) == {"default", *ROPE_INIT_FUNCTIONS}
    for kind, (more, positions, limit) in ROPES.items():
        rope = ROPE | more | {"rope_type": kind}
        config = LlamaConfig(**tiny_models.SMALL | {"max_position_embeddings": positions}, rope_parameters=rope)
        config.save_pretrained(tmp_path)
        model, ids = AutoModelForCausalLM.from_config(config).eval(), torch.arange(10, 50)
        with torch.no_grad():
            alone = model(ids[None, :20]).logits[0]
            beside = model(torch.stack([ids, ids])).logits[0, :20]
        depends = not torch.allclose(alone, beside, atol=1e-5)
        is_dynamic = kind in ("dynamic", "longrope")
        assert sequence_limit(str(tmp_path)).tokens == limit and depends is is_dynamic, kind
        assert sequence_limit(str(tmp_path), in_batches=False).tokens == max(limit, positions)
    BloomConfig(hidden_size=32, n_head=4).save_pretrained(tmp_path)
    assert sequence_limit(str(tmp_path)) is None  # it has no positions


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(10, 40)[None]).logits


@pytest.fixture(params=["qwen3", "qwen3_5", "gemma3"])
def start(request, policy_path, tmp_path):
    """The folder of a text model, and of two models that read images too."""
    if request.param == "qwen3":
        return policy_path
    torch.manual_seed(0)
    tiny_models.build(getattr(tiny_models, request.param)()).save_pretrained(tmp_path / "start")
    return str(tmp_path / "start")


def test_a_policy_trained_with_lora_is_saved_merged_in_the_class_that_trl_trains(start, sft_path, tokenizer, tmp_path):
    from arenarl.training.sft_data import tokenize_trajectories
    from arenarl.training.sft_internals import RightPaddedTrainer

    arguments = {"use_cpu": True, "report_to": [], "save_strategy": "no", "bf16": False, "learning_rate": 0.05}
    arguments |= {"max_steps": 2, "per_device_train_batch_size": 2, "dataset_kwargs": {"skip_prepare_dataset": True}}
    trainer = RightPaddedTrainer(
        model=start,
        args=SFTConfig(str(tmp_path), **arguments),
        train_dataset=tokenize_trajectories(sft_path, tokenizer, None, 4096).select(range(4)),
        processing_class=tokenizer,
        peft_config=lora_config(2),
    )
    trainer.train()
    save_policy(trainer, tmp_path / "saved")
    loaded, trained = load_model(require_model(str(tmp_path / "saved")), "float32"), logits(trainer.model)
    assert type(loaded) is type(trainer.model.get_base_model())
    assert torch.allclose(logits(loaded), trained, atol=1e-5)
    untrained = load_model(start, "float32")
    assert not torch.allclose(logits(untrained), trained, atol=1e-2)
    assert type(untrained) is type(create_model_from_path(start, device_map=None))


def test_adapter_weights_that_do_not_fit_their_base_model_are_an_error(tokenizer, tmp_path):
    tiny_models.build(tiny_models.qwen3_5()).save_pretrained(tmp_path / "whole")
    AutoModelForCausalLM.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "text")
    trained = get_peft_model(load_model(str(tmp_path / "whole"), "float32"), lora_config(2))
    trainer = SimpleNamespace(
        model=trained, accelerator=SimpleNamespace(unwrap_model=lambda model: model), processing_class=tokenizer,
        save_model=trained.save_pretrained, is_world_process_zero=lambda: True,
    )  # fmt: skip
    save_policy(trainer, tmp_path / "saved")
    trained.peft_config["default"].base_model_name_or_path = str(tmp_path / "text")
    with pytest.raises(UserWarning, match="missing adapter keys"):
        save_policy(trainer, tmp_path / "elsewhere")


@pytest.mark.parametrize(("config", "message"), [
    ({"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]},
     "is Qwen3VLForConditionalGeneration, which transformers"),
    (T5Config(architectures=["T5ForConditionalGeneration"]).to_dict(),
     "is T5ForConditionalGeneration, which transformers does not count among"),
    ({"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}, "is BartForConditionalGeneration"),
    ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, "is Qwen3Model"),
    ({"model_type": "qwen3"}, "names no architecture"),
    ({"model_type": "nobody's"},
     r"the model in .* cannot be loaded \(.*\); restore its files, or name another folder or hub id"),
    ({}, "the model in .* cannot be loaded"),
])  # fmt: skip
def test_a_model_that_cannot_be_a_policy_is_refused(config, message, tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as refused:
        require_model(str(tmp_path))
    assert "\n" not in str(refused.value)


def with_weights(change):
    def damage(folder):
        path = folder / "model.safetensors"
        save_file(change(load_file(path)), path, {"format": "pt"})

    return damage


def with_config(**keys):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return damage


def without_object(name):
    return lambda folder: (folder / name).write_text("[]")


CANNOT_BE_LOADED = r"in .* cannot be loaded \(.*\); restore its files"


@pytest.mark.parametrize(("damage", "message"), [
    (with_weights(lambda weights: {name: weights[name] for name in weights if "layers.1" not in name}),
     "files lack 11 weights of its config.json, .* model.layers.1"),
    (with_weights(lambda weights: {f"other.{name}": weight for name, weight in weights.items()}), "files lack"),
    (with_config(intermediate_size=96), "or hold them in other shapes: model.layers.0.mlp"),
    (with_config(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM with the model_type qwen3, which do not"),
    (with_config(num_attention_heads="4"), CANNOT_BE_LOADED),
    (with_config(rope_parameters={"rope_type": "nobody's"}), CANNOT_BE_LOADED),
    (with_config(quantization_config={"quant_method": "fp8"}), "is quantised, so its weights cannot be trained"),
    *((without_object(f"{name}.json"), CANNOT_BE_LOADED)
      for name in ("config", "tokenizer", "tokenizer_config", "generation_config")),
])  # fmt: skip
def test_a_model_whose_files_do_not_fit_each_other_is_refused_before_training(policy_path, damage, message, tmp_path):
    """transformers fills missing weights with random numbers, and raises errors of many types for other files."""
    shutil.copytree(policy_path, tmp_path / "model")
    require_trainable(require_model(str(tmp_path / "model")), PolicyConfig())
    (tmp_path / "model" / "whole.json").unlink(missing_ok=True)
    damage(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_tokenizer(require_trainable(require_model(str(tmp_path / "model")), PolicyConfig()))


def test_a_tokenizer_of_another_model_is_refused(policy_path, tmp_path):
    shutil.copytree(policy_path, tmp_path / "model")
    with_config(vocab_size=300)(tmp_path / "model")
    with pytest.raises(UserError, match="tokenizer writes tokens up to .*, but its config.json has vocab_size 300"):
        load_tokenizer(str(tmp_path / "model"))


def test_an_adapter_is_refused_with_a_remedy(model, tmp_path):
    get_peft_model(AutoModelForCausalLM.from_config(model.config), lora_config(2)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is an adapter; merge it into its model"):
        require_model(str(tmp_path))


NAME = "smollm2-135m-instruct"


def test_only_the_name_of_a_packaged_model_is_fetched_and_only_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for path in ("Qwen/Qwen3-8B-Base", "runs/quickstart/sft", "smollm2"):
        assert policy.folder_of(path) == path and not list(tmp_path.iterdir())
    package, folder = policy.PACKAGED[NAME][0], tmp_path / "runs" / "models" / NAME
    missing = f"the package {package.name} {package.version} cannot be downloaded"
    with pytest.raises(UserError, match=f"{missing} .* check the network .* a local folder or a hub id"):
        require_model(NAME)
    assert not folder.exists()
    folder.mkdir(parents=True)
    LlamaForCausalLM(LlamaConfig(**tiny_models.SMALL)).save_pretrained(folder)
    assert require_model(NAME) == f"runs/models/{NAME}"


UNGUARDED = """
from pathlib import Path
from filelock import FileLock
from arenarl.rollout.policy import PACKAGED
_, convert = PACKAGED["smollm2-135m-instruct"]
with FileLock("lock"):
    convert(Path("files"), Path("folder"))
"""


@pytest.mark.slow(seconds=12)
def test_a_script_without_a_guard_can_convert_a_packaged_model(tmp_path):
    """The conversion must not run the caller's script again. Here it has no files, so it ends with its own error."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    process = {"cwd": tmp_path, "env": os.environ | ENVIRONMENT, "timeout": 500}
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, **process)
    assert done.returncode == 1 and "RuntimeError" in done.stderr and "SmolLM2-135M-Instruct" in done.stderr
