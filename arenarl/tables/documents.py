"""Fills in the generated parts of README and docs, each between its markers, from results/ and the schema.

python -m arenarl.tables.documents
"""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from arenarl.benchmarks.page import TABLES as PAPER_TABLES
from arenarl.benchmarks.page import over_runs
from arenarl.plan import scale
from arenarl.report import markdown
from arenarl.report.conclusion import print_conclusion
from arenarl.report.summary import format_figure, heading, listed, print_table, read_summaries
from arenarl.studies import data_pipeline, fidelity, judge_reliability, noise_grid, rivals
from arenarl.studies.gpu_check import results_table as gpu_table
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import run_cli
from arenarl.tables.config_keys import config_tables
from arenarl.tables.pages import STANDINGS, beside_paper, method_table, short_table, significant_rows, standing
from arenarl.tables.power import power_table
from arenarl.tables.public_interface import interface_page
from arenarl.tables.rows import LATER_TABLES, TABLES, Table, read_table

Leads = dict[float, dict[str, Any] | None]  # place on the axis -> the comparison there; None if runs are missing
Part = Callable[[Path], str]  # renders a generated part from results/; 'not run' without results

# columns of ROWS, RESEARCH_ROWS and WRITING_ROWS
TRAVEL = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")
RESEARCH = (
    "win_rate_valid", "valid_rate", "accuracy", "pass_at_4", "entity_recall", "facts_covered", "quality", "tool_calls",
)  # fmt: skip
WRITING = ("win_rate", "quality", "valid_rate", "constraints_met", "length_of_asked")
# folder of results/, -seedN appended for other seeds -> method, config; rows of the papers' tables are not listed here
ROWS = {
    "quickstart": ("ArenaRL, seeded single elimination", "configs/quickstart.yaml"),
    "quickstart-noise-free": ("ArenaRL, trained with a judge that makes no errors", "configs/methods/noise_free.yaml"),
}
REAL_ROWS = {
    "smollm2-untouched": ("untouched", "configs/travel/smollm2_135m_untouched.yaml"),
    "smollm2": ("ArenaRL", "configs/travel/smollm2_135m.yaml"),
    "smollm2-grpo": ("GRPO, pointwise score of the trajectory", "configs/travel/smollm2_135m_grpo.yaml"),
    "smollm2-balanced": ("balanced matches, ranked by scores (ours)", "configs/travel/smollm2_135m_balanced.yaml"),
    "smollm2-schemas": ("SFT with the tools' schemas in the prompt", "configs/travel/smollm2_135m_schemas.yaml"),
}
RIVALS = (  # rows of table3: the tournament, as many scores, rivals
    "seeded_single_elimination", "balanced", "pointwise_matched", "ruler", "brpo", "mixture", "elo", "rubric_checklist"
)  # fmt: skip
RESEARCH_ROWS = {
    "research": ("closed by correctness, open-ended by tournament", "configs/research/quickstart.yaml"),
}
QUALITY_ROWS = {
    "data-quality-inspected": ("SFT on inspected trajectories", "configs/data/quality_inspected.yaml"),
    "data-quality-uninspected": ("SFT on uninspected trajectories", "configs/data/quality_uninspected.yaml"),
}
WRITING_ROWS = {
    "writing": ("ArenaRL", "configs/writing/quickstart.yaml"),
    "writing-length": ("ArenaRL, trained with a judge that rewards length", "configs/writing/quickstart_length.yaml"),
}


def quickstart_ending(results: Path) -> str:
    """Return the last lines that `./reproduce.sh quickstart` prints, from its summary."""
    summary, printed = read_json(results / "quickstart" / "summary.json"), io.StringIO()
    if not summary:
        return "    not run"
    with redirect_stdout(printed):
        print_table(summary)
        print("written: runs/quickstart/summary.json, trajectories in runs/quickstart/evaluate")
        print("written: runs/quickstart/report.html")
        print("written: runs/quickstart/case.md")
        print_conclusion(Path("runs/quickstart"), Path("runs/quickstart"), summary)
    return "\n".join(f"    {line}".rstrip() for line in printed.getvalue().splitlines())


