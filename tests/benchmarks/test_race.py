"""RACE: official records, T / (T + R) worked by hand, unreadable replies, a whole run with the research tools."""

import json
from unicodedata import normalize

import pytest
from benchmark_files import run_here, write_jsonl
from scripts import ROOT, read

from arenarl.benchmarks.race import DIMENSIONS, RACE, race_score, read_points
from arenarl.system.errors import UserError

WEIGHTS = dict(zip(DIMENSIONS, (0.4, 0.3, 0.2, 0.1), strict=True))
CRITERIA = [
    {"criterion": "Breadth", "explanation": "how wide", "weight": 0.75},
    {"criterion": "Depth of it", "explanation": "how deep", "weight": 0.25},
]
CRITERIONS = dict.fromkeys(DIMENSIONS, CRITERIA)


def files_of(folder, count=2):
    tasks = [{"id": n, "prompt": f"Research topic {n}.", "language": "zh" if n % 2 else "en"} for n in range(count)]
    weighed, article = {"dimension_weight": WEIGHTS, "criterions": CRITERIONS}, "The reference. " * 20
    write_jsonl(folder / "data/prompt_data/query.jsonl", tasks)
    write_jsonl(folder / "data/criteria_data/criteria.jsonl", [task | weighed for task in tasks])
    references = [task | {"article": article} for task in tasks]
    write_jsonl(folder / "data/test_data/cleaned_data/reference.jsonl", references)
    return folder


def test_the_repository_and_its_query_file_are_read(tmp_path):
    items = RACE().read(files_of(tmp_path))
    assert [(item.item_id, item.language) for item in items] == [("0", "en"), ("1", "zh")]
    assert items[0].fields["reference"].startswith("The reference")
    assert RACE().read(tmp_path / "data/prompt_data/query.jsonl") == items


def test_a_task_without_reference_or_criteria_of_a_dimension_is_refused(tmp_path):
    path = files_of(tmp_path) / "data/test_data/cleaned_data/reference.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match=r"reference.jsonl: no record has the prompt of id 1"):
        RACE().read(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="without data/test_data/cleaned_data/reference.jsonl or reference.jsonl"):
        RACE().read(tmp_path)
    files_of(tmp_path)
    three = {name: CRITERIA for name in DIMENSIONS[:3]}
    record = {"prompt": "Research topic 0.", "dimension_weight": WEIGHTS, "criterions": three}
    write_jsonl(tmp_path / "data/criteria_data/criteria.jsonl", [record])
    with pytest.raises(UserError, match="line 1: criterions Dictionary should have at least 4 items"):
        RACE().read(tmp_path)
    free = [CRITERIA[0] | {"weight": 0}]
    for change in (
        {"dimension_weight": dict.fromkeys(DIMENSIONS, 0.0)},
        {"criterions": CRITERIONS | {"insight": free}},
    ):
        write_jsonl(tmp_path / "data/criteria_data/criteria.jsonl", [record | {"criterions": CRITERIONS} | change])
        with pytest.raises(UserError, match=rf"line 1: {next(iter(change))}\S* Value error, has only weights of 0"):
            RACE().read(tmp_path)


def test_criteria_belong_to_a_task_in_any_unicode_form(tmp_path):
    files_of(tmp_path)
    for kind, form in (("prompt_data/query", "NFC"), ("criteria_data/criteria", "NFD")):
        path = tmp_path / f"data/{kind}.jsonl"
        path.write_text(normalize(form, path.read_text().replace("topic", "café")))
    path = tmp_path / "data/test_data/cleaned_data/reference.jsonl"
    path.write_text(path.read_text().replace("topic", "café"))
    assert RACE().read(tmp_path)[1].query == "Research café 1."


def test_the_share_of_both_scores_worked_by_hand():
    points = dict.fromkeys(DIMENSIONS, [(8.0, 4.0), (4.0, 4.0)]) | {"readability": [(0.0, 0.0), (0.0, 0.0)]}
    # a dimension: article .75 * 8 + .25 * 4 = 7, reference 4; whole: .9 * 7 against .9 * 4
    expected = dict.fromkeys(("score", *DIMENSIONS), 7 / 11) | {"readability": 0}
    assert race_score(points, CRITERIONS, WEIGHTS) == pytest.approx(expected)


BREADTH, DEPTH = [{"criterion": one["criterion"], "article_1_score": 6, "article_2_score": 5.5} for one in CRITERIA]
SCORES = dict.fromkeys(DIMENSIONS, [BREADTH, DEPTH])


def points_of(scores):
    return read_points(f"```json\n{json.dumps(scores)}\n```", CRITERIONS)


def test_scores_are_matched_by_the_words_of_a_criterion():
    swapped = [
        {"criterion": "2. Depth of it", "article_1_score": 1, "article_2_score": 2},
        {"criterion": "breadth ", "article_1_score": 3, "article_2_score": 4},
    ]
    assert points_of(SCORES)["insight"] == [(6, 5.5)] * 2
    assert points_of(SCORES | {"insight": swapped})["insight"] == [(3, 4), (1, 2)]


@pytest.mark.parametrize(
    "insight",
    [[BREADTH], [BREADTH, DEPTH, BREADTH], [BREADTH | {"criterion": "Style"}, DEPTH],
     [BREADTH | {"article_1_score": 11}, DEPTH], None],
)  # fmt: skip
def test_a_missing_repeated_or_unknown_criterion_is_not_a_verdict(insight):
    with pytest.raises(ValueError):
        points_of({name: scores for name, scores in (SCORES | {"insight": insight}).items() if scores})


def test_a_whole_run_counts_failed_and_empty_responses(tmp_path, monkeypatch):
    def article(body):
        is_last = "topic 3" in body["messages"][-1]["content"]
        return f"<answer>\n{'' if is_last else 'Findings of note [1]. ' * 20}\n</answer>"

    monkeypatch.chdir(tmp_path)
    files_of(tmp_path, 4)
    asked, log = run_here(ROOT, ["race=."], article)
    entry = read(tmp_path / "runs/bench/benchmarks/race.json")["policies"]["closed"]
    assert {tool["function"]["name"] for body in asked for tool in body["tools"]} == {"search", "browse"}
    assert (entry["items"], entry["empty"], len(log)) == (4, 1, 4)
    assert set(entry["figures"]) == {"score", *DIMENSIONS}
    verdicts = [read(tmp_path / f"runs/bench/benchmarks/race/closed/{n}-0.json")["verdict"]["score"] for n in range(4)]
    assert verdicts[3] == 0 and entry["figures"]["score"]["mean"] == pytest.approx(100 * sum(verdicts) / 4, abs=1e-3)
    assert "[1]" not in log[0]["text"]  # equal articles: one call cleans them, one scores each
