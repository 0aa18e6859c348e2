"""Markdown tables, and documents with generated tables between markers."""

import re
from collections.abc import Mapping
from pathlib import Path


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table. A bar or a line end within a cell does not end it."""
    cells = [[" ".join(cell.splitlines()).replace("|", "\\|") for cell in row] for row in [head, *rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], ["---"] * len(head), *cells[1:]])


def fill_in(document: Path, tables: Mapping[str, str]) -> None:
    """Write each marker's table between its `<!-- marker -->` and `<!-- /marker -->`."""
    text = document.read_text(encoding="utf-8")
    for marker, content in tables.items():
        between = re.compile(rf"(?<=<!-- {marker} -->\n).*?(?=<!-- /{marker} -->)", re.DOTALL)
        text = between.sub(lambda _, content=content: content + "\n", text)
    document.write_text(text, encoding="utf-8")
