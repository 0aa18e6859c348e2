"""Rubrics: by which dimensions a judge scores, and what they weigh in the total.

A domain's rubric stands in configs/rubrics/<domain>_<language>.yaml (3.3, ArenaRL). Totals are computed here from the scores,
never read from a judge's arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from arenarl.config import UserError
from arenarl.rewards import weighted_mean

RUBRICS = Path(__file__).resolve().parent.parent / "configs" / "rubrics"


@dataclass(frozen=True)
class Item:
    """One dimension of a rubric. `part` is what it is about: path, the way to the answer, or answer."""

    name: str
    part: str
    weight: float
    description: str


@dataclass(frozen=True)
class Rubric:
    items: tuple[Item, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def weights(self) -> dict[str, float]:
        return {item.name: item.weight for item in self.items}

    @property
    def of_answer(self) -> "Rubric":
        """The dimensions that can be judged without seeing the way to the answer."""
        return Rubric(tuple(item for item in self.items if item.part == "answer"))

    def only(self, name: str) -> "Rubric":
        return Rubric(tuple(item for item in self.items if item.name == name))

    def total(self, scores: Mapping[str, float]) -> float:
        """Weighted mean of the scores, 0 to 10."""
        return weighted_mean(scores, self.weights)


@lru_cache
def domain_rubric(domain: str, language: str) -> Rubric:
    """The rubric of a domain: each part's weight, spread evenly over its dimensions. English where the language is missing.

    Raises:
        UserError: the domain has no rubric.
    """
    paths = [path for path in (RUBRICS / f"{domain}_{language}.yaml", RUBRICS / f"{domain}_en.yaml") if path.is_file()]
    if not paths:
        raise UserError(f"no rubric for the domain {domain}: write {RUBRICS / domain}_{language}.yaml")
    parts = yaml.safe_load(paths[0].read_text(encoding="utf-8"))
    return Rubric(
        tuple(
            Item(name, part, content["weight"] / len(content["dimensions"]), description.strip())
            for part, content in parts.items()
            for name, description in content["dimensions"].items()
        )
    )
