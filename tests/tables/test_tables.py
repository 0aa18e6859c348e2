"""Tables: their YAMLs, how rows are run and stored, and the pages made of them."""

import json
import multiprocessing
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from scripts import is_running, wait_until

from arenarl.config.checks import check_groups
from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.domain import make_domain
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.evaluation.over_seeds import beyond_chance, mean_over_seeds
from arenarl.report.summary import HEADS
from arenarl.run.weights import start_record
from arenarl.studies.signal_figures import PROPERTIES, SIGNALS
from arenarl.system.atomic_files import read_json, write_json, write_lines
from arenarl.system.errors import UserError
from arenarl.tables import rows as tables
from arenarl.tables import runner, summary
from arenarl.tables.__main__ import main
from arenarl.tables.figures import against_axis, against_cost, learning_curves
from arenarl.tables.pages import method_table, scale_table, significant_rows, write_tables
from arenarl.tables.rows import LATER_TABLES, TABLES, new_seeds, read_table, runs_of
from arenarl.tables.store import FILE, read_runs, store_run
from arenarl.tables.summary import (
    check_equal_runs,
    compare_all,
    compare_with_stored,
    paired_figures,
    read_found,
    summary_of_table,
)

ROOT = Path(__file__).resolve().parents[2]


def roll_out_alike(runs):
    """Return a table's runs, which must train on equally many rollouts, whatever their updates per rollout."""
    rollouts = {run.row: run.trained.rl.rollouts for run in runs if run.checkpoint == "rl"}
    assert len(set(rollouts.values())) <= 1, f"set rl.steps so that all rows have equally many rollouts: {rollouts}"
    return runs


@pytest.mark.slow(seconds=9)
def test_every_row_can_run_on_one_process_and_rows_of_one_name_have_the_same_settings_and_cold_start():
    settings, starts = {}, set()
    for name in TABLES:
        table = read_table(name)
        for run in roll_out_alike(runs_of(name, table, [], [1])):
            check_groups(run.loaded, processes=1)
            assert run.loaded.seed == 1 and run.loaded.run_dir == Path(f"runs/tables/{run.row}-seed1")
            assert list(run.loaded.evaluate.checkpoints) == [run.checkpoint]
            assert settings.setdefault(run.row, run.settings) == run.settings, run.row
            starts.add((name, run.loaded.sft_policy.removeprefix("runs/tables/").removesuffix("-seed1/sft")))
        [quick] = runs_of(name, table, [run.row], [1], quick=True)
        check_groups(quick.loaded, processes=1)
    assert len({json.dumps(one) for one in settings.values()}) == len(settings) > 30
    cold_starts = {}
    for name in LATER_TABLES:
        for quick in runs_of(name, read_table(name), [], [1], quick=True):
            check_groups(quick.loaded, processes=1)
        for run in roll_out_alike(runs_of(name, read_table(name), [], [1])):
            check_groups(run.loaded, processes=1)
            start = cold_starts.setdefault(run.start.name, run.start)
            assert start == run.start  # tables of one SFT policy agree on it
    others = {"fig4c": "cold-start-stopped", "textcraft": "textcraft-cold-start", "babyai": "babyai-cold-start"}
    others |= dict.fromkeys(("table3_research", "recall_bonus"), "research-cold-start")
    assert starts == {(name, others.get(name, "cold-start")) for name in TABLES}


@pytest.fixture
def drawn():
    """Draw the figures of this test."""


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Write empty files in place of figures, which would take most of the time."""

    def touch(figure, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".png", ".svg"):
            path.with_suffix(suffix).touch()
        return path.with_suffix(".svg")

    for module in () if "drawn" in request.fixturenames else ("tables.figures", "studies.signal_figures"):
        monkeypatch.setattr(f"arenarl.{module}.save_figure", touch)


@pytest.fixture
def folder(tmp_path):
    """The folder of a table with two rows that are run and one with only the paper's figures."""
    (tmp_path / "own.yaml").write_text(
        "title: own\ncold_start: configs/quickstart.yaml\nseeds: [0, 1, 2]\npaper_columns: [mean]\nreference: one\n"
        "rows:\n  one: {label: One, config: configs/quickstart.yaml, paper: [32.5]}\n"
        "  other: {label: Other, config: configs/methods/swiss.yaml, at_scale: --config x.yaml}\n"
        "  closed: {label: Closed, paper: [2.6]}\n",
        encoding="utf-8",
    )
    return tmp_path


TABLE = "title: t\ncold_start: c.yaml\nreference: x\nrows: {x: {label: X, config: c.yaml}}"


def table_with(keys="", row=""):
    """Return `TABLE` with further keys of the table and of its row."""
    return f"{TABLE.replace('config: c.yaml', f'config: c.yaml{row}')}\n{keys}"


@pytest.mark.parametrize(("text", "message"), [
    ("rows: {x: {lable: X}}", "unknown key rows.x.lable; did you mean rows.x.label?"),
    ("", "title: is missing; also missing: cold_start, reference, rows$"),
    (TABLE.replace("label: X, ", "").replace("reference: x\n", ""), "reference: is missing; also missing: rows.x.l"),
    ("&a [*a]", "not valid YAML"),
    (table_with("seeds: many"), "seeds=many: must be a valid list"),
    (table_with("seeds: [-1]"), "seeds.0=-1: must not be below 0"),
    (table_with(), "seeds is empty; list the seeds that every row gets"),
    (table_with("paper_columns: [a, b]\nour_figures: [quality]"), "our_figures has 1 entries, paper_columns 2; name"),
    (table_with("paper_columns: [mean]", row=", paper: [1, 2]"), "row x: paper has 2 figures, paper_columns has 1"),
    (table_with("set: [rl.steps=4]"), "set=.*: must be a valid dictionary"),
    (table_with("comparisons: [[x, x, x]]"), "comparisons.0"),
    (table_with("comparisons: [[x, nobody]]"), "has no row nobody"),
    (table_with("comparisons: [[x, x]]"), "compares x with x; name two different rows that are run"),
    (TABLE.replace("{x:", "{y: {label: Y}, x:") + "\ncomparisons: [[x, y]]", "compares x with y; name two differ"),
    (table_with("primary: [[x, y]]"), "primary names x with y, which are not compared"),
    (TABLE.replace("reference: x", "reference: y"), "compares with y, but has no row y"),
    (TABLE.replace("{x:", "{../x:"), "rows: the name ../x may hold letters"),
    (table_with(row=", at: 1, series: s"), "row x: set both series and at, in a table with an axis"),
    (table_with("axis: a", row=", at: 1"), "row x: set both series and at"),
    (table_with("curve_panels: {M: [x, y]}"), "curve_panels, M: unknown row y"),
    (table_with(row=", policy_of: x"), "row x: policy_of is x, which trains no policy; name one of"),
    (table_with(row=", policy_of: y"), "row x: policy_of is y, which trains no policy"),
    (table_with(row=", policy_of: x, checkpoint: sft"), "row x trains nothing: policy_of, checkpoint: sft and measure"),
    (table_with("measure: onset", row=", policy_of: x"), "and measure exclude each other; leave one out"),
    (table_with("measure: discrimination", row=", checkpoint: sft"), "and measure exclude each other; leave one out"),
    (TABLE.replace("{x:", "{y: {label: Y, policy_of: x}, x:"), "row y has policy_of, but no config, so nothing would"),
])  # fmt: skip
def test_a_table_that_cannot_work_is_refused_in_one_line(text, message, tmp_path):
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        read_table("bad", tmp_path)
    assert "\n" not in str(error.value)


def test_an_unknown_table_row_or_seed_is_refused_with_the_known_ones(folder):
    for name in ("table9", "../quickstart", "", "x" * 300):
        with pytest.raises(UserError, match="does not exist; choose one of the tables table2, .*, table_ahead"):
            read_table(name)
    with pytest.raises(UserError, match="has no row swis; known: one, other, closed"):
        runs_of("own", read_table("own", folder), ["swis"], [])
    table = read_table("own", folder)
    table.rows["other"].set["rl.stepz"] = 4
    with pytest.raises(UserError, match=r"own.yaml, row other: .*unknown key rl.stepz; did you mean rl.steps\?"):
        runs_of("own", table, [], [])
    table.cold_start_set["sft.epochs"] = "many"
    with pytest.raises(UserError, match="own.yaml, the cold start: .*sft.epochs=many: must be a valid number"):
        runs_of("own", table, ["one"], [])
    with pytest.raises(UserError, match="row closed has only the paper's figures; there is nothing to run"):
        runs_of("own", read_table("own", folder), ["one", "closed"], [])
    with pytest.raises(UserError, match="seed -1: must be from 0"):
        runs_of("own", read_table("own", folder), [], [0, -1])


