"""The latency benchmark: its last line, its arithmetic by hand, and a judge that is never left behind.
No test depends on a time that passed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession

from arenarl.studies.bench_tournament import as_judge, least_seconds, summary
from arenarl.studies.delayed_judge import delayed_judge, noisy_scores
from arenarl.tournament.play import run_tournament
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.tournament.topologies import ALL_TOPOLOGIES, paper_calls

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "arenarl.studies.bench_tournament"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(*flags):
    return subprocess.run(
        [*COMMAND, *flags], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


def last_line(*flags):
    done = run(*flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def calls_without_http(topology, groups, size):
    async def ask_group(group, shown):
        return noisy_scores(group, shown)

    def judge_of(group):
        return as_judge(topology, lambda shown: ask_group(group, shown))

    return sum(run_tournament(topology, size, judge_of(group), seed=group).judge_calls for group in range(groups))


def test_the_last_line_counts_the_calls_of_all_groups():
    line = last_line("--delay_s", "0.02", "--groups", "3", "--group_size", "8")
    assert line["topology"] == "seeded_single_elimination"
    assert (line["groups"], line["group_size"], line["concurrency"], line["delay_s"]) == (3, 8, 8, 0.02)
    assert line["paper_calls"] == 3 * 2 * (7 + 7)
    assert line["calls"] == calls_without_http("seeded_single_elimination", 3, 8) < line["paper_calls"]
    assert line["bound_s"] == pytest.approx(0.02 * line["calls"] / 8, abs=1e-3)
    assert line["seconds"] >= line["bound_s"] - 1e-3 and line["ratio_to_bound"] > 0.99 and line["overhead_ms"] > 0


def test_all_topologies_end_in_one_line_with_their_rows():
    line = last_line(
        "--topology", "all", "--delay_s", "0.005", "--groups", "2", "--group_size", "5", "--concurrency", "4"
    )
    assert [row["topology"] for row in line["rows"]] == ALL_TOPOLOGIES
    for row in line["rows"]:
        assert row["calls"] == calls_without_http(row["topology"], 2, 5) > 0
        assert row["paper_calls"] is None or row["calls"] <= row["paper_calls"]
    assert line["calls"] == sum(row["calls"] for row in line["rows"]) and line["paper_calls"] is None
    assert line["ratio_to_bound"] == max(row["ratio_to_bound"] for row in line["rows"])
    assert line["overhead_ms"] == max(row["overhead_ms"] for row in line["rows"])


def test_the_summary_of_several_rows_is_the_worst_and_the_sums():
    def row(ratio, overhead, calls):
        figures = {
            "ratio_to_bound": ratio,
            "overhead_ms": overhead,
            "calls": calls,
            "paper_calls": 60,
            "seconds": 1.5,
            "bound_s": 1.25,
        }
        return {"topology": "anchor", "groups": 1} | figures

    both = summary([row(1.2, 3.0, 50), row(1.1, 4.0, 54)])
    assert {name: both[name] for name in both if name != "rows"} == {
        **{"topology": "all", "groups": 1, "ratio_to_bound": 1.2, "overhead_ms": 4.0},
        **{"calls": 104, "paper_calls": 120, "seconds": 3.0, "bound_s": 2.5},
    }


def ranking_of(*rounds):
    """A ranking whose matches, of two calls each, waited for this many."""
    calls = (Call(0, 1, (1.0, 0.0)), Call(1, 0, (0.0, 1.0)))
    return Ranking([], [], [Match(0, 1, waited, calls) for waited in rounds])


def test_the_bound_is_the_longest_chain_or_all_calls_over_the_slots():
    groups = [ranking_of(0, 0, 1), ranking_of(0, 1, 2)]
    assert least_seconds(groups, concurrency=2, delay_s=0.5) == 3.0  # 12 calls in 2 slots
    assert least_seconds(groups, concurrency=100, delay_s=0.5) == 1.5  # three matches in a row, both orders at once


def test_the_paper_counts_two_calls_a_comparison():
    """At N=8: round robin 28, Swiss three rounds of 4, the seeding 7 and the bracket 7."""
    expected = {"round_robin": 56, "anchor": 14, "seeded_single_elimination": 28, "single_elimination": 14}
    expected |= {
        "double_elimination": 28,
        "swiss": 24,
        "balanced": None,
        "elo": None,
        "random_reference": None,
        "group_stage": None,
    }
    assert {topology: paper_calls(topology, 8) for topology in ALL_TOPOLOGIES} == expected


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--topology", "swis"], "did you mean 'swiss'?"),
        (["--groups", "0"], "--groups 0: must be at least 1"),
        (["--group_size", "2"], "--group_size 2: must be at least 3"),
        (["--concurrency", "-1"], "--concurrency -1: must be at least 1"),
        (["--delay_s", "nan"], "--delay_s nan: must be above 0"),
    ],
)
def test_a_bad_flag_is_refused_in_one_line(flags, says):
    done = run(*flags)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and says in done.stderr and done.stderr.count("\n") == 1


def test_the_judge_takes_its_time_and_scores_alike_when_asked_again():
    async def ask(url):
        async with ClientSession(url) as session:
            start = time.monotonic()
            replies = [
                await (await session.post("/judge", json={"group": 1, "shown": [2, 0, 5]})).json() for _ in range(2)
            ]
            return time.monotonic() - start, replies

    with delayed_judge(0.05, 1) as url:
        seconds, replies = asyncio.run(ask(url))
    assert seconds >= 0.1 * 0.99
    assert replies == [{"scores": noisy_scores(1, [2, 0, 5])}] * 2


def test_the_judge_admits_no_more_calls_than_it_was_set_to():
    async def first_status(url):
        async with ClientSession(url) as session:
            calls = [asyncio.create_task(session.post("/judge", json={"group": 0, "shown": [0, 1]})) for _ in range(2)]
            done, under_way = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            under_way.pop().cancel()
            return done.pop().result().status

    with delayed_judge(100.0, 1) as url:
        assert asyncio.run(first_status(url)) == 429


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_closed(port):
    deadline = time.monotonic() + 120
    while is_open(port):
        assert time.monotonic() < deadline, "the judge outlives the benchmark"
        time.sleep(0.05)


PARENT = """
import time
from arenarl.studies.delayed_judge import delayed_judge
with delayed_judge(100.0, 1) as url:
    print(url, flush=True)
    {end}
"""


@pytest.mark.parametrize(("end", "code"), [("raise ValueError", 1), ("raise SystemExit(3)", 3), ("pass", 0)])
def test_the_judge_ends_with_its_block(end, code):
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(end=end)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert not is_open(int(done.stdout.rsplit(":")[-1]))


def test_the_judge_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", PARENT.format(end="time.sleep(1000)")]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as parent:
        port = int(parent.stdout.readline().rsplit(":")[-1])
        assert is_open(port)
        parent.kill()
    wait_until_closed(port)


def test_ctrl_c_ends_the_benchmark_quietly_and_its_judge_with_it():
    command = [*COMMAND, "--delay_s", "100"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **streams) as bench:
        port = int(bench.stdout.readline().rsplit(":")[-1])
        assert is_open(port)
        os.killpg(bench.pid, signal.SIGINT)
        _, errors = bench.communicate(timeout=120)
    assert bench.returncode == 130 and errors == ""
    wait_until_closed(port)
