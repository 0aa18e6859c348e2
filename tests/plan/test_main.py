"""`python -m arenarl.plan`: tables, exit code, verdict for every YAML, changes; tables of the paper's scale."""

import json
import sys

import pytest

from arenarl.config.load import load_config
from arenarl.plan import __main__ as plan
from arenarl.plan.scale import H20, ROWS, named_gpus, scale_table
from arenarl.plan.stage import STAGES, Hardware, Stage
from arenarl.rollout.backends import require_sync
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT

QWEN3_8B = "configs/travel/rl_arenarl_qwen3_8b.yaml"
ONE_GPU = "configs/travel/rl_arenarl_one_gpu.yaml"


@pytest.fixture
def command(monkeypatch, capsys):
    """Return `run(config, *options)`, which returns the exit code and the output."""

    def run(*words):
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", ["plan", "--config", *words])
        try:
            plan.main()
        except SystemExit as end:
            return end.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    return run


SERVER = [QWEN3_8B, "--gpus", "8", "--stage", "rl", "--set", "rollout.backend=vllm_server", "--set"]
BESIDE = ["--stage", "rl", "--set", "rollout.vllm_sleep=false", "--set", "rollout.vllm_memory=0.3", "--gpus"]


@pytest.mark.parametrize(("words", "code", "parts"), [
    ([QWEN3_8B, "--gpus", "8"], 0, [
        "| vLLM's share | - | 44.0 | 1.0 | 68.0 |", "| **sum** | **34.4** | **67.7** | **37.4** | **70.0** |",
        "| rl | 419.4 | 49.9 | 49.9 | - | 16 | 96,000 for rewards, 2,200 for the curve |", "\n\nfits\n"]),
    # the best settings are printed beside the hours
    ([QWEN3_8B, *BESIDE, "8"], 0, ["| rl | 419.4 | 66.3 | 49.9 (rollout.vllm_memory=0.5) | - | 5 |"]),
    ([QWEN3_8B, *BESIDE, "4"], 3,
     ["| rl | 419.4 | 132.7 | 104.8 (rollout.vllm_sleep=true rollout.vllm_memory=0.4) | - | 5 |"]),
    # the same share, the closest that fits, is the advice
    ([QWEN3_8B, "--gpus", "4", "--stage", "rl"], 3,
     ["| 95.8 | 104.8 (rollout.vllm_memory=0.4) | - | 22 |", "(it would with rollout.vllm_memory=0.4, or gpus=8, or "]),
    # with a server, one step ahead has its own column, because it changes what the policy learns from
    ([*SERVER, "seed=0"], 0, ["| rl | 419.4 | 49.9 | 49.9 | 33.8 |"]),
    ([*SERVER, "rl.steps_ahead=1"], 0, ["| rl | 419.4 | 33.8 | 33.8 | 33.8 |"]),
    ([ONE_GPU, "--set", "rollout.batch_size=256"], 3, [
        "\ndoes not fit: rl: generating takes 195.2 of 80.0 GB ", "(it would with rollout.batch_size=16, or ",
        "\ndoes not fit: evaluate: generating takes "]),
    # for RL on GPUs so small: nothing is sharded
    (["configs/travel/sft_qwen3_8b.yaml", "--memory", "4", "--stage", "rl"], 3, ["(no two changes are enough)\n"]),
    ([ONE_GPU, "--memory", "24", "--stage", "sft"], 0, ["\nfits\n"]),
    ([ONE_GPU, "--memory", "24", "--stage", "sft", "rl"], 3, ["does not fit: rl"]),
    ([QWEN3_8B, "--gpus", "8", "--stage", "sft", "--tflops", "296"], 0, ["| sft | 127.8 | 3.4 |"]),
])  # fmt: skip
def test_a_plan_has_these_lines_and_this_exit_code(command, words, code, parts):
    ended, printed = command(*words)
    assert ended == code and [part for part in parts if part not in printed] == []
    assert printed.endswith("fits\n") == (code == 0)


def test_the_plan_neither_suggests_nor_hides_what_training_refuses(command, monkeypatch):
    assert " | - | 16 | " in command(*SERVER, "rl.resample_equal=2")[1]
    ahead = ["configs/methods/step_ahead.yaml", "--memory", "4"]
    code, printed = command(*ahead)
    (refusal,) = [line for line in printed.splitlines() if "steps_ahead" in line and not line.startswith("|")]
    assert code == 0 and printed.endswith(f"\n{refusal}\nfits\n")  # a run without GPUs
    for others in (["--stage", "sft", "evaluate"], ["--set", "rl.steps_ahead=0"]):
        assert "without GPUs" not in command(*ahead, *others)[1]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(UserError) as error:
        require_sync(load_config(ahead[0]).rollout, steps_ahead=1)
    assert refusal == f"starts only without GPUs: {error.value}"


@pytest.mark.parametrize("card", [Hardware(), Hardware(tflops=989, bandwidth_tb_s=3.35)], ids=["H20", "H100"])
def test_no_large_config_is_slower_than_its_best_settings(monkeypatch, card):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(plan.SETTINGS["vllm"], "rollout.vllm_memory", [share / 100 for share in range(30, 80, 2)])
    paths = [path for path in (ROOT / "configs").rglob("*.yaml") if "rl" in named_gpus(path)]
    stages = {str(path): Stage(load_config(path), "rl", named_gpus(path)["rl"], card) for path in paths}
    best = {name: plan.best_settings(stage) for name, stage in stages.items()}
    ratios = {name: stage.hours / best[name][1] for name, stage in stages.items()}
    assert len(ratios) > 14 and max(ratios.values()) <= 1.05, ratios


