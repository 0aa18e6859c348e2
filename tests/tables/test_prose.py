"""Figures in the prose of docs/results.md and results/LOG.md, computed again from the stored runs.

Power comes from a generated table; other tests check it. Sentences on what is significant hold for the stars in STARS.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from arenarl.evaluation.over_seeds import mean_over_seeds
from arenarl.system.atomic_files import read_json
from arenarl.tables.documents import RIVALS
from arenarl.tables.rows import LATER_TABLES, TABLES, read_table
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


def by_dimension(table, row, part):
    """Return the mean win rate over the dimensions of the `path` or the `answer`, for each seed."""
    runs = read_runs(RESULTS / table)
    figures = [runs[row, seed]["by_dimension"] for seed in read_table(table).seeds]
    return np.array([np.mean([run[name]["win_rate"] for name in run if name.startswith(part)]) for run in figures])


def signal(row, *keys, table="collapse"):
    """Return a figure of `collapse` or `fig1` for each seed and step (5, 6) or (5, 4)."""
    values = []
    for (name, _), run in read_runs(RESULTS / table).items():
        if name == row:
            for step in run["discrimination"]:
                for key in keys:
                    step = step[key]
                values.append(step)
    return np.array(values).reshape(5, -1)


def test_what_the_judge_sees_is_most_of_table_3s_gap():
    seen = by_seed("table3", "pointwise") - by_seed("table3", "grpo")
    gap = by_seed("table3", "seeded_single_elimination") - by_seed("table3", "grpo")
    require(f"GRPO wins {interval(seen, 1)} more than by scores of the answer")
    require(f"of the {np.mean(gap):.1f} that ArenaRL is ahead")
    ours, other = (by_dimension("table3", row, "answer") for row in ("seeded_single_elimination", "grpo"))
    require(f"On the four of the answer alone, ArenaRL is {interval(ours - other, 1)} ahead of GRPO")


def test_the_set_up_names_distinct_trajectories_calls_and_invented_facts():
    rows = ("seeded_single_elimination", "pointwise_anchor")
    distinct = np.array([signal(row, "calls", "one_round", table="fig1").mean(axis=0) for row in rows])
    calls = {row["row"]: row["judge_calls"] / (40 * 8) for row in read_json(RESULTS / "table2" / "table.json")["rows"]}
    ours, pairs = calls["seeded_single_elimination"], calls["round_robin"]
    require(f"{distinct.min():.1f} to {distinct.max():.1f} are distinct")
    require(f"round robin makes {pairs:.0f} calls instead of 56, and the bracket {ours:.0f} instead of 24")
    require(f"the SFT policy invents {by_seed('table3', 'sft', 'invented_facts').mean():.0f} % of them")


def test_the_hours_of_the_tables_hold():
    def hours(name):
        return sum(run["seconds"]["total"] for run in read_runs(RESULTS / name).values()) / 3600 / 2

    text = re.search(r"less than an hour after SFT; (.*) take one to two hours, (.*) two to four", PROSE)
    medium, long = (set(re.findall(r"\w+", names.replace(" and ", " "))) for names in text.groups())
    assert all(1 < hours(name) < 2 for name in medium)
    assert all(2 < hours(name) < 4 for name in long)
    assert all(hours(name) < 1 for name in {*TABLES, *LATER_TABLES} - medium - long)


def test_grpo_and_gspo_improve_clearly_on_sft():
    require("**GRPO and GSPO** improve clearly on SFT")
    for row in ("grpo", "gspo"):
        assert mean_over_seeds(by_seed("table3", row) - by_seed("table3", "sft"))["ci"][0] > 3


def test_the_quickstart_rises_and_has_fewer_valid_samples_with_every_seed():
    require("the intervals of win rate, quality, grounded facts and constraints met do not overlap")
    require("Fewer sampled trajectories are valid")
    for seed in ("", "-seed1", "-seed2"):
        summary = read_json(RESULTS / f"quickstart{seed}" / "summary.json")
        for decoding in ("sampled", "greedy"):
            sft, rl = summary["sft"][decoding], summary["rl"][decoding]
            for figure in ("win_rate", "quality", "groundedness", "constraints_met"):
                assert rl[figure]["ci"][0] > sft[figure]["ci"][1]
        assert summary["rl"]["sampled"]["valid_rate"]["ci"][1] < summary["sft"]["sampled"]["valid_rate"]["ci"][0]


def test_fig_1_names_the_ratio_of_spread_and_noise():
    rows = ("seeded_single_elimination", "pointwise_anchor")
    ratios = np.array([signal(row, "trajectory", "snr", table="fig1").mean(axis=0) for row in rows])
    require(f"(SNR {ratios.min():.1f} to {ratios.max():.1f})")
    for row in rows:
        ranks, scores = (signal(row, "tau", way, "quality", table="fig1") for way in ("ranks", "as_many_calls"))
        assert np.all(ranks.mean(axis=0) > scores.mean(axis=0))
        spread = signal(row, "sigma_quality", table="fig1")
        low, high = mean_over_seeds(spread[:, 0] - spread[:, -1])["ci"]
        assert low < 0 < high


def test_collapse_names_the_loss_of_spread_and_of_accuracy():
    ours, scored = (signal(row, "sigma_quality") for row in ("collapse_arenarl", "collapse_pointwise"))
    falls = [interval(spread[:, 0] - spread[:, 1:].mean(axis=1), 2) for spread in (ours, scored)]
    require(f"by {falls[0]} in ArenaRL's, {falls[1]} in the score-trained one")
    ours, scored = (signal(row, "tau", "ranks", "quality") for row in ("collapse_arenarl", "collapse_pointwise"))
    ours, scored = (tau[:, 0] - tau[:, -1] for tau in (ours, scored))
    require(f"tau falls by {interval(ours, 2)} in ArenaRL's groups and by {interval(scored, 2)} in those")


def test_rewards_on_research_have_the_figures_of_their_rows():
    def rise(row):
        return tuple(f"{by_seed('table_research', name).mean():.1f}" for name in ("research_sft", row))

    require("raise the win rate from {} to {} %".format(*rise("research_tournament")))
    require("part of the second (win rate {} %)".format(rise("research_both")[1]))


def test_a_judge_without_results_lets_more_facts_be_invented():
    rows = [by_seed("ablations", row, "invented_facts") for row in ("without_results", "seeded_single_elimination")]
    require(f"{interval(rows[0] - rows[1], 1)} points more of the stated facts")


def test_the_trained_rows_of_fig_4c_ground_no_fact():
    rows = ("stopped_arenarl", "stopped_pointwise")
    [invented] = {f"{by_seed('fig4c', row, 'invented_facts').mean():.0f}" for row in rows}
    require(f"no fact in them is grounded, and {invented} % of the stated facts are invented")
    assert not any(by_seed("fig4c", row, "groundedness").any() for row in rows)


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


def test_no_interval_of_a_topology_reaches_further_than_the_prose_says(verdicts):
    pairs = [pair for pair in read_table("table2").pairs if "sft" not in pair]
    furthest = max(abs(bound) for pair in pairs for bound in verdicts[frozenset(pair)]["ci"])
    require(f"no interval reaches further than {furthest:.1f} points")


def test_one_step_ahead_names_the_largest_loss_of_its_interval():
    [comparison] = read_json(RESULTS / "table_ahead" / "table.json")["comparisons"]
    require(f"one of more than {-comparison['ci'][0]:.1f} points is unlikely")


STARS = {  # table -> all comparisons with a star, which the claims at the top and the sections name
    "table2": ["sft seeded_single_elimination"],
    "table3": [f"{row} seeded_single_elimination" for row in ("sft", "grpo", "gspo", "dr_grpo", "rubric_checklist")],
    "table3_research": ["research_sft research_arenarl"],
    "table4": ["writing_sft writing_arenarl"],
    "fig4a": [
        "sft seeded_single_elimination", "n2 seeded_single_elimination", "n2 sft", "n16 n16_k4", "n2_k32 n2"
    ],
    "collapse": [],
    "ablations": [],
    "noise": [],
    "noise_strength": ["tournament_noise_3 pointwise_noise_3"],
    "tournament_grpo": ["sft win_rate", "dr_grpo_implicit win_rate"],
    "table_methods": [],
    "table_rates": [
        *(f"{row} arenarl" for row in ("arenarl_half", "grpo_answer", "grpo_half", "grpo_double")),
        "grpo_half arenarl_half", "grpo_double arenarl_double",
    ],
    "table_research": [f"research_{row} research_sft" for row in ("correctness", "recall", "both")],
    "recall_bonus": ["recall_sft recall_0"],
    "table_retrievers": [
        "research_sft research_correctness", "retriever_sft research_correctness", "retriever_correctness retriever_sft"
    ],
    "table_credit": ["rubric_checklist arenarl_centered", "evolving_rubrics rubric_checklist"],
    "table_credit_babyai": ["credit_sft credit_grpo"],
    "table_gaming": [
        *(f"{row} scores" for row in ("tournament", "balanced", "scores_two_judges", "tournament_two_judges")),
        *(f"{row} scores" for row in ("scores_unbiased", "tournament_unbiased")), "scores scores_unbiased",
        "scores_ranks_unbiased scores", "scores_no_call_noise scores",
    ],
    "table_rankings": [],
    "table_ahead": [],
    "turns": [],
}  # fmt: skip


@pytest.mark.parametrize("name", STARS)
def test_the_prose_on_significance_rests_on_these_stars(name):
    comparisons = read_json(RESULTS / name / "table.json")["comparisons"]
    assert {" ".join(one["rows"]) for one in comparisons if one["is_beyond_chance"]} == set(STARS[name])


def test_the_tables_that_are_corrected_together_are_named():
    *names, last = [name for name in TABLES if read_table(name).figure == "win_rate"]
    require(f"The win rates of {', '.join(names)} and {last} are corrected together")


def test_about_half_of_the_comparisons_with_five_seeds_need_more_for_3_points():
    [power] = re.findall(r"<!-- power -->\n(.*?)\n<!-- /power -->", PROSE, re.DOTALL)
    lines = [line.split(" | ") for line in power.splitlines()[2:]]
    ten = {"table2", "table3", "fig4a"}
    needed = [int(line[3].split()[0]) for line in lines if not ten & set(line[1].split(", "))]
    require("for about half of their comparisons too few for 3 points")
    assert 0.4 <= np.mean([seeds > 5 for seeds in needed]) <= 0.6


def test_the_figures_on_credit_by_state():
    def more(row, other):
        pair = (by_seed("table_credit_babyai", one, "success") for one in (row, other))
        return interval(np.subtract(*pair), 1)

    require(f"raises success by {more('credit_grpo', 'credit_sft')} * points.")
    state = more("credit_gigpo", "credit_grpo"), more("credit_rtmc", "credit_grpo")
    require("GiGPO {}, RTMC {} points, although".format(*state))


def test_the_figures_on_gaming():
    def more(row, other, digits=1):
        return interval(by_seed("table_gaming", row, "quality") - by_seed("table_gaming", other, "quality"), digits)

    require(f"leave ArenaRL a lead of {more('tournament', 'scores_repeats')}, which is not significant.")
    require(f"scores rewarded by rank end as low as scores ({more('scores_ranks', 'scores', 2)} more).")
    alone = more("scores_no_call_noise", "scores"), more("tournament_no_call_noise", "scores_no_call_noise")
    require("scores keep {} * points more, and ArenaRL loses its lead over them ({}).".format(*alone))
    rows = ("scores", "tournament", "scores_unbiased", "tournament_unbiased")
    invented = [f"{by_seed('table_gaming', row, 'invented_facts').mean():.0f}" for row in rows]
    text = "{} % of the stated facts are invented and after biased tournaments {} %; without bias {} and {} %."
    require(text.format(*invented))
