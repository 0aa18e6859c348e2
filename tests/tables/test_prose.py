"""Figures in the prose of docs/results.md and results/LOG.md, computed again from the stored runs.

Stars and power come from generated tables; other tests check these.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from arenarl.evaluation.over_seeds import mean_over_seeds
from arenarl.system.atomic_files import read_json
from arenarl.tables.documents import RIVALS
from arenarl.tables.rows import TABLES, read_table
from arenarl.tables.store import read_runs

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PROSE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def require(text, document="docs/results.md"):
    assert text in (ROOT / document).read_text(encoding="utf-8"), f"{document} must say: {text}"


def interval(values, digits):
    """Return the mean over seeds with its 95 % interval as prose writes it: .42 [.06, .78]."""
    figures = mean_over_seeds(values)
    texts = [f"{figure:.{digits}f}" for figure in (figures["mean"], *figures["ci"])]
    mean, low, high = (re.sub(r"^(-?)0\.", r"\1.", text) for text in texts)
    return f"{mean} [{low}, {high}]"


def by_seed(table, row, figure="win_rate"):
    runs = read_runs(RESULTS / table)
    return np.array([runs[row, seed]["figures"][figure] for seed in read_table(table).seeds])


def signal(row, *keys):
    """Return a figure of `collapse` for each seed and step (5, 6)."""
    values = []
    for (name, _), run in read_runs(RESULTS / "collapse").items():
        if name == row:
            for step in run["discrimination"]:
                for key in keys:
                    step = step[key]
                values.append(step)
    return np.array(values).reshape(5, 6)


def test_what_the_judge_sees_is_most_of_table_3s_gap():
    seen = by_seed("table3", "pointwise") - by_seed("table3", "grpo")
    gap = by_seed("table3", "seeded_single_elimination") - by_seed("table3", "grpo")
    require(f"GRPO wins {interval(seen, 1)} more than by scores of the answer")
    require(f"of the {np.mean(gap):.1f} that ArenaRL is ahead")


def test_collapse_names_the_loss_of_spread_and_of_accuracy():
    ours, scored = (signal(row, "sigma_quality") for row in ("collapse_arenarl", "collapse_pointwise"))
    falls = [interval(spread[:, 0] - spread[:, 1:].mean(axis=1), 2) for spread in (ours, scored)]
    require(f"by {falls[0]} in ArenaRL's, {falls[1]} in the score-trained one")
    ours, scored = (signal(row, "tau", "ranks", "quality") for row in ("collapse_arenarl", "collapse_pointwise"))
    ours, scored = (tau[:, 0] - tau[:, -1] for tau in (ours, scored))
    require(f"tau falls by {interval(ours, 2)} in ArenaRL's groups and by {interval(scored, 2)} in those")
    require(f"the falls differ by {interval(ours - scored, 2)}")


def test_the_ranges_of_other_methods_and_rates_hold():
    means = {row: by_seed("table_methods", row).mean() for row in read_table("table_methods").rows}
    tournaments = [means.pop(row) for row in ("arenarl", "arenarl_lora", "dpo", "agentevol")]
    ranges = [f"{min(group):.0f} to {max(group):.0f} %" for group in (tournaments, means.values())]
    require(f"it wins {ranges[0]} by tournaments and {ranges[1]} by scores")
    rates = [("arenarl", "grpo_answer"), ("arenarl_half", "grpo_half"), ("arenarl_double", "grpo_double")]
    leads = [(by_seed("table_rates", ours) - by_seed("table_rates", other)).mean() for ours, other in rates]
    low, high = map(int, re.search(r"ArenaRL is (\d) to (\d) points ahead", PROSE).groups())
    assert low <= min(leads) <= max(leads) <= high


@pytest.fixture(scope="module")
def verdicts():
    stored = (read_json(RESULTS / name / "table.json") for name in TABLES)
    return {frozenset(figures["rows"]): figures for table in stored for figures in table["comparisons"]}


def test_the_log_counts_the_families_as_they_are(verdicts):
    figure_of = {frozenset(pair): read_table(name).figure for name in TABLES for pair in read_table(name).pairs}
    counts = Counter((figure_of[pair], verdict["family"]) for pair, verdict in verdicts.items())
    first, rest = counts["win_rate", "primary"], counts["win_rate", "secondary"]
    require(f"the {first} comparisons of win rates", "results/LOG.md")
    require(f"the other the remaining {rest}", "results/LOG.md")
    assert counts["success", "primary"] == counts["success", "secondary"] == 10
    require("success rates have two families of ten", "results/LOG.md")


def test_only_the_checklist_of_the_rivals_has_a_star(verdicts):
    stars = [row for row in RIVALS[1:] if verdicts[frozenset((row, RIVALS[0]))]["is_beyond_chance"]]
    assert stars == ["rubric_checklist"]


def test_noise_strength_has_one_star_close_to_the_threshold(verdicts):
    all_of_table = [verdicts[frozenset(pair)] for pair in read_table("noise_strength").pairs]
    [star] = [verdict for verdict in all_of_table if verdict["is_beyond_chance"]]
    require(f"(p = {star['p_holm']:.3f} after Holm's correction)".replace("0.", "."))


def test_no_topology_of_table_2_has_a_star(verdicts):
    pairs = [pair for pair in read_table("table2").pairs if "sft" not in pair]
    assert not any(verdicts[frozenset(pair)]["is_beyond_chance"] for pair in pairs)


@pytest.mark.parametrize("name", ["noise", "table3_research"])
def test_tables_called_without_significant_differences_have_none(name, verdicts):
    pairs = [pair for pair in read_table(name).pairs if "research_sft" not in pair]
    assert not any(verdicts[frozenset(pair)]["is_beyond_chance"] for pair in pairs)


def test_about_half_of_the_comparisons_with_five_seeds_need_more_for_3_points():
    [power] = re.findall(r"<!-- power -->\n(.*?)\n<!-- /power -->", PROSE, re.DOTALL)
    lines = [line.split(" | ") for line in power.splitlines()[2:]]
    ten = {"table2", "table3", "fig4a"}
    needed = [int(line[3].split()[0]) for line in lines if not ten & set(line[1].split(", "))]
    require("for about half of their comparisons too few for 3 points")
    assert 0.4 <= np.mean([seeds > 5 for seeds in needed]) <= 0.6
