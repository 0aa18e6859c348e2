"""Fills in what README and docs say of results and configs: each generated part between its markers.

    python -m arenarl.tables.documents
"""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from arenarl.benchmarks.page import TABLES as PAPER_TABLES
from arenarl.benchmarks.page import over_runs
from arenarl.plan import scale
from arenarl.report import markdown
from arenarl.report.conclusion import print_conclusion
from arenarl.report.summary import format_figure, heading, print_table, read_summaries
from arenarl.studies import adaptive_pairs, bench_mcp, bench_worlds, data_pipeline, fidelity, judge_reliability, noise_grid, rivals, search_recall
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import guarded
from arenarl.tables.config_keys import config_tables
from arenarl.tables.pages import method_table, short_table, told_apart
from arenarl.tables.power import power_table
from arenarl.tables.rows import FOLDER, TABLES, read_table
from arenarl.tables.worth import worth_sentence

TRAVEL = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")  # columns of ROWS
RESEARCH = ("win_rate_valid", "valid_rate", "accuracy", "pass_at_4", "entity_recall", "facts_covered", "quality", "tool_calls")  # of RESEARCH_ROWS
WRITING = ("win_rate", "quality", "valid_rate", "constraints_met", "length_of_asked")  # of WRITING_ROWS
ROWS = {  # folder of results/ (with -seedN appended for other seeds) -> what the row is, its config; what a table has is not here
    "quickstart": ("ArenaRL, seeded single elimination", "configs/quickstart.yaml"),
    "quickstart-noise-free": ("ArenaRL, trained with a judge that makes no errors", "configs/methods/noise_free.yaml"),
    "quickstart-lora": ("ArenaRL with LoRA", "configs/methods/lora.yaml"),
    "quickstart-rloo": ("RLOO, pointwise score of the answer", "configs/methods/rloo.yaml"),
    "quickstart-reinforce-plus-plus": ("REINFORCE++ with baseline, pointwise score of the answer", "configs/methods/reinforce_plus_plus.yaml"),
    "quickstart-ppo": ("PPO, pointwise score of the answer", "configs/methods/ppo.yaml"),
    "quickstart-gdpo": ("GDPO, pointwise score of the answer and validity", "configs/methods/gdpo.yaml"),
    "quickstart-dapo": ("DAPO without dynamic sampling, pointwise score of the answer", "configs/methods/dapo.yaml"),
    "quickstart-dpo": ("DPO on the tournaments' pairs, three rounds", "configs/methods/dpo.yaml"),
    "quickstart-agentevol": ("AgentEvol on the tournaments' winners, three rounds", "configs/methods/agentevol.yaml"),
    "quickstart-short-turns": ("ArenaRL, 3 turns in RL", "configs/methods/short_turns.yaml"),
    "quickstart-long-turns": ("ArenaRL, 8 turns in RL", "configs/methods/long_turns.yaml"),
    "quickstart-scaling-turns": ("ArenaRL, ScalingInter-RL: 3, 5, 8 turns", "configs/methods/scaling_turns.yaml"),
}
REAL_ROWS = {
    "smollm2-untouched": ("untouched", "configs/travel/smollm2_135m_untouched.yaml"),
    "smollm2": ("ArenaRL", "configs/travel/smollm2_135m.yaml"),
    "smollm2-grpo": ("GRPO, pointwise score of the trajectory", "configs/travel/smollm2_135m_grpo.yaml"),
    "smollm2-balanced": ("balanced matches, ranked by scores (ours)", "configs/travel/smollm2_135m_balanced.yaml"),
    "smollm2-schemas": ("SFT with the tools' schemas in the prompt", "configs/travel/smollm2_135m_schemas.yaml"),
}
RIVALS = ("ruler", "brpo", "mixture", "elo", "rubric_checklist")  # rows of table3
RESEARCH_ROWS = {
    "research": ("closed by correctness, open-ended by tournament", "configs/research/quickstart.yaml"),
    "research-correctness": ("closed questions only, by correctness", "configs/research/quickstart_correctness.yaml"),
    "research-recall": ("closed questions only, with entity recall", "configs/research/quickstart_recall.yaml"),
    "research-tournament": ("open-ended queries only, by tournament", "configs/research/quickstart_tournament.yaml"),
}
QUALITY_ROWS = {
    "data-quality-inspected": ("SFT on inspected trajectories", "configs/data/quality_inspected.yaml"),
    "data-quality-uninspected": ("SFT on trajectories as they were", "configs/data/quality_uninspected.yaml"),
}
WRITING_ROWS = {
    "writing": ("ArenaRL", "configs/writing/quickstart.yaml"),
    "writing-length": ("ArenaRL, trained with a judge that pays for length", "configs/writing/quickstart_length.yaml"),
}


def quickstart_ending(results: Path) -> str:
    """The last lines that `./reproduce.sh quickstart` prints, from its summary."""
    summary, printed = read_json(results / "quickstart" / "summary.json"), io.StringIO()
    if not summary:
        return "    not run"
    with redirect_stdout(printed):
        print_table(summary)
        print("written: results/quickstart/summary.json, trajectories in runs/quickstart/evaluate")
        print("written: results/quickstart/report.html")
        print_conclusion("quickstart", results)
    return "\n".join(f"    {line}".rstrip() for line in printed.getvalue().splitlines())


