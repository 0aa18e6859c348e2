"""The writing recipe in small and in Chinese, without tools: data, SFT, RL, evaluation, report."""

import pytest
from scripts import ROOT, read, run_well

from arenarl.report.page import write_page
from arenarl.trajectory import read_jsonl, read_turns

pytestmark = pytest.mark.slow(seconds=35)  # all tests of this file together

OPTIONS = {
    "config": str(ROOT / "configs" / "writing" / "quickstart.yaml"), "data__language": "zh", "data__sft_size": 100,
    "data__test_per_subtask": 2, "sft__deepspeed": None, "rollout__group_size": 4, "rl__micro_batch_size": 4,
    "rl__eval_queries": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writing")
    for script in ("data/prepare.py", "train_sft.py", "train_rl.py"):
        run_well(folder, script, **OPTIONS)
    return folder, run_well(folder, "evaluate.py", **OPTIONS)


def test_a_run_without_tools_has_tournaments_win_rate_quality_and_length(written):
    folder, output = written
    summary = read(folder / "runs" / "tiny" / "summary.json")
    sampled = summary["rl"]["sampled"]
    assert {"win_rate", "quality", "constraints_met", "length_of_asked", "by_length"} <= sampled.keys()
    assert "length % of asked" in output and sampled["tool_calls"]["mean"] == 0
    assert set(sampled["by_subtask"]) == {"Notice", "Letter", "Report", "Speech"} and len(sampled["by_dimension"]) == 4
    assert sampled["by_length"].keys() == summary["sft"]["greedy"]["by_length"].keys()
    page = write_page(written[0] / "runs" / "tiny", written[0] / "runs" / "tiny")
    assert page.stat().st_size > 50_000 and "against length" in page.read_text(encoding="utf-8")
    assert (written[0] / "runs" / "tiny" / "figures" / "win_rate_by_length.svg").is_file()
    groups = list(read_jsonl(written[0] / "runs" / "tiny" / "rl" / "groups.jsonl"))
    assert groups and all(group["ranking"]["matches"] or len(set(group["ranks"])) == 1 for group in groups)
    turns = [read_turns(trajectory["messages"]) for group in groups for trajectory in group["trajectories"]]
    assert all(len(of_trajectory) == 1 for of_trajectory in turns)
