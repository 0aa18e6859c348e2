"""Comparing runs: paired differences, seeds, refusals, the table and the page."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from finished_run import Run

from arenarl.config.load import config_to_yaml
from arenarl.evaluation.evaluation import figures_of
from arenarl.evaluation.over_seeds import paired_difference
from arenarl.report.__main__ import main
from arenarl.report.comparison import EvaluatedRun, _differences, compare
from arenarl.report.summary import policies_of
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError
from arenarl.trajectory import read_jsonl, write_jsonl

INCOMPLETE = "rl_greedy.jsonl is missing, incomplete, .* run evaluate.py again"


@pytest.fixture(scope="module")
def root(tmp_path_factory, world, compact, taught):
    """Two runs of the same SFT policy with two seeds each."""
    root, queries = tmp_path_factory.mktemp("comparison"), [solved.query for solved in taught[::26]]
    for name, skill in (("one", 0.3), ("two", 0.9)):
        for seed in range(2):
            changes = ["results=runs", f"seed={seed}", f"rl.steps={20 if name == 'one' else 40}", "rl.eval_steps=20"]
            run = Run(root, world, compact, queries, False, name, changes, skill + 0.05 * seed)
            shutil.copytree(root / "results" / run.config.run_name, run.dir, dirs_exist_ok=True)
    return root


@pytest.fixture
def runs(root, tmp_path, monkeypatch):
    """A copy that a test may change."""
    shutil.copytree(root / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_difference_is_that_of_the_figures_with_a_paired_interval(runs):
    one, two = map(EvaluatedRun.read, ("one", "two"))
    summaries = [policies_of(run.summary) for run in (one, two)]
    for policy in one.cases:
        forth, back = _differences([one], [two], policy), _differences([two], [one], policy)
        for name, figure in forth.items():
            if name != "cases" and figure["mean"] is not None:
                means = [summary[policy][name]["mean"] for summary in summaries]
                assert figure["mean"] == pytest.approx(means[1] - means[0], abs=2e-3)
                assert back[name]["mean"] == -figure["mean"]
                if figure["ci"][0] is not None:
                    assert figure["ci"][0] <= figure["mean"] <= figure["ci"][1]
    same = _differences([one], [one], "rl sampled")  # pairing cancels what both share: no spread is left
    assert all(figure["mean"] in (0, None) for name, figure in same.items() if name != "cases")
    assert {figure["ci"][0] for name, figure in same.items() if name != "cases"} == {None}


def test_samples_and_invalid_trajectories_are_paired_by_query(runs):
    """Twice as many samples of each query, or another order of the cases, give the same difference."""
    one, two = map(EvaluatedRun.read, ("one", "two"))
    cases, other = two.cases["rl greedy"], [replace(case, is_subtracted=True) for case in one.cases["rl greedy"]]
    assert any(not case.trajectory.valid for case in cases)

    def figures(cases):
        found = figures_of(cases, 200, 0)
        return [value for name in found if name != "cases" for value in (found[name]["mean"], *found[name]["ci"])]

    expected = pytest.approx(figures([*cases, *other]), abs=2e-4)
    for more in ([*cases, *cases, *other], [*cases, *other[::-1]], [*cases, *other, *other]):
        assert figures(more) == expected


def test_a_case_of_several_runs_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report", "--compare", "one", "two", "--case"])
    with pytest.raises(SystemExit):
        main()
    assert "--case prints a group of one run; leave out --compare" in capsys.readouterr().err


def test_terminal_and_page_show_differences_and_curves(runs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report", "--compare", "one", "runs/two"])
    main()
    output, page = capsys.readouterr().out, (runs / "one" / "comparison.html").read_text()
    assert "two minus one" in output and "written: runs/one/comparison.html" in output
    assert "nothing about other seeds" in output and "nothing about other seeds" in page
    assert "Left out, because all runs have the same trajectories: sft sampled and sft greedy" in output
    difference = _differences(*[[EvaluatedRun.read(name)] for name in ("one", "two")], "rl sampled")["quality"]
    assert "{:+.1f} [{:+.1f}, {:+.1f}]".format(difference["mean"], *difference["ci"]) in output
    assert "win rate %, sampled, by optimizer step of RL" in output and "Learning curves" in page
    assert (runs / "one" / "figures" / "comparison.svg").is_file()


def test_seeds_are_paired_and_their_interval_is_over_seeds_and_a_copy_is_named_by_its_folder(runs):
    names = [f"{name}{suffix}" for name in ("one", "two") for suffix in ("", "-seed1")]
    comparison = compare(names)
    head, *rows = comparison.tables["rl greedy"]
    assert head[-1] == "two (2 seeds) minus one (2 seeds)"
    assert "over the differences of the seeds 0 and 1" in comparison.notes[0]
    means = [policies_of(EvaluatedRun.read(name).summary)["rl greedy"]["win_rate"]["mean"] for name in names]
    expected = paired_difference(np.reshape(means, (2, 2))[::-1])
    assert rows[0][-1] == "{:+.1f} [{:+.1f}, {:+.1f}]".format(expected["difference"], *expected["ci"])
    assert "differ only in their seed" in compare(names[:2]).notes[1]
    assert "a difference also contains what another seed changes" in compare(["one", "two-seed1"]).notes[1]
    with pytest.raises(UserError, match=r"seed by seed, but two \(2 seeds\) has 0 and 1 and one has 0; name runs of"):
        compare(names[:1] + names[2:])
    shutil.copytree(runs / "one", runs / "one-copy")
    assert list(compare(["one", "one-copy"]).curves) == ["one", "one-copy"]


def records(name, change):
    """Return a function that changes every record of these files of a run's evaluation."""

    def change_all(folder):
        for path in folder.glob(f"evaluate/{name}.jsonl"):
            write_jsonl(path, [change(record) for record in read_jsonl(path)])

    return change_all


