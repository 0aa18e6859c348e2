"""Counters that can be added."""

from dataclasses import fields
from typing import Self


class Summable:
    """A dataclass of numbers. `a + b` adds field by field; `sum(counters, start=Counter())` adds many."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))
