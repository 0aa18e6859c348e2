"""Every script as a user runs it: real subprocesses, ZeRO-3 and GRPO on two processes, in a separate folder."""

import json
import shutil

import pytest
import tracked
import yaml
from scripts import CONFIG, ROOT, TINY, differ, read, run, run_python, run_well, sets_of, weights, zero_3

from arenarl.config.load import load_config
from arenarl.judges.local_server import free_port, running_server
from arenarl.report.page import write_page
from arenarl.rollout.policy import load_tokenizer, require_model
from arenarl.run.marks import MARK
from arenarl.system.errors import UserError
from arenarl.trajectory import read_jsonl

pytestmark = pytest.mark.slow(seconds=120)  # all tests of this file together

FIGURES = ("valid_rate", "win_rate", "quality", "groundedness", "constraints_met", "tool_calls")
LLM = ROOT / "configs" / "judges" / "local_server.yaml"
KEY = "sk-MARKED-2f9c"


@pytest.fixture(scope="session")
def summary(folder):
    return read(folder / "runs" / "tiny" / "summary.json")


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_checkpoint_is_an_ordinary_hugging_face_folder(folder, stage):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = folder / "runs" / "tiny" / stage
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    assert model.config.architectures == ["Qwen3ForCausalLM"] and model.config.vocab_size == len(tokenizer)
    chat = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert "<|im_start|>assistant" in prompt


def test_sft_and_rl_change_all_weights_count_trajectories_and_write_a_curve(folder):
    """The curve has a point before training and every `eval_steps`."""
    runs = folder / "runs" / "tiny"
    initial, sft, rl = (weights(path) for path in (runs / "sft" / "initial", runs / "sft", runs / "rl"))
    assert len(differ(initial, sft)) == len(differ(sft, rl)) == len(sft) > 10
    data, points = read(runs / "sft" / "data.json"), list(read_jsonl(runs / "rl" / "curve.jsonl"))
    assert data["trajectories"] == 200 and data["cut"] == 0 and 0 < data["longest"] <= data["max_length"]
    assert [point["step"] for point in points] == [0, 2]
    names = {f"eval/{decoding}/{name}" for decoding in ("sampled", "greedy") for name in FIGURES}
    assert all(names < point.keys() for point in points)


def test_every_stage_writes_config_and_provenance_and_the_summary_all_figures(folder, summary):
    config = load_config(CONFIG, sets_of(TINY)[1::2])
    for stage in ("sft", "rl", "evaluate"):
        assert load_config(folder / "runs" / "tiny" / stage / "config.yaml") == config
        provenance = read(folder / "runs" / "tiny" / stage / "provenance.json")
        assert provenance["seed"] == 0 and provenance["judge_is_simulated"] is True and provenance["versions"]["trl"]
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


def test_evaluation_prints_a_row_per_checkpoint_and_decoding_and_names_the_simulated_judge(pipeline):
    _, output = pipeline
    for row in ("sft sampled", "sft greedy", "rl sampled", "rl greedy"):
        assert sum(line.startswith(row) for line in output.splitlines()) == 1
    assert "simulated judge" in output and output.splitlines()[-1].startswith("written: runs/tiny/summary.json")


def test_repeating_an_evaluation_writes_the_same_bytes(folder, summary):
    path = folder / "runs" / "tiny" / "evaluate"
    before = {file.name: file.read_bytes() for file in path.glob("*.jsonl")}
    for file in path.glob("*_*.json*"):
        file.unlink()
    run_well(folder, "evaluate.py", extra_environment={"WANDB_MODE": "offline"})
    assert len(before) == 6 and before == {file.name: file.read_bytes() for file in path.glob("*.jsonl")}
    again = read(folder / "runs" / "tiny" / "summary.json")
    figures = {name: summary[name] for name in ("sft", "rl")}
    assert {name: again[name] for name in figures} == figures
    [records] = tracked.starts(path.parent, read(path / "wandb.json")["id"])
    begun, logged = tracked.begun(records), tracked.summary(records)
    assert (begun["run_group"], begun["job_type"]) == ("tiny", "evaluate")
    assert {name: logged[name] for name in figures} == figures


def test_the_report_has_the_run_s_queries_groups_and_figures(folder):
    done = run_python(folder, ["-m", "arenarl.report", "tiny"])
    written = "written: runs/tiny/report.html\nwritten: runs/tiny/case.md\n"
    assert (done.returncode, done.stdout) == (0, written), done.stderr
    page = (folder / "runs" / "tiny" / "report.html").read_text()
    assert "Queries <small>20</small>" in page and "Training groups <small>2</small>" in page
    curves = "learning_curves training_curves win_rate_by_subtask noise_against_spread win_rate_by_length"
    assert {path.stem for path in (folder / "runs" / "tiny" / "figures").iterdir()} == set(curves.split())


