"""The research recipe in small: data, SFT, pass rates, RL on both kinds of queries, evaluation with pass@4, report."""

import pytest
from scripts import ROOT, TINY, read, run_python, run_well, sets_of

from arenarl.report.conclusion import meaning
from arenarl.report.page import write_page
from arenarl.trajectory import read_jsonl

pytestmark = pytest.mark.slow(seconds=45)  # all tests of this file together

OPTIONS = {
    "config": str(ROOT / "configs" / "research" / "quickstart.yaml"), "data__sft_size": 40, "data__rl_size": 12,
    "data__test_per_subtask": 1, "data__research": {"hop_weights": [1.0]}, "environment__search__corpus_size": 200,
    "sft__epochs": 1, "sft__deepspeed": None, "rollout__group_size": 4, "rollout__max_turns": 3,
    "rl__micro_batch_size": 4, "rl__eval_queries": 1, "rl__difficulty__low": 0.0, "rollout__force_answer": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def researched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("research")
    run_well(folder, "data/prepare.py", **OPTIONS)
    run_well(folder, "train_sft.py", **OPTIONS)
    keys = {key.replace("__", "."): value for key, value in OPTIONS.items() if key != "config"}
    command = ["-m", "arenarl.training.difficulty", "--config", OPTIONS["config"], *sets_of(TINY | keys)]
    assert run_python(folder, command).returncode == 0
    run_well(folder, "train_rl.py", **OPTIONS)
    return folder, run_well(folder, "evaluate.py", **OPTIONS)


def test_the_summary_has_accuracy_pass_at_4_and_rubric_and_known_answers_are_not_ranked(researched):
    folder, output = researched
    summary = read(folder / "runs" / "tiny" / "summary.json")
    sampled = summary["rl"]["sampled"]
    names = "win_rate win_rate_valid valid_rate accuracy entity_recall facts_covered pass_at_4 quality"
    assert all(set(sampled[name]) == {"mean", "ci"} for name in names.split())
    assert set(sampled["by_subtask"]) == {"Report", "Ideation", "Overview", "synthetic_qa"}
    by_dimension = sampled["by_dimension"]
    assert len(by_dimension) == 7 and all("win_rate_valid" in figures for figures in by_dimension.values())
    assert "accuracy" in sampled["by_subtask"]["synthetic_qa"] and "accuracy" not in sampled["by_subtask"]["Report"]
    assert "pass_at_4" not in summary["rl"]["greedy"] and "pass@4 %" in output
    assert "accuracy" in meaning(summary)[0]
    assert write_page(folder / "runs" / "tiny", folder / "runs" / "tiny").stat().st_size > 50_000
    groups = list(read_jsonl(researched[0] / "runs" / "tiny" / "rl" / "groups.jsonl"))
    assert groups and all((group["ranking"] is None) == (group["subtask"] == "synthetic_qa") for group in groups)
