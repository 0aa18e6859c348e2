"""A test query before and after RL, side by side (Appendix F, ArenaRL), with restatement over all queries and the
accuracy of POI search (6.5, ArenaRL).

`python -m arenarl.report RUN` writes them to case.md of a run that evaluated `sft` and `rl`, from the first sampled
trajectory of each query. A rule chooses the query with the median gain in its share of won dimensions; a tie is half a
win. For an even number of queries it is the lower median, and equal gains keep the test set's order.
"""

from collections.abc import Callable, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from arenarl.evaluation.evaluation import StoredCase, restated
from arenarl.evaluation.parts import part_path, read_cases
from arenarl.evaluation.statistics import Resampling, mean
from arenarl.report import markdown
from arenarl.report.summary import format_figure
from arenarl.system.atomic_files import to_json, write_text
from arenarl.system.errors import EVALUATE_AGAIN, UserError, printable_lines
from arenarl.trajectory import read_turns

Pair = tuple[StoredCase, StoredCase]  # a query's case before RL and after it
POLICIES = ("sft", "rl")


def write_case(run_dir: Path, results_dir: Path) -> Path | None:
    """Write case.md and return its path; None if the run lacks one of both policies, or no query has two verdicts.
    Raises UserError if the files come from different evaluations, or from an earlier version."""
    paths = [part_path(run_dir / "evaluate", policy, "sampled", 0) for policy in POLICIES]
    if not all(path.is_file() for path in paths):
        return None
    before, after = map(read_cases, paths)
    if [case.query for case in before] != [case.query for case in after]:
        raise UserError(f"{paths[0]} and {paths[1].name} come from different evaluations; {EVALUATE_AGAIN}")
    pairs = list(zip(before, after, strict=True))
    chosen = median_gain(pairs)
    if chosen is None:
        return None
    parts = [_side_by_side(chosen), *filter(None, [restatement(pairs), search_accuracy(pairs)])]
    write_text(results_dir / "case.md", "\n\n".join(parts) + "\n")
    return results_dir / "case.md"


def won_share(case: StoredCase) -> float | None:
    """Return the share of dimensions won against the stored baseline, a tie being half; None without a verdict."""
    decided = case.outcomes[case.outcomes == case.outcomes]  # without NaN
    return float((1 + decided).mean() / 2) if decided.size else None


def median_gain(pairs: Sequence[Pair]) -> Pair | None:
    """Return the pair with the lower median of the gains; None if no pair has two verdicts."""
    shares = [(won_share(before), won_share(after)) for before, after in pairs]
    gains = [(after - before, number) for number, (before, after) in enumerate(shares) if None not in (before, after)]
    return pairs[sorted(gains)[(len(gains) - 1) // 2][1]] if gains else None


def restatement(pairs: Sequence[Pair]) -> str | None:
    """Return the share of the answers' words that are words of the query, before and after RL; None without answers."""
    if not all(any(case.trajectory.answer for case in cases) for cases in zip(*pairs, strict=True)):
        return None
    shares = _before_and_after(pairs, lambda case: restated(case.query.query, case.trajectory.answer))
    return f"Restatement: {shares} % of an answer's words are words of its query, in answers to {len(pairs)} queries."


def search_accuracy(pairs: Sequence[Pair]) -> str | None:
    """Return how often the answer's place meets all conditions of a travel Search query, before and after RL;
    None without such queries."""
    searches = [
        pair
        for pair in pairs
        if pair[0].query.subtask == "Search" and all("constraints_met" in case.figures for case in pair)
    ]
    if not searches:
        return None
    shares = _before_and_after(searches, lambda case: 100.0 * (case.figures["constraints_met"] == 100.0))
    return f"POI search: the recommended place meets every condition in {shares} % of {len(searches)} Search queries."


def _before_and_after(pairs: Sequence[Pair], value: Callable[[StoredCase], float]) -> str:
    """Return the means of a value before and after RL, with their intervals."""
    queries = [before.query for before, _ in pairs]
    resampling = Resampling([query.subtask for query in queries], 2000, 0, [query.query_id for query in queries])
    figures = (mean([value(case) for case in cases], resampling) for cases in zip(*pairs, strict=True))
    return " → ".join(map(format_figure, figures))


def _side_by_side(pair: Pair) -> str:
    before, after = pair
    rows = [
        ["valid", *("yes" if case.trajectory.valid else "no" for case in pair)],
        ["dimensions won, a tie half", *(f"{100 * (won_share(case) or 0.0):.0f} %" for case in pair)],
        ["true quality, 0 to 10", *(f"{case.quality:.1f}" if case.values else "-" for case in pair)],
    ]
    turns = [[_turn(turn) for turn in read_turns(case.trajectory.messages)] for case in pair]
    rows += [[f"turn {n}", *cells] for n, cells in enumerate(zip_longest(*turns, fillvalue="-"), start=1)]
    heading = f"**Query {before.query.query_id}, {before.query.subtask}**: {_cell(before.query.query)}"
    return f"{heading}\n\n{markdown.table(['', 'before RL', 'after RL'], rows)}"


def _turn(turn: Any) -> str:
    calls = [f"<code>{_cell(call.name)}</code> {_cell(to_json(call.arguments))}" for call in turn.tool_calls]
    results = [f"→ {_cell(observation)}" for observation in turn.observations]
    parts = [f"*{_cell(turn.thought)}*" if turn.thought.strip() else ""]
    parts += [part for pair in zip_longest(calls, results, fillvalue="") for part in pair]
    return "<br>".join(filter(None, [*parts, f"**{_cell(turn.answer)}**" if turn.answer else ""]))


def _cell(text: str) -> str:
    """Return text for a cell of a Markdown table, with all markup escaped."""
    text = escape(printable_lines(text.strip()), quote=False)
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text.replace("\n", "<br>")
