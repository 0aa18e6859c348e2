"""Results for readers: a run's summary, its table in the terminal and in the README, one trajectory turn by turn.

    python -m arenarl.report quickstart
    python -m arenarl.report --readme

The first draws the figures of a run (its name, its folder in runs/, or --config with its YAML) and writes its page,
results/<run>/report.html; figures.py and report_page/ do that. The second writes the README's tables, between their markers,
from results/*/summary.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from arenarl import markdown
from arenarl.config import Config, add_overrides, load_config, refuse_overrides_without_config
from arenarl.errors import guarded
from arenarl.metrics import shown_figures
from arenarl.runs import provenance
from arenarl.trajectory import Query, Trajectory, assistant_text

HEADS = {  # figure -> heading and unit; a figure without one goes by its name
    "win_rate": "win rate %",
    "quality": "quality 0-10",
    "valid_rate": "valid %",
    "groundedness": "grounded %",
    "constraints_met": "constraints %",
    "tool_calls": "tool calls",
    "win_rate_valid": "win rate % of valid",
    "accuracy": "accuracy %",
    "pass_at_4": "pass@4 %",
    "entity_recall": "entities %",
    "facts_covered": "facts %",
}
PASSES = {"win": "beats the baseline", "constraints": "meets all constraints", "accuracy": "answers correctly"}  # what pass@k counts
TRAVEL = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")  # the columns of the README's table
RESEARCH = ("win_rate_valid", "valid_rate", "accuracy", "pass_at_4", "entity_recall", "facts_covered", "quality", "tool_calls")  # and of research's
STAGES = ("data", "sft", "rl", "evaluate")
ROWS = {  # folder of results/ (with -seedN appended for other seeds) -> what the row is, its config; what a table has is not here
    "quickstart": ("ArenaRL, seeded single elimination", "configs/quickstart.yaml"),
    "quickstart-noise-free": ("ArenaRL, trained with a judge that makes no errors", "configs/quickstart_noise_free.yaml"),
    "quickstart-lora": ("ArenaRL with LoRA", "configs/quickstart_lora.yaml"),
    "quickstart-rloo": ("RLOO, pointwise score of the answer", "configs/quickstart_rloo.yaml"),
    "quickstart-reinforce-plus-plus": ("REINFORCE++ with baseline, pointwise score of the answer", "configs/quickstart_reinforce_plus_plus.yaml"),
    "quickstart-gdpo": ("GDPO, pointwise score of the answer and validity", "configs/quickstart_gdpo.yaml"),
    "quickstart-dapo": ("DAPO without dynamic sampling, pointwise score of the answer", "configs/quickstart_dapo.yaml"),
    "quickstart-short-turns": ("ArenaRL, 3 turns in RL", "configs/quickstart_short_turns.yaml"),
    "quickstart-long-turns": ("ArenaRL, 8 turns in RL", "configs/quickstart_long_turns.yaml"),
    "quickstart-scaling-turns": ("ArenaRL, ScalingInter-RL: 3, 5, 8 turns", "configs/quickstart_scaling_turns.yaml"),
}


RESEARCH_ROWS = {
    "research": ("closed by correctness, open-ended by tournament", "configs/research/quickstart.yaml"),
    "research-correctness": ("closed questions only, by correctness", "configs/research/quickstart_correctness.yaml"),
    "research-recall": ("closed questions only, with entity recall", "configs/research/quickstart_recall.yaml"),
    "research-tournament": ("open-ended queries only, by tournament", "configs/research/quickstart_tournament.yaml"),
}


def summary_of_run(config: Config, figures: dict[str, Any]) -> dict[str, Any]:
    """What results/<run>/summary.json holds: figures by checkpoint and decoding, seconds and memory by stage, provenance."""
    paths = {stage: config.run_dir / stage / "timing.json" for stage in STAGES}
    timings = {stage: json.loads(path.read_text()) for stage, path in paths.items() if path.is_file()}
    seconds = {stage: timing["seconds"] for stage, timing in timings.items()}
    judges = config.judge.eval
    return {
        "run": config.run_name,
        "seed": config.seed,
        "judge": "simulated" if any(judge.is_simulated for judge in judges) else " and ".join(judge.model or judge.name for judge in judges),
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
        "peak_memory_gb": max((timing["peak_memory_gb"] for timing in timings.values()), default=None),
        "checkpoints": list(figures),
        **figures,
        "provenance": provenance(config),
    }


def print_table(summary: dict[str, Any]) -> None:
    """Checkpoints x decodings, each figure with its 95 % interval over test queries."""
    policies = {f"{name} {decoding}": figures for name in summary["checkpoints"] for decoding, figures in summary[name].items()}
    columns = columns_of(policies)
    rows = [[name, *(format_figure(figures.get(figure)) for figure in columns)] for name, figures in policies.items()]
    _print_rows([["", *columns.values()], *rows])
    for rows in (turns_rows(policies), pass_rows(policies)):
        if rows:
            _print_rows(rows)
    agreements = [figures["judges_agree"] for figures in policies.values()]
    if all(agreements):
        shares = ", ".join(f"{one['agreement']:.0%} (kappa {one['kappa']})" for one in agreements)
        print(f"the two judges agree, row by row, on {shares} of the outcomes")
    if missing := sum(figures["missing_verdicts"] for figures in policies.values()):
        print(f"{missing} cases lack a verdict and count in no win rate")
    true = [name for name in columns if name not in ("win_rate", "valid_rate", "tool_calls")]
    names = [columns[name].split(" %")[0].split(" 0-10")[0] for name in true]
    noise_free = f"; {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} are noise-free" if names else ""
    print(f"win rate by the {summary['judge']} judge{noise_free}; [95 % over test queries], one seed")


def _print_rows(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def columns_of(policies: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Figures that some policy has, with their headings."""
    names = shown_figures({name: figure for figures in policies.values() for name, figure in figures.items()})
    return {name: HEADS.get(name, name) for name in names}


