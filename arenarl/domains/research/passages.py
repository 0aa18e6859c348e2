"""Text processing for search: chunks, sentences, search terms, snippets, and a BM25 index of many pages.

A token is a word, or a character in scripts without blanks between words (Chinese). InfoAgent does not define the
tokens of its 128 and 2,048. Chunks end at the ends of sentences.

The index is BM25 over chunks: in memory for the embedded corpus, memory-mapped from a folder for documents on disk.
bm25s scores all chunks at once; `top` finds the best without a full sort, which took most of a query's time. A page
ranks by its best chunk. Each chunk is indexed with its page's title, so that a chunk about "she" is found by her name.
"""

import json
import math
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from arenarl.domains.bm25 import BM25, STOPWORDS_EN, pairs, search_form, singular
from arenarl.domains.research.pages import Page
from arenarl.system.seeds import stable_seed

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]")
_WORD = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]+")
_END = re.compile(r"""([.!?。！？\n](?:(?<=[.!?])["”)]?(?=\s+[^a-z])|(?<=[。！？])[」』”]?|(?<=\n)))\s*""")
_NO_END = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Mt|No)\.$")  # an initial, a title
STOP = {*STOPWORDS_EN, *"what which who when where how did does do from has have had s".split()}
_LAST_LETTER = "\u33ff"  # Chinese characters have higher codes
CUT = "…"
_BLOCK = 64  # chunks per block in `top`
_ARRAYS = ("spans", "first_chunk", "names")
_EMPHASIS = 3  # weight of the title's terms. Our choice


def terms(text: str) -> list[str]:
    """Return a text's terms for BM25: lower-case singular words without stop words, and pairs of Chinese characters.

    >>> terms("Who founded the cities of Ålesund, 安静的寺?")
    ['founded', 'city', 'ålesund', '安静', '静的', '的寺']
    """
    result = []
    for word in _WORD.findall(search_form(text)):
        if word[0] > _LAST_LETTER and len(word) > 1:
            result += pairs(word)
        elif word not in STOP:
            result.append(singular(word))
    return result


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def cut(text: str, max_tokens: int) -> str:
    """Return the text, or its first `max_tokens` tokens and an ellipsis.

    >>> cut("One two three.", 3), cut("One two three.", 2)
    ('One two three.', 'One two…')
    """
    ends = [token.end() for token in _TOKEN.finditer(text)]
    return text if len(ends) <= max_tokens else text[: ends[max_tokens - 1]] + CUT


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each sentence, without the blanks around it.

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
    """Return (start, end) of chunks: whole sentences, at most `max_tokens` together; a longer sentence is cut."""
    spans: list[tuple[int, int]] = []
    size = 0  # tokens in the current chunk
    for start, end in sentence_spans(text):
        ends = [token.end() for token in _TOKEN.finditer(text, start, end)]
        for first in range(0, max(len(ends), 1), max_tokens):
            part = ends[first : first + max_tokens]
            part_end = end if first + max_tokens >= len(ends) else part[-1]
            if not spans or size + len(part) > max_tokens:
                spans.append((start, part_end))
                size = len(part)
            else:
                spans[-1] = (spans[-1][0], part_end)
                size += len(part)
            start = part_end
    return spans


def chunks(text: str, max_tokens: int) -> list[str]:
    return [text[start:end] for start, end in chunk_spans(text, max_tokens)]


def extract_snippet(query: str, texts: Sequence[str], max_words: int, title: str = "") -> str:
    """Return the sentences with most of the query's terms, in text order, within `max_words`; else the first sentences.
    Terms of the page's title do not count. A term that occurs in many sentences weighs less. Neither kind of term helps
    to answer."""
    text = "\n".join(texts)
    sentences = [text[start:end] for start, end in sentence_spans(text)]
    searched = [search_form(sentence) for sentence in sentences]
    starts, searched_text = [0, *accumulate(len(sentence) + 1 for sentence in searched)], "\n".join(searched)
    scores = [0.0] * len(sentences)
    title_terms = set(terms(title))
    for term in (term for term in dict.fromkeys(terms(query)) if term not in title_terms):
        matches = {bisect_right(starts, place) - 1 for place in _places(term, searched_text)}
        for index in matches:
            scores[index] += math.log(1 + len(sentences) / len(matches))
    chosen, room = [], max_words
    for index in sorted(range(len(sentences)), key=lambda index: -scores[index]):
        if chosen and (room <= 0 or not scores[index] and scores[chosen[0]]):
            break
        words = count_tokens(sentences[index])
        if words <= room or not chosen:
            chosen.append(index)
            room -= words
    return cut(" ".join(sentences[index] for index in sorted(chosen)), max_words)


