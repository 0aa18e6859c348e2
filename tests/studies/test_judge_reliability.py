"""Figures of a check on scores made up so that they are known, and the check itself through a real server."""

import asyncio
import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from judge_servers import Script, serving
from vllm_replies import too_long

from arenarl.config.schema import JudgeConfig
from arenarl.domains.travel.truth import examine
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import cached_examiner
from arenarl.studies.judge_reliability import (
    Scores,
    conclusion,
    findings,
    judge_all,
    judges_table,
    neighbours,
    read_labels,
    true_labels,
)
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.trajectory import RolloutGroup, write_jsonl

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
TRUTH = RNG.uniform(0, 10, (50, 8))
LENGTH = np.exp(RNG.normal(4, 1, (50, 8)))


def scores_of(lead=2.0, first=0.0, group=1.0, noise=0.5, length_bias=0.0, pairs=400, repeats=4):
    """The first of every pair leads by `lead` a call; being shown first is worth `first`."""
    points = TRUTH * group / TRUTH.std(axis=1, ddof=1).mean() + length_bias * np.log(LENGTH)
    points = points[:, :, None] + RNG.normal(0, noise, (*TRUTH.shape, repeats))
    order_1, order_2 = (
        (5 + (lead + first) / 2, 5 - (lead + first) / 2),
        (5 + (first - lead) / 2, 5 - (first - lead) / 2),
    )
    return Scores(points, np.tile(np.array([order_1, order_2]), (pairs, repeats, 1, 1)))


def found_of(labels=None, **how):
    scores = scores_of(**how)
    return findings(scores, TRUTH, LENGTH, np.ones(len(scores.calls_PRO), int) if labels is None else labels)


