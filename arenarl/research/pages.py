"""A page as every part of the research domain sees it: made by `corpus`, read from a folder by `documents`, fetched by `fetch`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """`text` is the main text, free of markup, its paragraphs separated by blank lines."""

    url: str
    title: str
    text: str
