"""Whole runs of `--benchmark` with the local judge server: files, restarts, counts, samples and errors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmark_files import Policy, judge_server, run_here, settings, write_jsonl, writing_records
from judge_servers import serving
from scripts import CONFIG, ENVIRONMENT, ROOT, read

from arenarl.benchmarks.run import run_benchmarks
from arenarl.config.load import load_config
from arenarl.judges.local_server import free_port
from arenarl.llm.client import RunStopped
from arenarl.system.errors import UserError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def writing(here):
    return f"writingbench={write_jsonl(here / 'benchmark_all.jsonl', writing_records(6))}"


def letter(body):
    return f"<think>\nhm\n</think>\n\nDear reader of {body['messages'][-1]['content'][-9:]}"


def entry_here(policy="closed"):
    return read(Path("runs/bench/benchmarks/writingbench.json"))["policies"][policy]


def records_here(policy="closed"):
    return [read(path) for path in sorted(Path("runs/bench/benchmarks/writingbench", policy).glob("*.json"))]


def test_aggregates_name_judge_and_prompt_and_hold_no_items(here, writing):
    asked, log = run_here(ROOT, [writing], letter)
    assert len(asked) == 6 and len(log) == 30
    assert all(len(body["messages"]) == 1 and "tools" not in body for body in asked)
    entry = entry_here()
    assert entry["judge"]["model"] == "simulated-travel-judge" and len(entry["prompt"]["hash"]) == 12
    assert set(entry["figures"]) == {"score", "WB-C", "WB-E"} and 40 <= entry["figures"]["score"]["mean"] <= 90
    assert any("not the official score" in label for label in entry["labels"])
    assert (entry["items"], entry["failed"], entry["empty"]) == (6, 0, 0)
    assert "letter" not in (here / "runs/bench/benchmarks/writingbench.json").read_text()
    records = records_here()
    assert len(records) == 6 and all(record["response"].startswith("Dear reader") for record in records)
    assert all(len(record["verdict"]["scores"]) == 5 for record in records)
    page = (here / "runs/bench/benchmarks/README.md").read_text()
    assert "not the official score" in page and "not run" in page and "paper: ArenaRL" in page


def test_a_sample_the_whole_a_second_run_and_another_judge_share_responses(here, writing):
    ports = free_port(), free_port()
    asked, _ = run_here(ROOT, [writing], letter, count=2, ports=ports)
    rest, _ = run_here(ROOT, [writing], letter, ports=ports)
    assert (len(asked), len(rest)) == (2, 4)
    first = entry_here()
    assert run_here(ROOT, [writing], letter, ports=ports) == ([], []) and entry_here() == first
    asked, log = run_here(ROOT, [writing], letter, ports=ports, judge_keys={"model": "another"})
    assert asked == [] and len(log) == 30 and entry_here()["judge"]["model"] == "another"


@pytest.mark.parametrize(("model", "form"), [("a-judge-of-ours", "json_schema"), ("claude-sonnet-4-5-20250929", None)])
def test_the_reply_format_applies_to_judges_other_than_the_official_one(here, writing, model, form):
    judge = Policy(lambda body: '{"score": 5, "reason": "so far"}')
    run_here(ROOT, [writing], letter, judge=judge.app, judge_keys={"model": model})
    assert len(judge.asked) == 30 and {body.get("response_format", {}).get("type") for body in judge.asked} == {form}


def test_a_spent_budget_stops_the_run_and_a_larger_one_resumes_it(here, writing):
    ports = free_port(), free_port()
    with pytest.raises(RunStopped, match="judge.max_calls=16 is used up"):
        run_here(ROOT, [writing], letter, ports=ports, **{"judge.max_calls": 16})
    assert not (here / "runs/bench/benchmarks/writingbench.json").exists()
    asked, log = run_here(ROOT, [writing], letter, ports=ports)
    assert asked == [] and len(log) == 36 - 16 and entry_here()["items"] == 6


def test_with_faults_a_verdict_is_right_or_counted_as_failed(here, writing):
    faults = {"faults": 0.4, "kinds": ("prose", "wrong_range", "missing", "truncated")}
    run_here(ROOT, [writing], letter, options=faults, **{"judge.max_failure_share": 1})
    entry, records = entry_here(), records_here()
    scores = [score for record in records if record["verdict"] for score in record["verdict"]["scores"]]
    assert entry["failed"] == sum(record["verdict"] is None for record in records) == 6 - entry["items"] > 0
    assert scores and all(4 <= score <= 9 for score in scores)
    assert f"{entry['failed']} of 6 items have no verdict and are in no figure" in entry["labels"]


@pytest.mark.parametrize(("wanted", "line"), [
    (["writingbanch=x"], "did you mean writingbench"), (["simpleqa"], "simpleqa needs its file"),
    (["writingbench=absent.jsonl"], "absent.jsonl does not exist"),
    (["writingbench=other.jsonl"], r"other.jsonl, line 1: domain1 Field required \(the record has index, query\)"),
    (["writingbench=four.jsonl"], "four.jsonl, line 1: checklist List should have at least 5 items"),
    (["writingbench=twice.jsonl"], "twice.jsonl, line 2: index is the same as in line 1"),
])  # fmt: skip
def test_a_wrong_benchmark_or_file_is_a_one_line_error(here, wanted, line):
    (record,) = writing_records(1)
    write_jsonl(here / "other.jsonl", [{"index": 1, "query": "Write."}])
    write_jsonl(here / "four.jsonl", [record | {"checklist": record["checklist"][:4]}])
    write_jsonl(here / "twice.jsonl", [record, record])
    config = load_config(ROOT / "configs/quickstart.yaml", settings("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"))
    with pytest.raises(UserError, match=line) as error:
        run_benchmarks(config, config.evaluated, wanted, None, 0)
    assert "\n" not in str(error.value) and not (here / "runs").exists()


def test_an_embedded_judge_is_refused(here, writing):
    config = load_config(ROOT / "configs/quickstart.yaml", [])
    with pytest.raises(UserError, match="a benchmark needs an LLM judge"):
        run_benchmarks(config, {}, [writing], None, 0)


@pytest.mark.slow(seconds=10)
def test_a_killed_run_resumes_and_pays_for_nothing_twice(here):
    """Kill a run while responses come in. tests/synthesis kills one while the store of verdicts is written."""
    write_jsonl(here / "benchmark_all.jsonl", writing_records(12))
    log, policy = [], Policy(letter, delay_s=0.2)
    folder = here / "runs/bench/benchmarks/writingbench/closed"
    with serving(judge_server(log)) as judge_url, serving(policy.app) as policy_url:
        overrides = settings(judge_url, policy_url)
        command = [sys.executable, str(ROOT / "evaluate.py"), "--config", CONFIG]
        command += [word for override in overrides for word in ("--set", override)]
        command += ["--benchmark", "writingbench=benchmark_all.jsonl"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=here, env=os.environ | ENVIRONMENT, **pipes) as running:
            while len(list(folder.glob("*.json"))) < 4:
                assert running.poll() is None, running.stderr.read()[-3000:]
                time.sleep(0.01)
            running.kill()
        kept = {path.name: read(path)["response"] for path in folder.glob("*.json")}
        config = load_config(ROOT / "configs/quickstart.yaml", overrides)
        run_benchmarks(config, config.evaluated, ["writingbench=benchmark_all.jsonl"], None, 0)
    # only responses under way at the kill are requested again
    assert 12 <= len(policy.asked) <= 16 and len(log) == 60 and len(kept) >= 4
    assert kept.items() <= {path.name: read(path)["response"] for path in folder.glob("*.json")}.items()
    assert entry_here()["items"] == 12


def test_a_tiny_policy_without_tools_writes_text_for_a_sample(here, writing, policy_path):
    log = []
    with serving(judge_server(log)) as url:
        config = load_config(ROOT / "configs/quickstart.yaml", settings(url, checkpoint=policy_path))
        run_benchmarks(config, config.evaluated, [writing], 4, 0)
    entry = entry_here("tiny")
    assert entry["items"] == 4 and "a sample of 4 of 6 items, seed 0" in entry["labels"]
    assert [message["role"] for message in records_here("tiny")[0]["trajectory"]["messages"]] == ["user", "assistant"]
