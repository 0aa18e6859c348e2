"""Find near-duplicate texts by their shared words and word pairs, exactly, without hashing or sampling.

Each Chinese character counts as a word.
"""

import re
from collections import Counter, defaultdict
from itertools import chain

from arenarl.trajectory import composed

_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")


class NearDuplicates:
    """A set of texts with a lookup of near-duplicates, at or above a Jaccard similarity `threshold`.

    >>> texts = NearDuplicates(0.6)
    >>> texts.add("Find a cafe near Lotus Park.")
    >>> texts.nearest("find a cafe near lotus park, please"), texts.nearest("Compare trains to Xi'an")
    (('Find a cafe near Lotus Park.', 0.85), None)
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self._sizes: dict[str, int] = {}  # text -> number of shingles
        self._texts: defaultdict[str, list[str]] = defaultdict(list)  # shingle -> texts

    def add(self, text: str) -> None:
        if text not in self._sizes:
            parts = shingles(text)
            self._sizes[text] = len(parts)
            for part in parts:
                self._texts[part].append(text)

    def nearest(self, text: str) -> tuple[str, float] | None:
        """Return the most similar text and its Jaccard similarity; None below the threshold."""
        parts = shingles(text)
        shared = Counter(chain.from_iterable(self._texts.get(part, ()) for part in parts))
        similar = ((count / (len(parts) + self._sizes[other] - count), other) for other, count in shared.items())
        similarity, nearest = max(similar, default=(0.0, ""))
        return (nearest, round(similarity, 2)) if similarity >= self.threshold else None


def shingles(text: str) -> frozenset[str]:
    """Return the lower-case words and pairs of neighbouring words; for a text without words, the text itself."""
    words = _WORD.findall(composed(text).lower()) or [text.strip()]
    return frozenset(words) | {f"{first} {second}" for first, second in zip(words, words[1:], strict=False)}
