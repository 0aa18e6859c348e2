"""BrowseComp, BrowseComp-ZH, xbench, SimpleQA, WebWalkerQA: encrypted items, readers, formulas, runs with search."""

import asyncio
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from time import process_time

import pytest
from benchmark_files import hidden, run_here, write_csv, write_jsonl, xor
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT, read

from arenarl.benchmarks import questions
from arenarl.benchmarks.benchmark import Intervals, Item, Scored
from arenarl.benchmarks.prompts import find_prompts
from arenarl.benchmarks.questions import CELLS, BrowseComp, BrowseCompZH, SimpleQA, WebWalkerQA, XBench
from arenarl.benchmarks.records import decrypted
from arenarl.benchmarks.writing import read_checklist
from arenarl.judges.llm import scores_reply
from arenarl.llm.json_reply import parse_reply
from arenarl.system.errors import UserError

INTERVALS = Intervals(resamples=100)


def scored(*verdicts, **fields):
    """One item for each verdict, or for each list of repeats."""
    repeats = [verdict if isinstance(verdict, list) else [verdict] for verdict in verdicts]
    return [Scored(Item(str(number), "q", "en", fields), of_item) for number, of_item in enumerate(repeats)]


def means(benchmark, items):
    return {name: figure["mean"] for name, figure in benchmark.figures(items, INTERVALS).items()}


