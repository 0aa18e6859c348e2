import subprocess

from arenarl.config.load import load_config
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.prompts import prompt_hash
from arenarl.report.provenance import commit, provenance
from arenarl.rollout.system_prompt import default_prompt, prompt_name
from arenarl.system.atomic_files import hash_files
from arenarl.system.repository import CONFIGS


def test_models_behind_an_api_stand_with_their_prompts():
    config = load_config(CONFIGS / "quickstart.yaml", [
        "judge.eval.0.name=llm", "judge.eval.0.model=judging", "judge.eval.0.base_url=http://localhost:1/v1",
        "evaluate.api.closed.name=llm", "evaluate.api.closed.model=answering",
        "evaluate.api.closed.base_url=http://localhost:2/v1",
    ])  # fmt: skip
    found, language = provenance(config), config.data.language
    assert found["judge_train"] == "embedded" and found["judge_is_simulated"] is True and found["seed"] == config.seed
    assert found["system_prompt"] is None  # the quickstart's policy is built from scratch
    for model, told in ((found["judge_eval"][0], prompt_hash(domain_rubric("travel", language), language)),
                        (found["api_policies"]["closed"], prompt_name(default_prompt(language)))):  # fmt: skip
        assert model.keys() == {"model", "base_url", "prompt", "date"} and model["prompt"] == told
    assert [found["judge_eval"][0]["model"], found["api_policies"]["closed"]["model"]] == ["judging", "answering"]


def test_a_judge_with_rubrics_for_each_query_is_told_by_their_file(tmp_path):
    found = []
    for text in ("one", "other"):
        (tmp_path / "rubrics.jsonl").write_text(text, encoding="utf-8")
        llm = ["name=llm", "model=judging", "base_url=http://localhost:1/v1"]
        llm.append(f"query_rubrics={tmp_path / 'rubrics.jsonl'}")
        config = load_config(CONFIGS / "quickstart.yaml", [f"judge.train.{key}" for key in llm])
        found.append(provenance(config)["judge_train"])
    assert found[0]["prompt"] == found[1]["prompt"] and found[0]["query_rubrics"] != found[1]["query_rubrics"]


def test_a_tree_is_as_committed_whatever_its_runs_wrote_into_results(tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) is None
    (tmp_path / "results").mkdir()
    code, result = tmp_path / "code.py", tmp_path / "results" / "table.json"
    code.write_text("1")
    result.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit(tmp_path)
    assert clean and not clean.endswith("-dirty")
    result.write_text("2")
    (tmp_path / "untracked.txt").write_text("3")
    assert commit(tmp_path) == clean
    code.write_text("2")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_the_data_stand_with_their_hashes_whoever_wrote_them(tmp_path):
    (tmp_path / "test_queries.jsonl").write_text("{}\n")
    found = provenance(load_config(CONFIGS / "quickstart.yaml", [f"data.folder={tmp_path}"]))
    assert found["data_sha256"] == {"test_queries": hash_files([tmp_path / "test_queries.jsonl"])}