def result(run, win_rate, cpu="one", **figures):
    """Return a run's stored results: every figure is `win_rate`, except the given `figures`."""
    names = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")
    point = {"eval/sampled/win_rate": win_rate, "eval/sampled/success": win_rate, "eval/sampled/quality": 5.0}
    about = {"row": run.row, "seed": run.seed, "config": run.config, "judge": "simulated"}
    about |= {"seconds": {"total": 60.0}, "provenance": {"cpu": cpu}, "judge_calls": 1000}
    about |= {"settings": json.loads(json.dumps(run.settings)), "by_subtask": dict.fromkeys(SUBTASKS, win_rate)}
    curve = [{"step": step} | point for step in (0, 20)]
    return about | {"figures": dict.fromkeys(names, win_rate) | figures, "curve": curve}


def store(folder, results, win_rates):
    runs = runs_of("own", read_table("own", folder), [], [])
    for run in runs:
        if run.seed < len(win_rates[run.row]):
            store_run(results / run.table, result(run, win_rates[run.row][run.seed]))
    return runs


def keep(folder, is_wanted):
    write_lines(folder / FILE, [run for run in read_runs(folder).values() if is_wanted(run)])


def write(folder, results):
    return write_tables(["own"], {"own": read_table("own", folder)}, results)


def page_of(results, table="own"):
    return (results / table / "README.md").read_text(encoding="utf-8")


def change(folder, *replacements, add=""):
    """Change the text of own.yaml; return the table."""
    path = folder / "own.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(f"{text}{add}\n", encoding="utf-8")
    return read_table("own", folder)


def test_a_step_that_no_curve_reached_is_left_open(folder, tmp_path, drawn):
    change(folder, add="curve_steps: [20, 160]\ncurve_panels: {M: [one, other], G: [other]}")
    store(folder, tmp_path / "results", {"one": [50.0], "other": []})
    write(folder, tmp_path / "results")
    page = page_of(tmp_path / "results")
    assert "curve, step 20 % | curve, step 160 % |" in page and "| 50.0 | - |" in page
    assert "![curve_panels](curve_panels.png)" in page and (tmp_path / "results" / "own" / "curve_panels.svg").is_file()


@pytest.mark.parametrize("win_rates", [(None, None), (None, 50.0), ()])
def test_a_curve_without_the_tables_figure_stays_empty(folder, tmp_path, drawn, win_rates):
    """As in RL on queries without stored baselines; a figure may also be missing at single steps."""
    change(folder, add="curve_steps: [20, 160]\ncurve_panels: {M: [one, other]}")
    for run in runs_of("own", read_table("own", folder), [], [0]):
        found = result(run, 50.0)
        for point, win_rate in zip(found["curve"], win_rates or ("", ""), strict=True):
            point["eval/sampled/win_rate"] = win_rate
            if not win_rates:
                del point["eval/sampled/win_rate"]
        store_run(tmp_path / run.table, found)
    write(folder, tmp_path)
    assert f"| {'50.0' if 50.0 in win_rates else '-'} | - |\n" in page_of(tmp_path)
    assert (tmp_path / "own" / "curves.svg").is_file() and (tmp_path / "own" / "curve_panels.svg").is_file()


def test_a_table_has_means_intervals_and_significant_differences(folder, tmp_path, drawn):
    store(folder, tmp_path / "results", {"one": [50.0, 51.0, 52.0], "other": [61.0, 63.0, 62.0]})
    text = write(folder, tmp_path / "results")
    summary = read_json(tmp_path / "results" / "own" / "table.json")
    one, other, closed = summary["rows"]
    assert {"row", "config", "overrides", "seeds", "mean", "ci", "judge_calls", "seconds", "paper"} <= set(one)
    assert (one["mean"], one["ci"], one["prediction"]) == tuple(mean_over_seeds([50.0, 51.0, 52.0]).values())
    assert one["paper"] == {"mean": 32.5} and closed["seeds"] == [] and closed["mean"] is None
    difference = {"difference": 11.0, "ci": [8.5159, 13.4841], "p": 0.0027, "p_holm": 0.0027}
    difference |= {"is_beyond_chance": True, "family": "secondary"}
    assert summary["comparisons"] == [{"rows": ["other", "one"], "seeds": [0, 1, 2], **difference}]
    assert "| Other | `other` | 62.0 [59.5, 64.5] | +11.0 [+8.5, +13.5] * |" in text and "Closed" not in text
    page = page_of(tmp_path / "results")
    assert text in page and "| Other | - | not run | `--config x.yaml` |" in page
    assert (tmp_path / "results" / "own" / "win_rates.svg").is_file()


def test_a_table_that_compares_by_another_figure_is_a_family_of_its_own(folder, tmp_path):
    text = (folder / "own.yaml").read_text(encoding="utf-8")
    (folder / "second.yaml").write_text(
        text.replace("one:", "here:").replace("one\n", "here\n").replace("other:", "there:") + "figure: success\n"
    )
    tables = {name: read_table(name, folder) for name in ("own", "second")}
    success = {"one": [3.0] * 3, "other": [3.0] * 3, "here": [50.0, 51.0, 52.0], "there": [61.0, 63.0, 62.0]}
    for name, table in tables.items():
        for run in runs_of(name, table, [], []):
            figures = {"success": success[run.row][run.seed], "greedy_success": 70.0, "pass_at_4": 90.0}
            store_run(tmp_path / run.table, result(run, 40.0 + run.seed, **figures if name == "second" else {}))
    text = write_tables(["second"], tables, tmp_path)
    assert "| success % | minus One | greedy: success % | pass@4 % | quality 0-10 | judge calls | seeds |" in text
    assert "`there` | 62.0 [59.5, 64.5] | +11.0 [+8.5, +13.5] * | 70.0 [70.0, 70.0] | 90.0 [90.0, 90.0] | 41.0" in text
    [comparison] = read_json(tmp_path / "second" / "table.json")["comparisons"]
    assert comparison["p"] == comparison["p_holm"] == 0.0027  # the other table's comparison is not in this family
    assert (tmp_path / "second" / "success.svg").is_file()
    assert "all tables of success %" in page_of(tmp_path, "second")


def test_rows_without_all_seeds_of_their_table_count_as_a_comparison_and_have_no_star(folder, tmp_path):
    """Two of three seeds with nearly equal differences; a test of only these would give p = .003."""
    store(folder, tmp_path / "results", {"one": [50.0, 51.0], "other": [61.0, 62.1]})
    assert "| +11.1 [+10.4, +11.7] |" in write(folder, tmp_path / "results")
    [comparison] = read_json(tmp_path / "results" / "own" / "table.json")["comparisons"]
    assert comparison["p"] is None and comparison["p_holm"] is None and not comparison["is_beyond_chance"]
    # twice the uncorrected p
    assert beyond_chance({"them": ([50.0, 51.0, 52.0], [61.0, 63.0, 62.0]), "half": None})["them"]["p_holm"] == 0.0055
    assert beyond_chance({"half": None})["half"] == {"p": None, "p_holm": None, "is_beyond_chance": False}


def test_a_table_with_an_axis_draws_each_series_against_it_and_against_its_cost(folder, tmp_path, drawn):
    points = [(f"label: {label},", f"label: {label}, series: A, at: {at},") for label, at in (("One", 2), ("Other", 0))]
    table = change(folder, *points, add="axis: noise")
    store(folder, tmp_path / "results", {"one": [50.0, 51.0, 52.0], "other": [61.0]})
    write(folder, tmp_path / "results")
    summary = read_json(tmp_path / "results" / "own" / "table.json")
    for axes, figure in zip(against_axis(table, summary).axes, ("win_rate", "quality"), strict=True):
        assert axes.get_lines()[0].get_xydata().tolist() == [[0, 61.0], [2, 51.0]], figure
    assert against_cost(table, summary).axes[0].get_lines()[0].get_xydata().tolist() == [[1000, 61.0], [1000, 51.0]]
    table.rows["one"].panel = "p"  # the other row has no panel, so it is in all panels
    table.rows["third"] = replace(table.rows["one"], panel="q")
    drawn = [[len(line.get_xydata()) for line in axes.get_lines()[:1]] for axes in against_axis(table, summary).axes]
    assert drawn == [[2], [1], [2], [1]]
    assert "![axis](axis.png)\n\n![cost](cost.png)" in page_of(tmp_path / "results")
    # more series than line styles, and the first panel lacks the first one
    first, *others = (replace(table.rows["one"], series=f"{number}", panel="q") for number in range(7))
    table.rows |= {
        "one": first,
        "other": replace(others[0], panel="p"),
        **{f"more {row.series}": row for row in others},
    }
    more = [summary["rows"][0] | {"row": f"more {row.series}"} for row in others]
    figure = against_cost(table, summary | {"rows": [*summary["rows"], *more]})
    lines = {panel.get_title()[-1]: {line.get_label(): line for line in panel.get_lines()} for panel in figure.axes}
    assert list(lines["q"]) == list("0123456") and list(lines["p"]) == ["1"]
    assert {tuple(lines[panel]["1"].get_color()) for panel in "qp"} == {tuple(lines["q"]["1"].get_color())}
    assert len({tuple(line.get_color()) for line in lines["q"].values()}) == 7
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set("0123456")