def test_the_first_line_names_the_models_of_the_stages(command):
    small, large = "policy.scratch, 0.5 million parameters", "Qwen/Qwen3-8B, 8,190.7 million parameters"
    for words, models in {("rl",): large, ("sft",): small, ("sft", "rl"): f"{small}; {large}"}.items():
        options = ("--memory", "900", "--set", "rl.init=Qwen/Qwen3-8B")  # fits: no changes are searched
        printed = command("configs/quickstart.yaml", "--stage", *words, *options)[1]
        assert printed.startswith(f"{models}; GPUs: 1 of 900 GB\n") and printed.endswith("\n\nfits\n")


def test_every_config_fits_the_gpus_that_it_names(command):
    """The YAMLs of whole runs name GPUs by stage, or they need two processes of a laptop."""
    folders = [ROOT / "configs" / folder for folder in ("", "travel", "research", "methods")]
    for path in sorted(path for folder in folders for path in folder.glob("*.yaml")):
        is_large = "# GPUs of 80 GB: " in path.read_text(encoding="utf-8")
        stages = named_gpus(path) if is_large else dict.fromkeys(STAGES, 2)
        memory_gb = 80 if is_large else 8 if "smollm2" in path.name else 4
        assert load_config(path).policy.model is None or memory_gb > 4, path  # else the YAML must name its GPUs
        for name, gpus in (stages or {"evaluate": 1}).items():  # without GPUs all models are behind APIs
            code, printed = command(str(path), "--gpus", str(gpus), "--memory", str(memory_gb), "--stage", name)
            assert (code, printed.splitlines()[-1]) == (0, "fits"), (path, name)
            assert stages or "GB on each GPU" not in printed, path


@pytest.mark.parametrize(
    "option",
    ["--gpus 0", "--gpus two", "--tflops 0", "--memory -5", "--bandwidth nan", "--layer-ms -1", "--utilisation 1.1"],
)
def test_impossible_hardware_is_refused(command, option):
    assert command(QWEN3_8B, *option.split()) == (2, "")


TEXTCRAFT = "configs/agentgym/textcraft_qwen3_8b.yaml"
# for methods that exclude DeepSpeed
ALONE = ["rl.deepspeed=null", "rollout.backend=transformers", "rollout.batch_size=8"]


@pytest.mark.parametrize(("path", "override", "name", "gpus", "memory_gb"), [
    (QWEN3_8B, ["rollout.vllm_sleep=false", "rollout.vllm_memory=0.6"], "rl", 8, 80),
    (QWEN3_8B, "rollout.vllm_memory=0.2", "rl", 8, 80),
    (QWEN3_8B, "policy.gradient_checkpointing=false", "sft", 8, 80),
    (QWEN3_8B, "rl.deepspeed=null", "rl", 8, 80),
    (ONE_GPU, "rollout.batch_size=256", "rl", 1, 80), (ONE_GPU, "seed=0", "evaluate", 1, 24),
    (QWEN3_8B, "seed=0", "rl", 32, 80), ("configs/quickstart.yaml", "rl.micro_batch_size=64", "rl", 2, 2.4),
    (TEXTCRAFT, [*ALONE, "rl.method=dpo", "reward.name=tournament"], "rl", 2, 80),
    (TEXTCRAFT, [*ALONE, "rl.method=agentevol"], "rl", 2, 80),
    (TEXTCRAFT, [*ALONE, "rl.advantage=gae", "rl.loss_type=dapo"], "rl", 2, 80),
])  # fmt: skip
def test_every_suggested_change_is_enough_and_minimal(path, override, name, gpus, memory_gb, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the configs' DeepSpeed JSONs are

    def with_changes(*changes):
        keys = dict(change.split("=", 1) for change in changes)
        count = int(keys.pop("gpus", gpus))
        overrides = [override] if isinstance(override, str) else override
        config = load_config(path, [*overrides, *(f"{key}={value}" for key, value in keys.items())])
        return Stage(config, name, count, Hardware(memory_gb))

    assert with_changes().misfits
    found = [remedy.split(" with ") for remedy in plan.remedies(with_changes())]
    assert 1 <= len(found) <= 3
    for changes in found:
        assert not with_changes(*changes).misfits, changes
        assert len(changes) == 1 or all(with_changes(change).misfits for change in changes), changes


def test_changes_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["policy.model=Qwen/Qwen3-8B", "policy.lora_rank=0", "rollout.backend=vllm_server"]
    full = load_config(ROOT / ONE_GPU, overrides)
    assert any("zero3_gpu.json with gpus=4" in remedy for remedy in plan.remedies(Stage(full, "rl", 1)))


def test_every_row_fits_the_gpus_that_it_names_and_shows_its_results(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    for row in ROWS:
        assert row.stage in ("sft", "rl", "evaluate")
        assert (row.gpus > 0) == (row.stage != "evaluate")
        assert Stage(load_config(row.config), row.stage, row.gpus or 1, H20).misfits == [], row
    assert scale_table(tmp_path).count("not run") == 3 * sum(row.stage != "sft" for row in ROWS)
    figures = dict.fromkeys(("win_rate", "quality", "valid_rate"), {"mean": 61.5, "ci": [60.0, 63.0]})
    folder = tmp_path / load_config(ROWS[1].config).run_name
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"checkpoints": ["rl"], "rl": {"sampled": figures}}))
    assert f"| `{ROWS[1].config}` |" + " 61.5 [60.0, 63.0] |" * 3 in scale_table(tmp_path)
