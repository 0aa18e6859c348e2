from pathlib import Path

import pytest

from arenarl.run.zero3 import check_deepspeed, deepspeed_file
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "rl.deepspeed={path} does not exist"),
        ("{", "no DeepSpeed JSON"),
        ('{"bf16": {}}', "no DeepSpeed JSON"),
        *((text, "no DeepSpeed JSON") for text in ("[]", "7", '{"zero_optimization": 3}', '{"zero_optimization": null}', "[" * 100_000)),
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