def worth_sentence(table: Table, summary: dict[str, Any]) -> str:
    """Return README's sentence on when a tournament is worth its calls.

    It lists the levels of judge noise at which ArenaRL is significantly ahead of scores, behind, or neither; then the
    levels for `balanced`. Empty until every row of these comparisons has all its seeds.
    """
    one, two, balanced = leads = [
        _leads(table, summary, series, scores)
        for series, scores in (("ArenaRL", "one score"), ("ArenaRL", "two scores"), ("balanced (ours)", "two scores"))
    ]
    comparisons = [lead for by_noise in leads for lead in by_noise.values()]
    if None in comparisons:
        return ""
    seeds = sorted({len(lead["seeds"]) for lead in comparisons})
    return (
        "Win rates by judge noise, as a multiple of the spread within a group. Against one score per "
        f"trajectory, the greedy sample's included ({_calls_ratio(summary, one)} times its judge calls), "
        f"ArenaRL is {_outcomes(one)}. Against two scores ({_calls_ratio(summary, two)} times its calls), "
        f"it is {_outcomes(two)}; `balanced` against two scores is {_outcomes(balanced)} (`./reproduce.sh "
        f"noise_strength`, {listed(map(str, seeds))} seeds, **simulated**)."
    )


def _leads(table: Table, summary: dict[str, Any], series: str, scores: str) -> Leads:
    """Return the comparisons of `series` with `scores`, where both have a row; None until all planned seeds are run."""
    finished = {tuple(figures["rows"]): figures for figures in summary["comparisons"] if figures["p"] is not None}
    panels = (None, table.rows[table.reference].panel)
    rows = {(row.series, row.at): name for name, row in table.rows.items() if row.panel in panels}
    places = [at for name, at in rows if name == series and (scores, at) in rows]
    pairs = {at: (rows[series, at], rows[scores, at]) for at in places}
    return {at: finished.get(pair) for at, pair in pairs.items() if pair in table.pairs}


def _calls_ratio(summary: dict[str, Any], leads: Leads) -> str:
    """Return the judge calls of the scores divided by the judge calls of the series that they are compared with."""
    calls = {row["row"]: row["judge_calls"] for row in summary["rows"]}
    ours, theirs = (sum(calls[lead["rows"][side]] for lead in leads.values()) for side in (0, 1))
    return f"{theirs / ours:.1f}"


def _outcomes(leads: Leads) -> str:
    """Return text such as `significantly ahead at 2 and 3 (+4.0 and +5.0) and significantly behind at 0 (-4.0)`."""
    outcomes = {at: standing(lead) for at, lead in leads.items()}
    points = {at: f"{lead['difference']:+z.1f}" for at, lead in leads.items()}
    parts = []
    for outcome in sorted(set(outcomes.values()), key=STANDINGS.index):
        places = [at for at in leads if outcomes[at] == outcome]
        parts.append(f"{outcome} at {listed(f'{at:g}' for at in places)} ({listed(points[at] for at in places)})")
    return listed(parts)


def results_table(results: Path, rows: dict[str, tuple[str, str]] = ROWS, columns: tuple[str, ...] = TRAVEL) -> str:
    """Return a row for each method, seed, checkpoint and decoding; 'not run' without a summary."""
    lines = []
    for folder, (method, config) in rows.items():
        lines += [
            [method, f"`{config}`", seed, policy, *(format_figure(figures.get(name)) for name in columns)]
            for seed, policy, figures in policies(results, folder)
        ] or [[method, f"`{config}`", "-", "-", *["not run"] * len(columns)]]
    return markdown.table(["method", "config", "seed", "checkpoint", *map(heading, columns)], lines)


