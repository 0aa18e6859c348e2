"""Pages cut into chunks, chunks into sentences, both into search terms; snippets made of the sentences that fit a query.

A token is a word, or a character where text has no blanks between words (Chinese): what InfoAgent's 128 and 2,048 are counted in is
not said. Chunks end where sentences do.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from bm25s.stopwords import STOPWORDS_EN

from arenarl.words import pairs, singular

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]")
_WORD = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]+")
# Where a sentence ends: not after an initial or a title, nor inside a number.
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”)]))(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|St|Mt|No)\.)\s+(?=[^a-z])|(?<=[。！？])|\s*\n\s*")
_STOP = frozenset(STOPWORDS_EN) | {"what", "which", "who", "when", "where", "how", "did", "does", "do", "from", "has", "have", "had", "s"}
CUT = "…"


def terms(text: str) -> list[str]:
    """What BM25 counts: lower-case words in the singular, without the commonest; neighbouring pairs of Chinese characters.

    >>> terms("Who founded the cities of Ålesund, 安静的寺?")
    ['founded', 'city', 'ålesund', '安静', '静的', '的寺']
    """
    found = []
    for word in _WORD.findall(text.lower().replace("'", "").replace("’", "")):
        if word[0] > "\u33ff" and len(word) > 1:
            found += pairs(word)
        elif word not in _STOP:
            found.append(singular(word))
    return found


def count_tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))


def cut(text: str, max_tokens: int) -> str:
    """The text, or its beginning and an ellipsis.

    >>> cut("One two three.", 3), cut("One two three.", 2)
    ('One two three.', 'One two…')
    """
    ends = [token.end() for token in _TOKEN.finditer(text)]
    return text if len(ends) <= max_tokens else text[: ends[max_tokens - 1]] + CUT


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence, blanks around it left out."""
    start = 0
    for gap in _END.finditer(text):
        if gap.start() > start:
            yield start, gap.start()
        start = gap.end()
    if len(text.rstrip()) > start:
        yield start, len(text.rstrip())


def sentences(text: str) -> list[str]:
    """
    >>> sentences("J. R. Holm won in 3.5 hours. He was 21!\\n\\nLater he left. 他是谁？我不知道。")
    ['J. R. Holm won in 3.5 hours.', 'He was 21!', 'Later he left.', '他是谁？', '我不知道。']
    """
    return [text[start:end] for start, end in sentence_spans(text)]


def chunk_spans(text: str, max_tokens: int) -> list[tuple[int, int]]:
    """(start, end) of chunks of at most `max_tokens`, of whole sentences; a longer sentence is cut."""
    spans: list[tuple[int, int]] = []
    size = max_tokens  # of the chunk under way: full, so that the first sentence opens one
    for start, end, tokens in _pieces(text, max_tokens):
        if size + tokens > max_tokens:
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


def extract_snippet(query: str, texts: Sequence[str], max_words: int) -> str:
    """The sentences that say most of the query, in their order, within `max_words`; the first ones if none says any of it.

    A query's term weighs less the more sentences have it: what all say of a page's subject is no answer.
    """
    known = [(sentence, *_known(sentence)) for text in texts for sentence in sentences(text)]
    wanted = set(terms(query))
    frequency = Counter(term for _, _, has in known for term in wanted & has)
    weight = {term: math.log(1 + len(known) / count) for term, count in frequency.items()}
    scores = [sum(weight[term] for term in sorted(wanted & has)) for _, _, has in known]
    chosen, left = [], max_words
    for index in sorted(range(len(known)), key=lambda index: -scores[index]):
        sentence, words, _ = known[index]
        if not chosen and words > left:
            return cut(sentence, max_words)
        if words <= left and (scores[index] or not frequency):
            chosen.append(index)
            left -= words
    return " ".join(known[index][0] for index in sorted(chosen))


@lru_cache(maxsize=50_000)
def _known(sentence: str) -> tuple[int, frozenset[str]]:
    """Length in tokens, and terms."""
    return count_tokens(sentence), frozenset(terms(sentence))


def extract_summary(text: str, max_chars: int) -> str:
    """The first sentences, within `max_chars`."""
    if len(text) <= max_chars:
        return text
    ends = [end for _, end in sentence_spans(text) if end < max_chars]
    return text[: ends[-1] if ends else max_chars - 1] + CUT
