"""The command `arenarl rank` against real judge servers: faults, kills, budgets, malformed lines, what it writes."""

import asyncio
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from hostile import HOSTILE
from judge_servers import answering, completion, raw, serving, write_judge
from shared_groups import score

from arenarl.llm.client import RunStopped
from arenarl.rank.__main__ import main
from arenarl.rank.files import RankFile
from arenarl.system.errors import UserError

PRICES = {"price_in": 1.0, "price_out": 1.0}
TOPOLOGY = ["--topology", "round_robin"]  # a perfect judge gives the true order


def judging(fault=lambda: None):
    """Return an application that scores an answer by its number, unless `fault` returns another reply, and the prompts
    that got a verdict."""
    answered = []

    async def reply(request):
        prompt = (await request.json())["messages"][1]["content"]
        if wrong := fault():
            return wrong
        answered.append(prompt)
        return score(prompt, 0)

    return answering(reply), answered


def write_candidates(path, prompts, size, seed=0):
    rng = random.Random(seed)
    numbers = [rng.sample(range(11), size) for _ in range(prompts)]
    lines = [
        {"prompt": f"Prompt {k}", "candidates": [f"{n}" for n in of_prompt]} for k, of_prompt in enumerate(numbers)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return numbers


def command(*more):
    words = ["candidates.jsonl", "--judge", "judge.yaml", "--rubric", "a high number", "--out", "ranked.jsonl"]
    return [*words, *TOPOLOGY, *more]


def read(name):
    return [json.loads(line) for line in open(name, encoding="utf-8")]


def true_ranks(numbers):
    return [float(sum(other > number for other in numbers)) for number in numbers]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_faulty_server_leaves_true_ranks_in_order_and_pairs_winners_and_a_page(folder, capsys):
    numbers, rng = write_candidates(folder / "candidates.jsonl", 30, 4), random.Random(1)

    def fault():
        if rng.random() < 0.2:
            return raw(b"{}", status=rng.choice((429, 500, 503)))
        return completion("no JSON at all") if rng.random() < 0.1 else None

    app, answered = judging(fault)
    with serving(app) as url:
        write_judge(folder, url, **PRICES)
        main(command("--pairs", "pairs.jsonl", "--best", "best.jsonl", "--report", "page.html"))
        ranked, printed, asked = read("ranked.jsonl"), capsys.readouterr().out, len(answered)
        main(command())
    assert len(answered) == asked  # the second command found all lines done
    assert [line["line"] for line in ranked] == list(range(1, 31))
    whole = [line for line in ranked if not line["failed_calls"]]
    assert len(whole) > 20
    for line in whole:
        of_prompt = numbers[line["line"] - 1]
        assert line["ranks"] == true_ranks(of_prompt) and of_prompt[line["best"]] == max(of_prompt)
        assert line["calls"] == 12 and line["paid_calls"] >= 12 and line["cost"] > 0
    assert "estimate: about 360 LLM calls" in printed and "written: ranked.jsonl, 30 groups, 360 verdicts" in printed
    assert all(int(pair["chosen"]) > int(pair["rejected"]) for pair in read("pairs.jsonl"))
    assert f"written: pairs.jsonl, {len(read('pairs.jsonl'))} lines" in printed
    assert len(read("pairs.jsonl")) >= 6 * len(whole) and len(read("best.jsonl")) == 30
    page = (folder / "page.html").read_text()
    assert "Prompts <small>30</small>" in page and "<script" in page


def test_an_own_judge_is_named_in_a_file_and_contains_its_rubric(folder, monkeypatch, capsys):
    write_candidates(folder / "candidates.jsonl", 2, 3)
    (folder / "judges_of_mine.py").write_text(
        "from arenarl.judges.judge import Verdict\n"
        "class Number:\n"
        "    def __init__(self, config): pass\n"
        "    async def compare(self, query, first, second, repeat=0):\n"
        "        return Verdict(({'a': int(first.answer)}, {'a': int(second.answer)}), lambda scores: scores['a'])\n"
    )
    (folder / "judge.yaml").write_text("name: judges_of_mine:Number")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(UserError, match="write a YAML file with the line name: judges_of_mine:Number"):
        main(["candidates.jsonl", "--judge", "judges_of_mine:Number", "--out", "ranked.jsonl"])
    with pytest.raises(UserError, match="your own judge contains its rubric"):
        main(command())
    with pytest.raises(UserError, match="max_calls and max_cost do not limit your own judge's calls"):
        main(["candidates.jsonl", "--judge", "judge.yaml", "--out", "ranked.jsonl", "--max-calls", "3"])
    main(["candidates.jsonl", "--judge", "judge.yaml", "--estimate"])
    assert "Number is your own class and may call anything" in capsys.readouterr().out
    main(["candidates.jsonl", "--judge", "judge.yaml", "--out", "ranked.jsonl"])
    assert len(read("ranked.jsonl")) == 2


WINDOWS = """
import asyncio, getpass, os, sqlite3, subprocess, sys, zoneinfo
import aiohttp, certifi, filelock, jsonschema, numpy, tqdm, yaml  # these look at the real platform
for name in ("fcntl", "pwd", "resource"):
    sys.modules[name] = None  # importing it fails
for name in ("fork", "getuid", "kill", "register_at_fork"):
    delattr(os, name)
sys.platform = "win32"
from arenarl import tournament_reward
from arenarl.rank.__main__ import main
from arenarl.system.errors import run_cli
tournament_reward(judge="vllm", num_generations=4)
run_cli(main)
"""


def test_ranking_needs_nothing_that_windows_lacks(folder):
    numbers = write_candidates(folder / "candidates.jsonl", 3, 4)
    app, answered = judging()
    with serving(app) as url:
        write_judge(folder, url)
        for _ in range(2):  # the second command reads what the first wrote
            more = command("--pairs", "pairs.jsonl", "--report", "page.html")
            done = subprocess.run([sys.executable, "-c", WINDOWS, *more], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    assert len(answered) == 3 * 12
    assert [line["ranks"] for line in read("ranked.jsonl")] == list(map(true_ranks, numbers))


def test_hostile_and_half_characters_reach_all_files(folder, monkeypatch):
    """A text that was cut inside an emoji holds half of it, as does what a judge quotes; no file can contain that. The
    name of the candidates' file is not UTF-8, as of a file from a Windows archive."""
    lines = [{"prompt": f"P {text}", "id": text, "candidates": ["1", f"22{text}"]} for text in [*HOSTILE, "\ud83d"]]
    lines.append({"messages": [{"role": "user", "content": "\ud83d"}], "candidates": [[], "\ud83d"]})
    candidates = os.fsdecode(b"\xba\xf2.jsonl")
    with open(candidates, "w", encoding="ascii") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    (folder / "judge_of_lengths.py").write_text(
        "from arenarl.judges.judge import Verdict\n"
        "class Length:\n"
        "    def __init__(self, config): pass\n"
        "    async def compare(self, query, first, second, repeat=0):\n"
        "        (query.query + first.answer + second.answer).encode()\n"
        "        scores = tuple({'a': min(10, len(of.answer))} for of in (first, second))\n"
        "        return Verdict(scores, lambda scores: scores['a'], 'it says \\ud83d')\n"
    )
    (folder / "judge.yaml").write_text("name: judge_of_lengths:Length")
    monkeypatch.syspath_prepend(folder)
    files = ["--out", "ranked.jsonl", "--pairs", "pairs.jsonl", "--best", "best.jsonl", "--report", "page.html"]
    main([candidates, "--judge", "judge.yaml", *files])
    assert len(read("ranked.jsonl")) == len(lines) and len(read("best.jsonl")) == len(lines)
    assert read("ranked.jsonl")[-2]["id"] == "?" and "it says ?" in (folder / "ranked.jsonl").read_text()
    assert {"prompt": "P ?", "chosen": "22?", "rejected": "1"} in read("pairs.jsonl")
    assert f"Prompts <small>{len(lines)}</small>" in (folder / "page.html").read_text()


@pytest.mark.parametrize("text", ["store=other.sqlite", "seed=3", "max_failure_share=1", "matches"])
def test_set_takes_nothing_but_parameters_of_the_topology(folder, text):
    """Python would end with a traceback for a key of the command, or let it win over the command's own option."""
    write_candidates(folder / "candidates.jsonl", 1, 2)
    with pytest.raises(UserError, match=f"--set {text}: "):
        main([*command(), "--set", text])


@pytest.mark.parametrize(("option", "name", "other"), [
    ("--pairs", "candidates.jsonl", "candidates"), ("--out", "./candidates.jsonl", "candidates"),
    ("--best", "ranked.jsonl", "--out"), ("--report", "link.html", "--out"), ("--report", "judge.yaml", "--judge"),
    ("--pairs", "runs/replies.sqlite", "--store"), ("--best", "rubric.yaml", "--rubric"),
])  # fmt: skip
def test_a_result_does_not_replace_an_input_the_store_or_another_result(folder, option, name, other):
    write_candidates(folder / "candidates.jsonl", 1, 2)
    (folder / "link.html").symlink_to(folder / "ranked.jsonl")
    for name_of_input in ("judge.yaml", "rubric.yaml"):
        (folder / name_of_input).touch()
    content = (folder / "candidates.jsonl").read_bytes()
    with pytest.raises(UserError, match=rf"{option} {name.removeprefix('./')} is also the file of {other}, which"):
        main(command("--rubric", "rubric.yaml", option, name))
    assert (folder / "candidates.jsonl").read_bytes() == content


def test_a_result_may_be_named_like_a_judge_or_the_words_of_a_rubric(folder):
    write_candidates(folder / "candidates.jsonl", 1, 2)
    main(command("--judge", "openai", "--out", "openai", "--best", "a high number", "--estimate"))


def test_the_best_candidate_has_an_answer(folder):
    lines = [{"prompt": "p", "candidates": candidates} for candidates in (["", " "], ["", "1"])]
    (folder / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving(judging()[0]) as url:
        write_judge(folder, url, **PRICES)
        main(command("--best", "best.jsonl"))
    assert [(line["ranks"], line["best"]) for line in read("ranked.jsonl")] == [([0.5, 0.5], None), ([1.0, 0.0], 1)]
    assert read("best.jsonl") == [{"prompt": "p", "completion": "1"}]


def test_a_topology_without_matches_gives_no_pairs(folder, capsys):
    with pytest.raises(SystemExit):
        main(["candidates.jsonl", "--out", "ranked.jsonl", "--topology", "group_stage", "--pairs", "pairs.jsonl"])
    assert "--pairs needs matches of two candidates, which group_stage lacks" in capsys.readouterr().err


def test_the_page_says_what_its_estimates_are(folder):
    write_candidates(folder / "candidates.jsonl", 1, 5)
    (folder / "judge.yaml").write_text("name: number_judge:Number")
    for topology, estimates in {"group_stage": "points of all its tournaments", "swiss": "expected scores"}.items():
        words = ["candidates.jsonl", "--judge", "judge.yaml", "--topology", topology, "--out", f"{topology}.jsonl"]
        main([*words, "--report", "page.html"])
        assert f"estimates are {estimates}" in (folder / "page.html").read_text()


def test_candidates_and_ranks_are_files_because_they_are_read_again(folder):
    """The second reading of a pipe is empty: every group would be missing, without an error."""
    os.mkfifo(folder / "pipe")
    threading.Thread(target=lambda: write_candidates(folder / "pipe", 1, 2), daemon=True).start()
    with pytest.raises(UserError, match="pipe is a pipe or device, which can be read only once; save the candidates"):
        main(["pipe", "--judge", "judge.yaml", "--estimate"])
    with pytest.raises(UserError, match="pipe is a pipe or device, but finished lines are read again; choose a file"):
        RankFile(folder / "pipe", "run")


def test_malformed_lines_are_named_and_skipped_on_request(folder, capsys):
    good = {"prompt": "p", "candidates": ["1", "2"], "id": "a"}
    prompt, reply = {"role": "user", "content": "p"}, {"role": "assistant", "content": "3"}
    chat = {"messages": [prompt], "candidates": [[reply], "4"]}
    bad = [{"prompt": "p"}, [1], {"candidates": ["1"]}, {"prompt": "p", "candidates": []}]
    bad += [{"messages": "p", "candidates": ["1"]}, {"prompt": "p", "messages": [], "candidates": [3]}]
    good, chat, *bad = map(json.dumps, (good, chat, *bad))
    bad.append("{")
    (folder / "candidates.jsonl").write_text("\n".join([good, "", *bad, chat]) + "\n")
    with serving(judging()[0]) as url:
        write_judge(folder, url, **PRICES)
        with pytest.raises(UserError) as refused:
            main(command())
        assert not (folder / "ranked.jsonl").exists() and "\n" not in str(refused.value)
        assert "line 3: candidates must be a list" in str(refused.value) and "and 2 more" in str(refused.value)
        main(command("--skip-malformed", "--best", "best.jsonl"))
    first, last = read("ranked.jsonl")
    assert (first["line"], first["id"], first["ranks"]) == (1, "a", [1.0, 0.0])
    assert last["line"] == 10 and "skipped 7 malformed lines" in capsys.readouterr().out
    assert read("best.jsonl") == [
        {"prompt": "p", "completion": "2"},
        {"prompt": [prompt], "completion": [{"role": "assistant", "content": "4"}]},
    ]


def test_a_spent_budget_stops_in_one_line_and_a_higher_one_goes_on(folder):
    write_candidates(folder / "candidates.jsonl", 12, 3)
    with serving(judging()[0]) as url:
        write_judge(folder, url, **PRICES)
        with pytest.raises(RunStopped, match="judge.max_calls=30 is used up"):
            main(command("--max-calls", "30", "--concurrency", "4"))
        assert all(None not in line["ranks"] for line in read("ranked.jsonl"))  # no rank is missing for want of money
        main(command("--max-calls", "72"))
    assert len(read("ranked.jsonl")) == 12


LIBRARY = """
import asyncio
from arenarl.rank import Ranker
ranker = Ranker("judge.yaml", rubric="a high number", topology="round_robin", run="rank", max_calls=30)
asyncio.run(ranker.rank_all([("Prompt", [f"{first}", f"{second}"]) for first in range(9) for second in range(9)]))
"""


@pytest.mark.parametrize("words", [["-m", "arenarl", "rank", *command("--max-calls", "30")], ["-c", LIBRARY]])
def test_calls_under_way_when_the_budget_is_spent_are_counted_and_stored(folder, words):
    write_candidates(folder / "candidates.jsonl", 12, 3)
    requests = []

    async def reply(request):
        requests.append(await request.json())
        await asyncio.sleep(random.uniform(0.0, 0.5))
        return score(requests[-1]["messages"][1]["content"], 0)

    with serving(answering(reply)) as url:
        write_judge(folder, url, **PRICES)
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert "judge.max_calls=30 is used up" in done.stderr and len(requests) == 30
    with closing(sqlite3.connect("runs/replies.sqlite")) as store:
        assert store.execute("SELECT (SELECT count(*) FROM replies), sum(calls) FROM spent").fetchone() == (30, 30)
    if "rank" in words:
        assert re.search(r"LLM calls: 30 paid for .* so far: 30 calls, cost 0.03", done.stdout)


UNDER_RUN_CLI = f"""
from arenarl.system.errors import run_cli
def main():
    exec({LIBRARY.replace("max_calls=30", "concurrency=1")!r}, {{}})
run_cli(main)
"""


@pytest.mark.parametrize("words", [["-m", "arenarl", "rank", *command("--concurrency", "1")], ["-c", UNDER_RUN_CLI]])
def test_a_second_ctrl_c_leaves_a_call_without_a_reply(folder, words):
    write_candidates(folder / "candidates.jsonl", 2, 3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # never replies
        write_judge(folder, f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen([sys.executable, *words], **options) as process:
            connection, _ = server.accept()
            connection.recv(1)  # a request is under way
            process.send_signal(signal.SIGINT)
            assert any(
                "waiting for 1 calls that the API may charge; Ctrl-C to leave" in line for line in process.stdout
            )
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)  # below the call's timeout_s
    assert process.returncode == 130 and "waiting for" not in rest and "Traceback" not in rest, rest


SLOW_TERMINAL = """
import io, os, sys, time
class Slow(io.RawIOBase):
    fileno, writable = (lambda self: 1), (lambda self: True)
    def write(self, data):
        size = os.write(1, data)
        time.sleep(b"waiting for" in bytes(data))
        return size
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Slow()))
"""


def test_a_second_ctrl_c_while_a_line_is_still_being_printed_ends_the_process(folder):
    """Python aborts with signal 6 if another thread than the main one is inside `print` at its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # never replies
        write_judge(folder, f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        words = [sys.executable, "-c", SLOW_TERMINAL + UNDER_RUN_CLI]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            connection, _ = server.accept()
            connection.recv(1)
            process.send_signal(signal.SIGINT)
            assert any("waiting for 1 calls" in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Fatal" not in rest, rest


def test_a_forked_process_ends_without_the_client_s_thread(folder):
    fork = "import os\nif child := os.fork(): os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    write_judge(folder, "http://127.0.0.1:9/v1")
    script = LIBRARY.replace("asyncio.run", f"{fork}\nelse: os.sys.exit(7)\nasyncio.run")
    assert subprocess.run([sys.executable, "-c", script], timeout=300, check=False).returncode == 7


def test_a_judge_that_was_mended_after_unreadable_replies_needs_another_store_as_the_error_says(folder):
    write_candidates(folder / "candidates.jsonl", 12, 4)
    is_broken = [True]
    app, _ = judging(lambda: completion("no JSON at all") if is_broken[0] else None)
    with serving(app) as url:
        write_judge(folder, url, **PRICES)
        advice = (
            "unreadable replies stay in judge.store, so name another file once the judge is mended; the last: it holds"
        )
        with pytest.raises(RunStopped, match=advice):
            main(command())
        is_broken[0] = False
        main(command("--store", "mended.sqlite", "--out", "mended.jsonl"))
    assert [line["failed_calls"] for line in read("mended.jsonl")] == [0] * 12


def test_a_ranking_without_any_verdict_is_an_error(folder, capsys):
    """Its exit code must not let a script train on empty preference pairs."""
    write_candidates(folder / "candidates.jsonl", 2, 3)
    with serving(judging(lambda: completion("no JSON at all"))[0]) as url:
        write_judge(folder, url, **PRICES)
        for _ in range(2):  # and again when the ranks are only read
            with pytest.raises(UserError, match="every verdict is missing, so no candidate has a rank"):
                main(command("--pairs", "pairs.jsonl"))
            assert "12 of them missing" in capsys.readouterr().out and not read("pairs.jsonl")


def test_ranks_of_two_commands_or_of_other_candidates_or_settings_are_not_mixed(folder):
    write_candidates(folder / "candidates.jsonl", 2, 3)
    with serving(judging()[0]) as url:
        write_judge(folder, url, **PRICES)
        main(command())
        for words in (["--seed", "1"], ["--rubric", "a low number"]):
            with pytest.raises(UserError, match="holds ranks of other candidates or settings"):
                main(command() + words)
        candidates = folder / "candidates.jsonl"
        candidates.write_text("\n" + candidates.read_text())  # all lines have other numbers
        with pytest.raises(UserError, match="holds ranks of other candidates or settings"):
            main(command())
        for text in ("mine\n", "mine", "7", '{"line": 1}\n'):
            (folder / "other.jsonl").write_text(text)
            with pytest.raises(UserError, match="holds no ranks; choose another --out"):
                main(command("--out", "other.jsonl"))
            assert (folder / "other.jsonl").read_text() == text
    # Their lines would mix, and the second command would fail only at its end.
    first = RankFile(folder / "new.jsonl", "run")
    with pytest.raises(UserError, match="new.jsonl is being written by another command; wait until it ends, or"):
        RankFile(folder / "new.jsonl", "run")
    first.close()
    RankFile(folder / "new.jsonl", "run").close()


def test_the_estimate_needs_neither_key_nor_out_nor_store_and_makes_no_call(folder, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_candidates(folder / "candidates.jsonl", 120, 4)
    main(["candidates.jsonl", "--estimate", *TOPOLOGY, "--max-cost", "0.01"])
    printed = capsys.readouterr().out
    assert "estimate: about 1,440 LLM calls" in printed and "warning: --max-cost 0.01 is below" in printed
    assert [path.name for path in folder.iterdir()] == ["candidates.jsonl"]
    with pytest.raises(UserError, match="set the environment variable OPENAI_API_KEY"):
        main(["candidates.jsonl", "--out", "ranked.jsonl"])
    assert not (folder / "ranked.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--topology", "seeded_single_elimination"], 3 * 2 * 22),  # 2N-2 matches, in both orders
        (["--topology", "seeded_single_elimination", "--set", "bidirectional=false"], 3 * 22),
        (["--topology", "double_elimination"], 3 * 2 * 22),
        (["--topology", "balanced", "--set", "matches=n"], 3 * 2 * 12),
        (["--topology", "group_stage", "--set", "repeats=2"], None),
    ],
)
def test_the_estimate_s_most_calls_are_those_of_the_longest_tournament(folder, capsys, words, most):
    lines = [{"prompt": f"Prompt {k}", "candidates": [*map(str, range(12)), "3", ""]} for k in range(3)]
    (folder / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["candidates.jsonl", "--estimate", *words])
    printed = capsys.readouterr().out.replace(",", "")
    typical, at_most = map(int, re.search(r"about (\d+) LLM calls.*at most (\d+) LLM calls", printed).groups())
    assert typical <= at_most and at_most == (most or typical)


@pytest.mark.slow(seconds=25)
def test_three_hundred_prompts_killed_three_times_end_as_the_server_s_truth_and_pay_once(folder):
    numbers, rng, concurrency = write_candidates(folder / "candidates.jsonl", 300, 2), random.Random(2), 16
    app, replies = judging(lambda: raw(b"{}", status=rng.choice((429, 500))) if rng.random() < 0.05 else None)
    with serving(app) as url:
        write_judge(folder, url, **PRICES)
        words = [sys.executable, "-m", "arenarl", "rank", *command("--concurrency", str(concurrency))]
        for lines in (30, 120, 210):
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and count_lines(folder / "ranked.jsonl") < lines:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with (folder / "ranked.jsonl").open("ab") as file:
            file.write(b'{"line": 1')  # a kill in the middle of a write
        done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ranked = read("ranked.jsonl")
    assert [line["ranks"] for line in ranked] == [true_ranks(of_prompt) for of_prompt in numbers]
    # a reply that was under way when the process was killed is lost, any other is paid for once
    assert len(replies) <= len(set(replies)) + 3 * concurrency and len(set(replies)) == 600


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0
