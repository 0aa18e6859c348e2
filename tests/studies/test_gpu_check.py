"""The GPU check on a CPU: its parts at their smallest, and the record after a kill, a failure or a timeout."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from scripts import is_running, wait_until

from arenarl.studies import gpu_check
from arenarl.studies.bench_training import add_flags
from arenarl.studies.gpu_parts import PARTS, Part, PartEnded, Workplace
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError

FIGURES = Path("runs/gpu_check/cpu_short.json")
ABOUT = {"date": "2026-11-27", "commit": "abc", "origin": {"python": "3.12.0", "versions": {"torch": "2.11.0"}}}
BENCHES = ("qwen3_1.7b", "tiny")  # test_bench_training.py runs their command
CHECKED = [part.name for part in PARTS if part.name not in (*BENCHES, "ppo", "agentevol")]


@pytest.mark.slow(seconds=140)
def test_a_killed_check_keeps_finished_parts_and_the_next_start_runs_the_others(tmp_path):
    command = [sys.executable, "-m", "arenarl.studies.gpu_check", "--short", "--minutes", "60", "--parts", *CHECKED]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)

    def parts():
        return (read_json(tmp_path / FIGURES) or {"parts": {}})["parts"]

    deadline = time.monotonic() + 600
    children = []  # the part's launcher and training process
    while parts().get("sft_zero3", {}).get("status") != "interrupted" or len(children) < 2:
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(timeout=600)
    before = parts()
    assert before["data"]["status"] == "ok" and before["data"]["figures"]["sft"] > 0
    assert before["sft_zero3"] == {"status": "interrupted"} and before["rl"] == {"status": "not run"}
    wait_until(lambda: not any(is_running(child.pid) for child in children))  # once their imports are done

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    after = parts()
    assert list(after) == [part.name for part in PARTS]
    assert [name for name in after if f"{name:<13} kept" in done.stdout] == ["environment", "data", "sft"]
    assert all(after[name] == before[name] for name in ("environment", "data", "sft"))
    assert after["data"]["origin"]["versions"]["torch"]
    assert {name for name in CHECKED if after[name]["status"] == "skipped"} == {"smollm2_135m", "vllm"}
    assert all(after[name]["status"] == "ok" for name in CHECKED if name not in ("smollm2_135m", "vllm"))
    figures = {name: after[name].get("figures") for name in CHECKED}
    assert figures["environment"]["bfloat16, a decoded token"]
    assert figures["rl"]["grad_norm"] > 0 and figures["rl"]["step_s"] > 0
    assert figures["kill_resume"] == {"killed_at": "checkpoint-1", "groups_and_curve": "identical"}
    assert figures["dpo"]["optimizer_steps"] >= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "runs"]


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_part_calls_the_benchmark_with_its_options_and_reads_its_last_line(name, tmp_path, monkeypatch):
    commands = []

    def run(place, command, folder=None):
        commands.append(command)
        return 'pair 0\n{"step_s": 1.5, "shape": "tiny", "device": "cpu", "rows": []}\nwarning\n'

    monkeypatch.setattr(Workplace, "run", run)
    [part] = [part for part in PARTS if part.name == name]
    sizes = {"pairs": 1, "groups": 1, "group_size": 3, "tokens": 64}
    assert part.measure(workplace(tmp_path, 60)) == sizes | {"step_s": 1.5, "shape": "tiny"}
    parser = argparse.ArgumentParser()
    add_flags(parser)
    arguments, others = parser.parse_known_args(commands[0][3:])
    assert arguments.shape == ["tiny"] and arguments.measure == ["step"] and sizes.items() <= vars(arguments).items()
    assert others[0] == "--config" and ("policy.lora_rank=32" in others) == (name == "qwen3_1.7b")


def test_figures_of_other_code_stay_until_their_part_runs_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check, "PARTS", (Part("one", python("print(1)"), 60), Part("two", python("print(2)"), 60)))
    monkeypatch.setattr(gpu_check, "card_name", lambda: "")  # it loads torch in a process
    for code, words in (("a", []), ("b", ["--parts", "two"])):
        monkeypatch.setattr(gpu_check, "origin", lambda code=code: {"code": code, "versions": {}})
        monkeypatch.setattr(sys, "argv", ["gpu_check", "--short", *words])
        gpu_check.main()
    parts = read_json(FIGURES)["parts"]
    codes = {name: (part["status"], part["origin"]["code"]) for name, part in parts.items()}
    assert codes == {"one": ("ok", "a"), "two": ("ok", "b")}


def workplace(folder, seconds):
    return Workplace(folder, folder / "log", time.monotonic() + seconds, is_short=True, has_gpu=False)


def python(text):
    return lambda place: {"output": place.run([sys.executable, "-c", text]).strip()}


def broken(place):
    raise ValueError(f"a figure is missing in {place.folder}")


def absent(place):
    raise PartEnded("skipped", "vLLM is not installed")


OWN_PARTS = (
    Part("fine", python("print('hello')"), 60),
    Part("crash", python("import sys; print('before'); sys.exit('CUDA error: an illegal memory access | here')"), 60),
    Part("bug", broken, 60),
    Part("slow", python("import time; print('pair 0', flush=True); time.sleep(600)"), 3),
    Part("absent", absent, 60),
    Part("last", python("print('still here')"), 60),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder with the record after parts that end in every possible way."""
    folder = tmp_path_factory.mktemp("recorded")
    parts = {part.name: {"status": "not run"} for part in (*OWN_PARTS, Part("never", broken, 60))}
    record = {"card": "NVIDIA H100", "parts": parts}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        gpu_check.run_parts(OWN_PARTS, folder / "gpu" / "card.json", record, ABOUT, workplace(folder, 120))
    return folder


