from pathlib import Path

import pytest
import torch

from arenarl.config.schema import PolicyConfig
from arenarl.run.trainer_arguments import check_deepspeed, deepspeed_file, refuse_lost_updates
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "rl.deepspeed={path} does not exist"),
        ("{", "no DeepSpeed JSON"),
        ('{"bf16": {}}', "no DeepSpeed JSON"),
        *(
            (text, "no DeepSpeed JSON")
            for text in ("[]", "7", '{"zero_optimization": 3}', '{"zero_optimization": null}', "[" * 100_000)
        ),
        ('{"zero_optimization": {"stage": 3}}', "set stage3_gather_16bit_weights_on_model_save to true"),
        ((ROOT / "ds_config.json").read_text(), "torchrun --nproc_per_node 2 train_rl.py"),
    ],
)
def test_a_deepspeed_json_that_cannot_be_used_is_refused_with_what_to_change(tmp_path, monkeypatch, text, says):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "zero.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        check_deepspeed("rl.deepspeed", str(path), "train_rl.py", is_check=False)
    assert says.format(path=path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_the_repository_has_is_accepted_and_so_is_none():
    check_deepspeed("rl.deepspeed", None, "train_rl.py", is_check=False)
    check_deepspeed("rl.deepspeed", str(ROOT / "ds_config.json"), "train_rl.py", is_check=True)


def test_the_repositorys_json_is_found_from_any_folder_and_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert deepspeed_file("ds_config.json") == str(ROOT / "ds_config.json") and deepspeed_file(None) is None
    check_deepspeed("sft.deepspeed", "ds_config.json", "train_sft.py", is_check=True)
    (tmp_path / "ds_config.json").write_text("{}")
    assert deepspeed_file("ds_config.json") == "ds_config.json"


@pytest.mark.parametrize(("rate", "is_refused"), [(1e-6, True), (2e-5, True), (1e-4, False)])
def test_a_rate_that_bfloat16_would_swallow_is_refused_without_deepspeed(rate, is_refused):
    """By what AdamW makes of weights as large as most, beside what it makes of the same in float32."""
    torch.manual_seed(0)
    start, gradient = torch.randn(10_000).mul(0.02).bfloat16(), torch.randn(10_000)
    moved = []
    for dtype in (torch.bfloat16, torch.float32):
        weights = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = torch.optim.AdamW([weights], lr=rate, weight_decay=0.0)
        for _ in range(20):
            weights.grad = gradient.to(dtype)
            optimizer.step()
        moved.append(weights.detach().float() - start.float())
    assert (torch.cosine_similarity(*moved, dim=0) < 0.7) == is_refused
    for policy in (PolicyConfig(lora_rank=8), PolicyConfig(dtype="float32")):
        refuse_lost_updates(policy, "rl.learning_rate", rate, None)
    refuse_lost_updates(PolicyConfig(), "rl.learning_rate", rate, "ds_config.json")
    if is_refused:
        with pytest.raises(
            UserError, match="set policy.dtype=float32, policy.lora_rank=32 or, .*, rl.deepspeed=ds_config.json"
        ):
            refuse_lost_updates(PolicyConfig(), "rl.learning_rate", rate, None)
    else:
        refuse_lost_updates(PolicyConfig(), "rl.learning_rate", rate, None)