def _places(term: str, text: str) -> Iterator[int]:
    """Yield the positions of a term in a `search_form`; much faster than splitting the text into all its terms."""
    stem = term[:-1] if term.endswith("y") and term != "y" else term  # matches "cities" too
    place = text.find(stem)
    while place >= 0:
        # checked first, because matching a word at every place would take quadratic time
        begins_word = not (place and text[place - 1].isalnum())
        if term[0] > _LAST_LETTER or begins_word and singular(_WORD.match(text, place)[0]) == term:
            yield place
        place = text.find(stem, place + 1)


def extract_summary(text: str, max_chars: int) -> str:
    """Return the first sentences within `max_chars`, and an ellipsis if text is left out."""
    if len(text) <= max_chars:
        return text
    ends = [end for _, end in sentence_spans(text) if end < max_chars]
    return text[: ends[-1] if ends else max_chars - 1] + CUT


class StoredPages(Sequence[Page]):
    """The pages of a folder's pages.jsonl, each read from disk on access."""

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
    spans: np.ndarray  # (C, 2) start and end of the C chunks in their page's text
    first_chunk: np.ndarray  # (P + 1,) index of each page's first chunk, then C
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
        order = np.lexsort((owners, hashes))  # the first page wins if several share a name
        return cls(pages, bm25, np.array(spans), np.array(first_chunk), np.stack([hashes, owners])[:, order])

    def save(self, folder: Path) -> None:
        """Write the index to a folder. `pages` must be `StoredPages` of the same folder."""
        self.bm25.save(folder / "bm25", show_progress=False)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> "PageIndex":
        """Open an index with memory-mapped arrays: read from disk on access, and shared by all processes."""
        bm25 = BM25.load(folder / "bm25", mmap=True, show_progress=False)
        arrays = {name: np.asarray(value) for name, value in bm25.scores.items() if isinstance(value, np.memmap)}
        bm25.scores |= arrays
        places = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS)
        return cls(StoredPages(folder), bm25, *places)

    def search(self, text: str, limit: int) -> list[tuple[Page, list[str]]]:
        """Return the best pages with their chunks, both best first. Each page has a term of the query."""
        query_terms = [term for term in dict.fromkeys(terms(text)) if term in self.bm25.vocab_dict]
        return self.ranked(self.bm25.get_scores(query_terms), limit) if query_terms else []

    def titled_chunks(self) -> list[str]:
        """Return each chunk (C) below its page's title."""
        owners = np.repeat(np.arange(len(self.pages)), np.diff(self.first_chunk)).tolist()
        pages = (self.pages[number] for number in owners)
        return [f"{page.title}\n{page.text[slice(*span)]}" for page, span in zip(pages, self.spans, strict=True)]

    def ranked(self, scores_C: np.ndarray, limit: int) -> list[tuple[Page, list[str]]]:
        """Return the pages of the highest chunk scores above 0 with their chunks, both best first."""
        results = []
        for number in self._best_pages(scores_C, limit):
            page, (first, last) = self.pages[number], self.first_chunk[number : number + 2].tolist()
            order = np.argsort(-scores_C[first:last], kind="stable")
            results.append((page, [page.text[start:end] for start, end in self.spans[first:last][order].tolist()]))
        return results

    def find(self, name: str) -> Page | None:
        """Return the page with this url or title, ignoring case and repeated blanks; None if there is none."""
        key = _hash(name)
        place = int(np.searchsorted(self.names[0], key))
        exists = place < self.names.shape[1] and self.names[0, place] == key
        return self.pages[int(self.names[1, place])] if exists else None

    def _best_pages(self, scores_C: np.ndarray, limit: int) -> list[int]:
        count = 4 * limit
        while True:
            best = top(scores_C, count)
            pages = list(dict.fromkeys((np.searchsorted(self.first_chunk, best, side="right") - 1).tolist()))
            if len(pages) >= limit or len(best) < count:
                return pages[:limit]
            count *= 4


def top(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` highest scores above 0, best first; ties keep their order.
    The maxima of blocks give a lower bound for the lowest of these scores, so only scores above it are sorted."""
    maxima = scores[: len(scores) // _BLOCK * _BLOCK].reshape(_BLOCK, -1).max(axis=0)
    values = maxima if len(maxima) > count else scores
    bound = np.partition(values, -count)[-count] if len(values) > count else 0
    candidates = np.flatnonzero(scores >= max(bound, np.finfo(scores.dtype).tiny))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def _hash(name: str) -> int:
    return stable_seed(" ".join(name.lower().split()))