def test_curves_of_finished_seeds_are_drawn_whichever_seed_is_not_finished(folder):
    points = [{"step": at, "eval/sampled/win_rate": 50.0 + at, "eval/sampled/quality": 5.0} for at in (0, 10, 20)]
    summary = {"judge": ["simulated"], "rows": []}
    for seeds in ([points[:2], points], [points, points[:2]]):
        figure = learning_curves({"one": seeds}, read_table("own", folder), summary)
        assert figure.axes[0].get_lines()[0].get_xydata().tolist() == [[0, 50], [0.5, 60], [1, 70]]


def test_seeds_after_the_first_five_form_a_replication_table(folder, tmp_path):
    table = change(folder, ("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3, 4, 5, 6]"))
    for run in runs_of("own", table, [], list(range(7))):
        win_rate = 50.0 if run.row == "one" else (51.0, 52.0, 53.0, 52.0, 52.0, 51.5, 50.5)[run.seed]
        store_run(tmp_path / "own", result(run, win_rate))
    text, page = write(folder, tmp_path), page_of(tmp_path)
    assert "| seeds 0 to 4 | later seeds |" in page
    assert "| Other minus One | +2.0 [+1.1, +2.9] | +1.0 [-5.4, +7.4] |" in page
    assert "later seeds" not in text
    keep(tmp_path / "own", lambda run: run["seed"] < 5)
    write(folder, tmp_path)
    assert "later seeds" not in page_of(tmp_path)


def test_a_line_before_the_work_names_seeds_that_the_table_does_not_list(folder):
    table = read_table("own", folder)
    assert new_seeds("own", table, []) == new_seeds("own", table, [2, 0]) == ""
    line = new_seeds("own", table, [1, 7, 8])
    assert (
        line.startswith("own has the seeds 0, 1, 2, not 7, 8: data and SFT are made if") and "add it to seeds" in line
    )


def test_a_seed_that_the_table_does_not_list_is_left_out_and_replaces_no_listed_seed(folder, tmp_path, capsys):
    """Adding seeds until a difference is significant would find one by chance."""
    win_rates = {"one": [50.0, 51.0, 52.0, 40.0], "other": [61.0, 63.0, 62.0, 80.0]}
    for run in runs_of("own", read_table("own", folder), [], list(range(4))):
        store_run(tmp_path / run.table, result(run, win_rates[run.row][run.seed]))
    text = write(folder, tmp_path)
    assert "| Other | `other` | 62.0 [59.5, 64.5] | +11.0 [+8.5, +13.5] * |" in text
    assert "own, other, seed 3 is left out: the table does not have this seed" in capsys.readouterr().out
    keep(tmp_path / "own", lambda run: (run["row"], run["seed"]) != ("one", 2))
    write(folder, tmp_path)
    [comparison] = read_json(tmp_path / "own" / "table.json")["comparisons"]
    assert comparison["seeds"] == [0, 1] and comparison["p"] is None


def test_the_figures_of_a_real_model_form_a_column_with_one_figure_per_seed(folder, tmp_path):
    with pytest.raises(UserError, match="row one has a real_run, but the table has no real_model"):
        change(folder, ("label: One,", "label: One, real_run: big,"))
    change(folder, add="real_model: Big-135M")
    runs, empty = tmp_path / "results", write(folder, tmp_path / "results")
    assert "| win rate %, Big-135M | paper, mean |" in empty and "| 0 | - | 32.5 |" in empty
    for name, seed, mean in (("big", 0, 40.31), ("big-seed1", 1, 38.8), ("bigger", 0, 99.0)):
        write_json(runs / name / "summary.json", {"seed": seed, "rl": {"sampled": {"win_rate": {"mean": mean}}}})
    assert "| 0 | 40.3, 38.8 | 32.5 |" in write(folder, runs)
    assert "Big-135M, trained by its own recipe with `./reproduce.sh real_model`, has one" in page_of(runs)


def test_a_row_that_any_table_has_finished_is_not_run_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "cpu", lambda: "one")
    run, *_ = runs_of("own", read_table("own", folder), [], [0])
    store_run(tmp_path / "elsewhere", result(run, 50.0, cpu="two"))  # its SFT policy is another
    assert runner.missing_runs([run], tmp_path) == [run]
    store_run(tmp_path / "another", result(run, 50.0, cpu="one"))
    assert runner.missing_runs([run], tmp_path) == [] and read_runs(tmp_path / "own") == read_runs(tmp_path / "another")
    changed = result(run, 50.0) | {"settings": {**run.settings, "rl.beta": 0.5}}
    for table in ("own", "another"):
        store_run(tmp_path / table, changed)
    assert runner.missing_runs([run], tmp_path) == [run]


def test_rows_of_a_seed_that_started_from_different_sft_policies_are_refused(folder, tmp_path, monkeypatch):
    table = read_table("own", folder)
    one, other = runs_of("own", table, [], [0])
    stored = result(one, 50.0) | {"provenance": {"sft_sha256": "before"}}
    store_run(tmp_path / "own", stored)
    calls = []
    monkeypatch.setattr(runner, "_cold_start", lambda *_: "now")
    monkeypatch.setattr(runner, "_call", lambda command, *_: calls.append(command))
    (failure,) = runner.run_all([one, other], tmp_path, workers=1)
    assert failure.startswith("other, seed 0: the stored row one started from another SFT policy") and not calls
    assert f"delete the lines of seed 0 in {tmp_path / 'own' / FILE}" in failure

    monkeypatch.setattr(runner, "cpu", lambda: "one")  # a finished run of another table is not mixed in either
    elsewhere = result(other, 60.0) | {"provenance": {"sft_sha256": "now", "cpu": "one"}}
    store_run(tmp_path / "another", elsewhere)
    assert runner.missing_runs([one, other], tmp_path) == [other]

    store_run(tmp_path / "own", elsewhere)
    with pytest.raises(UserError, match="rows one and other of seed 0 started from different SFT policies"):
        read_found("own", table, tmp_path)
    store_run(tmp_path / "own", stored | {"provenance": {}})  # an older run has no hash
    assert read_found("own", table, tmp_path)["one"]


def test_rows_that_run_again_and_copies_from_another_sft_policy_refuse_nobody(folder, tmp_path, monkeypatch):
    """After a change of the SFT's keys all stored rows are outdated, and a refused seed must run whole once its lines
    are deleted: a copy from the old policy would bring them back."""
    monkeypatch.setattr(runner, "cpu", lambda: "one")
    monkeypatch.chdir(tmp_path)
    one, other = runs = runs_of("own", read_table("own", folder), [], [0])

    def from_policy(run, sha256, **changes):
        return result(run, 50.0) | {"provenance": {"cpu": "one", "sft_sha256": sha256}} | changes

    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: "now")
    monkeypatch.setattr(runner, "_record", lambda run, _: from_policy(run, None))
    for run in runs:
        store_run(tmp_path / "own", from_policy(run, "before", settings={}))
    assert runner.run_all(runs, tmp_path, workers=1) == []
    assert {run["provenance"]["sft_sha256"] for run in read_runs(tmp_path / "own").values()} == {"now"}

    weights = Path(one.loaded.sft_policy) / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    present = runner._sft_hash(one)
    store_run(tmp_path / "another", from_policy(one, "before"))  # only the second table's run is from the policy here
    store_run(tmp_path / "third", from_policy(one, present))
    store_run(tmp_path / "another", from_policy(other, "before"))
    (tmp_path / "own" / FILE).unlink()
    assert runner.missing_runs(runs, tmp_path) == [other]
    assert read_runs(tmp_path / "own") == read_runs(tmp_path / "third")