def policies(results: Path, run: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (seed, checkpoint and decoding, figures) of all evaluations of a run and of its other seeds."""
    return [
        (str(summary["seed"]), f"{name}, {decoding}", figures)
        for summary in read_summaries(results, run)
        for name in summary["checkpoints"]
        for decoding, figures in summary[name].items()
    ]


def of_study(path: str, *renders: Callable[[Any], str]) -> Part:
    """Return a part that renders the JSON file of a study, at `path` in results/."""

    def render(results: Path) -> str:
        stored = read_json(results / path)
        return "\n\n".join(part(stored) for part in renders) if stored else "not run"

    return render


def of_table(name: str, *renders: Callable[[Table, dict[str, Any], Path], str], missing: str = "not run") -> Part:
    """Return a part that renders a table of the papers from the table, its table.json and results/."""

    def render(results: Path) -> str:
        table, summary = read_table(name), read_json(results / name / "table.json")
        return "\n\n".join(part(table, summary, results) for part in renders) if summary else missing

    return render


def research_criteria(results: Path) -> str:
    """Return a line per seed, checkpoint and decoding: valid share, win rates by criterion over valid reports, mean."""
    lines, criteria = [], {}
    for folder, (method, _) in RESEARCH_ROWS.items():
        for seed, policy, figures in policies(results, folder):
            criteria = figures["by_dimension"]
            wins = [of["win_rate_valid"] for of in criteria.values()]
            cells = map(format_figure, (figures["valid_rate"], *wins, figures["win_rate_valid"]))
            lines.append([method, seed, policy, *cells])
    names = [name.replace("_", " ") for name in criteria]
    heads = ["method", "seed", "checkpoint", heading("valid_rate"), *names, "mean"]
    return markdown.table(heads, lines) if lines else "not run"


def stored_case(results: Path) -> str:
    """Return the quickstart's case before and after RL, which its report writes."""
    path = results / "quickstart" / "case.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else "not run"


GENERATED = {  # document -> marker -> the part between its start and its end
    "README.md": {
        "quickstart": quickstart_ending,
        "methods": of_table("table3", method_table, lambda table, summary, _: significant_rows(table, summary)),
        "worth": of_table("noise_strength", lambda table, summary, _: worth_sentence(table, summary), missing=""),
    },
    "docs/results.md": {
        "results": results_table,
        "table3_research_columns": of_table("table3_research", lambda table, summary, _: beside_paper(table, summary)),
        "research_criteria": research_criteria,
        "research": partial(results_table, rows=RESEARCH_ROWS, columns=RESEARCH),
        "writing": partial(results_table, rows=WRITING_ROWS, columns=WRITING),
        "real_model": partial(results_table, rows=REAL_ROWS),
        "power": power_table,
    }
    | {name: of_table(name, short_table) for name in (*TABLES, *LATER_TABLES)},
    "docs/case.md": {"case": stored_case},
    "docs/tournament.md": {
        "fidelity": of_study("ranking_fidelity/summary.json", fidelity.markdown_table, fidelity.markdown_differences),
        "noise_grid": of_study("ranking_fidelity/grid.json", noise_grid.markdown_table),
    },
    "docs/benchmarks.md": {name: partial(over_runs, name) for name in PAPER_TABLES},
    "docs/methods.md": {
        "rivals": of_study("ranking_fidelity/rivals.json", rivals.markdown_table),
        "rivals_trained": of_table("table3", partial(method_table, names=RIVALS)),
    },
    "docs/judges.md": {
        "judge_check": judge_reliability.judges_table,
        "injections": judge_reliability.stored_injections,
    },
    "docs/data.md": {
        "data_pipeline": of_study("data_pipeline.json", data_pipeline.tables),
        "data_quality": partial(results_table, rows=QUALITY_ROWS),
    },
    "docs/paper_scale.md": {"scale": scale.scale_table, "fits": lambda results: scale.fits_table(), "gpu": gpu_table},
    "configs/launch/README.md": {
        "training": lambda results: scale.training_table(),
        "sequence": lambda results: scale.sequence_table(),
        "vllm": lambda results: scale.vllm_table(),
    },
    "docs/config.md": {"keys": lambda results: config_tables()},
    "docs/api.md": {"interface": lambda results: interface_page()},
}


def write_documents() -> None:
    for document, parts in GENERATED.items():
        markdown.fill_in(Path(document), {marker: render(Path("results")) for marker, render in parts.items()})


if __name__ == "__main__":
    run_cli(write_documents)