def turns_rows(policies: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Heads and rows: each policy with each budget of test-time turns (`evaluate.max_turns`); empty without any."""
    found = {f"{name}, {turns} turns": figures for name, found in policies.items() for turns, figures in found.get("by_turns", {}).items()}
    if not found:
        return []
    columns = columns_of(found)
    rows = [[name, *(format_figure(figures.get(figure)) for figure in columns)] for name, figures in found.items()]
    return [["at most", *columns.values()], *rows]


def pass_rows(policies: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Heads and rows: pass@k of each policy that was sampled more than once, k doubling up to all samples; empty without any."""
    found = {name: figures["pass_at_k"] for name, figures in policies.items() if "pass_at_k" in figures}
    if not found:
        return []
    samples = max(len(curve) for curves in found.values() for curve in curves.values())
    shown = sorted({2**power for power in range(samples.bit_length())} | {samples})
    rows = [
        [f"{name}: {PASSES.get(passed, passed)}", *(format_figure(curve[k - 1]) for k in shown)]
        for name, curves in found.items()
        for passed, curve in curves.items()
    ]
    return [["", *(f"pass@{k} %" for k in shown)], *rows]


def format_figure(figure: dict[str, Any] | None, digits: int = 1) -> str:
    """`mean [low, high]`, or a dash where there is no figure or was no case."""
    if figure is None or figure["mean"] is None:
        return "-"
    low, high = figure["ci"]
    return f"{figure['mean']:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]")


def print_trajectory(query: Query, trajectory: Trajectory) -> None:
    """A trajectory as the policy saw it, turn by turn."""
    print(f"query: {query.query}")
    for message in trajectory.messages:
        if message["role"] in ("assistant", "tool"):
            text = assistant_text(message) if message["role"] == "assistant" else message["content"]
            print(f"\n[{message['role']}]\n{text}")
    print(f"\nended: {trajectory.stop_reason}")


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
    from arenarl import fidelity  # only here: it needs matplotlib

    summary = json.loads((results / "ranking_fidelity" / "summary.json").read_text(encoding="utf-8"))
    return fidelity.markdown_table(summary) + "\n\n" + fidelity.markdown_differences(summary)


def noise_grid_table(results: Path) -> str:
    """The README's table of tournaments against as many pointwise calls."""
    from arenarl import noise_grid  # only here: it needs matplotlib

    return noise_grid.markdown_table(json.loads((results / "ranking_fidelity" / "grid.json").read_text(encoding="utf-8")))


def scale_table(results: Path) -> str:
    """The README's estimates of the runs at the paper's scale."""
    from arenarl import scale  # only here: it needs the judge's prompts

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
    from arenarl.table_report import readme_tables  # only here: it needs matplotlib

    markdown.fill_in(readme, {marker: render(results) for marker, render in GENERATED.items()} | readme_tables(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", nargs="?", help="the run's name, or its folder in runs/")
    what.add_argument("--config", help="the run's YAML instead of its name")
    what.add_argument("--readme", action="store_true", help="write the README's tables")
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    if arguments.readme:
        write_readme(Path("README.md"), Path("results"))
        return

    from arenarl.report_page import write_page  # only here: it needs matplotlib

    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        run_dir, results_dir = config.run_dir, config.results_dir
    else:
        run_dir, results_dir = (Path(folder) / Path(arguments.run).name for folder in ("runs", "results"))
    print(f"written: {write_page(run_dir, results_dir)}")


if __name__ == "__main__":
    guarded(main)
