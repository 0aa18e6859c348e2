"""Every script with a real pretrained model, its tokenizer and template: SmolLM2-135M-Instruct from a package."""

from pathlib import Path

import pytest
from scripts import ROOT, differ, read, run_well, weights
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoTokenizer

from arenarl.rollout.chat_template import turn_end
from arenarl.rollout.policy import folder_of, load_model, load_tokenizer
from arenarl.trajectory import read_jsonl

pytestmark = pytest.mark.slow(seconds=100)  # all tests of this file together

CONFIG = str(ROOT / "configs" / "travel" / "smollm2_135m.yaml")
SMALL = {
    "config": CONFIG, "data__sft_size": 4, "data__test_per_subtask": 1, "sft__epochs": 1, "sft__batch_size": 1,
    "sft__gradient_accumulation": 1, "sft__learning_rate": 1e-3, "sft__deepspeed": None, "sft__save_steps": 2,
    "rollout__group_size": 2, "rollout__max_tokens": 64, "rollout__max_turns": 2, "evaluate__decodings": ["greedy"],
    "rl__steps": 1, "rl__micro_batch_size": 1, "rl__eval_steps": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def real(smollm2, tmp_path_factory):
    """The folder of a run with two steps of SFT, one of RL, and five test queries, on two processes."""
    folder, options = tmp_path_factory.mktemp("real"), SMALL | {"policy__model": smollm2}
    run_well(folder, "data/prepare.py", "travel", **options)
    for script in ("train_sft.py", "train_rl.py", "evaluate.py"):
        run_well(folder, script, processes=2, **options)
    return folder


def test_the_packaged_model_replies_and_any_process_of_a_group_can_convert_it(smollm2, tmp_path, monkeypatch):
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2), load_model(smollm2, "float32")
    assert turn_end(tokenizer, load_tokenizer(smollm2).chat_template) == tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id and model.num_parameters() == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, max_new_tokens=30, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply) and reply[-1] == tokenizer.eos_token_id
    monkeypatch.chdir(tmp_path)
    distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        folder = Path(folder_of("smollm2-135m-instruct"))
    finally:
        distributed.destroy_process_group()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in Path(smollm2).iterdir())
    assert not differ(weights(Path(smollm2)), weights(folder))


def test_sft_rl_and_evaluation_leave_logs_weights_and_figures(real, smollm2):
    (step,) = [step for step in log_of(real / "runs" / "tiny" / "sft") if "loss" in step]
    assert step["step"] == 2 and 0 < step["loss"] < 4 and step["train_tokens_per_second"] > 0
    assert read(real / "runs" / "tiny" / "sft" / "data.json")["cut"] == 0
    (step,) = [step for step in log_of(real / "runs" / "tiny" / "rl") if "time/tokens_per_s" in step]
    assert step["time/tokens_per_s"] > 0 and step["rollout/policy_tokens"] > 0 and step["kl"] == 0
    sft = weights(real / "runs" / "tiny" / "sft")
    assert len(differ(weights(Path(smollm2)), sft)) == 7 * 30  # the linear layers, which LoRA adapts
    summary = read(real / "runs" / "tiny" / "summary.json")
    for policy in ("sft", "rl"):
        assert 0 < summary[policy]["greedy"]["policy_tokens"]["mean"] <= 64
        assert len(list(read_jsonl(real / "runs" / "tiny" / "evaluate" / f"{policy}_greedy.jsonl"))) == 5


def log_of(stage):
    checkpoint = max(stage.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return read(checkpoint / "trainer_state.json")["log_history"]
