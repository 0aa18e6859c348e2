"""Provenance: judges, prompts, the commit and the data's hashes."""

import os
import subprocess
from importlib.metadata import PackageNotFoundError

from arenarl.config.load import load_config
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.prompts import prompt_hash
from arenarl.report import provenance as report_provenance
from arenarl.report.provenance import commit, provenance
from arenarl.rollout.system_prompt import default_prompt, prompt_name
from arenarl.system.atomic_files import hash_files
from arenarl.system.repository import CONFIGS


def test_api_models_have_their_prompt_hashes():
    config = load_config(CONFIGS / "quickstart.yaml", [
        "judge.eval.0.name=llm", "judge.eval.0.model=judging", "judge.eval.0.base_url=http://localhost:1/v1",
        "evaluate.api.closed.name=llm", "evaluate.api.closed.model=answering",
        "evaluate.api.closed.base_url=http://localhost:2/v1",
    ])  # fmt: skip
    record, language = provenance(config), config.data.language
    assert record["judge_train"] == "embedded" and record["judge_is_simulated"] is True
    assert record["seed"] == config.seed and record["system_prompt"] is None  # a policy from scratch has no prompt
    judge, policy = record["judge_eval"][0], record["api_policies"]["closed"]
    assert judge.keys() == policy.keys() == {"model", "base_url", "prompt", "date"}
    assert (judge["model"], policy["model"]) == ("judging", "answering")
    assert judge["prompt"] == prompt_hash(domain_rubric("travel", language), language)
    assert policy["prompt"] == prompt_name(default_prompt(language))


def test_a_judge_with_query_rubrics_and_data_have_the_hashes_of_their_files(tmp_path):
    judges = []
    for text in ("one", "other"):
        (tmp_path / "rubrics.jsonl").write_text(text, encoding="utf-8")
        llm = ["name=llm", "model=judging", "base_url=http://localhost:1/v1"]
        llm.append(f"query_rubrics={tmp_path / 'rubrics.jsonl'}")
        config = load_config(CONFIGS / "quickstart.yaml", [f"judge.train.{key}" for key in llm])
        judges.append(provenance(config)["judge_train"])
    assert judges[0]["prompt"] == judges[1]["prompt"] and judges[0]["query_rubrics"] != judges[1]["query_rubrics"]
    (tmp_path / "rubrics.jsonl").unlink()  # the judge reports it: commands without the judge go on
    assert "query_rubrics" not in provenance(config)["judge_train"]
    (tmp_path / "test_queries.jsonl").write_text("{}\n")
    record = provenance(load_config(CONFIGS / "quickstart.yaml", [f"data.folder={tmp_path}"]))
    assert record["data_sha256"] == {"test_queries": hash_files([tmp_path / "test_queries.jsonl"])}


def test_changes_in_results_do_not_make_the_commit_dirty(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # a hook of git names its own repository
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # it may sign commits

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) is None
    (tmp_path / "results").mkdir()
    code, result = tmp_path / "code.py", tmp_path / "results" / "table.json"
    for file in (code, result):
        file.write_text("1")
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*words)
    clean = commit(tmp_path)
    assert clean and not clean.endswith("-dirty")
    with monkeypatch.context() as container:  # its root reads a checkout of the user
        container.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        assert commit(tmp_path) == clean
    result.write_text("2")
    (tmp_path / "untracked.txt").write_text("3")
    assert commit(tmp_path) == clean
    code.write_text("2")
    assert commit(tmp_path) == f"{clean}-dirty"
    (tmp_path / ".venv").mkdir()
    assert commit(tmp_path / ".venv") is None  # an installed package; the repository is of another project


def test_without_git_and_without_packages_that_a_run_does_not_need_provenance_is_written(monkeypatch):
    real = report_provenance.version

    def version(name):
        if name in ("wandb", "aiohttp"):
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(report_provenance, "version", version)
    record = provenance(load_config(CONFIGS / "quickstart.yaml"))
    assert record["commit"] is None and record["versions"]["wandb"] is None and record["versions"]["torch"]