def methods(results: Path) -> str:
    """A line a method: Table 3, small; and what it says."""
    table, summary = read_table("table3", FOLDER), read_json(results / "table3" / "table.json")
    return f"{method_table(table, summary, results)}\n\n{told_apart(table, summary)}" if summary else "not run"


def worth(results: Path) -> str:
    """When a tournament is worth its calls, in a sentence; nothing until it was run."""
    summary = read_json(results / "noise_strength" / "table.json")
    return worth_sentence(read_table("noise_strength", FOLDER), summary) if summary else ""


def results_table(results: Path, rows: dict[str, tuple[str, str]] = ROWS, columns: tuple[str, ...] = TRAVEL) -> str:
    """A row a method, seed, checkpoint and decoding; 'not run' where there is no summary."""
    lines = []
    for folder, (method, config) in rows.items():
        summaries = read_summaries(results, folder)
        if not summaries:
            lines.append([method, f"`{config}`", "-", "-", *["not run"] * len(columns)])
        for summary in summaries:
            for name in summary["checkpoints"]:
                for decoding, figures in summary[name].items():
                    cells = [method, f"`{config}`", str(summary["seed"]), f"{name}, {decoding}"]
                    lines.append(cells + [format_figure(figures.get(figure)) for figure in columns])
    return markdown.table(["method", "config", "seed", "checkpoint", *map(heading, columns)], lines)


def research_table(results: Path) -> str:
    """The same of the research domain."""
    return results_table(results, RESEARCH_ROWS, RESEARCH)


def writing_table(results: Path) -> str:
    """The same of the writing domain."""
    return results_table(results, WRITING_ROWS, WRITING)


def data_quality_table(results: Path) -> str:
    """The same of SFT on data by LLMs."""
    return results_table(results, QUALITY_ROWS)


def data_pipeline_tables(results: Path) -> str:
    """What inspection finds."""
    found = read_json(results / "data_pipeline.json")
    return data_pipeline.tables(found) if found else "not run"


def real_model_table(results: Path) -> str:
    """The same of a pretrained model."""
    return results_table(results, REAL_ROWS)


def fidelity_tables(results: Path) -> str:
    """How true each topology's ranking is."""
    summary = read_json(results / "ranking_fidelity" / "summary.json")
    return f"{fidelity.markdown_table(summary)}\n\n{fidelity.markdown_differences(summary)}" if summary else "not run"


def noise_grid_table(results: Path) -> str:
    """Tournaments against as many pointwise calls."""
    grid = read_json(results / "ranking_fidelity" / "grid.json")
    return noise_grid.markdown_table(grid) if grid else "not run"


def adaptive_table(results: Path) -> str:
    """Balanced matches in rounds against round robin."""
    summary = read_json(results / "ranking_fidelity" / "adaptive.json")
    return adaptive_pairs.markdown_table(summary) if summary else "not run"


def rivals_table(results: Path) -> str:
    """Rivals at equal calls and tokens; 'not run' where there are no results."""
    summary = read_json(results / "ranking_fidelity" / "rivals.json")
    return rivals.markdown_table(summary) if summary else "not run"


def rivals_trained(results: Path) -> str:
    """Rivals' rows of Table 3, small, beside the tournament's and that of as many scores."""
    names = ("seeded_single_elimination", "balanced", "pointwise_matched", *RIVALS)
    summary = read_json(results / "table3" / "table.json")
    return method_table(read_table("table3", FOLDER), summary, results, names) if summary else "not run"


def paper_table(name: str) -> Callable[[Path], str]:
    """A table of the papers, small; 'not run' where there are no results."""

    def render(results: Path) -> str:
        summary = read_json(results / name / "table.json")
        return short_table(read_table(name, FOLDER), summary, results) if summary else "not run"

    return render


GENERATED = {  # document -> marker -> what stands between it and its end
    "README.md": {"quickstart": quickstart_ending, "methods": methods, "worth": worth},
    "docs/results.md": {"results": results_table, "research": research_table, "writing": writing_table, "real_model": real_model_table}
    | {name: paper_table(name) for name in TABLES}
    | {"power": power_table},
    "docs/tournament.md": {"fidelity": fidelity_tables, "noise_grid": noise_grid_table, "adaptive": adaptive_table},
    "docs/benchmarks.md": {name: partial(over_runs, name) for name in PAPER_TABLES},
    "docs/methods.md": {"rivals": rivals_table, "rivals_trained": rivals_trained},
    "docs/judges.md": {"judge_check": judge_reliability.judges_table},
    "docs/data.md": {"data_pipeline": data_pipeline_tables, "data_quality": data_quality_table},
    "docs/domains.md": {"search_recall": search_recall.recall_table, "bench_worlds": bench_worlds.worlds_table, "bench_mcp": bench_mcp.mcp_table},
    "docs/paper_scale.md": {"scale": scale.scale_table, "fits": lambda results: scale.fits_table()},
    "configs/launch/README.md": {
        "training": lambda results: scale.training_table(),
        "sequence": lambda results: scale.sequence_table(),
        "vllm": lambda results: scale.vllm_table(),
    },
    "docs/config.md": {"keys": lambda results: config_tables()},
}


def write_documents(root: Path = Path()) -> None:
    for document, parts in GENERATED.items():
        markdown.fill_in(root / document, {marker: render(root / "results") for marker, render in parts.items()})


if __name__ == "__main__":
    guarded(write_documents)
