"""BM25 over the chunks of many pages: in memory for the embedded corpus,
memory-mapped from a folder for documents on disk.

bm25s scores all chunks at once; `top` finds the best without sorting them, which took most of a query's time. A page
counts by its best chunk. A chunk is indexed with its page's title, so that one that says "she" is found by her name,
and a page by what it is about.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from arenarl.domains.bm25 import BM25
from arenarl.domains.research.pages import Page
from arenarl.domains.research.passages import chunk_spans, terms
from arenarl.system.seeds import stable_seed

_BLOCK = 64  # chunks that `top` looks at together
_EMPHASIS = 3  # how often the title counts. Our choice


class StoredPages(Sequence[Page]):
    """The pages of a folder's pages.jsonl, each read when it is asked for."""

    def __init__(self, folder: Path):
        self._file = (folder / "pages.jsonl").open("rb")
        self._starts = np.asarray(np.load(folder / "page_starts.npy", mmap_mode="r"))

    @staticmethod
    def write(pages: Iterable[Page], folder: Path) -> "StoredPages":
        starts = [0]
        with (folder / "pages.jsonl").open("wb") as file:
            for page in pages:
                line = json.dumps([page.url, page.title, page.text], ensure_ascii=False).encode("utf-8", "replace")
                starts.append(starts[-1] + file.write(line + b"\n"))
        np.save(folder / "page_starts.npy", np.array(starts, dtype=np.int64))
        return StoredPages(folder)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Page:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = self._starts[index : index + 2].tolist()
        return Page(*json.loads(os.pread(self._file.fileno(), end - start, start)))


class PageIndex:
    """`index.search(text, limit)` → the best pages, `index.find(name)` → the page of a url or title.

    Arrays: `spans` (C, 2) where the C chunks start and end in their page's text, `first_chunk` (P + 1,) where the P
    pages' chunks begin, `names` (2, 2P) sorted hashes of urls and titles with the page of each.
    """

    ARRAYS = ("spans", "first_chunk", "names")

    def __init__(
        self, pages: Sequence[Page], bm25: BM25, spans: np.ndarray, first_chunk: np.ndarray, names: np.ndarray
    ):
        self.pages, self._bm25 = pages, bm25
        self.spans, self.first_chunk, self.names = spans, first_chunk, names

    @classmethod
    def build(cls, pages: Sequence[Page], chunk_tokens: int) -> "PageIndex":
        """Raises ValueError if no page has a word."""
        vocabulary: dict[str, int] = {}
        spans, first_chunk, names, ids = [], [0], [], []
        for page in pages:
            title = terms(page.title) * _EMPHASIS
            for start, end in chunk_spans(page.text, chunk_tokens) or [(0, 0)]:
                spans.append((start, end))
                words = title + terms(page.text[start:end])
                ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
            first_chunk.append(len(spans))
            names += [_hash(page.url), _hash(page.title)]
        if not vocabulary:
            raise ValueError("no page has a word")
        bm25 = BM25()
        bm25.index((ids, vocabulary), show_progress=False)
        hashes, owners = np.array(names), np.arange(len(names)) // 2
        order = np.lexsort((owners, hashes))  # of pages with one name, the first
        return cls(pages, bm25, np.array(spans), np.array(first_chunk), np.stack([hashes, owners])[:, order])

    def save(self, folder: Path) -> None:
        """Beside the pages, which must be `StoredPages` of this folder."""
        self._bm25.save(folder / "bm25", show_progress=False)
        for name in self.ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> "PageIndex":
        """What is read of the arrays comes from the disk when it is first needed, and all processes share it."""
        bm25 = BM25.load(folder / "bm25", mmap=True, show_progress=False)
        bm25.scores = {
            name: np.asarray(value) if isinstance(value, np.memmap) else value for name, value in bm25.scores.items()
        }
        arrays = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in cls.ARRAYS)
        return cls(StoredPages(folder), bm25, *arrays)

    def search(self, text: str, limit: int) -> list[tuple[Page, list[str]]]:
        """The best pages, best first, each with its chunks, best first; none that has no term of the query."""
        wanted = [term for term in dict.fromkeys(terms(text)) if term in self._bm25.vocab_dict]
        if not wanted:
            return []
        scores_C = self._bm25.get_scores(wanted)
        results = []
        for number in self._best_pages(scores_C, limit):
            page, (first, last) = self.pages[number], self.first_chunk[number : number + 2].tolist()
            order = np.argsort(-scores_C[first:last], kind="stable")
            results.append((page, [page.text[start:end] for start, end in self.spans[first:last][order].tolist()]))
        return results

    def find(self, name: str) -> Page | None:
        """By url or title, capitals and blanks around it aside."""
        wanted = _hash(name)
        place = int(np.searchsorted(self.names[0], wanted))
        is_there = place < self.names.shape[1] and self.names[0, place] == wanted
        return self.pages[int(self.names[1, place])] if is_there else None

    def _best_pages(self, scores_C: np.ndarray, limit: int) -> list[int]:
        count = 4 * limit
        while True:
            best = top(scores_C, count)
            found = list(dict.fromkeys((np.searchsorted(self.first_chunk, best, side="right") - 1).tolist()))
            if len(found) >= limit or len(best) < count:
                return found[:limit]
            count *= 4


def top(scores: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` highest scores above 0, best first, of equals the first.

    The best of each block are enough to bound the last place from below; only what reaches it is sorted.
    """
    blocks = scores[: len(scores) // _BLOCK * _BLOCK].reshape(_BLOCK, -1).max(axis=0)
    bounds = blocks if len(blocks) > count else scores
    least = np.partition(bounds, -count)[-count] if len(bounds) > count else 0
    reached = np.flatnonzero(scores >= max(least, np.finfo(scores.dtype).tiny))
    return reached[np.argsort(-scores[reached], kind="stable")][:count]


def _hash(name: str) -> int:
    return stable_seed(" ".join(name.lower().split()))
