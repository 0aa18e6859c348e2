"""WritingBench, HelloBench and LongBench-Write: readers, hand-worked formulas, a run of all three."""

import json

import pytest
from benchmark_files import run_here, write_jsonl, writing_records
from scripts import ROOT, read

from arenarl.benchmarks import writing
from arenarl.benchmarks.benchmark import Intervals, Item, Scored
from arenarl.benchmarks.writing import DOMAINS, PART_OF, WEIGHTS, HelloBench, LongBenchWrite, WritingBench
from arenarl.system.errors import UserError


def means(benchmark, scored):
    figures = benchmark.figures(scored, Intervals(resamples=50))
    return {name: figure["mean"] for name, figure in figures.items()}


def test_writingbench_is_ten_times_the_mean_of_means_and_has_the_papers_domains(tmp_path):
    items = WritingBench().read(write_jsonl(tmp_path / "w.jsonl", writing_records(3)))
    scored = [Scored(item, [{"score": score}]) for item, score in zip(items, (6.2, 8.0, 7.0), strict=True)]
    assert means(WritingBench(), scored) == pytest.approx({"score": 70.6667, "WB-C": 80, "WB-E": 66}, abs=1e-3)


def checked(*points):
    return json.dumps([{"checklist_id": at, "reason": "{}", "evaluation_score": one} for at, one in enumerate(points)])


def test_hellobench_reads_a_fenced_list_and_scores_as_texts_and_refuses_wrong_lengths_or_levels():
    reply = f"<think>\n[{{}}]\n</think>\n```json\n{checked(1, '0.75', 0)}\n```"
    assert writing.read_checklist(reply, 3) == [1, 0.75, 0]
    wrong = (checked(1, 1), checked(1, 1, 0.6), checked(1, 1, 2), checked(1, 1, 1)[:-30], "none", checked(1, 1, 1, 1))
    for reply in wrong:
        with pytest.raises(ValueError):
            writing.read_checklist(reply, 3)


def test_hellobench_weights_of_every_category_sum_to_a_hundred():
    sums = {category: sum(weights) for part in WEIGHTS.values() for category, weights in part.items()}
    assert len(sums) == 38 and sums == pytest.approx(dict.fromkeys(sums, 100), abs=1e-3)
    assert {writing.weighted(name, [1] * len(WEIGHTS[PART_OF[name]][name])) for name in sums} == {100}


def test_hellobench_worked_by_hand():
    # keyword_writing: 16.2737, 27.3011, 15.7287, 18.814, 21.8826
    half_of_the_first = 100 - 16.2737 / 2
    assert writing.weighted("keyword_writing", [0.5, 1, 1, 1, 1]) == pytest.approx(half_of_the_first, abs=1e-3)
    scores = {"keyword_writing": half_of_the_first, "travel": 50.0, "Tech": 20.0}
    scored = [Scored(Item(c, "q", "en", {"category": c}), [{"score": s}]) for c, s in scores.items()]
    mean = (half_of_the_first + 35) / 2  # a part counts once, whatever its number of items
    expected = {"score": mean, "rescaled": 4 * (mean - 75), "QA": 35, "Heur.": half_of_the_first}
    assert means(HelloBench(), scored) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "line"),
    [({"category": "poem"}, "poem is none"), ({"checklists": ["a"]}, "has 1 items, but style_transfer has 5")],
)
def test_hellobench_refuses_records_without_weights(tmp_path, changed, line):
    record = {"id": "x_0", "category": "style_transfer", "chat_prompt": "Rewrite.", "checklists": list("abcde")}
    with pytest.raises(UserError, match=line):
        HelloBench().read(write_jsonl(tmp_path / "h.jsonl", [record | changed]))


def test_longbench_write_worked_by_hand():
    for required, written, score in (
        (100, 100, 100), (100, 250, 50), (100, 400, 0), (300, 200, 75), (300, 100, 0), (300, 0, 0)
    ):  # fmt: skip
        assert writing.length_score(required, written) == pytest.approx(score)
    names = ("relevance", "accuracy", "coherence", "clarity", "breadth_and_depth", "reading_experience")
    points = dict(zip(names, (5, 4, 3, 5, 4, 3), strict=True))
    figures = means(LongBenchWrite(), [Scored(Item("0", "q", "en", {"length": 100}), [{"words": 250, **points}])])
    assert figures["S_l"] == 50 and figures["S_q"] == 75 and figures["score"] == 62.5 and figures["coherence"] == 50
    assert writing.count_words("写一 two-fold 3 cats") == 5


def test_a_run_of_all_three_benchmarks_fills_table_4(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letters = [record | {"domain1": domain} for record, domain in zip(writing_records(6), DOMAINS, strict=True)]
    parts = {"open_ended_qa": "Science", "summarization": "news", "heuristic_text_generation": "story_writing"}
    for file, category in parts.items():
        checklist = [f"point {k}?" for k in range(len(WEIGHTS[PART_OF[category]][category]))]
        record = {"id": file, "category": category, "chat_prompt": f"On {category}.", "checklists": checklist}
        write_jsonl(tmp_path / "HelloBench" / f"{file}.jsonl", [record])
    requests = [{"prompt": f"Write {length} words.", "type": "Other", "length": length} for length in (4, 8)]
    wanted = [
        f"writingbench={write_jsonl(tmp_path / 'w.jsonl', letters)}", "hellobench=.",
        f"longbench_write={write_jsonl(tmp_path / 'l.jsonl', requests)}",
    ]  # fmt: skip
    run_here(ROOT, wanted, lambda body: "one two three four")
    hello, longbench = (
        read(tmp_path / f"runs/bench/benchmarks/{name}.json")["policies"]["closed"]["figures"]
        for name in ("hellobench", "longbench_write")
    )
    assert set(hello) == {"score", "rescaled", "QA", "Summ.", "Heur."}
    assert longbench["S_l"]["mean"] == 75  # 4 of 4 words, 4 of 8
    page = (tmp_path / "runs/bench/benchmarks/README.md").read_text()
    (row,) = [line for line in page.split("## ")[1].splitlines() if line.startswith("| closed")]
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    assert "not run" not in row and len(cells) == 11
    assert float(cells[-1]) == pytest.approx(sum(float(cell.split()[0]) for cell in cells[:-1]) / 10, abs=0.06)