def test_evaluation_has_pass_at_k_and_figures_by_test_time_turns(folder, summary):
    """Three samples and two budgets of turns; the table counts all samples."""
    options = {"name": "scaled", "evaluate__checkpoints": {"sft": "runs/tiny/sft"}, "evaluate__samples": 3}
    output = run_well(folder, "evaluate.py", **options, evaluate__max_turns=[2, 8])
    run_dir = folder / "runs" / "scaled"
    scaled = read(run_dir / "summary.json")
    figures = scaled["sft"]["sampled"]
    assert figures["cases"] == 3 * summary["sft"]["sampled"]["cases"]
    assert scaled["sft"]["greedy"]["win_rate"] == summary["sft"]["greedy"]["win_rate"]
    samples = {file.name: file.read_bytes() for file in (run_dir / "evaluate").glob("sft_*.jsonl")}
    single = folder / "runs" / "tiny" / "evaluate" / "sft_sampled.jsonl"
    assert samples["sft_sampled.jsonl"] == single.read_bytes() and len(set(samples.values())) == 4
    names = ("sft_sampled", "sft_sampled_2", "sft_sampled_3", "sft_greedy")
    assert samples.keys() == {f"{name}.jsonl" for name in names}
    for criterion in ("win", "constraints"):
        means = [figure["mean"] for figure in figures["pass_at_k"][criterion]]
        assert len(means) == 3 and means == sorted(means)
        assert figures["by_turns"]["8"]["pass_at_k"][criterion] == figures["pass_at_k"][criterion]
    assert figures["by_turns"]["8"]["win_rate"] == figures["win_rate"] and "pass_at_k" not in scaled["sft"]["greedy"]
    for row in ("sampled, 2 turns", "greedy, 8 turns", "sampled: beats the baseline", "sampled: meets all constraints"):
        assert sum(line.startswith(f"sft {row}") for line in output.splitlines()) == 1
    log = read(run_dir / "inspect.json")
    assert sorted({sample["epoch"] for sample in log["samples"]}) == [1, 2, 3]
    assert len(log["samples"]) == figures["cases"] * 4 // 3
    assert {entry["name"] for entry in log["results"]["scores"]} == {"sft sampled", "sft greedy"}
    page = write_page(run_dir, run_dir).read_text(encoding="utf-8")
    assert (run_dir / "figures" / "inference_scaling.svg").is_file()
    assert "sft greedy, 2 turns</th>" in page and "sft sampled: meets all constraints</th>" in page


def test_only_changed_parts_are_evaluated_again(folder, summary, tmp_path):
    shutil.copytree(folder / "runs" / "tiny", tmp_path / "runs" / "tiny")
    shutil.copytree(folder / "data", tmp_path / "data")
    path = tmp_path / "runs" / "tiny" / "evaluate"
    times = {file.name: file.stat().st_mtime_ns for file in path.glob("*_*.json*")}
    shutil.copy(folder / "runs" / "tiny" / "sft" / "initial" / "model.safetensors", tmp_path / "runs" / "tiny" / "rl")
    (tmp_path / "runs" / "tiny" / "rl" / MARK).unlink()  # as the error says for a policy that is changed on purpose
    (path / "sft_greedy.jsonl").unlink()
    run_well(tmp_path, "evaluate.py")
    changed = {file.name for file in path.glob("*_*.json*") if file.stat().st_mtime_ns != times[file.name]}
    names = ("rl_sampled", "rl_greedy", "sft_greedy")
    assert changed == {f"{name}.{kind}" for name in names for kind in ("json", "jsonl")}
    again = read(tmp_path / "runs" / "tiny" / "summary.json")
    assert again["sft"] == summary["sft"] and again["rl"]["greedy"]["valid_rate"]["mean"] == 0


def test_query_prints_one_trajectory_and_writes_no_summary(folder):
    before = (folder / "runs" / "tiny" / "summary.json").read_bytes()
    output = run_well(folder, "evaluate.py", "--query", "Find a quiet cafe in Chengdu.")
    assert output.startswith("query: Find a quiet cafe in Chengdu.\n\n[assistant]\n") and "\nended: " in output
    assert output.splitlines()[-1].startswith("policy: rl, ")
    assert (folder / "runs" / "tiny" / "summary.json").read_bytes() == before


