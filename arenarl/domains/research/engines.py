"""Engines that supply pages: the embedded corpus, a local folder of documents, or the web (`web.py`).

A local engine returns each page with its chunks in BM25's order; its results are not cached on disk. In a folder, each
text, Markdown or HTML file is one page. Each line of a JSONL file is one page with `text` (or `contents`), `title` (or
the text's first line) and `url`. A folder's index is stored on disk for all processes and runs. Its name is a hash of
the documents and settings, so a changed document leads to a new index. The first process builds the index while the
others wait; an unfinished index is never visible.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from filelock import FileLock

from arenarl.config.schema import EnvironmentConfig, SearchConfig
from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.pages import Hit, Page, read_html
from arenarl.domains.research.passages import PageIndex, StoredPages
from arenarl.domains.research.rankers import Embedder
from arenarl.rollout.environment import ToolError, as_written
from arenarl.system.atomic_files import atomic_path
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import NotText, text_of_file
from arenarl.trajectory import numbered_records

FORMAT = 2  # index version; raise it when the indexed content changes


class Engine(Protocol):
    name: str  # cache key: names everything that decides the results
    is_local: bool  # True: results need no I/O

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Raises ToolError if the engine cannot be reached."""

    async def fetch(self, url: str) -> Page:
        """Raises ToolError if the page cannot be fetched."""


class LocalEngine:
    """An `Engine` over an index, which fetches pages by url or title."""

    is_local = True

    def __init__(self, index: PageIndex, name: str):
        self.index, self.name = index, name

    async def search(self, query: str, limit: int) -> list[Hit]:
        return [Hit(page.url, page.title, chunks=chunks) for page, chunks in self.index.search(query, limit)]

    async def fetch(self, url: str) -> Page:
        if page := self.index.find(url):
            return page
        hints = [f" Did you mean {as_written(page.title)}?" for page, _ in self.index.search(url, 1)]
        raise ToolError(f"no page {as_written(url)}.{''.join(hints)}")


class DenseEngine(LocalEngine):
    """A `LocalEngine` that finds pages by embedding. All processes and runs share the chunks' vectors on disk."""

    def __init__(self, index: PageIndex, name: str, search: SearchConfig):
        super().__init__(index, f"{name} {search.embedder}")
        self._embedder = Embedder(search.embedder, search.device)
        key = json.dumps([self.name, search.search_chunk_tokens])
        path = Path(search.indexes) / f"vectors-{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                texts = index.titled_chunks()
                say(f"embedding {len(texts)} chunks into {path}")
                with atomic_path(path) as partial, partial.open("wb") as file:
                    np.save(file, self._embedder.documents(texts))
        self._vectors_CD = np.load(path, mmap_mode="r")

    async def search(self, query: str, limit: int) -> list[Hit]:
        scores_C = 1 + self._vectors_CD @ self._embedder.query(query)  # from 0 to 2
        return [Hit(page.url, page.title, chunks=chunks) for page, chunks in self.index.ranked(scores_C, limit)]


def open_engine(config: EnvironmentConfig) -> Engine:
    """Return the engine of `environment.search.engine`. Raises UserError if its documents or its key are missing."""
    search = config.search
    if search.engine != "web":
        if search.engine == "corpus":
            parts = _corpus_index(config.world_seed, search.corpus_size, search.search_chunk_tokens)
        else:
            parts = open_folder(Path(search.folder), search.search_chunk_tokens, Path(search.indexes))
        return DenseEngine(*parts, search) if search.dense else LocalEngine(*parts)
    from arenarl.domains.research.web import WebEngine  # only here: it loads an HTTP client

    return WebEngine(search.web)


@lru_cache(maxsize=2)
def _corpus_index(seed: int, size: int, chunk_tokens: int) -> tuple[PageIndex, str]:
    pages = build_corpus(seed, size).pages
    return PageIndex.build(pages, chunk_tokens), hashlib.sha256(repr(pages).encode()).hexdigest()