def test_a_record_is_not_stored_in_a_table_whose_rows_have_another_sft_policy(folder, tmp_path, monkeypatch):
    run, other = runs_of("own", read_table("own", folder), [], [0])
    shared = replace(run, table="shared")
    stored = result(other, 50.0) | {"provenance": {"sft_sha256": "before"}}
    store_run(tmp_path / "shared", stored)
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: "now")
    monkeypatch.setattr(runner, "_record", lambda run, _: result(run, 60.0))
    monkeypatch.setattr(runner, "_unique", lambda _: [run])
    (failure,) = runner.run_all([run, shared], tmp_path, workers=1)
    assert failure.startswith("one, seed 0: the stored row other started from another SFT policy")
    assert list(read_runs(tmp_path / "own")) == [("one", 0)] and list(read_runs(tmp_path / "shared")) == [("other", 0)]


def test_a_row_copied_from_a_table_of_another_figure_has_no_subtasks(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "cpu", lambda: "one")
    run, *_ = runs_of("own", change(folder, add="figure: quality"), ["one"], [0])
    store_run(tmp_path / "another", result(run, 50.0, quality=5.0, cpu="one"))  # by_subtask has win rates
    assert runner.missing_runs([run], tmp_path) == []
    write(folder, tmp_path)
    one, *_ = read_json(tmp_path / "own" / "table.json")["rows"]
    assert one["mean"] == 5.0 and one["by_subtask"] == {}


def test_a_figure_that_only_some_runs_have_is_left_out(folder, tmp_path):
    for run in store(folder, tmp_path, {"one": [50.0, 51.0, 52.0], "other": []}):
        if (run.row, run.seed) in (("one", 0), ("one", 1)):
            store_run(tmp_path / run.table, result(run, 50.0 + run.seed, world_reward=0.5))
    write(folder, tmp_path)
    one, *_ = read_json(tmp_path / "own" / "table.json")["rows"]
    assert len(one["seeds"]) == 3 and "world_reward" not in one["figures"] and one["figures"]["quality"]["mean"] == 51.0


def test_fig1_shows_the_signals_of_each_step_as_means_over_seeds(folder, tmp_path):
    spread = {"groups": 7, "sigma_group": 2.0, "sigma_noise": 1.0, "snr": 2.0}
    for run in runs_of("own", change(folder, add="measure: discrimination"), ["one"], [0, 1]):
        tau = {signal: dict.fromkeys(PROPERTIES, 0.25 + 0.5 * run.seed) for signal in SIGNALS}
        row = {"sigma_quality": 1.5, "trajectory": spread, "answer": spread, "calls": {"one_round": 5.5}, "tau": tau}
        rows = [{"step": step} | row for step in (0, 10)]
        store_run(tmp_path / run.table, result(run, 60.0 + run.seed) | {"discrimination": rows})
    text = write(folder, tmp_path)
    same = (f"{value:.2f} [{value:.2f}, {value:.2f}]" for value in (5.5, 7.0, 1.5, 2.0, 1.0, 2.0))  # of both seeds
    assert f"| One | 10 | {' | '.join(same)} | 0.50 [-2.68, 3.68] |" in text
    stored = read_runs(tmp_path / "own")["one", 1]
    for spread in (stored["discrimination"][1]["trajectory"], stored["discrimination"][1]["answer"]):
        spread.update(groups=0, sigma_group=None, sigma_noise=None, snr=None)
    store_run(tmp_path / run.table, stored)
    text = write(folder, tmp_path)
    assert "| One | 10 | 5.50 [5.50, 5.50] | 3.50 [-40.97, 47.97] | 1.50 [1.50, 1.50] | - | - | - | 0.50" in text
    assert (tmp_path / "own" / "signal_one.svg").is_file() and "signal_one.png" in page_of(tmp_path)


def test_a_gaming_table_has_the_training_score_and_the_onset(folder, tmp_path, monkeypatch):
    """Truth falls from the fourth of 8 watched steps in one row, and rises in the other, whose runs have no tokens."""
    sets = {"judge.watch_share": 1.0, "judge.watch.noise": "none"}
    with pytest.raises(UserError, match="own, row one: measure: onset needs judge.watch_share above 0"):
        runs_of("own", change(folder, add="measure: onset\nfigure: quality"), [], [])
    change(folder, add=f"set: {json.dumps(sets)}")
    assert "not run | not run | - | - | 0 |" in write(folder, tmp_path)
    rising, peak = [0.0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 2.5, 2, 1.5, 1.0]
    for run in runs_of("own", read_table("own", folder), [], []):
        if (run.row, run.seed) == ("one", 2):
            assert "| 6.5 [6.5, 6.5] | needs 3 seeds | 1,000 | 2.5M | 2 |" in write(folder, tmp_path)
        truth = peak if run.row == "one" else rising
        series = {"step": list(range(0, 16, 2)), "training": rising, "watching": truth}
        tokens = {"judge_tokens": 2_500_000} if run.row == "one" else {}
        store_run(tmp_path / run.table, result(run, 5.0 + run.seed) | {"onset": series} | tokens)
    text = write(folder, tmp_path)
    assert text.count("quality 0-10") == 1 and "| judge.train's score 0-10 | onset, step |" in text
    assert "| 6.5 [6.5, 6.5] | 6 [6, 6] | 1,000 | 2.5M | 3 |" in text
    assert "| 6.5 [6.5, 6.5] | none (0 %) | 1,000 | - | 3 |" in text
    assert "If fewer than 95 % have one, the cell says `none`" in page_of(tmp_path)
    assert "| row | quality 0-10 | Direction, quality 0-10 |" in page_of(tmp_path)  # not in percent
    onset = {"step": 3, "ci": [2.5, 8.0], "share": 0.96}  # 4 % of the samples have none of the 8 steps
    monkeypatch.setattr("arenarl.tables.summary.onset_of_gaming", lambda *scores: dict(onset))
    assert "| 6 [5, none] |" in write(folder, tmp_path)


def test_a_run_without_watched_scores_fails_and_seeds_without_a_common_step_have_no_onset(
    folder, tmp_path, monkeypatch
):
    sets = {"judge.watch_share": 1.0, "judge.watch.noise": "none"}
    change(folder, add=f"measure: onset\nfigure: win_rate\nset: {json.dumps(sets)}")
    runs = runs_of("own", read_table("own", folder), ["one"], [])
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for run in runs:
        score = None if run.seed == 0 else 5.0  # the watching judge was silent with the first seed
        record = {"step": run.seed, "scores": [score], "judged": [6.0], "agreement": None}
        write_lines(run.loaded.run_dir / "rl" / "watch.jsonl", [record])
        write_json(run.loaded.results_dir / "summary.json", summary_with(50.0))
    (failure,) = runner.run_all(runs, tmp_path / "results", workers=1)
    assert failure.startswith("one, seed 0: no trajectory has scores of judge.train and judge.watch (runs/tables/own/")
    assert [key[1] for key in read_runs(tmp_path / "results" / "own")] == [1, 2]
    assert "not run" in write_tables(["own"], {"own": read_table("own", folder)}, tmp_path / "results")


def test_primary_comparisons_stand_on_the_page_before_any_run(folder, tmp_path):
    change(folder, add="primary: [[other, one]]")
    write(folder, tmp_path)
    assert "papers' claims name, here: `other` minus `one`. All others are secondary" in page_of(tmp_path)


def test_again_compares_with_the_same_seed_or_with_the_prediction_interval(folder, tmp_path):
    stored, again = tmp_path / "results", tmp_path / "again"
    store(folder, stored, {"one": [50.0, 51.0, 52.0], "other": []})
    write(folder, stored)
    for seed, win_rate in ((0, 50.0), (1, 53.0), (2, 53.0), (7, 51.5), (8, 70.0)):
        [run] = runs_of("own", read_table("own", folder), ["one"], [seed])
        store_run(again / run.table, result(run, win_rate, cpu="another" if seed == 2 else "one"))
    [run] = runs_of("own", read_table("own", folder), ["one"], [9])
    for place, steps in ((stored, 7), (again, 8)):
        run_of_steps = result(run, 50.0)
        run_of_steps["settings"]["rl.steps"] = steps
        store_run(place / "own", run_of_steps)
    *lines, other_settings = compare_with_stored("own", again, stored, "win_rate", {}).splitlines()
    assert "not compared: the stored run was run with rl.steps at 7" in other_settings
    ends = ["all figures are equal", "different", "different, perhaps because", "inside", "outside"]
    assert all(line.rpartition(": ")[2].startswith(end) for line, end in zip(lines, ends, strict=True))
    assert "the stored run had another CPU (one; this is another)" in lines[2]
    there = {("own", "one", 0): Path("its/folder")}
    first, *rest = compare_with_stored("own", again, stored, "win_rate", there).splitlines()
    how = f"delete its line in {again / 'own' / FILE} and its/folder"
    assert f"equal; not run now, but earlier at commit None: to run it again, {how}" in first
    assert rest[:-1] == lines[1:]


