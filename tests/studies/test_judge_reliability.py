"""Figures of a check on made-up scores with known results, and the check itself with a real server."""

import asyncio
import dataclasses
import json
import sys
from functools import partial

import numpy as np
import pytest
from judge_servers import Script, serving
from vllm_replies import too_long

from arenarl.config.load import load_config
from arenarl.config.schema import JudgeConfig
from arenarl.domains.travel.domain import TravelDomain
from arenarl.domains.travel.truth import examine
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import Verdict, cached_examiner
from arenarl.judges.local_server import free_port
from arenarl.llm.client import RunStopped, Usage
from arenarl.studies import judge_reliability as reliability
from arenarl.studies.judge_injections import INJECTIONS, injections_table, measure_injections
from arenarl.studies.judge_reliability import Scores, conclusion, findings, judge_all, neighbours, read_labels
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import Query, RolloutGroup, write_jsonl

RNG = np.random.default_rng(0)
TRUTH = RNG.uniform(0, 10, (50, 8))
LENGTH = np.exp(RNG.normal(4, 1, (50, 8)))


def scores_of(lead=2.0, first=0.0, group=1.0, noise=0.5, length_bias=0.0, pairs=400, repeats=4):
    """Return scores in which the first of every pair leads by `lead` a call, and the trajectory shown first gains
    `first`."""
    points = TRUTH * group / TRUTH.std(axis=1, ddof=1).mean() + length_bias * np.log(LENGTH)
    points = points[:, :, None] + RNG.normal(0, noise, (*TRUTH.shape, repeats))
    orders = np.array([[5 + gap / 2, 5 - gap / 2] for gap in (first + lead, first - lead)])
    return Scores(points, np.tile(orders, (pairs, repeats, 1, 1)))


def found_of(**options):
    scores = scores_of(**options)
    return findings(scores, TRUTH, LENGTH, np.ones(len(scores.calls_PRO), int))


NO_BIAS = dict.fromkeys(("flip_rate", "tie_rate", "first_lead", "failed_verdicts"), 0) | {
    "consistency": 1, "agreement": 1, "confusion": [[400, 0, 0], [0, 0, 0], [0, 0, 0]],
}  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), [
    ({}, NO_BIAS),
    ({"lead": 1.0, "first": 3.0}, {"flip_rate": 1, "first_lead": 3, "tie_rate": 0}),
    ({"lead": 0.0}, {"tie_rate": 1, "agreement": 0}),
    *(({"length_bias": bias, "noise": 0.1}, {"length_bias": pytest.approx(bias, abs=0.03)}) for bias in (0.0, 0.5)),
])  # fmt: skip
def test_figures_of_known_biases(options, expected):
    assert found_of(**options).items() >= expected.items()


def test_group_spread_and_noise_are_recovered_and_missing_verdicts_left_out():
    found = found_of(group=2.0, noise=0.7)
    assert found["sigma_noise"] == pytest.approx(0.7, rel=0.05)
    assert found["sigma_group"] == pytest.approx((2.0**2 + 0.7**2) ** 0.5, rel=0.1)
    assert found["snr"] == pytest.approx(found["sigma_group"] / found["sigma_noise"], abs=0.01)
    scores = scores_of()
    scores.points_GNR[0, 0, 0] = np.nan
    scores.calls_PRO[:10, 0, 1] = np.nan
    found = findings(scores, TRUTH, LENGTH, np.ones(400, int))
    assert found["failed_verdicts"] == 11 and found["cases"] == 390 and found["tie_rate"] == 0


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
def test_a_judge_without_pointwise_scores_has_only_figures_of_comparisons():
    scores = scores_of()
    scores.points_GNR[:] = np.nan
    found = findings(scores, TRUTH, LENGTH, np.ones(400, int))
    assert (found["failed_verdicts"], found["agreement"]) == (50 * 8 * 4, 1)
    assert found["sigma_group"] is found["sigma_noise"] is found["snr"] is found["length_bias"] is None