def open_folder(folder: Path, chunk_tokens: int, indexes: Path) -> tuple[PageIndex, str]:
    """Return the index of all documents below a folder, and its name. Builds the index if it is missing.
    Raises UserError if the folder holds no documents, or a document cannot be read."""
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
    with atomic_path(target) as partial:
        partial.mkdir()
        pages = StoredPages.write(read_documents(folder, empty), partial)
        try:
            PageIndex.build(pages, chunk_tokens).save(partial)
        except ValueError as error:  # no page has a word
            raise UserError(f"environment.search.folder={folder}: {error}") from error
    endings = Counter(path.suffix.lower() or path.name for path in _visible_files(folder))
    unknown = [(ending, count) for ending, count in endings.most_common() if ending not in READERS]
    skipped = [f"{count} of {ending}, an unknown type" for ending, count in unknown]
    if empty:
        skipped.append(f"{len(empty)} without a main text or not in UTF-8, such as {empty[0]}")
    if skipped:
        say(f"{folder}: files left out: {'; '.join(skipped)}")


def fingerprint(folder: Path, chunk_tokens: int) -> str:
    """Return a hash of every document's name, size and modification time. Raises UserError without documents."""
    status = {path: path.stat() for path in documents(folder)}
    if not status:
        endings = ", ".join(READERS)
        raise UserError(f"environment.search.folder={folder} holds no document; its files must end in {endings}")
    manifest = [(str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns) for path, stat in status.items()]
    return hashlib.sha256(json.dumps([FORMAT, chunk_tokens, manifest]).encode()).hexdigest()[:32]


def documents(folder: Path) -> list[Path]:
    """Return the readable files below a folder, sorted by path, without hidden files and linked folders."""
    return sorted(path for path in _visible_files(folder) if path.suffix.lower() in READERS)


def _visible_files(folder: Path) -> Iterator[Path]:
    root = folder.resolve()
    for path in folder.rglob("*"):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and path.is_file() and path.resolve().is_relative_to(root):
            yield path


def read_documents(folder: Path, empty: list[Path]) -> Iterator[Page]:
    """Yield the pages of every document. Append documents without a page to `empty`, such as text not in UTF-8."""
    for path in documents(folder):
        page = None
        try:
            for page in READERS[path.suffix.lower()](path, str(path.relative_to(folder))):
                yield page
        except NotText:
            if page is not None:  # the encoding breaks in the middle of a JSONL file
                raise
        if page is None:
            empty.append(path)


def _read_text(path: Path, name: str) -> list[Page]:
    """Read a text or Markdown file; the title of a Markdown file is its first heading."""
    text, is_markdown = text_of_file(path), path.suffix.lower() != ".txt"
    headings = (line.lstrip("#").strip() for line in text.splitlines() if is_markdown and line.startswith("#"))
    return [Page(name, next(filter(None, headings), path.stem), text)]


def _read_html(path: Path, name: str) -> list[Page]:
    page = read_html(path.read_bytes(), name)
    return [page] if page else []


def _read_jsonl(path: Path, name: str) -> Iterator[Page]:
    for number, (line, record) in enumerate(numbered_records(path), start=1):
        text = record.get("text") or record.get("contents") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise UserError(f"{path}, line {line}: must be a JSON object whose text or contents is a text")
        title = record.get("title")
        if not title:
            head, _, rest = text.partition("\n")
            title, text = head.strip(' "')[:120], rest.strip() or text
        yield Page(str(record.get("url") or f"{name}#{number}"), str(title), text)


READERS: dict[str, Callable[[Path, str], Iterable[Page]]] = {  # file ending → reader
    ".txt": _read_text, ".md": _read_text, ".markdown": _read_text,
    ".html": _read_html, ".htm": _read_html, ".xhtml": _read_html, ".jsonl": _read_jsonl,
}  # fmt: skip