@given(st.text(min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_an_encrypted_text_is_decrypted(text, canary):
    text = "?" + text.encode("utf-8", "replace").decode()
    for benchmark, secret in ((BrowseComp(), hidden(text, canary)), (XBench(), xor(text, canary.encode()))):
        assert decrypted(secret, benchmark.key_of(canary), "") == text


def test_a_wrong_canary_or_a_plain_field_is_refused_by_name(tmp_path):
    whole = {"problem": hidden("谁?", "a"), "answer": hidden("甲", "a"), "canary": "a"}
    rows = [whole, {"problem": hidden("Where?", "b"), "answer": "open", "canary": "b"}]
    with pytest.raises(UserError, match="record 2: answer cannot be decrypted"):
        BrowseComp().read(write_csv(tmp_path / "one.csv", rows))
    with pytest.raises(UserError, match="line 2: canary Field required"):
        BrowseComp().read(write_csv(tmp_path / "two.csv", [{"problem": "p", "answer": "a"}]))


def compared(reply):
    verdict = questions.read_comparison(reply, unstated=100)
    return verdict["correct"], verdict["confidence"]


READERS = [
    # the word after "correct:" counts
    (compared, "extracted_final_answer: x\n\nreasoning: correct: yes?\n\ncorrect: no\n\nconfidence: 80%", (0, 80)),
    (compared, "**correct:** yes\n**confidence:** 130", (1, 100)),
    (compared, "<think>correct: no</think>\ncorrect: yes", (1, 100)),
    (questions.final_answer, "所以\n最终答案: 12", "12"), (questions.final_answer, "最终答案：北京 \n好", "北京"),
    (questions.final_answer, "**最终答案**: 甲", "甲"), (questions.final_answer, "北京", None),
    (questions.read_grade, "It says so.\nGRADE: CORRECT", {"correct": 1}),  # as langchain does
    (questions.read_grade, "**grade:** incorrect.", {"correct": 0}),
    (questions.read_grade, "GRADE: INCORRECT\n\nCORRECT would be 3.", {"correct": 0}),
    (questions.read_grade, "Correct.", {"correct": 1}),
    (questions.read_grade, "EXPLANATION: the year is another.\n\nINCORRECT", {"correct": 0}),
    (questions.read_grade, "GRADE: CORRECT\nelse GRADE: INCORRECT", {"correct": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("read", "reply", "expected"), READERS)
def test_a_verdict_is_read_from_the_reply(read, reply, expected):
    assert read(reply) == expected


@pytest.mark.parametrize(("benchmark", "confidence"), [(BrowseComp(), 100), (BrowseCompZH(), 0)])
def test_a_missing_confidence_is_100_in_english_and_0_in_chinese(benchmark, confidence):
    async def ask(messages, read):
        return read("correct: yes\nconfidence: None")

    item = Item("0", "q", "en", {"answer": "a"})
    verdict = asyncio.run(benchmark.judge(item, "r", find_prompts(benchmark.name, (), Path()), ask))
    assert (verdict["correct"], verdict["confidence"]) == (1, confidence)


@pytest.mark.parametrize(("read", "reply"), [
    (partial(questions.read_comparison, unstated=0), "I think yes"), (questions.read_conclusion, "结论: 也许"),
    (questions.read_letter, "A or B"), (questions.read_letter, "D"), (questions.read_grade, "It is CORRECT so far"),
    (questions.read_grade, " "),
])  # fmt: skip
def test_a_reply_in_another_form_is_not_a_verdict(read, reply):
    with pytest.raises(ValueError):
        read(reply)


def test_calibration_error_in_ten_and_in_five_bins_worked_by_hand():
    """A confidence between two bins is in the lower bin in English, in the upper bin in Chinese."""
    items = scored(*({"correct": c, "confidence": p} for c, p in ((1, 95), (0, 91), (0, 30), (1, 25))))
    # ten bins: {95, 91} off by |1/2 - .93|, {30, 25} by |1/2 - .275|, each half of the items
    assert means(BrowseComp(), items) == {"score": 50, "calibration_error": pytest.approx(100 * (0.43 + 0.225) / 2)}
    items = scored(*({"correct": c, "confidence": p} for c, p in ((1, 100), (0, 80), (1, 79), (0, 0))))
    # five bins: {100, 80} off by |1/2 - .9| for half of them, {79} by .21, {0} by 0
    assert means(BrowseCompZH(), items) == {"score": 50, "calibration_error": pytest.approx(100 * (0.4 / 2 + 0.21 / 4))}
    assert [BrowseComp().bin_of(value) for value in (0, 10, 10.5, 100)] == [0, 0, 1, 9]
    assert [BrowseCompZH().bin_of(value) for value in (0, 20, 99, 100)] == [0, 1, 4, 4]


def test_simpleqa_worked_by_hand():
    items = scored(*({"grade": grade} for grade in ["correct"] * 3 + ["incorrect"] * 3 + ["not_attempted"] * 4))
    expected = {"score": 30, "given_attempted": 50, "F1": 37.5, "not_attempted": 40}
    assert means(SimpleQA(), items) == pytest.approx(expected)
    assert means(SimpleQA(), scored({"grade": "not_attempted"}))["F1"] == 0


def test_xbench_worked_by_hand():
    right, wrong, same = ({"correct": c, "extracted": text} for c, text in ((1.0, "a"), (0.0, "b"), (1.0, "A")))
    items = scored([right, right, wrong, wrong, wrong], [right, right, wrong, wrong, same], [wrong] * 5, answer="a")
    average, best, majority = (2 / 5 + 3 / 5) / 3, 2 / 3, 1 / 2 / 3  # in item 2, a and b have two votes each
    expected = {"score": 100 * average, "best_of_n": 100 * best, "majority_vote": 100 * majority}
    assert means(XBench(), items) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("kind", "difficulty"), [("multi_source", "easy"), ("multi-source", "Easy")])
def test_webwalkerqa_has_six_cells(tmp_path, kind, difficulty):
    info = {"type": kind, "difficulty_level": difficulty, "lang": "en"}
    record = {"question": "q", "answer": "a", "root_url": "https://x.org", "info": info}
    (item,) = WebWalkerQA().read(write_jsonl(tmp_path / "w.jsonl", [record]))
    assert item.fields["cell"] == "multi_source_easy"
    figures = means(WebWalkerQA(), [Scored(item, [{"correct": 1.0}])])
    assert set(figures) == {"score", *CELLS} and figures["single_source_hard"] is None
    assert figures["score"] == figures["multi_source_easy"] == 100


def test_whole_runs_with_the_research_tools_give_figures(tmp_path, monkeypatch):
    """All five benchmarks with two items each; the policy answers "blue"."""
    monkeypatch.chdir(tmp_path)
    pairs = [(f"Which colour is number {n}?", answer) for n, answer in enumerate(("blue", "red"))]
    encrypted = [{"problem": hidden(q, "k"), "answer": hidden(a, "k"), "canary": "k"} for q, a in pairs]
    chinese = [{"Question": hidden(f"问：{q}", "k"), "Answer": hidden(a, "k"), "canary": "k"} for q, a in pairs]
    raw = [{"id": q, "prompt": xor(q, b"k"), "answer": xor(a, b"k"), "canary": "k"} for q, a in pairs]
    plain = [{"metadata": "{}", "problem": q, "answer": a} for q, a in pairs]
    info = {"type": "single_source", "difficulty_level": "hard"}
    walks = [{"question": q, "answer": a, "root_url": "https://x.org", "info": info} for q, a in pairs]
    files = {
        "browsecomp": write_csv(tmp_path / "b.csv", encrypted), "browsecomp_zh": write_csv(tmp_path / "z.csv", chinese),
        "xbench": write_csv(tmp_path / "x.csv", raw), "simpleqa": write_csv(tmp_path / "s.csv", plain),
        "webwalkerqa": write_jsonl(tmp_path / "w.jsonl", walks),
    }  # fmt: skip
    reply = "<answer>\nExplanation: seen\nExact Answer: blue\nConfidence: 60%\n最终答案: blue\n</answer>"
    requests, log = run_here(ROOT, [f"{name}={path}" for name, path in files.items()], lambda body: reply)
    assert {tool["function"]["name"] for body in requests for tool in body["tools"]} == {"search", "browse"}
    assert len(requests) == 8 + 10
    entries = {name: read(tmp_path / f"runs/bench/benchmarks/{name}.json")["policies"]["closed"] for name in files}
    assert {name: entry["figures"]["score"]["mean"] for name, entry in entries.items()} == dict.fromkeys(entries, 50)
    assert {entry["failed"] for entry in entries.values()} == {0}
    assert all("searched the embedded encyclopedia, not the web" in entry["labels"] for entry in entries.values())
    assert entries["browsecomp"]["figures"]["calibration_error"]["mean"] == pytest.approx(10)
    assert len(log) == 8 + 5  # exact answers of xbench need no judge
    assert not any("colour" in path.read_text() for path in (tmp_path / "results").rglob("*.*"))


CRASHING = """
from arenarl.rollout.environment import tool_schema
class Tools:
    tools = [tool_schema("look", "", {})]
    def __init__(self, config, language): ...
    def reset(self, query): ...
    def call(self, name, arguments): raise OSError("gone")
"""


def test_the_users_own_tools_are_used_and_their_crashes_counted_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "crashing_tools.py").write_text(CRASHING)
    records = [{"problem": f"Which colour is number {n}?", "answer": "blue"} for n in range(3)]
    wanted = [f"simpleqa={write_csv(tmp_path / 's.csv', records)}"]

    def say(body):
        is_last = "number 2" in body["messages"][-1]["content"]
        call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        return call if is_last else "<answer>\nblue\n</answer>"

    run_here(ROOT, wanted, say, **{"environment.name": "crashing_tools:Tools"})
    entry = read(tmp_path / "runs/bench/benchmarks/simpleqa.json")["policies"]["closed"]
    assert (entry["items"], entry["void"], entry["failed"], entry["empty"]) == (2, 1, 0, 0)
    assert entry["figures"]["score"]["mean"] == 100
    assert "1 of 3 items have no verdict and are in no figure" in entry["labels"]
    assert not any("encyclopedia" in label for label in entry["labels"])


PIECES = ["\n", " ", "correct\n", "GRADE ", "{ ", '{"', *': * correct: confidence: 结论 最终答案 { [ <think> "'.split()]
TIMED_READERS = {
    "comparison": partial(questions.read_comparison, unstated=0.0), "conclusion": questions.read_conclusion,
    "letter": questions.read_letter,
    "grade": questions.read_grade, "checklist": partial(read_checklist, count=3),
    "verdict": partial(parse_reply, reply_type=scores_reply(2, ("a", "b"))),
}  # fmt: skip


@pytest.mark.parametrize("reader", TIMED_READERS)
def test_the_time_to_read_a_judges_reply_grows_no_faster_than_its_length(reader):
    def seconds(text):
        times = []
        for _ in range(3):
            start = process_time()
            with suppress(ValueError):
                TIMED_READERS[reader](text)
            times.append(process_time() - start)
        return min(times)

    for start, piece in product(["", "correct", "结论", "GRADE", '{"a": "'], PIECES):
        short, long = (seconds(start + piece * (size // len(piece))) for size in (4_000, 32_000))
        assert long < 24 * max(short, 1e-3), (start, piece)  # 8 if linear, 64 if quadratic
