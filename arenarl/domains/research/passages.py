"""Pages cut into chunks, chunks into sentences, both into search terms; an index of many pages; snippets of a page.

A token is a word, or a character where text has no blanks between words (Chinese): what InfoAgent's 128 and 2,048 are
counted in is not said. Chunks end where sentences do.

The index is BM25 over chunks: in memory for the embedded corpus, memory-mapped from a folder for documents on disk.
bm25s scores all chunks at once; `top` finds the best without sorting them, which took most of a query's time. A page
counts by its best chunk. A chunk is indexed with its page's title, so that one that says "she" is found by her name,
and a page by what it is about.
"""

import json
import math
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arenarl.domains.bm25 import BM25, STOPWORDS_EN, pairs, singular
from arenarl.domains.research.pages import Page
from arenarl.system.seeds import stable_seed

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]")
_WORD = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]+")
_END = re.compile(r"""([.!?。！？\n](?:(?<=[.!?])["”)]?(?=\s+[^a-z])|(?<=[。！？])[」』”]?|(?<=\n)))\s*""")
_NO_END = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Mt|No)\.$")  # an initial, a title
STOP = {*STOPWORDS_EN, *"what which who when where how did does do from has have had s".split()}
_LAST_LETTER = "\u33ff"  # Chinese characters come after it
CUT = "…"
_BLOCK = 64  # chunks that `top` looks at together
_ARRAYS = ("spans", "first_chunk", "names")
_EMPHASIS = 3  # how often the title counts. Our choice


def terms(text: str) -> list[str]:
    """What BM25 counts: lower-case singular words, without the commonest, and pairs of Chinese characters.

    >>> terms("Who founded the cities of Ålesund, 安静的寺?")
    ['founded', 'city', 'ålesund', '安静', '静的', '的寺']
    """
    found = []
    for word in _WORD.findall(text.lower().replace("'", "").replace("’", "")):
        if word[0] > _LAST_LETTER and len(word) > 1:
            found += pairs(word)
        elif word not in STOP:
            found.append(singular(word))
    return found


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def cut(text: str, max_tokens: int) -> str:
    """The text, or its beginning and an ellipsis.

    >>> cut("One two three.", 3), cut("One two three.", 2)
    ('One two three.', 'One two…')
    """
    ends = [token.end() for token in _TOKEN.finditer(text)]
    return text if len(ends) <= max_tokens else text[: ends[max_tokens - 1]] + CUT


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence, blanks around it left out.

    >>> text = "J. R. Holm won in 3.5 hours. He was 21!\\n\\nLater he left. 他是谁？我不知道。"
    >>> [text[start:end] for start, end in sentence_spans(text)]
    ['J. R. Holm won in 3.5 hours.', 'He was 21!', 'Later he left.', '他是谁？', '我不知道。']
    """
    start = 0
    for gap in _END.finditer(text):
        if not _NO_END.search(text, max(start, gap.end(1) - 4), gap.end(1)):
            end = start + len(text[start : gap.end(1)].rstrip())
            if end > start:
                yield start, end
            start = gap.end()
    if len(text.rstrip()) > start:
        yield start, len(text.rstrip())


def chunk_spans(text: str, max_tokens: int) -> list[tuple[int, int]]:
    """(start, end) of chunks of at most `max_tokens`, of whole sentences; a longer sentence is cut."""
    spans: list[tuple[int, int]] = []
    size = 0  # of the chunk under way
    for start, end, tokens in _pieces(text, max_tokens):
        if not spans or size + tokens > max_tokens:
            spans.append((start, end))
            size = tokens
        else:
            spans[-1] = (spans[-1][0], end)
            size += tokens
    return spans


def chunks(text: str, max_tokens: int) -> list[str]:
    return [text[start:end] for start, end in chunk_spans(text, max_tokens)]


def _pieces(text: str, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, tokens) of sentences, longer ones in parts."""
    for start, end in sentence_spans(text):
        ends = [token.end() for token in _TOKEN.finditer(text, start, end)]
        for first in range(0, max(len(ends), 1), max_tokens):
            part = ends[first : first + max_tokens]
            is_last = first + max_tokens >= len(ends)
            yield start, end if is_last else part[-1], len(part)
            start = start if is_last else part[-1]


def extract_snippet(query: str, texts: Sequence[str], max_words: int, title: str = "") -> str:
    """The sentences that say most of the query, in their order, within `max_words`; else the first ones.

    Terms of the page's title do not count, and a term weighs less the more sentences have it: neither is an answer.
    """
    text = "\n".join(texts)
    spans = list(sentence_spans(text))
    starts, lowered = [start for start, _ in spans], text.lower()
    scores = [0.0] * len(spans)  # by sentence
    said = set(terms(title))
    for term in (term for term in dict.fromkeys(terms(query)) if term not in said):
        having = {bisect_right(starts, place) - 1 for place in _places(term, lowered)}
        for index in having:
            scores[index] += math.log(1 + len(spans) / len(having))
    chosen, left = [], max_words
    for index in sorted(range(len(spans)), key=lambda index: -scores[index]):
        if chosen and (left <= 0 or not scores[index] and scores[chosen[0]]):
            break
        words = count_tokens(text[slice(*spans[index])])
        if words <= left or not chosen:
            chosen.append(index)
            left -= words
    return cut(" ".join(text[slice(*spans[index])] for index in sorted(chosen)), max_words)


def _places(term: str, lowered: str) -> Iterator[int]:
    """Where a text in lower case has a term: far quicker than splitting pages into all of their terms."""
    stem = term[:-1] if term.endswith("y") and term != "y" else term  # as in cities
    place = lowered.find(stem)
    while place >= 0:
        # looked at first: to read on from every place is not linear
        begins_word = not (place and lowered[place - 1].isalnum())
        if term[0] > _LAST_LETTER or begins_word and singular(_WORD.match(lowered, place)[0]) == term:
            yield place
        place = lowered.find(stem, place + 1)


def extract_summary(text: str, max_chars: int) -> str:
    """The first sentences, within `max_chars`."""
    if len(text) <= max_chars:
        return text
    ends = [end for _, end in sentence_spans(text) if end < max_chars]
    return text[: ends[-1] if ends else max_chars - 1] + CUT


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


@dataclass(eq=False)
class PageIndex:
    """`index.search(text, limit)` → the best pages, `index.find(name)` → the page of a url or title."""

    pages: Sequence[Page]
    bm25: BM25
    spans: np.ndarray  # (C, 2) where the C chunks start and end in their page's text
    first_chunk: np.ndarray  # (P + 1,) where the P pages' chunks begin
    names: np.ndarray  # (2, 2P) sorted hashes of urls and titles, with the page of each

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
        self.bm25.save(folder / "bm25", show_progress=False)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> "PageIndex":
        """What is read of the arrays comes from the disk when it is first needed, and all processes share it."""
        bm25 = BM25.load(folder / "bm25", mmap=True, show_progress=False)
        arrays = {name: np.asarray(value) for name, value in bm25.scores.items() if isinstance(value, np.memmap)}
        bm25.scores |= arrays
        places = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS)
        return cls(StoredPages(folder), bm25, *places)

    def search(self, text: str, limit: int) -> list[tuple[Page, list[str]]]:
        """The best pages, best first, each with its chunks, best first; none that has no term of the query."""
        wanted = [term for term in dict.fromkeys(terms(text)) if term in self.bm25.vocab_dict]
        if not wanted:
            return []
        scores_C = self.bm25.get_scores(wanted)
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
