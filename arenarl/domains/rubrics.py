"""Rubrics: by which dimensions a judge scores, and what they weigh in the total.

A domain's rubric stands in configs/rubrics/<domain>_<language>.yaml (3.3, ArenaRL). Totals are computed here from the
scores, never read from a judge's arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from arenarl.config.value_types import DimensionName, PositiveFloat, Prose
from arenarl.config.yaml_text import read_yaml
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS, file_named
from arenarl.system.user_input import first_problem, text_of_file

RUBRICS = CONFIGS / "rubrics"


class _Part(BaseModel, extra="forbid"):
    weight: PositiveFloat
    dimensions: Annotated[dict[DimensionName, Prose], Field(min_length=1)]
    without_results: dict[DimensionName, Prose] = {}

    @model_validator(mode="after")
    def _rewords_its_own(self) -> "_Part":
        if unknown := self.without_results.keys() - self.dimensions.keys():
            what = "no dimension of this part has this name; rename it or add the dimension"
            raise ValueError(f"without_results.{min(unknown)}: {what}")
        return self


_PARTS = TypeAdapter(Annotated[dict[Literal["path", "answer"], _Part], Field(min_length=1)])


@dataclass(frozen=True)
class Item:
    """One dimension of a rubric. `part` is what it is about: path, the way to the answer, or answer;
    `weight` is its weight there.

    `without_results`: the description for a judge that is not shown tool results; "" keeps `description`.
    """

    name: str
    part: str
    weight: float
    description: str
    without_results: str = ""


@dataclass(frozen=True)
class Rubric:
    """`parts` are the parts' weights in the total."""

    items: tuple[Item, ...]
    parts: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def weights(self) -> dict[str, float]:
        """What each dimension weighs in the total."""
        whole = {part: sum(item.weight for item in self.items if item.part == part) for part in self.parts}
        return {item.name: self.parts[item.part] * item.weight / whole[item.part] for item in self.items}

    def for_view(self, kind: str) -> "Rubric":
        """Return the rubric for a kind of view: "answer" drops the path's dimensions;
        "answer" and "calls" take `without_results`."""
        if kind == "results":
            return self
        items = tuple(item for item in self.items if item.part == "answer") if kind == "answer" else self.items
        shown = tuple(replace(item, description=item.without_results or item.description) for item in items)
        return Rubric(shown, self.parts)

    def only(self, name: str) -> "Rubric":
        return Rubric(tuple(item for item in self.items if item.name == name), self.parts)

    def total(self, scores: Mapping[str, float]) -> float:
        """Weighted mean of the parts, each the weighted mean of its scores, 0 to 10. Only what was scored counts."""
        means = {}
        for part in self.parts:
            weights = {item.name: item.weight for item in self.items if item.part == part and item.name in scores}
            if weights:
                means[part] = weighted_mean({name: scores[name] for name in weights}, weights)
        whole = sum(self.parts[part] for part in means)
        return sum(self.parts[part] / whole * mean for part, mean in means.items())


@lru_cache
def domain_rubric(domain: str, language: str) -> Rubric:
    """The rubric of a domain, the English one where the language is missing.
    Raises UserError if there is none, or it is none."""
    paths = [path for path in (RUBRICS / f"{domain}_{language}.yaml", RUBRICS / f"{domain}_en.yaml") if path.exists()]
    if not paths:
        raise UserError(f"no rubric for the domain {domain}: write {RUBRICS / domain}_{language}.yaml")
    return read_rubric(paths[0])


def read_rubric(path: Path) -> Rubric:
    """The rubric of a YAML such as those in configs/rubrics: parts with their weights, the dimensions of a part alike.
    Raises UserError if there is no such file, or it holds no rubric."""
    file = file_named(path)
    if not file.is_file():
        raise UserError(f"{path} does not exist; a rubric is a YAML such as configs/rubrics/writing_en.yaml")
    try:
        parts = _PARTS.validate_python(read_yaml(text_of_file(file)))
    except ValidationError as error:
        problem = f"{first_problem(error)}; configs/rubrics/writing_en.yaml is one"
        raise UserError(f"{path} is no rubric: {problem}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    items = [
        Item(name, part, 1.0, description.strip(), content.without_results.get(name, "").strip())
        for part, content in parts.items()
        for name, description in content.dimensions.items()
    ]
    if len({item.name for item in items}) < len(items):
        raise UserError(f"{path} is no rubric: a dimension of the path and one of the answer have the same name")
    return Rubric(tuple(items), {part: content.weight for part, content in parts.items()})


def rubric_in_words(words: str) -> Rubric:
    """One dimension, of which the words say what it is. Raises UserError without any."""
    if not words.strip():
        raise UserError("a rubric in words must say what a good answer is")
    return Rubric((Item("quality", "answer", 1.0, words.strip()),), {"answer": 1.0})


def weighted_mean(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Mean of a trajectory's scores on the rubric's items by their weights; None if one is missing. Eq.
    13, Tournament-GRPO.

    >>> weighted_mean({"a": 9.0, "b": 3.0}, {"a": 2, "b": 1})
    7.0
    """
    if None in scores.values():
        return None
    return sum(weights[name] * score for name, score in scores.items()) / sum(weights[name] for name in scores)
