"""How many seeds a comparison needs: a priori power of the paired t test over training seeds.

The spread of the differences comes from the first five seeds. The differences to detect are fixed beforehand, not
measured.
"""

from itertools import count
from pathlib import Path

import numpy as np
from scipy.stats import f, ncf

from arenarl.evaluation.over_seeds import FIRST_SEEDS
from arenarl.report import markdown
from arenarl.tables.rows import TABLES, read_table
from arenarl.tables.summary import paired_figures, read_found

DIFFERENCES = (3.0, 1.5)  # points of a win rate
POWER = 0.8


def seeds_needed(spread: float, difference: float, alpha: float = 0.05) -> int:
    """Return the fewest seeds with which a two-sided paired t test at level `alpha` detects `difference` in 80 % of
    repetitions.

    `spread` is the standard deviation of the paired differences between two rows.

    >>> [seeds_needed(3.0, 3.0), seeds_needed(3.0, 1.5), seeds_needed(0.0, 1.5)]
    [10, 34, 2]
    """
    if spread == 0:
        return 2
    return next(seeds for seeds in count(2) if _power(difference / spread, seeds, alpha) >= POWER)


def _power(effect: float, seeds: int, alpha: float) -> float:
    """Return the power by the distribution of t², an F: the noncentral t gives NaN for a large effect."""
    return float(ncf.sf(f.isf(alpha, 1, seeds - 1), 1, seeds - 1, seeds * effect**2))


def power_table(results: Path) -> str:
    """Return a line for each primary comparison of win rates, if both rows have the first five seeds."""
    tables = {name: table for name in TABLES if (table := read_table(name)).figure == "win_rate"}
    where: dict[frozenset[str], list[str]] = {}
    for name, table in tables.items():
        for pair in table.primary:
            where.setdefault(frozenset(pair), []).append(name)
    found = {name: read_found(name, table, results) for name, table in tables.items()}
    strictest = 0.05 / len(where)  # Holm's level for the smallest p
    lines = []
    for pair, names in where.items():
        table = tables[names[0]]
        rows = next(rows for rows in table.pairs if frozenset(rows) == pair)
        figures = paired_figures(pair, tables, found)
        a, b = (figures[row] for row in rows)
        differences = [a[seed] - b[seed] for seed in FIRST_SEEDS if seed in a]
        if len(differences) == len(FIRST_SEEDS):
            spread = float(np.std(differences, ddof=1))
            needed = [f"{seeds_needed(spread, d)} ({seeds_needed(spread, d, strictest)})" for d in DIFFERENCES]
            compared = " minus ".join(table.rows[row].label for row in rows)
            lines.append([compared, ", ".join(names), f"{spread:.1f}", *needed])
    seeds = [f"seeds for {difference:g} points" for difference in DIFFERENCES]
    return markdown.table(["compared", "tables", "spread of differences", *seeds], lines)