@pytest.mark.parametrize(("table", "folder"), [("fig1", "runs/again"), ("table_ahead", "runs/again/table_ahead")])
def test_again_names_the_folder_of_an_earlier_run_of_any_seed_and_table(table, folder, monkeypatch):
    there = {}
    monkeypatch.setattr(runner, "missing_runs", lambda *_: [])
    monkeypatch.setattr(runner, "run_all", lambda *_: [])
    monkeypatch.setattr(summary, "compare_with_stored", lambda *given: there.update(given[-1]))
    for seed in (0, 1):
        monkeypatch.setattr(sys, "argv", ["tables", table, "--again", "--seed", f"{seed}"])
        main()
    folders = [f"{folder}/{row}{'-seed1' * seed}" for _, row, seed in there]
    assert folders and list(map(str, there.values())) == folders


def test_the_pages_equal_what_results_render_with_all_stored_runs(tmp_path, capsys):
    shutil.copytree(ROOT / "results", tmp_path, dirs_exist_ok=True)
    write_tables(TABLES, {name: read_table(name) for name in TABLES}, tmp_path)
    for name in TABLES:
        for file in ("table.json", "README.md"):
            written, committed = (place / name / file for place in (tmp_path, ROOT / "results"))
            assert written.read_bytes() == committed.read_bytes(), f"./reproduce.sh {name}"
    assert "left out" not in capsys.readouterr().out


def test_a_seed_that_was_run_with_other_settings_is_left_out_with_a_log_line(folder, tmp_path, capsys):
    runs = store(folder, tmp_path, {"one": [50.0, 51.0, 52.0], "other": [61.0, 63.0, 62.0]})
    [run] = [run for run in runs if (run.row, run.seed) == ("other", 1)]
    stored = result(run, 99.0)
    without = {key: value for key, value in stored["settings"].items() if key != "tournament.topology"}
    for settings, reason in (
        (stored["settings"] | {"rl.steps": 7}, "it was run with rl.steps at 7, the row has "),
        (without, "at its default, the row has swiss"),
    ):
        store_run(tmp_path / run.table, stored | {"settings": settings})
        found = read_found("own", read_table("own", folder), tmp_path)
        out = capsys.readouterr().out
        assert out.count("left out") == 1 and out.startswith("own, other, seed 1 is left out: ") and reason in out
        assert {row: list(seeds) for row, seeds in found.items()} == {"one": [0, 1, 2], "other": [0, 2], "closed": []}


@pytest.fixture
def two_tables(folder):
    """`own`, and `second` with the same two rows, compared the other way round as primary, and a third row."""
    text = (folder / "own.yaml").read_text(encoding="utf-8")
    text = text.replace("reference: one", "reference: other\nprimary: [[one, other]]")
    third = "  third: {label: Third, config: configs/methods/balanced.yaml}\n"
    (folder / "second.yaml").write_text(text + third, encoding="utf-8")
    return folder


def test_a_comparison_of_two_tables_counts_once_and_has_one_verdict(two_tables, tmp_path):
    tables = {name: read_table(name, two_tables) for name in ("own", "second")}
    win_rates = {"one": [50.0, 51.0, 52.0], "other": [61.0, 63.0, 62.0], "third": [61.0, 61.5, 62.4]}
    for name, table in tables.items():
        for run in runs_of(name, table, [], []):
            store_run(tmp_path / run.table, result(run, win_rates[run.row][run.seed]))
    found = {name: read_found(name, table, tmp_path) for name, table in tables.items()}
    verdicts = compare_all(tables, found)
    assert {tuple(sorted(rows)): verdict["family"] for rows, verdict in verdicts.items()} == {
        ("one", "other"): "primary", ("other", "third"): "secondary"
    }  # fmt: skip
    assert all(verdict["p_holm"] == verdict["p"] for verdict in verdicts.values())  # each is alone in its family
    summaries = [summary_of_table(name, table, found[name], verdicts) for name, table in tables.items()]
    [own], [second, _] = (summary["comparisons"] for summary in summaries)
    turned = {"difference": -second["difference"], "ci": [-end for end in second["ci"][::-1]]}
    assert own == second | {"rows": ["other", "one"]} | turned


def test_a_row_with_fewer_seeds_is_shown_with_their_number_and_not_tested(folder, tmp_path):
    table = read_table("own", folder)
    for run in runs_of("own", table, [], []):
        if run.row == "one" or run.seed == 0:
            store_run(tmp_path / "own", result(run, 50.0 + run.seed))
    found = {"own": read_found("own", table, tmp_path)}
    summary = summary_of_table("own", table, found["own"], compare_all({"own": table}, found))
    cells = [line.split(" | ") for line in method_table(table, summary, tmp_path).splitlines()]
    assert "seeds |" in cells[0] and sorted(line[-1] for line in cells[2:]) == ["1 |", "3 |"]
    assert significant_rows(table, summary).startswith("3 seeds per row; rows with fewer are not tested.")


def test_the_standings_tell_a_lost_star_from_a_difference_that_could_be_zero():
    table, names = read_table("table3"), ["grpo", "gspo", "balanced", "ruler", "brpo"]
    differences = {"grpo": (-6, True), "gspo": (3, True), "balanced": (2, False), "ruler": (-2, False)}
    comparisons = []
    for name in names:
        difference, has_star = differences.get(name, (-0.5, False))
        figures = {"rows": [name, table.reference], "seeds": table.seeds, "difference": difference}
        comparisons.append(figures | {"ci": [difference - 1, difference + 1], "is_beyond_chance": has_star})
    rows = [{"row": name, "label": row.label, "seeds": table.seeds, "paper": None} for name, row in table.rows.items()]
    assert significant_rows(table, {"rows": rows, "comparisons": comparisons}).startswith(
        "10 seeds per row. After Holm's correction, ArenaRL is significantly ahead of GRPO, score of the answer, and "
        "behind GSPO, score of the answer. Only before that correction, it is ahead of 1 more and behind 1 more, whose "
        "interval excludes 0. With these seeds, it is not distinguishable from the other 1."
    )
    clear = significant_rows(table, {"rows": rows, "comparisons": comparisons[:-1]})
    assert "interval excludes 0. In the paper: " in clear and "not distinguishable" not in clear


def test_different_figures_of_the_same_run_in_two_tables_are_an_error_with_both_files(two_tables, tmp_path):
    tables = {name: read_table(name, two_tables) for name in ("own", "second")}
    for name, win_rate in (("own", 50.0), ("second", 49.0)):
        [run] = runs_of(name, tables[name], ["one"], [1])
        store_run(tmp_path / run.table, result(run, win_rate))
    message = "own/rows.jsonl and second/rows.jsonl have different figures of row one, seed 1; delete one"
    with pytest.raises(UserError, match=message):
        write_tables(["own"], tables, tmp_path)
    [run] = runs_of("second", tables["second"], ["one"], [1])
    own = read_runs(tmp_path / "own")["one", 1]
    store_run(tmp_path / "second", own | {"figures": own["figures"] | {"new_figure": 52.0}})  # an older run lacks it
    check_equal_runs({name: read_found(name, table, tmp_path) for name, table in tables.items()})


def test_a_seed_of_two_kinds_of_cpu_is_one_seed_with_the_mean_difference(two_tables, tmp_path):
    tables = {name: read_table(name, two_tables) for name in ("own", "second")}
    win_rates = {"own": {"one": 50.0, "other": 54.0}, "second": {"one": 51.0, "other": 53.0, "third": 60.0}}
    for name, of_row in win_rates.items():
        for run in runs_of(name, tables[name], list(of_row), [0, 1]):
            cpu = "B" if (name, run.seed) == ("second", 1) else "A"
            figures = of_row if cpu == "B" else win_rates["own"] | {"third": 61.0}
            store_run(tmp_path / name, result(run, figures[run.row]) | {"provenance": {"cpu": cpu}})
    found = {name: read_found(name, table, tmp_path) for name, table in tables.items()}
    check_equal_runs(found)
    figures = {pair: verdict["figures"] for pair, verdict in compare_all(tables, found).items()}
    assert figures[frozenset({"one", "other"})] == {"one": {0: 50.0, 1: 50.5}, "other": {0: 54.0, 1: 53.5}}
    # `third` was only run beside `second`'s rows, so it is compared with these
    assert figures[frozenset({"other", "third"})] == {"other": {0: 54.0, 1: 53.0}, "third": {0: 61.0, 1: 60.0}}
    del found["second"]["other"][1]
    assert paired_figures(frozenset({"other", "third"}), tables, found)["third"] == {0: 61.0}