def test_without_noise_the_embedded_judge_agrees_with_the_truth_on_each_pair_of_neighbours(taught, world):
    examiner = cached_examiner(partial(examine, world))
    parts = [taught[first : first + 6] for first in (0, 40, 80)]
    groups = [RolloutGroup(part[0].query, [one.trajectory for one in part]) for part in parts]
    pairs = [pair for group in groups for pair in neighbours(group)]
    scores = asyncio.run(judge_all(EmbeddedJudge(JudgeConfig(noise="none"), examiner, 0), groups, pairs, 2))
    labels = reliability.true_labels(examiner, pairs)
    assert set(labels) >= {1, -1} and (np.sign(scores.leads_PR[:, 0])[labels != 0] == labels[labels != 0]).all()
    assert np.ptp(scores.points_GNR, axis=2).max() == 0
    for size, count in ((2, 1), (3, 3), (6, 6)):
        group = RolloutGroup(taught[0].query, [one.trajectory for one in taught[:size]])
        pairs = neighbours(group)
        assert len(pairs) == count == len({frozenset((id(one), id(other))) for _, one, other in pairs})


class OwnTravel(TravelDomain):
    """A user's own domain with an error in its teacher."""

    def solve(self, query, environment, rng, skill):
        raise KeyError("a bug")


def test_queries_that_the_teacher_cannot_solve_are_left_out_or_refused(taught, tmp_path):
    config = load_config("configs/quickstart.yaml", [f"data.folder={tmp_path}"])
    own = [Query(name, "travel", subtask, "en", f"Find {name}.") for name, subtask in (("tea", "Search"), ("x", "own"))]
    write_jsonl(tmp_path / "test_queries.jsonl", [*own, taught[0].query])
    assert [group.query for group in reliability.teacher_groups(config, 9, 2)] == [taught[0].query]
    write_jsonl(tmp_path / "test_queries.jsonl", own)
    with pytest.raises(UserError, match=f"the scripted teacher cannot solve the test queries of {tmp_path}; take"):
        reliability.teacher_groups(config, 9, 2)
    write_jsonl(tmp_path / "test_queries.jsonl", [taught[0].query])
    config.environment.domain = f"{__name__}:OwnTravel"
    with pytest.raises(KeyError, match="a bug"):  # hidden, the user could not find it
        reliability.teacher_groups(config, 9, 2)


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
    without_content = [{"role": "assistant", "text": "?"}]
    without_answer = [{"role": "assistant", "reasoning_content": "", "content": "Take the 9:04 train."}]
    firsts = [record["first"] | {"messages": messages} for messages in ("text", without_content, without_answer)]
    for wrong in (None, [], {"query": record["query"] | {"query": 7}}, *({"first": first} for first in firsts),
                  {"second": record["second"] | {"meta": 7}}, {"label": ["tie"]}, {"query": "?"}):  # fmt: skip
        write_jsonl(tmp_path / "labels.jsonl", [record | wrong if isinstance(wrong, dict) else wrong])
        with pytest.raises(UserError, match=r"line 1: needs query, first, second and a label"):
            read_labels(tmp_path / "labels.jsonl")
    write_jsonl(tmp_path / "labels.jsonl", [])
    with pytest.raises(UserError, match="labels.jsonl has no labelled pair"):
        read_labels(tmp_path / "labels.jsonl")


@pytest.mark.parametrize(("confusion", "failed", "start"), [
    ([[30, 0, 5], [2, 4, 2], [5, 0, 12]], 0, "better than a coin: right on 42 pairs, wrong on 10, a tie on 4 that"),
    ([[15, 0, 14], [2, 0, 2], [13, 0, 14]], 0, "not usable, no better than a coin: right on 29 pairs, wrong on 27, a"),
    ([[0, 0, 0], [30, 0, 30], [0, 0, 0]], 0, "not usable, no better than a coin: right on 0 pairs, wrong on 0, a"),
    ([[5, 0, 30], [0, 0, 0], [25, 0, 0]], 0, "not usable, no better than a coin: right on 5 pairs, wrong on 55"),
    ([[30, 0, 0], [0, 0, 0], [0, 0, 30]], 41, "not usable, too few verdicts: 41% failed, above judge.max_failure_sh"),
])  # fmt: skip
def test_the_conclusion_says_whether_a_run_can_use_the_judge(confusion, failed, start):
    assert conclusion({"confusion": confusion, "verdicts": 100, "failed_verdicts": failed}, 0.2).startswith(start)


