"""Rivals of the tournaments on the same simulated groups, at equal judge calls and at equal tokens.

    python -m arenarl.studies.rivals          # ./reproduce.sh fidelity --rivals

Groups and judges are those of `fidelity`; how each method ranks and what a judge reads for it is in `simulated_rivals`.
Each method is measured with its own calls, with as many as ArenaRL's tournament takes at most, 4N - 4, and with as many
as read and write as many tokens as that. No policy is trained here, and no judge is real.

Writes results/ranking_fidelity/rivals.json. Not in the papers.
"""

import asyncio
import time
from dataclasses import asdict
from itertools import product
from statistics import fmean
from typing import Any

from arenarl.config.command_line import at_least
from arenarl.report import markdown
from arenarl.report.provenance import commit
from arenarl.studies.fidelity import MODELS
from arenarl.studies.simulated_groups import NOISE, Group
from arenarl.studies.simulated_rankings import WARM_UP, Tally, one_row_a_line, run_jobs, study_parser
from arenarl.studies.simulated_rivals import Scores, Tokens, bracket_calls, flip_rate, methods
from arenarl.system.atomic_files import write_text
from arenarl.system.seeds import stable_seed
from arenarl.tournament.ranking import midranks

BUDGETS = ("own", "equal calls", "equal tokens")
SIZES = (8, 16)


def cell(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """A row for each method and budget: its tau with one judge, and what that took on average."""
    return asyncio.run(_cell(kind, strength, size, groups, seed))


async def _cell(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    noise, tokens, rows = NOISE[kind](strength), Tokens(), []
    budget = bracket_calls(size)
    for number, name in product(range(len(BUDGETS)), methods(tokens)):
        method = methods(tokens)[name]  # with a memory that is new
        calls = (method.own(size), budget, method.afforded(budget * tokens.pair, size))[number]
        if number and not method.is_flexible:
            continue
        tally, found = Tally(), []
        for group_number in range(-WARM_UP, groups):
            group = Group(size, noise, stable_seed(seed, kind, strength, size, group_number))
            ranked: Scores = await method.rank(group, calls, tokens)
            if group_number >= 0:
                tally.add(group.quality_G, midranks(ranked[0]), (0, ranked[1], 0))
                found.append(ranked[2])
        figures = {
            key: value for key, value in tally.row().items() if key in ("judge_calls", "tau", "tau_ci", "best_first")
        }
        setting = {"noise": kind, "strength": strength, "group_size": size, "method": name, "budget": BUDGETS[number]}
        rows.append(setting | figures | {"tokens": round(fmean(found)), "groups": groups})
    return rows


def markdown_table(summary: dict[str, Any]) -> str:
    """docs/methods.md's: tau with a method's own calls / as many calls as ArenaRL's tournament / as many tokens."""
    parts = []
    for size in dict.fromkeys(row["group_size"] for row in summary["rows"]):
        rows = [row for row in summary["rows"] if row["group_size"] == size]
        found = {(row["method"], row["noise"], row["budget"]): row for row in rows}
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = found[method, MODELS[0][0], "own"]
            cells = [" / ".join(_tau(found.get((method, kind, budget))) for budget in BUDGETS) for kind, _ in MODELS]
            lines.append([method, f"{own['judge_calls']:g}", f"{own['tokens'] / 1000:.0f}", *cells])
        heads = [
            f"N={size}",
            "judge calls",
            "thousand tokens",
            *(f"{kind} noise, {strength:g}" for kind, strength in MODELS),
        ]
        parts.append(markdown.table(heads, lines))
    return "\n\n".join(parts)


def _tau(row: dict[str, Any] | None) -> str:
    return f"{row['tau']:.3f}" if row else "-"


def main() -> None:
    parser = study_parser(__doc__, 300, "in a cell")
    parser.add_argument("--sizes", type=at_least(2, int), nargs="+", default=list(SIZES), help="group sizes")
    arguments = parser.parse_args()
    start = time.perf_counter()
    jobs = [(cell, *model, size, arguments.groups, arguments.seed) for model, size in product(MODELS, arguments.sizes)]
    found = run_jobs("rivals", jobs, arguments.processes)
    rows = [row for job in sorted(jobs, key=lambda job: arguments.sizes.index(job[3])) for row in found[job]]
    flips = [{"noise": kind, "strength": strength,
              **{by: round(flip_rate(NOISE[kind](strength), by), 3) for by in ("item", "whole")}}
             for kind, strength in MODELS]  # fmt: skip
    seconds = round(time.perf_counter() - start)
    summary = {
        "judge": "simulated",
        "seed": arguments.seed,
        "commit": commit(),
        "seconds": seconds,
        "tokens_of": asdict(Tokens()),
    }
    summary |= {"flip_rates": flips, "rows": rows}
    write_text(arguments.out / "rivals.json", one_row_a_line(summary))
    print(
        "Kendall's tau: a method's own calls / as many calls as ArenaRL's tournament at most / as many tokens as that"
    )
    print(markdown_table(summary))
    print(f"groups and judges are simulated; {seconds} s; written: {arguments.out}/rivals.json")


if __name__ == "__main__":
    main()