def test_a_line_that_is_not_a_run_is_an_error_with_its_number(folder, tmp_path):
    [run] = runs_of("own", read_table("own", folder), ["one"], [1])
    stored, path = result(run, 50.0), tmp_path / "own" / FILE
    wrong = [None, [], {}, {"row": "one", "seed": 1}, stored, stored | {"seed": "0"}, stored | {"row": ["one"]}]
    for text in ('{"row": "one", "se', *map(json.dumps, wrong)):
        write_lines(path, [stored])
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
        with pytest.raises(UserError, match="own/rows.jsonl, line 2 "):
            read_runs(tmp_path / "own")
        path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\r\n\r\n"))
        with pytest.raises(UserError, match="own/rows.jsonl, line 4 "):  # blank lines count, as in an editor
            read_runs(tmp_path / "own")


STORE = """
import sys
from pathlib import Path
from arenarl.tables.store import store_run
run = dict.fromkeys(("settings", "figures", "by_subtask", "judge_calls", "curve", "seconds", "judge"), "x" * 20_000)
for seed in range(10_000):
    store_run(Path(sys.argv[1]), run | {"row": sys.argv[2], "seed": seed % 20})
    print(seed, flush=True)
"""


def test_two_processes_that_are_killed_lose_no_finished_run(tmp_path):
    command = [sys.executable, "-c", STORE, str(tmp_path)]
    writers = {row: subprocess.Popen([*command, row], cwd=ROOT, stdout=subprocess.PIPE, text=True) for row in "ab"}
    finished = {row: [int(writer.stdout.readline()) for _ in range(6)] for row, writer in writers.items()}
    for writer in writers.values():
        writer.kill()
        writer.communicate()
    assert read_runs(tmp_path).keys() >= {(row, seed) for row, seeds in finished.items() for seed in seeds}


def test_a_new_run_updates_the_pages_of_other_tables_with_the_same_comparison(two_tables, tmp_path):
    tables = {name: read_table(name, two_tables) for name in ("own", "second")}
    store(two_tables, tmp_path, {"one": [50.0, 51.0, 52.0], "other": [61.0, 63.0, 62.0]})
    pages = [tmp_path / name / "table.json" for name in tables]
    write_tables(["own"], tables, tmp_path)
    before = read_json(pages[0])["comparisons"]
    assert before[0]["family"] == "primary" and not pages[1].is_file()
    tables["second"].seeds.append(3)
    for row, win_rate in (("one", 51.0), ("other", 70.0)):
        [run] = runs_of("second", tables["second"], [row], [3])
        store_run(tmp_path / run.table, result(run, win_rate))
    text = write_tables(["second"], tables, tmp_path)
    own, second = (read_json(page)["comparisons"][0] for page in pages)
    assert own["p"] == second["p"] != before[0]["p"] and own["seeds"] == second["seeds"] == [0, 1, 2, 3]
    assert own["difference"] == -second["difference"] == 13.0
    assert "(4 seeds)" in page_of(tmp_path) and "seeds)" not in text
    assert "claims name, here: `one` minus `other`. All" in page_of(tmp_path, "second")


def test_a_run_that_fails_is_named_at_once_and_the_others_go_on(folder, tmp_path, monkeypatch, capsys):
    """One script that fails for one row replaces the real ones; `.ci/run` runs a real table."""
    text = "import sys\nprint('error: no luck')\nsys.exit('swiss' in ' '.join(sys.argv))\n"
    (tmp_path / "fails.py").write_text(text, encoding="utf-8")
    trained = []

    def train_and_evaluate(run, cold_start, *_):
        cold_start.result()
        trained.append(run.row)
        command = [sys.executable, str(tmp_path / "fails.py"), run.config]
        runner._call(command, tmp_path / f"{run.row}.txt", f"{run.row}, seed {run.seed}")
        return result(run, 60.0)

    monkeypatch.setattr(runner, "_train_and_evaluate", train_and_evaluate)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    runs = runs_of("own", read_table("own", folder), [], [0, 1])
    failures = runner.run_all(runs, tmp_path / "results", workers=2)
    assert failures == [f"other, seed {seed}: error: no luck ({tmp_path / 'other.txt'})" for seed in (0, 1)]
    shown = capsys.readouterr().out
    assert all(shown.count(failure) == 1 for failure in failures)
    assert sorted(trained) == ["one", "one", "other", "other"]
    assert runner.run_all([run for run in runs if run.row == "one"], tmp_path / "results", 2) == []
    assert len(trained) == 4


def test_a_seed_that_is_named_twice_runs_once(folder):
    table = change(folder, ("seeds: [0, 1, 2]", "seeds: [0, 1, 0]"))
    assert [run.seed for run in runs_of("own", table, ["one"], [])] == [0, 1]
    assert [run.seed for run in runs_of("own", table, ["one"], [5, 5])] == [5]


def test_a_measure_that_fails_is_a_failed_run_and_one_without_groups_is_refused_before_the_work(
    folder, tmp_path, monkeypatch
):
    def measure(config):
        raise UserError("no groups")

    monkeypatch.setattr("arenarl.studies.signal_and_noise.measure", measure)
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    runs = runs_of("own", change(folder, add="measure: discrimination"), ["one"], [0, 1])
    for run in runs:
        write_json(run.loaded.results_dir / "summary.json", summary_with(50.0))
    failures = runner.run_all(runs, tmp_path / "results", workers=1)
    assert failures == ["one, seed 0: no groups", "one, seed 1: no groups"]
    with pytest.raises(UserError, match="own, row one: measure: discrimination needs rl.eval_steps above 0"):
        runs_of("own", change(folder, add="set: {rl.eval_steps: 0}"), [], [])


@pytest.mark.parametrize(("end", "expected"), [
    ("print('no \\udcff luck', flush=True); sys.exit(2)", "row: no \ufffd luck"),
    ("print('50 %', flush=True); os.kill(os.getpid(), 9)", "row: killed by signal 9"),
])  # fmt: skip
def test_a_script_that_is_killed_or_prints_other_bytes_than_utf_8_is_a_failed_run(tmp_path, end, expected):
    start = "import os, sys; sys.stdout.reconfigure(errors='surrogateescape');"
    with pytest.raises(runner._RunFailed, match=f"^{expected} "):
        runner._call([sys.executable, "-c", f"{start} {end}"], tmp_path / "log.txt", "row")


@pytest.mark.parametrize(("figure", "figures", "message"), [
    ("succes", {"win_rate": {"mean": 50.0}, "success": {"mean": 60.0}}, "no figure succes; it has win_rate, success"),
    ("win_rate", {"win_rate": {"mean": None}, "score": {"mean": 5.0}},
     "no figure win_rate; it has score; a win rate needs stored baselines and verdicts"),
])  # fmt: skip
def test_a_figure_that_evaluation_lacks_is_an_error_with_the_known_ones(
    folder, tmp_path, monkeypatch, figure, figures, message
):
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    table = replace(read_table("own", folder), figure=figure)
    [run] = runs_of("own", table, ["one"], [0])
    write_json(run.loaded.results_dir / "summary.json", {"rl": {"sampled": figures}})
    (failure,) = runner.run_all([run], tmp_path / "results", workers=1)
    assert failure == f"one, seed 0: evaluation has {message}" and read_runs(tmp_path / "results" / "own") == {}
    table.set = {"evaluate.decodings": ["greedy"]}
    with pytest.raises(UserError, match="row one: evaluate.decodings lacks sampled"):
        runs_of("own", table, ["one"], [0])


def summary_with(mean):
    """Return a summary with two criteria and two judges of one model."""
    figure = {"mean": mean, "ci": [None, None]}
    dimension = {"win_rate": {"mean": mean + 1}, "win_rate_valid": {"mean": mean + 2}}
    dimensions = dict.fromkeys(("answer_depth", "answer_clarity"), dimension)
    figures = {"win_rate": figure, "win_rate_valid": {"mean": mean + 2}, "valid_rate": {"mean": 90.0}, "by_subtask": {}}
    sampled = figures | {"by_dimension": dimensions, "by_judge": [{"mean": mean - 1}, {"mean": mean + 1}]}
    about = {"seconds": {"total": 60.0}, "peak_memory_gb": 1.0, "judge": "simulated", "provenance": {}}
    return {"rl": {"sampled": sampled}} | about


