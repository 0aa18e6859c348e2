"""Find near-duplicate texts by their shared words and word pairs, exactly, without hashing or sampling.

Each Chinese character counts as a word. Similar texts share most words and pairs, also the rarest. So a lookup first
counts how many of the rarest ones each text shares, and then compares only texts that may be similar.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from math import ceil

import numpy as np

from arenarl.trajectory import composed, words_of


class NearDuplicates:
    """A set of texts with a lookup of near-duplicates, at or above a Jaccard similarity `threshold`.

    >>> texts = NearDuplicates(0.6)
    >>> texts.add("Find a cafe near Lotus Park.")
    >>> texts.nearest("find a cafe near lotus park, please"), texts.nearest("Compare trains to Xi'an")
    (('Find a cafe near Lotus Park.', 0.85), None)
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self._texts: list[tuple[str, frozenset[str]]] = []  # each with its shingles
        self._sizes = array("q")  # by text: the number of its shingles
        self._numbers: defaultdict[str, array[int]] = defaultdict(partial(array, "q"))  # by shingle: texts that have it

    def add(self, text: str) -> None:
        parts = shingles(text)
        for part in parts:
            self._numbers[part].append(len(self._texts))
        self._texts.append((text, parts))
        self._sizes.append(len(parts))

    def nearest(self, text: str) -> tuple[str, float] | None:
        """Return the most similar text and its Jaccard similarity; None below the threshold."""
        parts = shingles(text)
        similar = ((_similarity(parts, others), other) for other, others in self._candidates(parts))
        similarity, nearest = max(similar, default=(0.0, ""))
        return (nearest, round(similarity, 2)) if similarity >= self.threshold else None

    def _candidates(self, parts: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the texts that share enough of the rarest shingles; they include all texts above the threshold."""
        threshold, size = self.threshold - 1e-9, len(parts)  # 1e-9: more than the rounding of a similarity
        known = sorted((self._numbers[part] for part in parts if part in self._numbers), key=len)
        # a similar text shares at least this share of all shingles
        may_lack = len(known) - max(1, ceil(threshold * size))
        if may_lack < 0:
            return
        rare = known[: 2 * may_lack + 6]
        counts = np.bincount(np.frombuffer(b"".join(rare), np.int64))  # by text: the number of rare shingles
        numbers = np.flatnonzero(counts >= len(rare) - may_lack)
        sizes = np.frombuffer(self._sizes, np.int64)[numbers]
        most_shared = counts[numbers] + (len(known) - len(rare))
        numbers = numbers[most_shared >= threshold * (size + sizes - most_shared)]
        yield from map(self._texts.__getitem__, numbers.tolist())


def _similarity(parts: frozenset[str], others: frozenset[str]) -> float:
    shared = len(parts & others)
    return shared / (len(parts) + len(others) - shared)


def shingles(text: str) -> frozenset[str]:
    """Return the lower-case words and pairs of neighbouring words; for a text without words, the text itself."""
    words = words_of(composed(text)) or [text.strip()]
    return frozenset(words) | {f"{first} {second}" for first, second in zip(words, words[1:], strict=False)}
