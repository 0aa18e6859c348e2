"""The local server's travel queries, looked up by any wording of their text, and the bad queries of its generators."""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.world import World
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, language_of

SIZE = 8000  # queries per subtask and language
_FILLERS = frozenset(("plz", "um", "please", "hello", "thanks", "呃", "嘛", "请", "您", "好", "谢"))
_WORD = re.compile(r"[a-z']+|\d+|[\u4e00-\u9fff]")


class _Words(NamedTuple):
    """Texts in one language: additions that spoil a query, and the refiner's reasons for a refusal."""

    greetings: tuple[str, ...]  # make a near-repeat
    sloppy: tuple[str, ...]  # make a bad wording
    elsewhere: tuple[str, ...]  # cities that the world lacks
    wishes: tuple[str, ...]  # requests that no tool can serve
    no_city: str
    no_tool: str
    unknown: str


_WORDS = {
    "en": _Words(
        ("Hello, {}", "{} Thanks!", "Please: {}"),
        ("um plz {}", "plz {}", "{} plz plz"), ("Paris", "Tokyo", "Lhasa", "Atlantis"),
        (" Then book it all and pay with my card.",
         " Then phone my mother and tell her.", " And order a taxi that waits for me."),
        "No tool knows {}.", "No tool does this: {}", "The simulated roles do not know this query.",
    ),
    "zh": _Words(
        ("您好，{}", "{}谢谢！"), ("呃，{}", "{}嘛", "呃呃{}"), ("巴黎", "东京", "拉萨", "伦敦"),
        ("然后全部预订并用我的卡付款。", "然后打电话告诉我妈妈。", "再叫一辆出租车等我。"),
        "没有工具知道{}。", "没有工具能做：{}", "模拟角色不认识这条查询。",
    ),
}  # fmt: skip


class QueryPool(Mapping[str, Query]):
    """Maps a text to its query; an unknown text becomes a query without a truth. `seed` generates the queries, so a
    restarted server has the same pool."""

    def __init__(self, world: World, seed: int):
        self.world, self.seed = world, seed
        self._cells: dict[tuple[str, str], list[Query]] = {}
        self._by_words: dict[str, dict[str, Query]] = {}

    def cell(self, subtask: str, language: str) -> list[Query]:
        """Return the queries of a subtask in a language; for an unknown subtask, the queries of all subtasks."""
        if subtask not in SUBTASKS:
            return [query for known in SUBTASKS for query in self.cell(known, language)]
        if (subtask, language) not in self._cells:
            queries = make_queries(self.world, subtask, language, SIZE, f"pool{self.seed}", set())
            self._cells[subtask, language] = queries
        return self._cells[subtask, language]

    def find(self, text: str) -> Query | None:
        """Return the query of a text, ignoring case, spacing, greetings and doubled words; None for an unknown text."""
        language = language_of(text)
        if language not in self._by_words:
            queries = [query for subtask in SUBTASKS for query in self.cell(subtask, language)]
            self._by_words[language] = {_words(query.query): query for query in queries}
        return self._by_words[language].get(_words(text))

    def __getitem__(self, text: str) -> Query:
        return self.find(text) or Query(f"unknown-{stable_seed(text)}", "travel", "", language_of(text), text)

    def __iter__(self) -> Iterator[str]:
        return (query.query for language in _WORDS for subtask in SUBTASKS for query in self.cell(subtask, language))

    def __len__(self) -> int:
        return len(_WORDS) * len(SUBTASKS) * SIZE

    def bad_text(self, query: Query, others: Sequence[str], rng: random.Random) -> str:
        """Draw a bad text with equal chances: a near-repeat of one of `others`, a request that no tool can serve, or a
        sloppy wording."""
        words = _WORDS[query.language]
        kind = rng.choice(("repeat", "unservable", "sloppy"))
        if kind == "repeat" and others:
            return rng.choice(words.greetings).format(rng.choice(others))
        if kind != "unservable":
            return rng.choice(words.sloppy).format(query.query.lower().rstrip(".?。？"))
        if rng.random() < 0.5:
            return query.query + rng.choice(words.wishes)
        key = query.constraints.get("city") or query.constraints["to_city"]
        city = key if query.language == "en" else self.world.cities[key].name_zh
        return query.query.replace(city, rng.choice(words.elsewhere))

    def why_unservable(self, text: str) -> str | None:
        """Return why the world cannot serve a query; None if it can."""
        if self.find(text):
            return None
        words = _WORDS[language_of(text)]
        if place := next((place for place in words.elsewhere if place in text), None):
            return words.no_city.format(place)
        if wish := next((wish for wish in words.wishes if wish in text), None):
            return words.no_tool.format(wish.strip())
        return words.unknown


def _words(text: str) -> str:
    """Return a key that is equal for all wordings of a query."""
    words = (word for word in _WORD.findall(text.casefold()) if word not in _FILLERS)
    return " ".join(word for word, _ in itertools.groupby(words))