def other_judge(folder):
    path = folder / "evaluate" / "config.yaml"
    config = EvaluatedRun.read(folder.name).config
    judge = replace(config.judge.eval[0], length_bias=3.0)
    path.write_text(config_to_yaml(replace(config, judge=replace(config.judge, eval=[judge]))))


def other_prompt(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary["provenance"]["judge_eval"] = [{"model": "m", "base_url": "u", "prompt": "abc", "date": "today"}]
    write_json(folder / "summary.json", summary)


def other_policies(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"checkpoints": ["mine"], "mine": summary["rl"]}
    write_json(folder / "summary.json", summary)
    for decoding in ("sampled", "greedy"):
        (folder / "evaluate" / f"rl_{decoding}.jsonl").rename(folder / "evaluate" / f"mine_{decoding}.jsonl")


@pytest.mark.parametrize(("change", "reason"), [
    (records("*_*", lambda record: record | {"query": record["query"] + "!"}),
     r"test queries differ \(\d+ of them, first .*data.folder"),
    (other_judge, r"judges differ \(judge.eval.0.length_bias .* → 3.0\)"),
    (other_prompt, "judges differ .*prompts.* → .*abc"),
    (records("baseline", lambda record: record | {"messages": record["messages"][:-1]}), "against other baselines"),
    (other_policies, "no policy has the same name"),
    # of an earlier version
    (records("rl_greedy", lambda record: {key: record[key] for key in record if key != "values"}), INCOMPLETE),
    (lambda folder: (folder / "evaluate" / "rl_greedy.jsonl").unlink(), INCOMPLETE),
    (lambda folder: (folder / "evaluate" / "baseline.jsonl").unlink(), "baseline.jsonl is missing .* evaluate.py"),
    (lambda folder: (folder / "summary.json").unlink(), "two has not been evaluated; run: python evaluate.py"),
    (shutil.rmtree, "two has not been evaluated"),
])  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused_in_one_line(runs, change, reason):
    change(runs / "two")
    with pytest.raises(UserError, match=reason) as refusal:
        compare(["one", "two"])
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="named twice"):
        compare(["one", "runs/one"])
