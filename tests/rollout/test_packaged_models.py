"""Models by a name of ours; tests/scripts/test_real_model.py fetches one and trains it."""

import pytest
from transformers import LlamaConfig

from arenarl.rollout.packaged_models import PACKAGED, folder_of
from arenarl.rollout.policy import require_model
from arenarl.system.errors import UserError

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.parametrize("path", ["Qwen/Qwen3-8B-Base", "runs/quickstart/sft", "smollm2"])
def test_a_hub_id_and_a_folder_are_left_as_they_are(path, tmp_path):
    assert folder_of(path) == path and not list(tmp_path.iterdir())


def test_what_was_fetched_once_needs_no_index(tmp_path):
    folder = tmp_path / "runs" / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    assert require_model(NAME) == f"runs/models/{NAME}"


def test_without_an_index_one_line_says_what_to_do_and_nothing_is_left(tmp_path):
    package, _ = PACKAGED[NAME]
    with pytest.raises(
        UserError,
        match=f"the package {package.name} {package.version} cannot be had .* check the network .* a folder or hub id",
    ):
        require_model(NAME)
    assert not (tmp_path / "runs" / "models" / NAME).exists()
