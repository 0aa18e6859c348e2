"""A local folder of documents as pages, indexed on disk once for all processes and runs.

Text, Markdown and HTML files are a page each, JSONL dumps a page a line: `text` (or `contents`), `title` (or the first
line) and `url`. The index lies in a folder named by a hash of what it was made from, so a changed document makes
another one. It appears whole or not at all; who finds it missing builds it, and the others wait.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from arenarl.domains.research.html import read_html
from arenarl.domains.research.page_index import PageIndex, StoredPages
from arenarl.domains.research.pages import Page
from arenarl.system.atomic_files import appearing
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import NotText, lines_of, text_of_file
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json

FORMAT = 2  # of an index; to be raised when what is indexed changes


def open_folder(folder: Path, chunk_tokens: int, indexes: Path) -> tuple[PageIndex, str]:
    """The index of all documents below a folder, built if it is not there yet,
    and the name that it has after its content.

    Raises:
        UserError: the folder is missing, holds no document, or one that cannot be read.
    """
    name = fingerprint(folder, chunk_tokens)
    place = indexes / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        if not (place / name).is_dir():
            say(f"indexing {folder} into {place / name}")
            _build(folder, chunk_tokens, place / name)
            for older in place.iterdir():
                if older.is_dir() and older.name != name:
                    shutil.rmtree(older)
        return PageIndex.open(place / name), name


def _build(folder: Path, chunk_tokens: int, target: Path) -> None:
    empty: list[Path] = []
    with appearing(target) as partial:
        partial.mkdir()
        pages = StoredPages.write(read_documents(folder, empty), partial)
        try:
            PageIndex.build(pages, chunk_tokens).save(partial)
        except ValueError as error:
            raise UserError(f"environment.search.folder={folder}: {error}") from error
    others = Counter(
        path.suffix.lower() or path.name for path in _visible(folder) if path.suffix.lower() not in READERS
    )
    left_out = [f"{count} of {ending}, which cannot be read" for ending, count in others.most_common()]
    left_out += [f"{len(empty)} without a main text or not in UTF-8, such as {empty[0]}"] if empty else []
    if left_out:
        say(f"{folder}: files left out: {'; '.join(left_out)}")


def fingerprint(folder: Path, chunk_tokens: int) -> str:
    """Hash of every document's name, size and time of change, without reading them."""
    manifest = [
        (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in documents(folder)
    ]
    if not manifest:
        raise UserError(
            f"environment.search.folder={folder} holds no document; its files must end in {', '.join(READERS)}"
        )
    return hashlib.sha256(json.dumps([FORMAT, chunk_tokens, manifest]).encode()).hexdigest()[:32]


def documents(folder: Path) -> list[Path]:
    """All files below a folder that can be read, in the order of their names;
    hidden ones and links out of it left out."""
    return sorted(path for path in _visible(folder) if path.suffix.lower() in READERS)


def _visible(folder: Path) -> Iterator[Path]:
    inside = folder.resolve()
    paths = (path for path in folder.rglob("*") if path.is_file())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return (path for path in visible if path.resolve().is_relative_to(inside))


def read_documents(folder: Path, empty: list[Path] | None = None) -> Iterator[Page]:
    """Of every document; those that make no page, as what is not UTF-8 but for HTML, are added to `empty`."""
    for path in documents(folder):
        page = None
        try:
            for page in READERS[path.suffix.lower()](path, str(path.relative_to(folder))):
                yield page
        except NotText:
            if page is not None:  # half of a dump
                raise
        if page is None and empty is not None:
            empty.append(path)


def _read_text(path: Path, name: str) -> Iterator[Page]:
    yield Page(name, path.stem, text_of_file(path, "utf-8-sig"))


def _read_markdown(path: Path, name: str) -> Iterator[Page]:
    """Its title is the first heading."""
    text = text_of_file(path, "utf-8-sig")
    headings = (line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#"))
    yield Page(name, next(filter(None, headings), path.stem), text)


def _read_html(path: Path, name: str) -> Iterator[Page]:
    page = read_html(path.read_bytes(), name)
    if page:
        yield page


def _read_jsonl(path: Path, name: str) -> Iterator[Page]:
    for number, line in enumerate(filter(str.strip, lines_of(path, "utf-8-sig")), start=1):
        try:
            record = parse_json(line, MAX_RECORD_NESTING)
            text = str(record.get("text") or record["contents"])
        except (ValueError, AttributeError, KeyError) as error:
            raise UserError(f"{path}, record {number}: must be a JSON object with a text; {error!r}") from error
        head, _, rest = text.partition("\n")
        title, text = (record["title"], text) if record.get("title") else (head.strip(' "')[:120], rest.strip() or text)
        yield Page(str(record.get("url") or f"{name}#{number}"), str(title), text)


READERS: dict[str, Callable[[Path, str], Iterator[Page]]] = {  # by how a file's name ends
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".xhtml": _read_html,
    ".jsonl": _read_jsonl,
}
