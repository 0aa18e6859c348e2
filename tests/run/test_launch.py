"""Launch configs are read by accelerate's own parser, and every launcher really starts its processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from arenarl.judges.local_server import free_port

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "configs" / "launch"
PROBE = """
import os, pathlib, sys, torch
from arenarl.system.progress import machine_count
torch.distributed.init_process_group("gloo")
total = torch.tensor([int(os.environ["RANK"]) + 1])
torch.distributed.all_reduce(total)
assert os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") == "false" and sys.argv[1:3] == ["--config", "x.yaml"]
file = pathlib.Path(__file__).with_name(f"rank-{os.environ['RANK']}")
file.write_text(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} on {machine_count()}: {total.item()}")
torch.distributed.destroy_process_group()
"""
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def probe(tmp_path):
    """A script that meets all other processes and then writes its rank to a file."""
    path = tmp_path / "probe.py"
    path.write_text(PROBE)
    return path


def start(*command, **environment):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | ENVIRONMENT | environment, cwd=ROOT, **pipes)


def ranks_of(probe, launcher):
    """Wait for the launcher, and return what the probe's processes wrote, by rank."""
    output = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, output
    return [path.read_text() for path in sorted(probe.parent.glob("rank-*"))]


@pytest.mark.parametrize(
    ("name", "machines", "processes"), [("accelerate_8_gpus", 1, 8), ("accelerate_4x8_gpus", 4, 32)]
)
def test_accelerate_reads_its_configs(name, machines, processes):
    path = str(LAUNCH / f"{name}.yaml")
    config = load_config_from_file(path)
    assert isinstance(config, ClusterConfig) and (config.num_machines, config.num_processes) == (machines, processes)
    address = ["--main_process_ip", "10.0.0.1", "--machine_rank", "3"] if machines > 1 else []
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", path, *address, "train_rl.py", "--config", "x"])
    )
    assert arguments.multi_gpu and not arguments.use_deepspeed and not arguments.use_cpu
    assert (arguments.num_machines, arguments.num_processes) == (machines, processes)
    assert arguments.training_script == "train_rl.py" and arguments.training_script_args == ["--config", "x"]
    place = arguments.main_process_ip, arguments.machine_rank, arguments.main_process_port
    assert machines == 1 or place == ("10.0.0.1", 3, 29500)


def test_an_option_that_torchrun_refuses_is_an_error_in_one_line():
    done = start(sys.executable, "-m", "arenarl.run.launch", "--nproc_per_node", "many", "train_sft.py")
    _, error = done.communicate(timeout=600)
    assert (done.returncode, error) == (2, "error: torchrun: Unsupported nproc_per_node value: many\n")


@pytest.mark.slow(seconds=11)
def test_accelerate_really_starts_its_processes(probe):
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCH / "accelerate_8_gpus.yaml"),
        "--num_processes", "2", str(probe), "--config", "x.yaml",
    ]  # fmt: skip
    assert ranks_of(probe, start(*command)) == ["rank 0 of 2 on 1: 3", "rank 1 of 2 on 1: 3"]


@pytest.mark.slow(seconds=14)
def test_the_slurm_script_starts_launchers_on_two_machines_that_meet(probe, tmp_path):
    """A fake srun runs its command twice; a fake scontrol lists more hosts than a pipe holds, and all are read."""
    scripts = {"srun": 'shift; "$@" & first=$!; "$@" && wait $first', "scontrol": "echo 127.0.0.1; seq 100000"}
    for name, text in (scripts | {"python": f'exec {sys.executable} "$@"'}).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "a[1-2]", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7", "GPUS": "1", "PORT": str(free_port()), "PET_LOCAL_ADDR": "127.0.0.1",
    }  # fmt: skip
    launcher = start("bash", str(LAUNCH / "slurm.sh"), str(probe), "x.yaml", **environment)
    assert ranks_of(probe, launcher) == ["rank 0 of 2 on 2: 3", "rank 1 of 2 on 2: 3"]


@pytest.mark.parametrize(
    ("gpus", "given", "processes"), [("0", {}, 2), ("1", {}, 1), ("8", {}, 2), ("1", {"PROCESSES": "4"}, 4)]
)
def test_reproduce_sh_starts_at_most_one_process_per_gpu_by_default(tmp_path, gpus, given, processes):
    """Uses a fake Python that reports a number of GPUs and prints its other arguments."""
    shutil.copy(ROOT / "reproduce.sh", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {gpus} || echo "$DS_ACCELERATOR $*"\n')
    python.chmod(0o755)
    for name in ("requirements.txt", ".venv/installed.txt"):
        (tmp_path / name).write_text("")
    variables = {name: of for name, of in os.environ.items() if name not in ("DS_ACCELERATOR", "PROCESSES")} | given
    output = subprocess.check_output(["./reproduce.sh", "sft"], cwd=tmp_path, env=variables, text=True)
    command = f"-m arenarl.run.launch --nproc_per_node {processes} train_sft.py --config configs/quickstart.yaml"
    assert output == f"{'cpu' if gpus == '0' else ''} {command}\n"


@pytest.mark.parametrize("stage", ["baselines", "real_model", "data_quality"])
def test_a_stage_of_several_runs_refuses_a_config_and_a_name_that_they_would_share(stage, tmp_path):
    shutil.copy(ROOT / "reproduce.sh", tmp_path)
    for words, config in ((["--set", "name=x"], {}), (["--set=name=x"], {}), ([], {"CONFIG": "mine.yaml"})):
        command, variables = ["./reproduce.sh", stage, "--set", "seed=1", *words], os.environ | config
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"error: {stage} makes several runs, each with its own YAML and name; leave out")


@pytest.mark.parametrize("stage", ["table2", "turns", "all", "fidelity", "test_vllm", "settings"])
def test_a_stage_that_reads_no_config_refuses_one(stage):
    variables = os.environ | {"CONFIG": "mine.yaml"}
    done = subprocess.run(
        ["./reproduce.sh", stage], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    problem = "is not a stage; ./reproduce.sh alone" if stage == "settings" else "does not read CONFIG; leave it out"
    assert done.returncode == 2 and done.stderr.startswith(f"error: {stage} {problem}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["ds_config.json", "configs/launch/zero3_gpu.json"])
def test_deepspeed_reads_its_configs_once_the_trainer_has_filled_them_in(name, tmp_path):
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import Qwen3Config, Qwen3ForCausalLM, TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, bf16=True, per_device_train_batch_size=1, gradient_accumulation_steps=16
    )
    config = HfTrainerDeepSpeedConfig(str(ROOT / name))
    config.trainer_config_process(arguments)
    shape = Qwen3Config(
        vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    config.trainer_config_finalize(arguments, Qwen3ForCausalLM(shape), num_training_steps=10)
    read = DeepSpeedConfig(config.config)
    assert read.zero_config.stage == 3 and read.bfloat16_config.enabled
    assert (read.gradient_accumulation_steps, read.gradient_clipping) == (16, 1.0)
    assert "auto" not in str(config.config) and read.zero_allow_untested_optimizer
    is_for_gpus = name.startswith("configs")
    assert (read.grad_accum_dtype == "fp32") == read.zero_config.overlap_comm == is_for_gpus