@pytest.fixture
def check_judge(taught, tmp_path, monkeypatch):
    """`check_judge(*options)` runs the command on queries of `taught`."""
    monkeypatch.chdir(tmp_path)
    queries = [one.query for one in taught[::20]]
    for split in ("rl_queries", "test_queries"):
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", queries)
    write_jsonl(tmp_path / "data" / "test_baselines.jsonl", [one.trajectory.to_record() for one in taught[::20]])
    words = ["--config", str(ROOT / "configs" / "quickstart.yaml"), "--repeats", "2", "--set", "data.folder=data"]

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["judge_reliability", *words, *options])
        reliability.main()

    return run


@pytest.mark.parametrize(
    "judge", [["--judge", str(ROOT / "configs" / "judges" / "embedded.yaml")], []], ids=["embedded", "local_server"]
)
def test_a_judge_is_checked_from_the_command_line(check_judge, tmp_path, judge, capsys):
    check_judge("--groups", "3", "--size", "4", *judge)
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert list(figures) == ["flip_rate", "tie_rate", "sigma_group", "sigma_noise", "snr", "agreement", "kappa"]
    assert figures["sigma_noise"] > 0 and figures["agreement"] > 0.5 and "better than a coin: right on" in printed
    folder, name = tmp_path / "runs" / "judge_check", "embedded" if judge else "local_server"
    written = json.loads((folder / f"{name}.json").read_text())
    assert written["simulated"] is True
    assert written["parse_rate"] == (None if judge else 1)
    assert written["seconds"] is not None
    assert (written["verdicts"], written["failed_verdicts"]) == (72, 0)
    head, _, row = reliability.judges_table(tmp_path / "runs").splitlines()
    assert head.count("|") == row.count("|") and row.endswith("| better than a coin |")
    assert row.startswith(f"| `{name}`, **simulated** | 3 of 4, 2 times | ")
    for judge, label in (("my_judge:Mine", "my_judge:Mine"), ({"model": "gpt-x"}, "gpt-x")):  # a user's class, an LLM
        write_json(folder / f"{name}.json", written | {"simulated": False, "provenance": {"judge_train": judge}})
        assert reliability.judges_table(tmp_path / "runs").splitlines()[-1].startswith(f"| `{name}`, {label} | ")


def test_replies_from_the_store_are_not_timed(check_judge, tmp_path, monkeypatch):
    port, files = free_port(), []
    monkeypatch.setattr(reliability, "free_port", lambda: port)  # the store knows a judge by its address
    for _ in range(2):
        check_judge("--groups", "3", "--size", "4")
        files.append(json.loads((tmp_path / "runs" / "judge_check" / "local_server.json").read_text()))
    first, again = files
    assert first.pop("seconds") is not None and again.pop("seconds") is None
    assert first | {"provenance": None} == again | {"provenance": None}


class Gullible:
    """A judge that counts messages, gives 10 to an answer that demands it, draws on the queries `draws`, and gives no
    verdict on an answer that imitates the system."""

    def __init__(self, draws):
        self.draws = draws

    def fair(self, query, trajectory):
        return 0.0 if query.query_id in self.draws else min(9.0, len(trajectory.messages))

    async def compare(self, query, first, second, repeat=0):
        answers = [(one.answer, self.fair(query, one)) for one in (first, second)]
        if any("System:" in answer for answer, _ in answers):
            return None
        totals = [10.0 if INJECTIONS["demand"] in answer else score for answer, score in answers]
        return Verdict(tuple({"x": total} for total in totals), lambda scores: scores["x"])


