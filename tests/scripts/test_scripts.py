"""Every script as a user runs it: real subprocesses, ZeRO-3 and GRPO on two processes, in a folder of their own."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import tracked
import yaml
from scripts import CONFIG, ENVIRONMENT, ROOT, TINY, differ, read, run, run_well, weights, zero_3

from arenarl.config.load import load_config

pytestmark = pytest.mark.slow(seconds=200)  # all of them

FIGURES = ("valid_rate", "win_rate", "quality", "groundedness", "constraints_met", "tool_calls")


@pytest.fixture(scope="session")
def summary(folder):
    return read(folder / "results" / "tiny" / "summary.json")


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_checkpoint_is_an_ordinary_hugging_face_folder(folder, stage):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = folder / "runs" / "tiny" / stage
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.config.architectures == ["Qwen3ForCausalLM"] and model.config.vocab_size == len(tokenizer)
    assert "<|im_start|>assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )


def test_sft_and_rl_each_change_all_the_weights(folder):
    runs = folder / "runs" / "tiny"
    initial, sft, rl = (weights(path) for path in (runs / "sft" / "initial", runs / "sft", runs / "rl"))
    assert len(differ(initial, sft)) == len(differ(sft, rl)) == len(sft) > 10


def test_sft_counts_its_trajectories(folder):
    data = read(folder / "runs" / "tiny" / "sft" / "data.json")
    assert data["trajectories"] == 200 and data["cut"] == 0 and 0 < data["longest"] <= data["max_length"]


def test_every_stage_writes_the_config_that_it_ran_with(folder):
    config = load_config(CONFIG, [f"{key}={json.dumps(value)}" for key, value in TINY.items()])
    for stage in ("sft", "rl", "evaluate"):
        assert load_config(folder / "runs" / "tiny" / stage / "config.yaml") == config
        provenance = read(folder / "runs" / "tiny" / stage / "provenance.json")
        assert provenance["seed"] == 0 and provenance["judge_is_simulated"] is True and provenance["versions"]["trl"]


def test_the_summary_has_the_figures_of_both_checkpoints_and_decodings(summary):
    assert summary["seed"] == 0 and summary["judge"] == "simulated" and 0 < summary["peak_memory_gb"] < 8
    seconds = summary["seconds"]
    assert set(seconds) == {"data", "sft", "rl", "evaluate", "total"} and all(value > 0 for value in seconds.values())
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"], abs=0.1)
    for checkpoint in ("sft", "rl"):
        for decoding in ("sampled", "greedy"):
            for name in FIGURES:
                figure = summary[checkpoint][decoding][name]
                assert set(figure) == {"mean", "ci"}
                assert figure["ci"][0] <= figure["mean"] <= figure["ci"][1], (checkpoint, decoding, name)


def test_evaluation_prints_a_row_for_each_checkpoint_and_decoding_and_says_that_the_judge_is_simulated(pipeline):
    _, output = pipeline
    for row in ("sft sampled", "sft greedy", "rl sampled", "rl greedy"):
        assert sum(line.startswith(row) for line in output.splitlines()) == 1
    assert "simulated judge" in output and output.splitlines()[-1].startswith("written: results/tiny/summary.json")


def test_evaluating_again_gives_the_same_bytes(folder, summary):
    path = folder / "runs" / "tiny" / "evaluate"
    before = {file.name: file.read_bytes() for file in path.glob("*.jsonl")}
    for file in path.glob("*_*.json*"):
        file.unlink()
    run_well(folder, "evaluate.py", extra_environment={"WANDB_MODE": "offline"})
    assert len(before) == 6 and before == {file.name: file.read_bytes() for file in path.glob("*.jsonl")}
    again = read(folder / "results" / "tiny" / "summary.json")
    figures = {name: summary[name] for name in ("sft", "rl")}
    assert {name: again[name] for name in figures} == figures
    [records] = tracked.starts(path.parent, read(path / "wandb.json")["id"])
    begun, found = tracked.begun(records), tracked.summary(records)
    assert (begun["run_group"], begun["job_type"]) == ("tiny", "evaluate") and {
        name: found[name] for name in figures
    } == figures


def test_the_report_of_the_run_has_its_queries_groups_and_figures(folder):
    command = [sys.executable, "-m", "arenarl.report", "tiny"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "written: results/tiny/report.html\n"), done.stderr
    page = (folder / "results" / "tiny" / "report.html").read_text()
    assert "Queries <small>20</small>" in page and "Training groups <small>2</small>" in page
    figures = {path.stem for path in (folder / "results" / "tiny" / "figures").iterdir()}
    assert figures == {"learning_curves", "win_rate_by_subtask", "noise_against_spread", "win_rate_by_length"}


def test_pass_at_k_and_figures_by_test_time_turns(folder, summary):
    """Three samples and two budgets; the table counts all samples,
    and a sample that is there is not generated again."""
    options = {"name": "scaled", "evaluate__checkpoints": {"sft": "runs/tiny/sft"}, "evaluate__samples": 3}
    output = run_well(folder, "evaluate.py", **options, evaluate__max_turns=[2, 8])
    results, path = folder / "results" / "scaled" / "summary.json", folder / "runs" / "scaled" / "evaluate"
    scaled = read(results)
    figures = scaled["sft"]["sampled"]
    assert (
        figures["cases"] == 3 * summary["sft"]["sampled"]["cases"]
        and scaled["sft"]["greedy"]["win_rate"] == summary["sft"]["greedy"]["win_rate"]
    )
    single = folder / "runs" / "tiny" / "evaluate" / "sft_sampled.jsonl"
    assert (path / "sft_sampled.jsonl").read_bytes() == single.read_bytes()
    names = ("sft_sampled", "sft_sampled_2", "sft_sampled_3", "sft_greedy")
    assert {file.name for file in path.glob("sft_*.jsonl")} == {f"{name}.jsonl" for name in names}
    for passed in ("win", "constraints"):
        means = [figure["mean"] for figure in figures["pass_at_k"][passed]]
        assert len(means) == 3 and means == sorted(means)
        assert figures["by_turns"]["8"]["pass_at_k"][passed] == figures["pass_at_k"][passed]
    assert figures["by_turns"]["8"]["win_rate"] == figures["win_rate"] and "pass_at_k" not in scaled["sft"]["greedy"]
    for row in ("sampled, 2 turns", "greedy, 8 turns", "sampled: beats the baseline", "sampled: meets all constraints"):
        assert sum(line.startswith(f"sft {row}") for line in output.splitlines()) == 1
    log = read(path.parent / "inspect.json")
    assert (
        sorted({sample["epoch"] for sample in log["samples"]}) == [1, 2, 3]
        and len(log["samples"]) == figures["cases"] * 4 // 3
    )
    assert {entry["name"] for entry in log["results"]["scores"]} == {"sft sampled", "sft greedy"}

    samples = {file.name: file.read_bytes() for file in path.glob("sft_*.jsonl")}
    times = {file.name: file.stat().st_mtime_ns for file in path.glob("sft_*")}
    (path / "sft_sampled_2.json").unlink()
    run_well(folder, "evaluate.py", **options, evaluate__max_turns=[2, 8])
    assert (
        samples == {file.name: file.read_bytes() for file in path.glob("sft_*.jsonl")}
        and len(set(samples.values())) == 4
    )
    written = {file.name for file in path.glob("sft_*") if file.stat().st_mtime_ns != times[file.name]}
    assert written == {"sft_sampled_2.json", "sft_sampled_2.jsonl"} and read(results)["sft"] == scaled["sft"]
    command = [sys.executable, "-m", "arenarl.report", "scaled"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and (folder / "results" / "scaled" / "figures" / "inference_scaling.svg").is_file(), (
        done.stderr
    )
    page = (folder / "results" / "scaled" / "report.html").read_text()
    assert "sft greedy, 2 turns</th>" in page and "sft sampled: meets all constraints</th>" in page


def test_only_what_changed_is_evaluated_again(folder, summary, tmp_path):
    shutil.copytree(folder / "runs" / "tiny", tmp_path / "runs" / "tiny")
    shutil.copytree(folder / "data", tmp_path / "data")
    path = tmp_path / "runs" / "tiny" / "evaluate"
    times = {file.name: file.stat().st_mtime_ns for file in path.glob("*_*.json*")}
    shutil.copy(folder / "runs" / "tiny" / "sft" / "initial" / "model.safetensors", tmp_path / "runs" / "tiny" / "rl")
    (path / "sft_greedy.jsonl").unlink()
    run_well(tmp_path, "evaluate.py")
    changed = {file.name for file in path.glob("*_*.json*") if file.stat().st_mtime_ns != times[file.name]}
    assert changed == {
        f"{name}.{kind}" for name in ("rl_sampled", "rl_greedy", "sft_greedy") for kind in ("json", "jsonl")
    }
    again = read(tmp_path / "results" / "tiny" / "summary.json")
    assert again["sft"] == summary["sft"] and again["rl"]["greedy"]["valid_rate"]["mean"] == 0


def test_one_query_is_answered_with_its_trajectory_printed(folder):
    before = (folder / "results" / "tiny" / "summary.json").read_bytes()
    output = run_well(folder, "evaluate.py", "--query", "Find a quiet cafe in Chengdu.")
    assert output.startswith("query: Find a quiet cafe in Chengdu.\n\n[assistant]\n") and "\nended: " in output
    assert (folder / "results" / "tiny" / "summary.json").read_bytes() == before


def test_the_curve_has_a_point_every_so_many_steps(folder):
    points = [json.loads(line) for line in (folder / "runs" / "tiny" / "rl" / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [0, 2]
    assert all(
        {f"eval/{decoding}/{name}" for decoding in ("sampled", "greedy") for name in FIGURES} < point.keys()
        for point in points
    )


HORIZONS = [1, 1, 2, 2, 8, 8]  # turns at most, by step


@pytest.fixture(scope="session")
def unbroken(folder):
    """A single-process RL run of six steps with more turns every two of them, where a checkpoint is,
    and with W&B offline."""
    options = {"name": "unbroken", "rl__init": "runs/tiny/sft", "rl__steps": 6,
               "rl__eval_steps": 1, "rl__eval_queries": 1, "rl__save_steps": 2,
               "rollout__turn_schedule": HORIZONS[::2], "rollout__turns_every": 2}  # fmt: skip
    run_well(folder, "train_rl.py", **options, extra_environment={"WANDB_MODE": "offline"})
    return folder / "runs" / "unbroken" / "rl", options


def test_rl_of_a_model_that_was_never_taught_the_form_says_so_and_stops_with_a_checkpoint(folder):
    options = {"name": "untaught", "rl__init": "runs/tiny/sft/initial", "rl__steps": 3, "rl__eval_steps": 0}
    stopped = run(folder, "train_rl.py", processes=2, rl__stop_without_valid=2, **options)
    said = stopped.stdout + stopped.stderr
    assert stopped.returncode == 2 and said.count("none of them valid; most often") == 2 and said.count("\n--- ") == 2
    line = stopped.stderr.strip().splitlines()[-1]
    assert line.startswith("error: 2 steps in a row without a valid trajectory (rl.stop_without_valid)")
    assert "saved runs/untaught/rl/checkpoint-1" in line
    run_well(folder, "train_rl.py", rl__stop_without_valid=None, **options)


def test_rl_runs_in_a_single_process_with_curves_offline(unbroken, folder):
    path, _ = unbroken
    assert differ(weights(path), weights(folder / "runs" / "tiny" / "sft"))
    [records] = tracked.starts(path.parent, read(path / "wandb.json")["id"])
    begun, config, steps = tracked.begun(records), tracked.config(records), tracked.merged([records])
    assert (begun["run_group"], begun["job_type"]) == ("unbroken", "rl") and list(steps) == list(range(7))
    resolved = yaml.safe_load((path / "config.yaml").read_text())
    assert {key: config[key] for key in resolved} == resolved and config["num_generations"] == resolved["rollout"][
        "group_size"
    ]
    assert all("train/loss" in steps[step] for step in range(1, 7)) and all(
        "eval/greedy/win_rate" in steps[step] for step in range(7)
    )
    assert "rollouts._type" in steps[3]


def test_rl_with_lora_trains_an_adapter_and_leaves_an_ordinary_policy(folder):
    """The adapter moves away from the reference policy, which is the same model without it;
    saved, it is part of the linear layers."""
    run_well(folder, "train_rl.py", name="lora", rl__init_run="tiny", policy__lora_rank=4)
    path = folder / "runs" / "lora" / "rl"
    changed = differ(weights(folder / "runs" / "tiny" / "sft"), weights(path))
    assert len(changed) == 2 * 7 and all("_proj." in name for name in changed)
    log = read(path / "checkpoint-2" / "trainer_state.json")["log_history"]
    assert log[0]["kl"] == 0 < log[1]["kl"]
    assert (
        not (path / "checkpoint-2" / "model.safetensors").exists()
        and (path / "checkpoint-2" / "adapter_model.safetensors").is_file()
    )


def test_a_run_whose_policy_is_gone_is_not_done(unbroken, folder):
    path, options = unbroken
    before = weights(path)
    (path / "model.safetensors").unlink()
    refused(folder, "train_rl.py", **options | {"name": "on-top", "rl__init": str(path)}, says="holds no weights")
    assert "is done already" not in run_well(folder, "train_rl.py", **options)
    assert differ(weights(path), before) == []


def test_a_stage_that_has_not_finished_is_not_built_upon(unbroken, folder):
    path, options = unbroken
    shutil.copytree(
        path, folder / "runs" / "unfinished" / "sft", ignore=shutil.ignore_patterns("timing.json", "checkpoint-*")
    )
    refused(folder, "train_rl.py", **options | {"name": "unfinished", "rl__init": None}, says="is not finished")


def refused(folder, script, *words, says, **options):
    """The script ends with exit code 2 and one line on stderr, and made no checkpoint."""
    before = set((folder / "runs").rglob("checkpoint-*"))
    done = run(folder, script, *words, **options)
    assert done.returncode == 2, done.stderr[-4000:]
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert says in lines[0]
    assert set((folder / "runs").rglob("checkpoint-*")) == before


SCRIPTS = ("data/prepare.py", "train_sft.py", "train_rl.py", "evaluate.py")


def words_of(script):
    return ("travel",) if script == "data/prepare.py" else ()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_typo_in_a_key_is_refused_with_the_nearest_key(folder, script):
    refused(folder, script, *words_of(script), rl__stpes=3, says="did you mean rl.steps?")


def test_a_group_that_would_split_is_refused_with_the_numbers_to_change(folder):
    refused(
        folder,
        "train_rl.py",
        extra_environment={"WORLD_SIZE": "5", "RANK": "0"},
        says="rl.groups=2 cannot be shared by 5 processes",
    )
    command = [
        sys.executable,
        "-m",
        "arenarl.training.preflight",
        "--config",
        CONFIG,
        "--processes",
        "5",
        "--set",
        "rl.groups=2",
    ]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: rl.groups=2 ") and done.stderr.count("\n") == 1


def test_missing_data_is_refused_with_the_command_that_makes_it(folder):
    refused(folder, "evaluate.py", data__folder="nowhere", says="python data/prepare.py")


@pytest.fixture(scope="session")
def without_template(folder):
    """A copy of the SFT policy whose tokenizer has no chat template."""
    copy = folder / "without-template"
    shutil.copytree(
        folder / "runs" / "tiny" / "sft",
        copy,
        ignore=shutil.ignore_patterns("checkpoint-*", "initial", "chat_template.jinja"),
    )
    settings = read(copy / "tokenizer_config.json")
    settings.pop("chat_template", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    return copy


@pytest.mark.parametrize(("script", "key"), [("train_rl.py", "rl__init"), ("train_sft.py", "policy__model")])
def test_a_checkpoint_without_a_chat_template_is_refused(folder, without_template, script, key):
    options = {"name": "refused", "sft__deepspeed": None, key: str(without_template)}
    refused(folder, script, **options, says=f"{without_template} has no chat template")


def test_evaluation_refuses_a_checkpoint_without_a_chat_template(folder, without_template):
    refused(
        folder,
        "evaluate.py",
        evaluate__checkpoints={"x": str(without_template)},
        says=f"{without_template} has no chat template",
    )


@pytest.mark.parametrize("script", ["train_rl.py", "evaluate.py"])
def test_a_missing_checkpoint_is_refused(folder, script):
    refused(folder, script, name="never-trained", says="runs/never-trained/sft")


def test_a_checkpoint_without_weights_is_refused(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copy(folder / "runs" / "tiny" / "sft" / name, tmp_path)
    refused(folder, "train_rl.py", name="refused", rl__init=str(tmp_path), says=str(tmp_path))


@pytest.mark.parametrize("script", ["train_sft.py", "train_rl.py"])
def test_a_check_needs_no_launcher_and_stops_before_training(folder, script):
    """reproduce.sh checks so, before torchrun could bury the line and its exit code."""
    before = {path: path.read_bytes() for path in (folder / "runs" / "tiny").rglob("model.safetensors")}
    run_well(folder, script, "--check", name="tiny")
    run_well(folder, script, "--check", name="checked", rl__init_run="tiny")
    assert not list((folder / "runs" / "checked").rglob("checkpoint-*"))
    assert all(path.read_bytes() == weights for path, weights in before.items())
    refused(folder, script, "--check", data__folder="nowhere", says="python data/prepare.py")


def test_zero_3_without_a_launcher_is_refused_with_the_command_that_starts_it(folder):
    refused(folder, "train_sft.py", name="refused", says="torchrun --nproc_per_node 2 train_sft.py")
    refused(
        folder,
        "train_rl.py",
        name="refused",
        rl__deepspeed=TINY["sft.deepspeed"],
        says="torchrun --nproc_per_node 2 train_rl.py",
    )


LLM = ROOT / "configs" / "judges" / "local_server.yaml"
KEY = "sk-MARKED-2f9c"


def test_rl_and_evaluation_with_llm_judges_are_paid_for_once_stop_at_their_budget_and_never_tell_the_key(
    folder, tmp_path
):
    from arenarl.judges.local_server import free_port, running_server

    shutil.copytree(folder, tmp_path / "run", dirs_exist_ok=True)
    work, port = tmp_path / "run", free_port()
    (work / "judge.yaml").write_text(
        LLM.read_text(encoding="utf-8")
        .replace("8765", str(port))
        .replace("api_key_variable: null", "api_key_variable: JUDGE_KEY"),
        encoding="utf-8",
    )
    judges = {
        "judge.train": {"base": "judge.yaml"},
        "judge.eval": [{"base": "judge.yaml"}, {"base": "judge.yaml", "process_aware": False}],
    }
    without_key = {"name": "llm", "rl.init_run": "tiny", "wandb.mode": "offline", **judges}
    zero3 = {"processes": 2, "rl.deepspeed": zero_3(work)}
    options = {"extra_environment": {"JUDGE_KEY": KEY}, **without_key}
    from_store = {**without_key, "judge.store_only": True}
    outputs = [run(work, "train_rl.py", **zero3, **without_key)]
    assert outputs[0].returncode == 2 and "set the environment variable JUDGE_KEY" in outputs[0].stderr
    data = work / "data"
    with running_server(CONFIG, [f"data.folder={data}"], port, "--log", str(tmp_path / "served.jsonl")):
        outputs.append(run(work, "train_rl.py", **zero3, **options, **{"judge.max_calls": 60}))
        assert (
            outputs[-1].returncode != 0
            and "judge.max_calls=60 is used up: llm has paid for 60 calls" in outputs[-1].stderr
        )
        stopped = work / "runs" / "llm" / "rl"
        assert "saved runs/llm/rl/checkpoint-" in outputs[-1].stderr and list(
            stopped.glob("checkpoint-*/trainer_state.json")
        )
        outputs.append(run(work, "train_rl.py", **zero3, **options))
        outputs.append(run(work, "evaluate.py", **options))
        assert [done.returncode for done in outputs[2:]] == [0, 0], outputs[-1].stderr[-3000:]
        assert "estimate for rl: about" in outputs[2].stdout and "the two judges agree" in outputs[-1].stdout
    served = [json.loads(line) for line in (tmp_path / "served.jsonl").read_text().splitlines()]
    summary = read(work / "results" / "llm" / "summary.json")
    assert (
        summary["judge"] == "simulated" and summary["provenance"]["judge_eval"][0]["model"] == "simulated-travel-judge"
    )
    assert len(summary["provenance"]["judge_train"]["prompt"]) == 12
    figures = summary["rl"]["sampled"]
    assert (
        len(figures["by_judge"]) == 2
        and 0 <= figures["judges_agree"]["agreement"] <= 1
        and figures["missing_verdicts"] == 0
    )
    state = read(max(stopped.glob("checkpoint-*"), key=lambda path: int(path.name[11:])) / "trainer_state.json")
    assert state["log_history"][-2]["judge/total_calls"] <= len(served)
    assert [json.loads(line)["step"] for line in (stopped / "curve.jsonl").read_text().splitlines()] == [0, 2]

    outputs.append(run(work, "evaluate.py", **from_store))
    assert outputs[-1].returncode == 0, outputs[-1].stderr[-3000:]
    again = read(work / "results" / "llm" / "summary.json")
    assert again["rl"]["sampled"]["win_rate"] == figures["win_rate"] and again["sft"] == summary["sft"]
    outputs.append(
        run(work, "evaluate.py", **{**from_store, "judge.eval": [{"base": "judge.yaml", "temperature": 1.0}]})
    )
    assert outputs[-1].returncode == 2 and "lacks a reply of simulated-travel-judge" in outputs[-1].stderr

    assert all(KEY not in done.stdout + done.stderr for done in outputs)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def test_under_faults_no_score_is_invented_and_running_again_makes_no_call(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    command = [
        sys.executable, "-m", "arenarl.studies.judge_faults", "--config", CONFIG, "--steps", "3", "--faults", "0.3",
    ]  # fmt: skip
    command += [word for key, value in TINY.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = subprocess.run(
        command,
        cwd=tmp_path / "run",
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == ["fault_share", "invented_scores", "failed_verdicts", "throughput_ratio", "calls_on_rerun"]
    assert (
        0.1 < figures["fault_share"] < 0.5
        and figures["invented_scores"] == figures["calls_on_rerun"] == 0 < figures["throughput_ratio"]
    )
