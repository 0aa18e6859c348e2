"""Pages cut into chunks, chunks into sentences, both into search terms;
snippets made of the sentences that fit a query.

A token is a word, or a character where text has no blanks between words (Chinese): what InfoAgent's 128 and 2,048 are
counted in is not said. Chunks end where sentences do.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from arenarl.domains.bm25 import STOPWORDS_EN, pairs, singular

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]")
_WORD = re.compile(rf"[^\W_{_HAN}]+|[{_HAN}]+")
_END = re.compile(r"""([.!?。！？\n](?:(?<=[.!?])["”)]?(?=\s+[^a-z])|(?<=[。！？])[」』”]?|(?<=\n)))\s*""")
_NO_END = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Mt|No)\.$")  # an initial, a title
STOP = {*STOPWORDS_EN, *"what which who when where how did does do from has have had s".split()}
_LAST_LETTER = "\u33ff"  # Chinese characters come after it
CUT = "…"


def terms(text: str) -> list[str]:
    """What BM25 counts: lower-case words in the singular, without the commonest;
    neighbouring pairs of Chinese characters.

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
    """The sentences that say most of the query, in their order, within `max_words`;
    the first ones if none says any of it.

    What the page's title says already does not count, and a term weighs less the more sentences have it:
    neither is an answer.
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
    """Where a text in lower case has a term. Looking for a few terms is far quicker than splitting pages into all of
    theirs."""
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