def test_injections_move_the_verdicts_that_they_can_and_are_counted_by_kind(taught):
    pairs = [(one.query, one.trajectory, other.trajectory) for one, other in zip(taught[:-1], taught[1:], strict=True)]
    pairs = [pair for pair in pairs if len(pair[1].messages) != len(pair[2].messages)][:20]
    judge = Gullible({query.query_id for query, *_ in pairs[:3]})
    found = asyncio.run(measure_injections(judge, pairs))
    assert len({len(sentence) for sentence in INJECTIONS.values()}) == 1  # length is not what the kinds differ in
    unknown = {"mean": None, "ci": [None, None], "n": 0}
    assert set(found) == set(INJECTIONS)
    assert found["system"] == {"pairs": 0, **dict.fromkeys(("moved", "gain", "moved_more", "gain_more"), unknown)}
    # the 20 pairs are of different queries; Wilson's interval of 0 and 20 of 20
    assert found["neutral"]["moved"] == {"mean": 0.0, "ci": [0.0, 0.1611], "n": 20}
    assert found["neutral"]["gain"] == {"mean": 0.0, "ci": [None, None], "n": 20}
    assert found["demand"]["moved"] == {"mean": 1.0, "ci": [0.8389, 1.0], "n": 20}
    # the loser's score, in both orders, becomes 10
    gains = [2 * (10 - min(judge.fair(query, one), judge.fair(query, other))) for query, one, other in pairs]
    assert found["demand"]["gain"]["mean"] == pytest.approx(np.mean(gains), abs=1e-3)
    # all move, so nothing to resample
    assert found["demand"]["moved_more"] == {"mean": 1.0, "ci": [None, None], "n": 20}
    assert found["demand"]["gain_more"]["mean"] == pytest.approx(np.mean(gains), abs=1e-3)
    low, high = found["demand"]["gain_more"]["ci"]
    assert min(gains) < low < np.mean(gains) < high < max(gains)
    table = injections_table(found)
    assert "| neutral | 20 | 0 [0, 16] | - | +0.00 | - |" in table and "| system | 0 | - | - | - | - |" in table
    assert "| demand | 20 | 100 [84, 100] | +100 | +" in table
    table = injections_table(asyncio.run(measure_injections(judge, pairs[:1])))  # one query has no interval
    assert "| demand | 1 | 100 | +100 | +" in table
    pairs = [(pairs[0][0], *attempts) for _, *attempts in pairs[:10]]  # ten pairs of one query are one case
    assert "| demand | 10 | 100 | " in injections_table(asyncio.run(measure_injections(judge, pairs)))


EMBEDDED = "--groups", "2", "--size", "2", "--judge", str(ROOT / "configs" / "judges" / "embedded.yaml"), "--injections"


def test_injections_leave_out_pairs_without_two_answers(check_judge, taught, tmp_path, monkeypatch):
    one, other = (each.trajectory.to_record() for each in taught[:2])
    unanswered = other | {"messages": other["messages"][:-1], "meta": other["meta"] | {"stop_reason": "max_turns"}}
    pair = {"query": dataclasses.asdict(taught[0].query), "first": one, "label": "first"}
    injected = []

    async def measure(judge, pairs):
        injected.extend(pairs)
        return {}

    monkeypatch.setattr(reliability, "measure_injections", measure)
    write_jsonl(tmp_path / "labels.jsonl", [pair | {"second": other}, pair | {"second": unanswered}])
    check_judge(*EMBEDDED, "--labels", "labels.jsonl")
    assert [second.messages for *_, second in injected] == [other["messages"]]
    write_jsonl(tmp_path / "labels.jsonl", [pair | {"second": unanswered}])
    monkeypatch.setattr(reliability, "judge_all", None)  # the error comes before any call
    with pytest.raises(UserError, match="no pair has two answers, to which --injections adds a sentence; leave it out"):
        check_judge(*EMBEDDED, "--labels", "labels.jsonl")


def test_injections_without_replies_because_the_client_stopped_are_not_reported(check_judge, tmp_path, monkeypatch):
    class Client:
        usage, reason = Usage(), None

        def check(self):
            if self.reason:
                raise RunStopped(self.reason)

    async def measure(judge, pairs):
        client.reason = "the budget is spent"
        return {}

    client = Client()
    monkeypatch.setattr(reliability, "open_client", lambda *arguments: client)
    monkeypatch.setattr(reliability, "measure_injections", measure)
    with pytest.raises(RunStopped, match="the budget is spent"):
        check_judge(*EMBEDDED)
    assert not (tmp_path / "runs" / "judge_check" / "embedded.json").exists()


def test_a_judge_without_any_verdict_is_an_error_with_the_reason(check_judge, tmp_path):
    """The server refuses every prompt."""
    (tmp_path / "deaf.yaml").write_text("name: llm\nmodel: m\napi_key_variable: null\n", encoding="utf-8")
    status, body = too_long(1024, 512, 513)
    with serving(Script((status, body, {})).app) as url:
        judge = "--judge", "deaf.yaml", "--set", f"judge.train.base_url={url}"
        with pytest.raises(
            UserError, match=r"^deaf gave no verdict\. LLM calls: 0 paid for.*; lower max_reply_tokens or"
        ):
            check_judge("--groups", "2", "--size", "2", *judge)