def test_rl_of_an_untrained_model_explains_itself_and_stops_with_a_checkpoint(folder):
    options = {"name": "untaught", "rl__init": "runs/tiny/sft/initial", "rl__steps": 3, "rl__eval_steps": 0}
    stopped = run(folder, "train_rl.py", processes=2, rl__stop_without_valid=2, **options)
    text = stopped.stdout + stopped.stderr
    assert stopped.returncode == 2 and text.count("none of them valid; most often") == 2 and text.count("\n--- ") == 2
    line = stopped.stderr.strip().splitlines()[-1]
    assert line.startswith("error: 2 steps in a row without a valid trajectory (rl.stop_without_valid)")
    assert "saved runs/untaught/rl/checkpoint-1" in line
    run_well(folder, "train_rl.py", rl__stop_without_valid=None, **options)


LORA = {"name": "lora", "rl__init_run": "tiny", "policy__lora_rank": 4, "rl__eval_steps": 1, "rl__eval_queries": 1}


@pytest.fixture(scope="session")
def lora(folder):
    """The folder of two RL steps with LoRA in a single process, with W&B offline."""
    run_well(folder, "train_rl.py", **LORA, extra_environment={"WANDB_MODE": "offline"})
    return folder / "runs" / "lora" / "rl"


def test_rl_with_lora_trains_an_adapter_and_logs_config_and_metrics_of_every_step(lora, folder):
    """The adapter moves away from the reference policy, which is the same model without the adapter."""
    changed = differ(weights(folder / "runs" / "tiny" / "sft"), weights(lora))
    assert len(changed) == 2 * 7 and all("_proj." in name for name in changed)
    kl = [entry["kl"] for entry in read(lora / "checkpoint-2" / "trainer_state.json")["log_history"] if "kl" in entry]
    assert kl[0] == 0 < kl[1]
    assert not (lora / "checkpoint-2" / "model.safetensors").exists()
    assert (lora / "checkpoint-2" / "adapter_model.safetensors").is_file()
    [records] = tracked.starts(lora.parent, read(lora / "wandb.json")["id"])
    begun, config, steps = tracked.begun(records), tracked.config(records), tracked.merged([records])
    assert (begun["run_group"], begun["job_type"]) == ("lora", "rl") and list(steps) == list(range(3))
    resolved = yaml.safe_load((lora / "config.yaml").read_text())
    assert {key: config[key] for key in resolved} == resolved
    assert config["num_generations"] == resolved["rollout"]["group_size"]
    assert all("train/loss" in steps[step] for step in (1, 2))
    assert all("eval/greedy/win_rate" in steps[step] for step in range(3))
    assert "rollouts._type" in steps[1]


def test_a_finished_run_without_weights_saves_them_again(lora, folder):
    before = weights(lora)
    (lora / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        require_model(str(lora))
    assert "is done already" not in run_well(folder, "train_rl.py", **LORA)
    assert differ(weights(lora), before) == []


def test_unusable_checkpoints_are_refused(folder, tmp_path):
    """Covers an unfinished stage, a missing chat template and a missing folder."""
    sft, copy = folder / "runs" / "tiny" / "sft", tmp_path / "copy"
    left_out = shutil.ignore_patterns("checkpoint-*", "initial", "chat_template.jinja", MARK)
    shutil.copytree(sft, copy, ignore=left_out)
    settings = read(copy / "tokenizer_config.json")
    settings.pop("chat_template", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="copy has no chat template"):
        load_tokenizer(str(copy))
    (copy / "timing.json").unlink()
    with pytest.raises(UserError, match="copy is not finished"):
        require_model(str(copy))
    refused(folder, "evaluate.py", name="never-trained", words="runs/never-trained/sft")


def refused(folder, script, *arguments, words, **options):
    """The script exits with code 2 and one line on stderr, and makes no checkpoint."""
    before = set((folder / "runs").rglob("checkpoint-*"))
    done = run(folder, script, *arguments, **options)
    assert done.returncode == 2, done.stderr[-4000:]
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert words in lines[0]
    assert set((folder / "runs").rglob("checkpoint-*")) == before


def test_a_wrong_number_of_processes_is_refused_before_any_work(folder):
    refused(folder, "train_sft.py", name="refused", words="torchrun --nproc_per_node 2 train_sft.py")
    options = f"-m arenarl.training.preflight --config {CONFIG} --processes 5 --set rl.groups=2"
    done = run_python(folder, options.split())
    assert done.returncode == 2 and done.stderr.startswith("error: rl.groups=2 cannot be shared by 5 processes")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["train_sft.py", "train_rl.py"])
