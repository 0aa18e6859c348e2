"""How many queries each subtask and language is to have, and which of them go into which split (Table 1).

Test queries come first, then those that the teacher solves for SFT, then RL's; what a split wants of a subtask is
spread evenly over its languages. Held-out subtasks have no part in SFT (5.1).
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

from arenarl.config.schema import BuildConfig, DataConfig
from arenarl.synthesis.prompts import Cell
from arenarl.trajectory import Query

SPLITS = ("test", "sft", "rl")
Quotas = dict[str, Counter[Cell]]  # by split


def quotas_of(subtasks: Sequence[str], held_out: Sequence[str], build: BuildConfig, data: DataConfig) -> Quotas:
    """What each split wants of each subtask and language; of SFT a share `build.spare` more than is to remain."""
    languages = build.languages or [data.language]
    taught = [subtask for subtask in subtasks if subtask not in held_out]
    sft = math.ceil(data.sft_size * (1 + build.spare))
    return {
        "test": _spread(data.test_per_subtask * len(subtasks), subtasks, languages),
        "sft": _spread(sft, taught, languages),
        "rl": _spread(data.rl_size, subtasks, languages),
    }


def assign(queries: Sequence[tuple[Query, bool]], quotas: Quotas, seed: int) -> dict[str, list[Query]]:
    """Split → its queries. Each is given with whether it was written for the test split, which then takes no others.

    A split that cannot be filled is short: test is filled first, then SFT;
    RL has the rest, which the paper keeps for it.
    """
    has_own_tests = any(is_test for _, is_test in queries)
    split_of: dict[str, list[Query]] = {
        name: [query for query, is_test in queries if is_test] if name == "test" else [] for name in SPLITS
    }
    rest: dict[Cell, list[Query]] = {}
    for query, is_test in queries:
        if not is_test:
            rest.setdefault(Cell(query.subtask, query.language), []).append(query)
    for cell, members in sorted(rest.items(), key=lambda item: (item[0].subtask, item[0].language)):
        random.Random(f"{seed}:{cell.subtask}:{cell.language}").shuffle(members)
        start = 0
        for name in SPLITS:
            wanted = len(members) if name == "rl" else 0 if name == "test" and has_own_tests else quotas[name][cell]
            split_of[name] += members[start : start + wanted]
            start += wanted
    for name, members in split_of.items():
        random.Random(f"{seed}:{name}").shuffle(members)
    return split_of


def _spread(total: int, subtasks: Sequence[str], languages: Sequence[str]) -> Counter[Cell]:
    cells = [Cell(subtask, language) for subtask in subtasks for language in languages]
    return Counter({cell: total // len(cells) + (index < total % len(cells)) for index, cell in enumerate(cells)})
