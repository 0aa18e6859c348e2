"""Find near-duplicate texts by their shared words and word pairs, exactly, without hashing or sampling.

Each Chinese character counts as a word. A similar text lacks only few of a text's words and pairs, so it has most of
its rarest ones. Only texts with most of the rarest ones are compared, and blocks of 4,096 texts are searched at once.
"""

from collections import Counter
from collections.abc import Iterator
from math import ceil

from arenarl.trajectory import composed, words_of

_BLOCK = 4096  # texts per block


class NearDuplicates:
    """A set of texts with a lookup of near-duplicates, at or above a Jaccard similarity `threshold`.

    >>> texts = NearDuplicates(0.6)
    >>> texts.add("Find a cafe near Lotus Park.")
    >>> texts.nearest("find a cafe near lotus park, please"), texts.nearest("Compare trains to Xi'an")
    (('Find a cafe near Lotus Park.', 0.85), None)
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self._shingles: dict[str, frozenset[str]] = {}  # by text
        self._texts: list[str] = []
        self._blocks: list[dict[str, int]] = []  # by shingle: bit k is set if text k of the block has it
        self._counts: Counter[str] = Counter()  # by shingle: the number of texts that have it

    def add(self, text: str) -> None:
        if text not in self._shingles:
            parts = self._shingles[text] = shingles(text)
            number, bit = divmod(len(self._texts), _BLOCK)
            if bit == 0:
                self._blocks.append({})
            self._texts.append(text)
            self._counts.update(parts)
            block = self._blocks[number]
            for part in parts:
                block[part] = block.get(part, 0) | 1 << bit

    def nearest(self, text: str) -> tuple[str, float] | None:
        """Return the most similar text and its Jaccard similarity; None below the threshold."""
        parts = shingles(text)
        shared = {other: len(parts & self._shingles[other]) for other in self._candidates(parts)}
        similar = ((n / (len(parts) + len(self._shingles[other]) - n), other) for other, n in shared.items())
        similarity, nearest = max(similar, default=(0.0, ""))
        return (nearest, round(similarity, 2)) if similarity >= self.threshold else None

    def _candidates(self, parts: frozenset[str]) -> Iterator[str]:
        """Yield the texts that share enough of the rarest shingles; they include all texts above the threshold."""
        known = sorted(parts & self._counts.keys(), key=self._counts.__getitem__)
        # a similar text shares at least this share of all shingles; 1e-9: more than the rounding of a similarity
        may_lack = len(known) - max(1, ceil((self.threshold - 1e-9) * len(parts)))
        if may_lack < 0:
            return
        rare = known[: 2 * may_lack + 6]
        for number, block in enumerate(self._blocks):
            bits = _in_at_least(len(rare) - may_lack, [block[part] for part in rare if part in block])
            while bits:
                bit = bits.bit_length() - 1
                bits ^= 1 << bit
                yield self._texts[number * _BLOCK + bit]


def _in_at_least(least: int, numbers: list[int]) -> int:
    """Return the bits that are set in at least `least` of the numbers.

    Counts all bits at once: bit b of `digits[k]` is binary digit k of the count of bit b. All counts start at 2**size -
    `least`, so that those that reach 2**size carry into the last digit.

    >>> bin(_in_at_least(2, [0b1001, 0b0101, 0b1100]))
    '0b1101'
    """
    size = len(numbers).bit_length()
    if len(numbers) < least:
        return 0
    digits = [-((2**size - least) >> k & 1) for k in range(size)] + [0]  # -1: a number with all bits set
    for carry in numbers:
        for k, digit in enumerate(digits):
            digits[k], carry = digit ^ carry, digit & carry
            if not carry:
                break
    return digits[size]


def shingles(text: str) -> frozenset[str]:
    """Return the lower-case words and pairs of neighbouring words; for a text without words, the text itself."""
    words = words_of(composed(text)) or [text.strip()]
    return frozenset(words) | {f"{first} {second}" for first, second in zip(words, words[1:], strict=False)}