def test_a_judge_without_bias_neither_flips_nor_ties():
    found = found_of()
    assert found["flip_rate"] == found["tie_rate"] == found["first_lead"] == 0
    assert found["consistency"] == found["agreement"] == 1
    assert found["failed_verdicts"] == 0 and found["confusion"] == [[400, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_judge_that_goes_by_position_flips_and_one_that_sees_no_difference_ties():
    by_position = found_of(lead=1.0, first=3.0)
    assert by_position["flip_rate"] == 1 and by_position["first_lead"] == 3 and by_position["tie_rate"] == 0
    assert found_of(lead=0.0)["tie_rate"] == 1 and found_of(lead=0.0)["agreement"] == 0


def test_sigma_group_and_noise_are_those_that_were_put_in():
    found = found_of(group=2.0, noise=0.7)
    assert found["sigma_noise"] == pytest.approx(0.7, rel=0.05)
    assert found["sigma_group"] == pytest.approx((2.0**2 + 0.7**2) ** 0.5, rel=0.1)
    assert found["snr"] == pytest.approx(found["sigma_group"] / found["sigma_noise"], abs=0.01)


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_length_bias_is_what_length_is_worth_beyond_quality(bias):
    assert found_of(length_bias=bias, noise=0.1)["length_bias"] == pytest.approx(bias, abs=0.03)


def test_missing_verdicts_are_counted_and_left_out():
    scores = scores_of()
    scores.points_GNR[0, 0, 0] = np.nan
    scores.calls_PRO[:10, 0, 1] = np.nan
    found = findings(scores, TRUTH, LENGTH, np.ones(400, int))
    assert found["failed_verdicts"] == 11 and found["cases"] == 390 and found["tie_rate"] == 0


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
def test_a_judge_that_only_compares_has_figures_of_its_comparisons_alone():
    scores = scores_of()
    scores.points_GNR[:] = np.nan
    found = findings(scores, TRUTH, LENGTH, np.ones(400, int))
    assert (found["failed_verdicts"], found["agreement"]) == (50 * 8 * 4, 1)
    assert found["sigma_group"] is found["sigma_noise"] is found["snr"] is found["length_bias"] is None


def test_without_noise_the_embedded_judge_agrees_with_the_truth(taught, world):
    examiner = cached_examiner(partial(examine, world))
    some = [taught[first : first + 6] for first in (0, 40, 80)]
    groups = [RolloutGroup(of_group[0].query, [one.trajectory for one in of_group]) for of_group in some]
    pairs = [pair for group in groups for pair in neighbours(group)]
    scores = asyncio.run(judge_all(EmbeddedJudge(JudgeConfig(noise="none"), examiner, 0), groups, pairs, 2))
    labels = true_labels(examiner, pairs)
    assert set(labels) > {1, -1} - {0} and (np.sign(scores.leads_PR[:, 0])[labels != 0] == labels[labels != 0]).all()
    assert np.ptp(scores.points_GNR, axis=2).max() == 0


def test_labels_are_read_from_a_file(taught, tmp_path):
    one, other = taught[0], taught[1]
    record = {"query": dataclasses.asdict(one.query), "first": one.trajectory.to_record(),
              "second": other.trajectory.to_record(), "label": "second"}  # fmt: skip
    write_jsonl(tmp_path / "labels.jsonl", [record, record | {"label": "tie"}])
    pairs, labels = read_labels(tmp_path / "labels.jsonl")
    assert labels.tolist() == [-1, 0] and pairs[0][0] == one.query and pairs[0][2].messages == other.trajectory.messages
    write_jsonl(tmp_path / "labels.jsonl", [record, record | {"label": "better"}])
    with pytest.raises(UserError, match="line 2"):
        read_labels(tmp_path / "labels.jsonl")
    mute = record["first"] | {"messages": [{"role": "assistant", "text": "?"}]}
    plain = record["first"] | {
        "messages": [{"role": "assistant", "reasoning_content": "", "content": "Take the 9:04 train."}]
    }
    for wrong in (None, [], {"query": record["query"] | {"query": 7}},
                  {"first": record["first"] | {"messages": "text"}}, {"first": mute},
                  {"first": plain},
                  {"second": record["second"] | {"meta": 7}}, {"label": ["tie"]}, {"query": "?"}):  # fmt: skip
        write_jsonl(tmp_path / "labels.jsonl", [record | wrong if isinstance(wrong, dict) else wrong])
        with pytest.raises(UserError, match=r"line 1: needs query, first, second and a label"):
            read_labels(tmp_path / "labels.jsonl")


def test_of_every_group_a_pair_counts_once_in_the_test_against_a_coin(taught):
    for size, count in ((2, 1), (3, 3), (6, 6)):
        group = RolloutGroup(taught[0].query, [one.trajectory for one in taught[:size]])
        pairs = neighbours(group)
        assert len(pairs) == count == len({frozenset((id(one), id(other))) for _, one, other in pairs})


@pytest.mark.parametrize(("confusion", "failed", "says"), [
    ([[30, 0, 5], [2, 4, 2], [5, 0, 12]], 0, "better than a coin: right on 42 pairs, wrong on 10, a tie on 4 that"),
    ([[15, 0, 14], [2, 0, 2], [13, 0, 14]], 0,
     "not usable, no better than a coin: right on 29 pairs, wrong on 27, a tie on 4 that"),
    ([[0, 0, 0], [30, 0, 30], [0, 0, 0]], 0,
     "not usable, no better than a coin: right on 0 pairs, wrong on 0, a tie on 60 that"),
    ([[5, 0, 30], [0, 0, 0], [25, 0, 0]], 0, "not usable, no better than a coin: right on 5 pairs, wrong on 55"),
    ([[30, 0, 0], [0, 0, 0], [0, 0, 30]], 41,
     "not usable, too few verdicts: 41% failed, more than judge.max_failure_share=0.2 lets a run"),
])  # fmt: skip
def test_the_conclusion_says_whether_a_run_can_use_the_judge(confusion, failed, says):
    assert conclusion({"confusion": confusion, "verdicts": 100, "failed_verdicts": failed}, 0.2).startswith(says)


def check_judge(taught, folder, judge, groups=3, size=4):
    """The check as a user starts it, on queries of `taught`."""
    queries = [one.query for one in taught[::20]]
    for split in ("rl_queries", "test_queries"):
        write_jsonl(folder / "data" / f"{split}.jsonl", queries)
    write_jsonl(folder / "data" / "test_baselines.jsonl", [one.trajectory.to_record() for one in taught[::20]])
    sizes = f"--groups {groups} --size {size} --repeats 2 --set data.folder=data".split()
    config = str(ROOT / "configs" / "quickstart.yaml")
    command = [sys.executable, "-m", "arenarl.studies.judge_reliability", "--config", config, *judge, *sizes]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "judge", [["--judge", str(ROOT / "configs" / "judges" / "embedded.yaml")], []], ids=["embedded", "local_server"]
)
def test_a_judge_is_checked_from_the_command_line(taught, tmp_path, judge):
    done = check_judge(taught, tmp_path, judge)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == ["flip_rate", "tie_rate", "sigma_group", "sigma_noise", "snr", "agreement", "kappa"]
    assert figures["sigma_noise"] > 0 and figures["agreement"] > 0.5 and "better than a coin: right on" in done.stdout
    folder, name = tmp_path / "results" / "judge_check", "embedded" if judge else "local_server"
    written = json.loads((folder / f"{name}.json").read_text())
    assert (folder / f"{name}.png").stat().st_size > 10_000 and written["simulated"] is True
    assert written["parse_rate"] == (None if judge else 1)
    assert (written["verdicts"], written["failed_verdicts"]) == (72, 0)
    head, _, row = judges_table(tmp_path / "results").splitlines()
    assert head.count("|") == row.count("|") and row.endswith("| better than a coin |")
    assert row.startswith(f"| `{name}`, **simulated** | 3 of 4, 2 times | ")
    # a class of one's own, an LLM
    for judge, shown in (("my_judge:Mine", "my_judge:Mine"), ({"model": "gpt-x"}, "gpt-x")):
        write_json(folder / f"{name}.json", written | {"simulated": False, "provenance": {"judge_train": judge}})
        assert judges_table(tmp_path / "results").splitlines()[-1].startswith(f"| `{name}`, {shown} | ")


def test_a_judge_that_gives_no_verdict_is_told_with_the_reason(taught, tmp_path):
    """A server that refuses every prompt."""
    (tmp_path / "deaf.yaml").write_text("name: llm\nmodel: m\napi_key_variable: null\n", encoding="utf-8")
    status, body = too_long(1024, 512, 513)
    with serving(Script((status, body, {})).app) as url:
        done = check_judge(
            taught, tmp_path, ["--judge", "deaf.yaml", "--set", f"judge.train.base_url={url}"], size=2, groups=2
        )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    *_, line = done.stderr.strip().splitlines()
    assert line.startswith("error: deaf gave no verdict. LLM calls: 0 paid for")
    assert "; lower max_reply_tokens or" in line
