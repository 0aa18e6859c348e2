"""The page of ranked candidates: one HTML file with every bracket, every verdict and all candidates."""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from arenarl.llm.reply_store import cost_text
from arenarl.rank.files import Group
from arenarl.rank.ranker import read_group
from arenarl.report.page import html_table, render
from arenarl.report.page.data import tournament_data, trajectory_data
from arenarl.system.atomic_files import write_text

Ranked = tuple[Group, dict[str, Any]]  # a line of candidates and its line of ranks


def write_page(path: Path, title: str, ranked: Iterable[Ranked], language: str, judge: str, topology: str) -> None:
    """Write the page. `judge` names the judge, `topology` the schedule of the matches."""
    lines = list(ranked)
    size = max(len(group.candidates) for group, _ in lines)
    totals = {key: sum(record[key] for _, record in lines) for key in ("calls", "failed_calls", "paid_calls")}
    rows = [
        ["prompts", f"{len(lines):,}"],
        ["verdicts", f"{totals['calls']:,}"],
        ["verdicts that are missing", f"{totals['failed_calls']:,}"],
        ["calls that were paid for", f"{totals['paid_calls']:,}"],
        ["cost", cost_text(sum(record["cost"] for _, record in lines))],
    ]
    groups = {"key": "prompts", "title": "Prompts", "isTraining": True, "value": "estimate", "judge": judge,
              "names": [_name(g) for g in range(size)], "left": 0, "right": None,
              "items": _items(lines, language, topology)}  # fmt: skip
    is_staged = topology == "group_stage"
    estimates = "points of all its tournaments" if is_staged else "expected scores from 0 to 10, over all matches"
    caption = f"Ranks and estimates by the judge alone: estimates are {estimates}."
    summary = f"<h2>Ranking</h2>\n{html_table(caption, ['', ''], rows)}"
    write_text(path, render(title, f"{escape(topology.replace('_', ' '))} · {escape(judge)}", summary, [groups]))


def _items(lines: Iterable[Ranked], language: str, topology: str) -> Iterator[dict[str, Any]]:
    for group, record in lines:
        query, candidates = read_group(group.prompt, group.candidates, language)
        entrants = [
            {"name": _name(g)} | trajectory_data(candidate.to_record()) | {"quality": None, "reward": quality}
            for g, (candidate, quality) in enumerate(zip(candidates, record["qualities"], strict=True))
        ]
        ranking = {"ranks_G": record["ranks"], "scores_G": record["qualities"], "matches": [], **record}
        name = f"line {record['line']}" if group.id is None else f"{group.id} (line {record['line']})"
        yield {
            "id": name,
            "subtask": "",
            "query": query.query,
            "entrants": entrants,
            "tournaments": [tournament_data(ranking, "", topology)],
        }


def _name(g: int) -> str:
    return f"candidate {g}"
