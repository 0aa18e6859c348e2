"""Results for readers: a run's summary, its table in the terminal, and one trajectory turn by turn."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.evaluation.statistics import shown_figures
from arenarl.report.provenance import provenance
from arenarl.report.watching import watch_lines, watch_summary
from arenarl.run.timing import Timing, read_timing
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import printable_lines
from arenarl.trajectory import Query, Trajectory, assistant_text

HEADS = {  # figure → heading with unit
    "win_rate": "win rate %",
    "score": "score 0-10",
    "quality": "quality 0-10",
    "valid_rate": "valid %",
    "groundedness": "grounded %",
    "constraints_met": "constraints %",
    "invented_facts": "invented %",
    "tool_calls": "tool calls",
    "repeated_calls": "repeated calls %",
    "win_rate_valid": "win rate % of valid",
    "accuracy": "accuracy %",
    "entity_recall": "entities %",
    "facts_covered": "facts %",
    "success": "success %",
    "subgoals": "subgoals %",
    "length_of_asked": "length % of asked",
    "world_reward": "world's reward",
    "training_reward": "world's reward in training, last quarter",
}
DIGITS = {"world_reward": 2, "training_reward": 2}  # because most environments give at most 1
# success counted by pass@k → words for it
PASSES = {"win": "beats the baseline", "constraints": "meets all constraints", "accuracy": "answers correctly"}
STAGES = ("data", "sft", "rl", "evaluate")
# keys that come from RL's provenance
FROM_TRAINING = ("judge_train", "judge_alternates", "judge_watch", "judge_is_simulated")


def heading(figure: str) -> str:
    """Return the heading of a figure's column; without an entry in `HEADS`, its name.

    >>> [heading(figure) for figure in ("win_rate", "greedy_success", "pass_at_2", "own")]
    ['win rate %', 'greedy: success %', 'pass@2 %', 'own']
    """
    if figure.startswith("greedy_"):
        return f"greedy: {heading(figure.removeprefix('greedy_'))}"
    if figure.startswith("pass_at_"):
        return f"pass@{figure.removeprefix('pass_at_')} %"
    return HEADS.get(figure, figure)


def timings_of(config: Config) -> dict[str, Timing]:
    """Return the timings of the run's finished stages. Raises UserError for a damaged file."""
    return {stage: timing for stage in STAGES if (timing := read_timing(config.run_dir / stage))}


def summary_of_run(config: Config, figures: dict[str, Any], reference: str | None = None) -> dict[str, Any]:
    """Return the content of runs/<run>/summary.json: figures by checkpoint and decoding, seconds and memory by
    stage, provenance. Optional keys: `verifier`, the LLM that verified answers; `reference`, the policy whose
    trajectories replace stored baselines; `watch`, the watching judge's scores."""
    timings = timings_of(config)
    seconds = {stage: timing.seconds for stage, timing in timings.items()}
    judges = [judge.model or judge.name for judge in config.judge.eval]
    is_simulated = any(judge.is_simulated for judge in config.judge.eval)
    # RL may have used other judges than this config names
    trained = read_json(config.run_dir / "rl" / "provenance.json", dict[str, Any]) or {}
    return {
        "run": config.run_name,
        "seed": config.seed,
        "judge": "simulated" if is_simulated else " and ".join(judges),
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
        "peak_memory_gb": max((timing.peak_memory_gb for timing in timings.values()), default=None),
        "checkpoints": list(figures),
        **({"verifier": config.judge.verifier.model} if config.judge.verifier.name == "llm" else {}),
        **({"reference": reference} if reference else {}),
        **({"watch": watch} if (watch := watch_summary(config)) else {}),
        **figures,
        "provenance": provenance(config) | {name: trained[name] for name in FROM_TRAINING if name in trained},
    }


def read_summaries(results: Path, run: str) -> list[dict[str, Any]]:
    """Return the stored summaries of a run and of its other seeds."""
    paths = [results / run / "summary.json", *sorted(results.glob(f"{run}-seed*/summary.json"))]
    return [summary for path in paths if (summary := read_json(path))]


