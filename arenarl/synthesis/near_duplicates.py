"""Which texts are nearly the same, by the words and pairs of words that they share: all are counted, none is missed.

Each Chinese character counts as a word.
"""

import re
from collections import Counter, defaultdict
from itertools import chain

_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")


class NearDuplicates:
    """Texts; of another it tells which of them is nearly the same,
    from a share `threshold` of common words and pairs on.

    >>> taken = NearDuplicates(0.6)
    >>> taken.add("Find a cafe near Lotus Park.")
    >>> taken.nearest("find a cafe near lotus park, please"), taken.nearest("Compare trains to Xi'an")
    (('Find a cafe near Lotus Park.', 0.85), None)
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self._sizes: dict[str, int] = {}  # by text, of its shingles
        self._having: defaultdict[str, list[str]] = defaultdict(list)  # by shingle, the texts

    def add(self, text: str) -> None:
        if text not in self._sizes:
            parts = shingles(text)
            self._sizes[text] = len(parts)
            for part in parts:
                self._having[part].append(text)

    def nearest(self, text: str) -> tuple[str, float] | None:
        """The most similar text at or above the threshold, and the share that both have in common (Jaccard)."""
        wanted = shingles(text)
        shared = Counter(chain.from_iterable(self._having.get(part, ()) for part in wanted))
        share, nearest = max(
            ((count / (len(wanted) + self._sizes[other] - count), other) for other, count in shared.items()),
            default=(0.0, ""),
        )
        return (nearest, round(share, 2)) if share >= self.threshold else None


def shingles(text: str) -> frozenset[str]:
    """Its words and pairs of neighbouring words, in lower case; of a text without words its signs."""
    words = _WORD.findall(text.lower()) or [text.strip()]
    return frozenset(words) | {f"{first} {second}" for first, second in zip(words, words[1:], strict=False)}
