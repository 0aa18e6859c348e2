"""A page as every part of the research domain sees it: made by `corpus`, read from a folder by `documents`, fetched by
`fetch`; and as a search engine finds it."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Page:
    """`text` is the main text, free of markup, its paragraphs separated by blank lines."""

    url: str
    title: str
    text: str


class Hit(NamedTuple):
    """A page that an engine found. `snapshot`: the sentence that a web search shows;
    `chunks`: a local page's, best first."""

    url: str
    title: str
    snapshot: str = ""
    chunks: list[str] | None = None
