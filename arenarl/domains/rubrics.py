"""Rubrics: the dimensions that a judge scores, and their weights in the total.

A domain's rubric is in configs/rubrics/<domain>_<language>.yaml (3.3, ArenaRL), in the current folder or in the
repository. `Rubric.total` computes totals from the scores; a total in a judge's reply is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from arenarl.config.value_types import DimensionName, PositiveFloat, Prose
from arenarl.system.errors import UserError, missing
from arenarl.system.repository import CONFIGS, file_named
from arenarl.system.user_input import first_problem, text_of_file
from arenarl.system.yaml_text import read_yaml

RUBRICS = CONFIGS / "rubrics"


class _Part(BaseModel, extra="forbid"):
    weight: PositiveFloat
    dimensions: Annotated[dict[DimensionName, Prose], Field(min_length=1)]
    without_results: dict[DimensionName, Prose] = {}

    @model_validator(mode="after")
    def _rewords_its_own(self) -> "_Part":
        if unknown := self.without_results.keys() - self.dimensions.keys():
            what = "not a dimension of this part; rename it or add the dimension"
            raise ValueError(f"without_results.{min(unknown)}: {what}")
        return self


_PARTS = TypeAdapter(Annotated[dict[Literal["path", "answer"], _Part], Field(min_length=1)])


@dataclass(frozen=True)
class Item:
    """A dimension of a rubric. `part` is "path" (the way to the answer) or "answer"; `weight` counts within the part.

    `without_results` is the description for a judge without tool results; "" keeps `description`.
    """

    name: str
    part: str
    weight: float
    description: str
    without_results: str = ""


@dataclass(frozen=True)
class Rubric:
    """The dimensions, and the weight of each part in the total."""

    items: tuple[Item, ...]
    parts: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each dimension in the total."""
        whole = {part: sum(item.weight for item in self.items if item.part == part) for part in self.parts}
        return {item.name: self.parts[item.part] * item.weight / whole[item.part] for item in self.items}

    def for_view(self, kind: str) -> "Rubric":
        """Return the rubric for a view: "answer" drops the path; "answer" and "calls" use `without_results`."""
        if kind == "results":
            return self
        items = tuple(item for item in self.items if item.part == "answer") if kind == "answer" else self.items
        items = tuple(replace(item, description=item.without_results or item.description) for item in items)
        return Rubric(items, self.parts)

    def only(self, name: str) -> "Rubric":
        """Return a rubric that has only this dimension."""
        return Rubric(tuple(item for item in self.items if item.name == name), self.parts)

    def total(self, scores: Mapping[str, float]) -> float:
        """Return the weighted mean of the parts, 0 to 10; a part is the weighted mean of its scores.

        Dimensions without a score do not count.
        """
        means = {}
        for part in self.parts:
            weights = {item.name: item.weight for item in self.items if item.part == part and item.name in scores}
            if weights:
                means[part] = weighted_mean({name: scores[name] for name in weights}, weights)
        whole = sum(self.parts[part] for part in means)
        return sum(self.parts[part] / whole * mean for part, mean in means.items())


@lru_cache
def domain_rubric(domain: str, language: str) -> Rubric:
    """Return the domain's rubric in this language, otherwise in English; raise UserError without a valid one."""
    own = Path("configs", "rubrics")
    names = (f"{domain}_{language}.yaml", f"{domain}_en.yaml")
    path = next((folder / name for name in names for folder in (own, RUBRICS) if (folder / name).exists()), None)
    if path is None:
        raise UserError(f"no rubric for the domain {domain}: write {own / domain}_{language}.yaml")
    return read_rubric(path)


def read_rubric(path: Path) -> Rubric:
    """Read a rubric from a YAML like those in configs/rubrics, with equal weights in a part, or raise UserError."""
    file = file_named(path)
    if not file.is_file():
        raise UserError(missing(path, "; a rubric is a YAML such as configs/rubrics/writing_en.yaml"))
    try:
        parts = _PARTS.validate_python(read_yaml(text_of_file(file)))
    except ValidationError as error:
        problem = f"{first_problem(error)}; see configs/rubrics/writing_en.yaml for an example"
        raise UserError(f"{path} is not a rubric: {problem}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    items = [
        Item(name, part, 1.0, description.strip(), content.without_results.get(name, "").strip())
        for part, content in parts.items()
        for name, description in content.dimensions.items()
    ]
    if len({item.name for item in items}) < len(items):
        raise UserError(f"{path} is not a rubric: path and answer have a dimension of the same name; rename one")
    return Rubric(tuple(items), {part: content.weight for part, content in parts.items()})


def rubric_in_words(words: str) -> Rubric:
    """Return a rubric whose only dimension, `quality`, has these words as description; UserError if there are none."""
    if not words.strip():
        raise UserError("a rubric in words must say what a good answer is")
    return Rubric((Item("quality", "answer", 1.0, words.strip()),), {"answer": 1.0})


def weighted_mean(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Return the weighted mean of the scores; None if one is missing. Eq. 13, Tournament-GRPO.

    >>> weighted_mean({"a": 9.0, "b": 3.0}, {"a": 2, "b": 1})
    7.0
    """
    if None in scores.values():
        return None
    return sum(weights[name] * score for name, score in scores.items()) / sum(weights[name] for name in scores)