def test_a_run_keeps_its_criteria_and_judges_and_the_page_has_the_papers_columns(folder, tmp_path, monkeypatch):
    columns = ("[mean]", "[depth, mean]\nour_figures: [answer_depth, win_rate_valid]")
    table = change(folder, columns, ("[32.5]", "[31.0, 32.5]"), ("[2.6]", "[2.0, 2.6]"), ("[0, 1, 2]", "[0]"))
    table.set = {"judge.eval": [{"name": "embedded"}, {"name": "embedded"}]}
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    [run, other] = runs_of("own", table, [], [])
    write_json(run.loaded.results_dir / "summary.json", summary_with(50.0))
    assert runner.run_all([run], tmp_path / "results", workers=1) == []
    [found] = read_runs(tmp_path / "results" / "own").values()
    assert found["by_dimension"]["answer_depth"] == {"win_rate": 51.0, "win_rate_valid": 52.0}
    assert found["figures"]["win_rate_valid"] == 52.0
    assert found["by_judge"] == {"embedded 1": 49.0, "embedded 2": 51.0}
    store_run(tmp_path / "results" / "own", result(other, 61.0))  # stored before
    short = write_tables(["own"], {"own": table}, tmp_path / "results")
    assert "| seeds | win rate % of valid | paper, mean |" in short
    assert "| 1 | 52.0 | 32.5 |" in short and "| 1 | - | - |" in short
    page = page_of(tmp_path / "results")
    assert "| row | win rate % | win rate %, embedded 1 | win rate %, embedded 2 |" in page
    assert "| One | 50.0 | 49.0 | 51.0 |" in page
    assert "| One | here | 52.0 | 52.0 |\n| One | paper | 31 | 32.5 |\n| Other | here | - | - |" in page
    assert "| Closed | paper | 2 | 2.6 |" in page
    assert "Rows with `-` in a column were stored before that figure was kept" in page


def test_a_row_with_the_policy_of_another_evaluates_it_with_settings_of_its_own(folder, tmp_path, monkeypatch):
    table = read_table("own", folder)
    table.rows["crossed"] = replace(table.rows["one"], policy_of="other", set={"rollout.temperature": 0.5})
    own, other, crossed = runs_of("own", table, [], [0])
    assert runs_of("own", table, ["crossed"], [0]) == [crossed]  # the other row itself is not asked for
    assert crossed.training == other.options and crossed.loaded.evaluate == other.loaded.evaluate
    theirs = {key: value for key, value in crossed.settings.items() if key.startswith("trained.")}
    assert theirs == {"trained.tournament.topology": "swiss", "trained.rollout.temperature": 0.8}
    assert not any(key.startswith("trained.") for run in (own, other) for key in run.settings)

    calls, fails = [], []

    def call(command, log, name):
        calls.append((command[1], *command[2:], str(log.parent)))
        if command[1] == "train_rl.py":
            time.sleep(0.05)
            if fails:
                raise runner._RunFailed(f"{name}: out of memory")

    monkeypatch.setattr(runner, "_call", call)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for run in (other, crossed):
        write_json(run.loaded.results_dir / "summary.json", summary_with(50.0))
    assert runner.run_all([crossed, other], tmp_path / "results", workers=2) == []
    place = "runs/tables/own"
    assert sorted(calls) == sorted([
        ("train_rl.py", *other.options, f"{place}/other"),
        ("evaluate.py", *other.options, f"{place}/other"), ("evaluate.py", *crossed.options, f"{place}/crossed"),
    ])  # fmt: skip
    assert crossed.loaded.evaluate.checkpoints == {"rl": f"{place}/other/rl"}

    calls.clear()
    fails.append("")
    (failure,) = runner.run_all([crossed, other], tmp_path / "again", workers=2)
    assert failure.endswith("seed 0: out of memory") and len(calls) == 1  # no second try, neither after Ctrl-C


def test_the_training_of_another_row_or_of_earlier_settings_does_not_count_as_a_rows_own(folder, tmp_path, monkeypatch):
    """A row that evaluates another's policy with that row's settings is the same run, and takes its cost of training.
    RL that a row was trained by before its YAML changed is refused."""
    table = read_table("own", folder)
    table.rows["twin"] = replace(table.rows["one"], policy_of="one")
    table.rows["crossed"] = replace(table.rows["one"], policy_of="other")
    table.rows["sft"] = replace(table.rows["one"], checkpoint="sft")
    own, _, twin, crossed, sft = runs_of("own", table, [], [0])
    assert [run.trains for run in (own, twin, crossed, sft)] == [True, False, False, False]
    assert runner._unique([own, twin]) == [own] and runner._unique([twin]) == [twin]
    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for run in (own, crossed, sft):
        write_json(run.loaded.results_dir / "summary.json", summary_with(50.0))
        write_json(run.loaded.run_dir / "rl" / "timing.json", {})
    failures = runner.run_all([own, twin, crossed, sft], tmp_path / "results", workers=1)
    assert [failure.partition(",")[0] for failure in failures] == ["crossed", "sft"]
    assert all("rl holds RL that the row no longer has" in failure for failure in failures)
    assert list(read_runs(tmp_path / "results" / "own")) == [("one", 0), ("twin", 0)]


