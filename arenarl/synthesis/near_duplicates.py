"""Which texts are nearly the same, by the words and pairs of words that they share: MinHash finds candidates, an exact count decides.

Each Chinese character counts as a word.
"""

import re

from datasketch import MinHash, MinHashLSH

_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")
_HASHES = 128


class NearDuplicates:
    """Texts; of another it tells which of them is nearly the same, from a share `threshold` of common words and pairs on.

    >>> taken = NearDuplicates(0.6)
    >>> taken.add("Find a cafe near Lotus Park.")
    >>> taken.nearest("find a cafe near lotus park, please"), taken.nearest("Compare trains to Xi'an")
    (('Find a cafe near Lotus Park.', 0.85), None)
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self._shingles: dict[str, frozenset[str]] = {}
        self._index = MinHashLSH(threshold=min(max(threshold - 0.1, 0.05), 0.95), num_perm=_HASHES)  # lower: it only finds candidates

    def add(self, text: str) -> None:
        if text not in self._shingles:
            self._shingles[text] = shingles(text)
            self._index.insert(text, _min_hash(self._shingles[text]))

    def nearest(self, text: str) -> tuple[str, float] | None:
        """The most similar text at or above the threshold, and the share that both have in common (Jaccard)."""
        wanted = shingles(text)
        found = [(similarity(wanted, self._shingles[other]), other) for other in self._index.query(_min_hash(wanted))]
        share, nearest = max(found, default=(0.0, ""))
        return (nearest, round(share, 2)) if share >= self.threshold else None


def shingles(text: str) -> frozenset[str]:
    """Its words and pairs of neighbouring words, in lower case."""
    words = _WORD.findall(text.lower())
    return frozenset(words) | {f"{first} {second}" for first, second in zip(words, words[1:], strict=False)}


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """The Jaccard index; of two texts without words 1."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _min_hash(parts: frozenset[str]) -> MinHash:
    made = MinHash(num_perm=_HASHES)
    made.update_batch([part.encode() for part in parts])
    return made