def test_a_check_runs_without_a_launcher_and_stops_before_training(folder, script):
    """reproduce.sh checks this way, because torchrun would hide the line and its exit code."""
    before = {path: path.read_bytes() for path in (folder / "runs" / "tiny").rglob("model.safetensors")}
    run_well(folder, script, "--check", name="tiny")
    assert before and all(path.read_bytes() == weights for path, weights in before.items())
    run_well(folder, script, "--check", name="checked", rl__init_run="tiny")
    assert not list((folder / "runs" / "checked").rglob("checkpoint-*"))


def test_llm_judges_are_paid_once_stop_at_their_budget_and_never_leak_the_key(folder, tmp_path):
    work, port = tmp_path / "run", free_port()
    shutil.copytree(folder, work)
    judge = LLM.read_text(encoding="utf-8").replace("8765", str(port))
    judge = judge.replace("api_key_variable: null", "api_key_variable: JUDGE_KEY")
    (work / "judge.yaml").write_text(judge, encoding="utf-8")
    without_key = {
        "name": "llm", "rl.init_run": "tiny", "wandb.mode": "offline", "judge.train": {"base": "judge.yaml"},
        "judge.eval": [{"base": "judge.yaml"}, {"base": "judge.yaml", "process_aware": False}],
        "evaluate.decodings": ["sampled"], "evaluate.checkpoints": {"rl": "runs/llm/rl"},
    }  # fmt: skip
    zero3 = {"processes": 2, "rl.deepspeed": zero_3(work)}
    options = {"extra_environment": {"JUDGE_KEY": KEY}, **without_key}
    outputs = [run(work, "train_rl.py", **zero3, **without_key)]
    assert outputs[0].returncode == 2 and "set the environment variable JUDGE_KEY" in outputs[0].stderr
    log = tmp_path / "served.jsonl"
    with running_server(CONFIG, [f"data.folder={work / 'data'}"], port, "--log", str(log)):
        outputs.append(run(work, "train_rl.py", **zero3, **options, **{"judge.max_calls": 60}))
        assert outputs[-1].returncode != 0
        assert "judge.max_calls=60 is used up: llm has made 60 calls" in outputs[-1].stderr
        stopped = work / "runs" / "llm" / "rl"
        assert "saved runs/llm/rl/checkpoint-" in outputs[-1].stderr
        assert list(stopped.glob("checkpoint-*/trainer_state.json"))
        outputs.append(run(work, "train_rl.py", **zero3, **options))
        outputs.append(run(work, "evaluate.py", **options))
        assert [done.returncode for done in outputs[2:]] == [0, 0], outputs[-1].stderr[-3000:]
        assert "estimate for rl: about" in outputs[2].stdout and "the two judges agree" in outputs[-1].stdout
    served = log.read_text().splitlines()
    summary = read(work / "runs" / "llm" / "summary.json")
    assert summary["judge"] == "simulated"
    assert summary["provenance"]["judge_eval"][0]["model"] == "simulated-travel-judge"
    assert len(summary["provenance"]["judge_train"]["prompt"]) == 12
    figures = summary["rl"]["sampled"]
    assert len(figures["by_judge"]) == 2 and 0 <= figures["judges_agree"]["agreement"] <= 1
    assert figures["missing_verdicts"] == 0
    state = read(max(stopped.glob("checkpoint-*"), key=lambda path: int(path.name[11:])) / "trainer_state.json")
    assert state["log_history"][-2]["judge/total_calls"] <= len(served)
    assert [point["step"] for point in read_jsonl(stopped / "curve.jsonl")] == [0, 2]

    outputs.append(run(work, "evaluate.py", **without_key, **{"judge.store_only": True}))
    assert outputs[-1].returncode == 0, outputs[-1].stderr[-3000:]
    assert read(work / "runs" / "llm" / "summary.json")["rl"]["sampled"]["win_rate"] == figures["win_rate"]

    assert all(KEY not in done.stdout + done.stderr for done in outputs)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def test_faults_of_a_judge_invent_no_score_and_a_rerun_makes_no_call(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    words = "-m arenarl.studies.judge_faults --steps 1 --faults 0.3 --config"
    done = run_python(tmp_path / "run", [*words.split(), CONFIG, *sets_of(TINY)])
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == ["fault_share", "invented_scores", "failed_verdicts", "throughput_ratio", "calls_on_rerun"]
    assert 0.1 < figures["fault_share"] < 0.5
    assert figures["invented_scores"] == figures["calls_on_rerun"] == 0 < figures["throughput_ratio"]
