"""A query before and after RL: the rule that chooses it, the accuracy of POI search, and text that cannot be markup."""

import re

import pytest

from arenarl.report.before_after import write_case
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, prompt_messages, write_jsonl
from arenarl.trajectory.messages import assistant_message


def record(number, outcomes, met, answer="a place", subtask="Search"):
    """Return a stored case; `met` is the percentage of conditions that its place meets."""
    query = Query(f"q{number}", "travel", subtask, "en", f"Find *one* | <b>{number}</b>.", {})
    messages = [*prompt_messages(query), assistant_message(f"<think>\nso\n</think>\n\n<answer>\n{answer}\n</answer>")]
    judged = {"outcomes": [outcomes], "values": {"quality": 5.0, "constraints_met": met}, "findings": {}}
    trajectory = Trajectory(query.query_id, messages, "answer").to_record()
    return trajectory | judged | {"subtask": subtask, "query": query.query}


def store(folder, before, after):
    for policy, records in (("sft", before), ("rl", after)):
        write_jsonl(folder / "evaluate" / f"{policy}_sampled.jsonl", records)


LOST, TIED, WON = [-1, -1], [0, 0], [1, 1]


@pytest.mark.parametrize(("after", "chosen"), [
    ([WON, TIED, LOST], 1),  # gains of 1, .5, 0
    ([LOST, LOST, LOST], 1),  # equal gains: the middle one in the test set's order
    ([WON, [1, None], TIED, LOST], 2),  # .5 in the middle of 1, 1, .5, 0: the lower median
    ([[None, None], WON, LOST], 2),  # without a verdict, a query does not count
])  # fmt: skip
def test_the_query_with_the_median_gain_is_shown(after, chosen, tmp_path):
    before = [record(number, LOST, 0.0) for number in range(len(after))]
    store(tmp_path, before, [record(number, outcomes, 100.0) for number, outcomes in enumerate(after)])
    path = write_case(tmp_path, tmp_path)
    assert path.read_text(encoding="utf-8").startswith(f"**Query q{chosen}, Search**")


def test_poi_search_counts_search_queries_whose_place_meets_every_condition(tmp_path):
    before = [
        record(0, LOST, 100.0),
        *(record(n, LOST, 80.0) for n in (1, 2, 3)),
        record(4, LOST, 0.0, subtask="1-Day"),
    ]
    after = [*(record(n, WON, 100.0) for n in (0, 1, 2)), record(3, WON, 50.0), record(4, WON, 100.0, subtask="1-Day")]
    store(tmp_path, before, after)
    text = write_case(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "meets every condition in 25.0 [0.0, 75.0] → 75.0 [25.0, 100.0] % of 4 Search queries." in text
    del after[0]["values"]["constraints_met"]  # a query counts only if both policies have the figure
    store(tmp_path, before, after)
    assert "% of 3 Search queries." in write_case(tmp_path, tmp_path).read_text(encoding="utf-8")


def test_restatement_is_over_all_answers_and_a_run_without_answers_has_none(tmp_path):
    before = [record(0, LOST, 0.0, "one place"), record(1, LOST, 0.0, "one"), record(2, LOST, 0.0, "")]
    after = [record(n, WON, 0.0, answer) for n, answer in enumerate(["Find one b 0", "two", "two"])]
    store(tmp_path, before, after)
    text = write_case(tmp_path, tmp_path).read_text(encoding="utf-8")
    # half and all words, and an answer without words; all of them, and twice none
    assert re.search(r"Restatement: 75\.0 \[.*\] → 33\.3 \[.*\] % .* in answers to 3 queries", text)
    store(tmp_path, [record(0, LOST, 0.0, "")], [record(0, WON, 0.0, "")])
    assert "Restatement" not in write_case(tmp_path, tmp_path).read_text(encoding="utf-8")


def test_foreign_text_stays_in_its_cell_and_a_run_without_both_policies_has_no_case(tmp_path):
    write_jsonl(tmp_path / "evaluate" / "rl_sampled.jsonl", [record(0, WON, 0.0)])
    assert write_case(tmp_path, tmp_path) is None
    hostile = "a | b\n<img src=x> [link](http://x) `code` **bold** <!-- /case -->"
    store(tmp_path, [record(0, LOST, 0.0, hostile)], [record(0, WON, 0.0, hostile)])
    lines = write_case(tmp_path, tmp_path).read_text(encoding="utf-8").splitlines()
    turn = next(line for line in lines if line.startswith("| turn 1 |"))
    assert turn.count("|") == 4 and not any(sign in turn for sign in ("<img", "<!--", "[link]", "`"))
    assert "a &#124; b<br>" in turn and turn.count("**") == 4


def test_cases_of_two_evaluations_or_of_an_earlier_version_are_refused(tmp_path):
    three = [record(number, LOST, 0.0) for number in range(3)]
    for after in (three[:2], [*three[:2], record(3, WON, 0.0)]):
        store(tmp_path, three, after)
        with pytest.raises(UserError, match="come from different evaluations; run evaluate.py again"):
            write_case(tmp_path, tmp_path)
    store(tmp_path, three, [{key: value for key, value in one.items() if key != "outcomes"} for one in three])
    with pytest.raises(UserError, match="written by an earlier version; run evaluate.py again"):
        write_case(tmp_path, tmp_path)