def policies_of(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of each policy, by checkpoint and decoding: `rl sampled`."""
    names = summary["checkpoints"]
    return {f"{name} {decoding}": figures for name in names for decoding, figures in summary[name].items()}


def print_table(summary: dict[str, Any]) -> None:
    """Print a row per checkpoint and decoding; each figure has its 95 % interval over test queries."""
    policies = policies_of(summary)
    for part in (policy_rows(policies), turns_rows(policies), pass_rows(policies)):
        print_rows(part)
    agreements = [figures["judges_agree"] for figures in policies.values()]
    if all(agreements):
        print(f"the two judges agree on these shares of outcomes: {', '.join(map(_format_agreement, agreements))}")
    if missing := sum(figures["missing_verdicts"] for figures in policies.values()):
        print(f"{missing} verdicts are missing; their cases do not count in the win rate of the judge that failed")
    if crashes := sum(figures.get("tool_crashes", 0) for figures in policies.values()):
        print(f"{crashes} trajectories ended with a tool's crash; they do not count in any figure")
    if too_long := sum(figures.get("no_room", 0) for figures in policies.values()):
        print(f"{too_long} prompts were too long for their policy; they do not count in any figure")
    if "watch" in summary:
        print(*watch_lines(summary["watch"]), sep="\n")
    columns = columns_of(policies)
    verified = verified_columns(summary, columns)
    others = ("win_rate", "score", "valid_rate", "tool_calls", "world_reward", *verified)
    true = [name for name in columns if name not in others]
    noise_free = f"; {in_words(true)} are noise-free" if true else ""
    verifier = f"; {in_words(verified)} by {summary['verifier']}" if verified else ""
    win_rate = f"win rate by the {summary['judge']} judge"
    if "reference" in summary:
        win_rate = f"win rate against {baseline_name(summary)}, judged by {summary['judge']} (not the stored baseline)"
    print(f"{win_rate}{noise_free}{verifier}; [95 % over test queries], one seed")


def print_rows(rows: list[list[str]]) -> None:
    """Print a head and rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def baseline_name(summary: dict[str, Any]) -> str:
    """Return the opponent of the policies: the stored baseline, or the policy that replaces it."""
    return f"`{summary['reference']}`" if "reference" in summary else "the stored baseline"


def judge_label(is_simulated: bool) -> str:
    """Return how pages and figures name the judge of a run."""
    return "simulated judge" if is_simulated else "judge"


def verified_columns(summary: dict[str, Any], columns: Iterable[str]) -> list[str]:
    """Return the figures that depend on an LLM's verdicts on answers, and so are not noise-free."""
    is_verified = "verifier" in summary and "accuracy" in columns
    return [name for name in columns if is_verified and name in ("accuracy", "quality", "pass_at_4")]


def in_words(columns: Iterable[str]) -> str:
    """Return the figures' headings without units, as a phrase.

    >>> in_words(["accuracy", "quality", "pass_at_4"])
    'accuracy, quality and pass@4'
    """
    return listed(heading(name).split(" %")[0].split(" 0-10")[0] for name in columns)


def listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _format_agreement(figure: dict[str, Any]) -> str:
    return f"{figure['agreement']:.0%} (kappa {figure['kappa']})" if figure["cases"] else "- (no case judged by both)"


def columns_of(policies: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return figure → heading for all figures that at least one policy has."""
    names = shown_figures({name: figure for figures in policies.values() for name, figure in figures.items()})
    return {name: heading(name) for name in names}


def turns_rows(policies: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a head and rows: each policy with each limit on turns (`evaluate.max_turns`); empty without limits."""
    limited = {}
    for name, figures in policies.items():
        limited |= {f"{name}, {turns} turns": result for turns, result in figures.get("by_turns", {}).items()}
    columns = columns_of(limited)
    rows = [[name, *(format_figure(each.get(figure), cases=0) for figure in columns)] for name, each in limited.items()]
    return [["at most", *columns.values()], *rows] if rows else []


def pass_rows(policies: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a head and rows: pass@k of policies with several samples, for k = 1, 2, 4, … up to their number."""
    curves = {
        f"{name}: {PASSES.get(success, success)}": curve
        for name, figures in policies.items()
        for success, curve in figures.get("pass_at_k", {}).items()
    }
    if not curves:
        return []
    samples = max(map(len, curves.values()))
    ks = sorted({2**power for power in range(samples.bit_length())} | {samples})
    rows = [[name, *(format_figure(curve[k - 1], cases=0) for k in ks)] for name, curve in curves.items()]
    return [["", *(f"pass@{k} %" for k in ks)], *rows]


def format_figure(
    figure: dict[str, Any] | None, digits: int = 1, cases: int | None = None, sign: str = "", scale: float = 1
) -> str:
    """Return `mean [low, high]`; a dash without a figure or without cases.

    With `cases`, add the figure's own number of cases, `(n=…)`, if it differs from `cases`. With the sign "+", positive
    numbers have a sign too. All numbers are multiplied by `scale`.
    """
    if figure is None or figure["mean"] is None:
        return "-"
    mean, low, high = (
        number if number is None else f"{scale * number:{sign}.{digits}f}" for number in (figure["mean"], *figure["ci"])
    )
    interval, n = "" if low is None else f" [{low}, {high}]", figure.get("n")
    return f"{mean}{interval}" + ("" if None in (n, cases) or n == cases else f" (n={n})")


def policy_rows(policies: dict[str, dict[str, Any]], cell: Callable[..., str] = format_figure) -> list[list[str]]:
    """Return a head and rows: each policy with its number of cases and its figures, formatted by `cell`."""
    columns = columns_of(policies)
    rows = [["", "n", *columns.values()]]
    for name, figures in policies.items():
        cases = figures.get("cases")
        cells = (cell(figures.get(figure), DIGITS.get(figure, 1), cases) for figure in columns)
        rows.append([name, str(cases or "-"), *cells])
    return rows


def print_trajectory(query: Query, trajectory: Trajectory) -> None:
    """Print a trajectory turn by turn, as the policy saw it."""
    print(f"query: {printable_lines(query.query)}")
    for message in trajectory.messages:
        if message["role"] in ("assistant", "tool"):
            text = assistant_text(message) if message["role"] == "assistant" else message["content"]
            print(f"\n[{message['role']}]\n{printable_lines(text)}")
    print(f"\nended: {trajectory.stop_reason}")