def test_a_part_that_fails_is_recorded_the_next_one_starts_and_each_has_a_row_in_the_document(recorded, tmp_path):
    parts = (record := read_json(recorded / "gpu" / "card.json"))["parts"]
    statuses = ["ok", "failed", "failed", "time ran out", "skipped", "ok", "not run"]
    assert [part["status"] for part in parts.values()] == statuses
    assert parts["fine"]["figures"] == {"output": "hello"} and parts["last"]["figures"] == {"output": "still here"}
    assert parts["crash"]["error"].startswith("exit code 1: -c ")
    assert "before\nCUDA error: an illegal memory access" in parts["crash"]["error"]
    assert "Traceback" in parts["bug"]["error"] and "ValueError: a figure is missing in ." in parts["bug"]["error"]
    assert parts["slow"]["error"].endswith("pair 0\n") and parts["slow"]["seconds"] < 60
    assert parts["absent"]["error"] == "vLLM is not installed"
    assert str(recorded) not in json.dumps(record) and str(Path.home()) not in json.dumps(record)
    table = gpu_check.results_table(recorded).splitlines()
    assert table[0] == "**NVIDIA H100**:" and len(table) == 4 + len(OWN_PARTS) + 1
    assert table[4].startswith("| fine | ok |")
    assert table[4].endswith("| output hello | 2026-11-27, abc, torch 2.11.0 |")
    assert table[5].endswith("illegal memory access \\| here | 2026-11-27, abc, torch 2.11.0 |")
    assert "ValueError" in table[6]
    assert table[-1] == "| never | not run | - | - | - |"
    assert gpu_check.results_table(tmp_path / "none") == "not run"


def test_without_a_gpu_or_time_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(UserError, match="^torch finds no GPU; .*--short"):
        gpu_check.main()
    assert list(tmp_path.iterdir()) == []
    gpu_check.run_parts(OWN_PARTS, tmp_path / "card.json", {"parts": {}}, ABOUT, workplace(tmp_path, 5))
    assert read_json(tmp_path / "card.json")["parts"] == {part.name: {"status": "not run"} for part in OWN_PARTS}
    assert capsys.readouterr().out.count("not run: the time is over") == len(OWN_PARTS)
