"""Fills in what README and docs say of results: every table between its markers, from results/*/ and the configs.

    python -m arenarl.tables.documents
"""

import json
from pathlib import Path

from arenarl.report import markdown
from arenarl.report.summary import HEADS, format_figure
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import guarded
from arenarl.tables.pages import short_table
from arenarl.tables.rows import FOLDER, TABLES, read_table

TRAVEL = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")  # columns of ROWS
RESEARCH = ("win_rate_valid", "valid_rate", "accuracy", "pass_at_4", "entity_recall", "facts_covered", "quality", "tool_calls")  # of RESEARCH_ROWS

ROWS = {  # folder of results/ (with -seedN appended for other seeds) -> what the row is, its config; what a table has is not here
    "quickstart": ("ArenaRL, seeded single elimination", "configs/quickstart.yaml"),
    "quickstart-noise-free": ("ArenaRL, trained with a judge that makes no errors", "configs/methods/noise_free.yaml"),
    "quickstart-lora": ("ArenaRL with LoRA", "configs/methods/lora.yaml"),
    "quickstart-rloo": ("RLOO, pointwise score of the answer", "configs/methods/rloo.yaml"),
    "quickstart-reinforce-plus-plus": ("REINFORCE++ with baseline, pointwise score of the answer", "configs/methods/reinforce_plus_plus.yaml"),
    "quickstart-gdpo": ("GDPO, pointwise score of the answer and validity", "configs/methods/gdpo.yaml"),
    "quickstart-dapo": ("DAPO without dynamic sampling, pointwise score of the answer", "configs/methods/dapo.yaml"),
    "quickstart-short-turns": ("ArenaRL, 3 turns in RL", "configs/methods/short_turns.yaml"),
    "quickstart-long-turns": ("ArenaRL, 8 turns in RL", "configs/methods/long_turns.yaml"),
    "quickstart-scaling-turns": ("ArenaRL, ScalingInter-RL: 3, 5, 8 turns", "configs/methods/scaling_turns.yaml"),
}


RESEARCH_ROWS = {
    "research": ("closed by correctness, open-ended by tournament", "configs/research/quickstart.yaml"),
    "research-correctness": ("closed questions only, by correctness", "configs/research/quickstart_correctness.yaml"),
    "research-recall": ("closed questions only, with entity recall", "configs/research/quickstart_recall.yaml"),
    "research-tournament": ("open-ended queries only, by tournament", "configs/research/quickstart_tournament.yaml"),
}


def results_table(results: Path, rows: dict[str, tuple[str, str]] = ROWS, columns: tuple[str, ...] = TRAVEL) -> str:
    """A table of the README in Markdown: a row a method, seed, checkpoint and decoding; 'not run' where there is no summary."""
    lines = ["| method | config | seed | checkpoint | " + " | ".join(HEADS[name] for name in columns) + " |", "|" + "---|" * (4 + len(columns))]
    for folder, (method, config) in rows.items():
        paths = [results / folder / "summary.json", *sorted(results.glob(f"{folder}-seed*/summary.json"))]
        summaries = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
        if not summaries:
            lines.append(f"| {method} | `{config}` | - | - |" + " not run |" * len(columns))
        for summary in summaries:
            for name in summary["checkpoints"]:
                for decoding, figures in summary[name].items():
                    cells = [method, f"`{config}`", str(summary["seed"]), f"{name}, {decoding}"]
                    cells += [format_figure(figures.get(figure)) for figure in columns]
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fidelity_tables(results: Path) -> str:
    """The README's tables of the ranking study."""
    from arenarl.studies import fidelity  # only here: it needs matplotlib

    summary = json.loads((results / "ranking_fidelity" / "summary.json").read_text(encoding="utf-8"))
    return fidelity.markdown_table(summary) + "\n\n" + fidelity.markdown_differences(summary)


def noise_grid_table(results: Path) -> str:
    """The README's table of tournaments against as many pointwise calls."""
    from arenarl.studies import noise_grid  # only here: it needs matplotlib

    return noise_grid.markdown_table(json.loads((results / "ranking_fidelity" / "grid.json").read_text(encoding="utf-8")))


def scale_table(results: Path) -> str:
    """The README's estimates of the runs at the paper's scale."""
    from arenarl.plan import scale  # only here: it needs the judge's prompts

    return scale.scale_table(results)


def research_table(results: Path) -> str:
    """The same of the research domain."""
    return results_table(results, RESEARCH_ROWS, RESEARCH)


# marker in the README -> what stands between it and its end
GENERATED = {
    "results": results_table, "research": research_table, "fidelity": fidelity_tables, "noise_grid": noise_grid_table, "scale": scale_table,
}  # fmt: skip


def write_readme(readme: Path, results: Path) -> None:
    """Replace what stands between the README's markers."""

    markdown.fill_in(readme, {marker: render(results) for marker, render in GENERATED.items()} | readme_tables(results))


def readme_tables(results: Path) -> dict[str, str]:
    """Marker in the README -> the table; 'not run' where there are no results."""
    tables = {name: read_json(results / name / "table.json") for name in TABLES}
    return {name: short_table(read_table(name, FOLDER), summary) if summary else "not run" for name, summary in tables.items()}


if __name__ == "__main__":
    guarded(lambda: write_readme(Path("README.md"), Path("results")))
