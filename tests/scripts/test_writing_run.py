"""The writing recipe as a user runs it, in small and in Chinese: data, SFT, RL, evaluation, report;
no tools anywhere."""

import pytest
from scripts import ROOT, read, run_well

from arenarl.report.page import write_page
from arenarl.trajectory import read_jsonl, read_turns

pytestmark = pytest.mark.slow(seconds=45)

OPTIONS = {
    "config": str(ROOT / "configs" / "writing" / "quickstart.yaml"), "data__language": "zh",
    "data__test_per_subtask": 2, "sft__deepspeed": None, "rollout__group_size": 4, "rl__micro_batch_size": 4,
    "sft__epochs": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writing")
    for script in ("data/prepare.py", "train_sft.py", "train_rl.py"):
        run_well(folder, script, **OPTIONS)
    return folder, run_well(folder, "evaluate.py", **OPTIONS)


def test_texts_are_written_ranked_and_counted_by_their_length(written):
    summary = read(written[0] / "results" / "tiny" / "summary.json")
    sampled = summary["rl"]["sampled"]
    assert {
        "win_rate",
        "quality",
        "constraints_met",
        "length_of_asked",
        "by_length",
    } <= sampled.keys() and "length % of asked" in written[1]
    assert sampled["tool_calls"]["mean"] == 0 and set(sampled["by_subtask"]) == {"Notice", "Letter", "Report", "Speech"}
    assert (
        len(sampled["by_dimension"]) == 4
        and sampled["by_length"].keys() == summary["sft"]["greedy"]["by_length"].keys()
    )


def test_training_groups_are_ranked_by_tournaments_and_hold_no_call(written):
    groups = list(read_jsonl(written[0] / "runs" / "tiny" / "rl" / "groups.jsonl"))
    assert groups and all(group["ranking"]["matches"] or len(set(group["ranks"])) == 1 for group in groups)
    turns = [read_turns(one["messages"]) for group in groups for one in group["trajectories"]]
    assert all(len(of_one) == 1 for of_one in turns)


def test_the_report_shows_the_win_rate_against_length(written):
    page = write_page(written[0] / "runs" / "tiny", written[0] / "results" / "tiny")
    assert page.stat().st_size > 50_000 and "against length" in page.read_text(encoding="utf-8")
    assert (written[0] / "results" / "tiny" / "figures" / "win_rate_by_length.svg").is_file()
