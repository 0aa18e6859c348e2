"""Text search over the travel world's places: BM25 over one short list of words a place, English and Chinese together.

bm25s scores, but splits words for space-separated languages only, so it gets our own tokens: lower-case words of Latin
text, characters and pairs of characters of Chinese text. Hits of equal score come best rated first.
"""

import re
from collections.abc import Callable, Iterable

from arenarl.domains.bm25 import BM25, pairs, singular
from arenarl.domains.travel.names import CATEGORIES, TAGS
from arenarl.domains.travel.world import Poi, World

_WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]+")
_EMPHASIS = 4  # how often city and category are repeated, so that they outweigh any mix of tags


class PoiIndex:
    """Places by the words that `describe` gives for each."""

    def __init__(self, world: World, describe: Callable[[World, Poi], list[str]]):
        self.pois = sorted(world.pois, key=lambda poi: (-poi.rating, poi.poi_id))
        self._bm25 = BM25(b=0.0)  # every description is about a single place: length means nothing
        self._bm25.index([_document_tokens(describe(world, poi)) for poi in self.pois], show_progress=False)

    def search(self, text: str, limit: int) -> list[Poi]:
        """The best places, best first; none of score 0."""
        tokens = [token for token in query_tokens(text) if token in self._bm25.vocab_dict]
        if not tokens:
            return []
        scores = self._bm25.get_scores(tokens).round(4)
        order = (-scores).argsort(kind="stable")[:limit]
        return [self.pois[index] for index in order if scores[index] > 0]


def guide_words(world: World, poi: Poi) -> list[str]:
    """What a city guide says of a place: city, kind, name and tags in both languages."""
    city = world.cities[poi.city]
    tags = [word for tag in poi.tags for word in (tag, TAGS[tag])]
    return [city.key, city.name_zh, poi.category, CATEGORIES[poi.category]] * _EMPHASIS + [
        poi.name_en,
        poi.name_zh,
        *tags,
    ]


def address_words(world: World, poi: Poi) -> list[str]:
    return [poi.name_en, poi.name_zh, poi.address_en, poi.address_zh]


def query_tokens(text: str) -> list[str]:
    """Distinct tokens of a query, in order. One-character Chinese words (寺) need the single characters.

    >>> query_tokens("Quiet temples in Xi'an, 安静的寺")
    ['quiet', 'temple', 'in', 'xian', '安', '静', '的', '寺', '安静', '静的', '的寺']
    """
    tokens: dict[str, None] = {}
    for word in _words(text):
        if word.isascii():
            tokens[word] = None
        else:
            tokens |= dict.fromkeys(word) | dict.fromkeys(pairs(word))
    return list(tokens)


def _document_tokens(words: Iterable[str]) -> list[str]:
    """Like a query's, but single characters only where they are a word: else 安 would match both 西安 and 安静."""
    return [
        token
        for text in words
        for word in _words(text)
        for token in ([word] if word.isascii() or len(word) == 1 else pairs(word))
    ]


def _words(text: str) -> list[str]:
    words = _WORD.findall(text.lower().replace("'", "").replace("’", ""))
    return [singular(word) for word in words]