def test_a_row_with_changed_code_of_the_user_is_another_row_whose_earlier_rl_is_refused(
    folder, own_modules, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    module = "own_of_a_row:reward"
    own_modules({"own_of_a_row.py": "def reward(query, trajectories, judge): return [1.0]\n"})
    table = read_table("own", folder)
    table.rows["one"] = replace(table.rows["one"], set={"reward.name": module})
    [before] = runs_of("own", table, ["one"], [0])
    rl, earlier = before.loaded.run_dir / "rl", before.settings
    write_json(rl / "start.json", asdict(start_record(before.loaded, "rl", {}, None)))
    own_modules({"own_of_a_row.py": "def reward(query, trajectories, judge): return [2.0]\n"})
    [now] = runs_of("own", table, ["one"], [0])
    changed = {key for key in now.settings if now.settings[key] != earlier[key]}
    assert changed == {f"the code of {module}"}

    monkeypatch.setattr(runner, "_call", lambda *_: None)
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    write_json(now.loaded.results_dir / "summary.json", summary_with(50.0))
    [failure] = runner.run_all([now], tmp_path / "results", workers=1)
    assert failure.endswith(f"rl was trained with an earlier version of the code of {module}; delete it")
    (rl / "start.json").write_text("{", encoding="utf-8")
    [failure] = runner.run_all([now], tmp_path / "results", workers=1)
    assert failure.startswith("one, seed 0: ") and "start.json is damaged" in failure
    shutil.rmtree(rl)
    assert runner.run_all([now], tmp_path / "results", workers=1) == []


def test_an_edit_of_the_users_prompts_makes_a_row_another_run(folder, tmp_path):
    table, prompts = read_table("own", folder), tmp_path / "prompts" / "judge_en.yaml"
    table.rows["one"] = replace(table.rows["one"], set={"prompts.folder": str(prompts.parent)})
    prompts.parent.mkdir()
    settings = []
    for text in ("Be strict.", "Be mild."):
        prompts.write_text(f"system: {text}\n")
        settings += [run.settings for run in runs_of("own", table, ["one"], [0])]
    earlier, now = settings
    assert {key for key in now if now[key] != earlier[key]} == {"prompts.folder's judge_en.yaml"}


def test_our_figures_name_subtasks_figures_or_criteria_of_the_tables_domain():
    for name in (*TABLES, *LATER_TABLES):
        table = read_table(name)
        config = load_config(table.cold_start, as_overrides(table.cold_start_set))
        domain = make_domain(config.environment, config.data)
        known = {*domain.subtasks, *HEADS, *domain_rubric(domain.name, "en").names}
        assert {figure for figure in table.our_figures if figure} <= known, name


def test_two_rows_with_the_same_settings_share_a_run_under_both_names(folder, tmp_path, monkeypatch):
    table = read_table("own", folder)
    table.rows["twin"] = replace(table.rows["one"], label="Twin")
    runs = runs_of("own", table, ["one", "twin"], [0])
    trained = []
    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.setattr(runner, "_train_and_evaluate", lambda run, *_: trained.append(run.row) or result(run, 60.0))
    assert runner.run_all(runs, tmp_path, workers=1) == [] and len(trained) == 1
    assert list(read_runs(tmp_path / "own")) == [("one", 0), ("twin", 0)]
    assert runner.run_all(runs, tmp_path, workers=1) == [] and len(trained) == 1


@pytest.mark.parametrize("axis", [False, True])
def test_a_table_over_queries_without_a_truth_has_a_page_without_true_quality(folder, tmp_path, axis):
    if axis:
        change(folder, ("label: One", "label: One, series: s, at: 1"), add="axis: of noise")
    for run in runs_of("own", read_table("own", folder), [], [0]):
        found = result(run, 50.0)
        found["figures"].pop("quality")
        for point in found["curve"]:
            point.pop("eval/sampled/quality")
        store_run(tmp_path / "results" / run.table, found)
    assert "| - |" in (page := write(folder, tmp_path / "results")) and "not run" not in page
    assert not (tmp_path / "results" / "own" / "cost.svg").exists()


def test_a_failed_cold_start_is_named_once_and_fails_the_rows_of_its_seed(folder, tmp_path, monkeypatch):
    def cold_start(run):
        if run.seed == 0:
            raise runner._RunFailed("seed 0: error: no luck")

    monkeypatch.setattr(runner, "_cold_start", cold_start)
    monkeypatch.setattr(
        runner, "_train_and_evaluate", lambda run, cold_start, *_: cold_start.result() or result(run, 60.0)
    )
    runs = runs_of("own", read_table("own", folder), [], [0, 1])
    assert runner.run_all(runs, tmp_path, workers=1) == ["seed 0: error: no luck"]
    assert list(read_runs(tmp_path / "own")) == [("one", 1), ("other", 1)]


def test_rows_of_one_name_that_fail_in_two_tables_are_both_in_the_last_line(folder, tmp_path, monkeypatch):
    def train_and_evaluate(run, *_):
        raise runner._RunFailed(f"{run.row}, seed {run.seed}: no luck in {run.table}")

    monkeypatch.setattr(runner, "_cold_start", lambda *_: None)
    monkeypatch.setattr(runner, "_train_and_evaluate", train_and_evaluate)
    [run] = runs_of("own", read_table("own", folder), ["one"], [0])
    runs = [run, replace(run, table="second", loaded=replace(run.loaded, threads=2))]
    failures = [f"one, seed 0: no luck in {name}" for name in ("own", "second")]
    assert runner.run_all(runs, tmp_path, workers=1) == failures


def test_a_users_table_copies_finished_runs_and_is_a_family_of_its_own(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "results/table2", tmp_path / "results/table2", ignore=lambda *_: ["table.json"])
    (tmp_path / "configs" / "tables" / "mine.yaml").write_text(
        "base: settings.yaml\ntitle: mine\nreference: swiss\nrows:\n"
        "  swiss: {label: Swiss, config: configs/methods/swiss.yaml}\n  anchor: {label: anchor, config: "
        "configs/methods/anchor.yaml}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "cpu", lambda: "AMD EPYC, AVX512")  # the stored runs' CPU
    monkeypatch.setattr(sys, "argv", ["tables", "mine"])
    main()
    printed = capsys.readouterr().out
    assert "| Swiss |" in printed and printed.endswith("\nwritten: results/mine/README.md\n")
    (comparison,) = read_json(tmp_path / "results" / "mine" / "table.json")["comparisons"]
    assert comparison["p_holm"] == comparison["p"]
    page = page_of(tmp_path / "results", "mine")
    assert "in this table of win rate %" in page and "The paper says" not in page
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"mine", "table2"}
    assert not (tmp_path / "results/table2/table.json").exists()


@pytest.mark.parametrize(
    ("name", "row", "is_launched"), [("table2", "swiss", False), ("textcraft", "textcraft_grpo", True)]
)
def test_a_cold_start_uses_the_launcher_if_it_needs_deepspeed(name, row, is_launched, monkeypatch):
    calls = []
    monkeypatch.setattr(runner, "_call", lambda command, *_: calls.append(command))
    [run] = runs_of(name, read_table(name), [row], [0])
    runner._cold_start(run)
    data, sft = calls
    assert "data/prepare.py" in data and "train_sft.py" in sft and ("arenarl.run.launch" in sft) == is_launched


def test_tables_share_the_run_that_measures_more():
    [table2] = runs_of("table2", read_table("table2"), ["seeded_single_elimination"], [0])
    [fig1] = runs_of("fig1", read_table("fig1"), ["seeded_single_elimination"], [0])
    [swiss] = runs_of("table2", read_table("table2"), ["swiss"], [0])
    assert runner._unique([fig1, table2, swiss]) == runner._unique([table2, swiss, fig1][::-1]) == [fig1, swiss]


SCRIPT = """
import os, pathlib, sys, time
from arenarl.system.errors import run_cli

def main():
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)

run_cli(main)
"""


def test_a_script_ends_when_its_table_is_killed(tmp_path):
    """Otherwise it would still use the folder that a restart needs."""
    pid, command = tmp_path / "pid", [sys.executable, "-c", SCRIPT, str(tmp_path / "pid")]
    fork = multiprocessing.get_context("fork")  # a table without the seconds of its imports
    table = fork.Process(target=runner._call, args=(command, tmp_path / "log", "script"))
    table.start()
    wait_until(lambda: pid.is_file() and pid.read_text())
    table.kill()
    table.join()
    wait_until(lambda: not is_running(int(pid.read_text())))


# an LLM's noise is not an option
@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("name", sorted({*TABLES, *LATER_TABLES} - {"noise", "noise_strength"}))
def test_options_at_the_papers_scale_load_and_have_names_of_their_own(name):
    lines = [line for line in scale_table(read_table(name)).splitlines() if "--config" in line]
    options = [shlex.split(line.split("`")[1]) for line in lines]
    names = [load_config(words[1], words[3::2]).name for words in options]
    changed = [run_name for run_name, words in zip(names, options, strict=True) if "--set" in words]
    assert names and len(set(changed)) == len(changed)


def test_settings_contain_changed_keys_but_no_folders():
    table = read_table("table2")
    [run] = runs_of("table2", table, ["swiss"], [0])
    [quick] = runs_of("table2", table, ["swiss"], [0], folder="quick", quick=True)
    assert run.settings["tournament.topology"] == "swiss" and run.settings["rl.steps"] == 40
    assert "name" not in run.settings and "results" not in run.settings
    assert dict(tables._changes({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 0}, "d": 4})) == {"a.c": 2, "d": 3}
    assert quick.settings["rl.steps"] == 4


def test_an_sft_with_other_settings_than_the_row_is_part_of_the_settings(folder):
    """Otherwise a table with its own cold start would copy runs that started from another one."""
    text = (folder / "own.yaml").read_text(encoding="utf-8")
    text = text.replace("configs/quickstart.yaml\nseeds", "configs/cold.yaml\nseeds")
    keys = "data: {sft_size: 100}\nrl: {steps: 7}\nrollout: {max_turns: 3}\n"  # SFT reads the first
    (folder / "cold.yaml").write_text(f"base: {ROOT}/configs/quickstart.yaml\n{keys}", encoding="utf-8")
    (folder / "other.yaml").write_text(text.replace("configs/cold.yaml", str(folder / "cold.yaml")), encoding="utf-8")
    [own], [other] = (runs_of(name, read_table(name, folder), ["other"], [0]) for name in ("own", "other"))
    assert other.settings == own.settings | {"cold_start.data.sft_size": 100}
    assert str(own.loaded.run_dir) == "runs/tables/own/other"  # a user's table has its own folders


def test_a_smoke_test_repeats_no_stored_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tables", "table2", "--quick", "--again"])
    with pytest.raises(SystemExit):
        main()
    assert "--again: not allowed with argument --quick" in capsys.readouterr().err


def test_the_page_of_a_smoke_test_says_so_and_names_its_command(folder, tmp_path):
    table = change(folder, add="quick: {seeds: [0]}")
    write_tables(["own"], {"own": table}, tmp_path / "results")
    write_tables(["own"], {"own": table}, tmp_path / "quick", "quick", quick=True)
    whole, quick = page_of(tmp_path / "results"), page_of(tmp_path / "quick")
    assert "./reproduce.sh own`; do" in whole and "own --again" in whole and "smoke test" not in whole
    assert "./reproduce.sh own --quick`; do" in quick and "own --again" not in quick and "A smoke test: " in quick


def test_a_smoke_test_without_seeds_is_refused_with_the_lines_to_add(folder, monkeypatch):
    """With `--seed` it would run, and then not count the seed."""
    monkeypatch.setattr("arenarl.tables.__main__.read_table", lambda name: read_table(name, folder))
    for words in ([], ["--seed", "0"]):
        monkeypatch.setattr(sys, "argv", ["tables", "own", "--quick", *words])
        with pytest.raises(UserError, match=r"own.yaml has no seeds for --quick; add quick: {seeds: \[0\], set: "):
            main()


@pytest.mark.parametrize(("arguments", "message"), [
    (["table2", "table3", "--row", "nonsense"], "no row nonsense in table2, table3"),
    (["table3", "--row", "gpt_4o"], "row gpt_4o has only the paper's figures; there is nothing to run"),
])  # fmt: skip
def test_a_row_that_no_named_table_can_run_is_refused(arguments, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables", *arguments])
    with pytest.raises(UserError, match=message):
        main()
