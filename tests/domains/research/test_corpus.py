"""The embedded encyclopedia: dates and relations agree, and pages state each fact. Corpora of your own."""

import json
from collections import Counter

import pytest

from arenarl.domains.research.corpus import LINK, build_corpus, read_corpus
from arenarl.system.errors import UserError


@pytest.fixture(scope="module", params=[(0, 3000), (1, 500), (2, 6000)], ids=str)
def corpus(request):
    return build_corpus(*request.param)


def of_kind(corpus, kind):
    return [entity for entity in corpus.entities.values() if entity.kind == kind]


def related(corpus, entity, relation):
    return [corpus.entities[fact.target] for fact in entity.facts if fact.target and fact.attribute == relation]


def number(entity, attribute):
    return entity.single[attribute].number


def last_year(person):
    return number(person, "death year") if "death year" in person.single else 2020


def test_seeds_give_different_corpora_and_a_small_size_is_refused():
    assert build_corpus(0, 200).pages != build_corpus(1, 200).pages and build_corpus(0, 200) is build_corpus(0, 200)
    with pytest.raises(UserError, match="corpus_size=99 is too small .*; set 100 or more"):
        build_corpus(0, 99)


def test_entities_have_a_page_each_and_unique_names_urls_and_aliases(corpus):
    assert len(corpus.pages) == len(corpus.entities) == len(corpus.by_name) in (3000, 500, 6000)
    assert [corpus.entities[page.url].name for page in corpus.pages] == [page.title for page in corpus.pages]
    assert {entity.kind for entity in corpus.entities.values()} == {"person", "place", "work", "team", "event"}
    aliases = Counter(alias for entity in corpus.entities.values() for alias in entity.aliases)
    assert aliases and max(aliases.values()) == 1 and not set(aliases) & set(corpus.by_name)


def test_the_first_paragraph_states_all_facts_and_nothing_else(corpus):
    for page in corpus.pages:
        lead, below = page.text.split("\n\n")
        facts = corpus.entities[page.url].facts
        assert lead == " ".join(fact.sentence for fact in facts) and 3 <= len(facts) <= 8
        assert corpus.read(page.text) == list(facts) and corpus.read(below) == []
        for fact in facts:
            assert fact.value in fact.sentence and page.title in fact.sentence and fact.url == page.url
            assert fact.target is None or corpus.entities[fact.target].name == fact.value


def test_persons_act_in_their_lifetime(corpus):
    for person in of_kind(corpus, "person"):
        born, end = number(person, "birth year"), last_year(person)
        assert born + 35 <= end
        for teacher in related(corpus, person, "teacher"):
            assert number(teacher, "birth year") + 20 <= born and last_year(teacher) >= born + 16
            assert teacher.noun == person.noun
        for work in related(corpus, person, "work"):
            assert born + 20 <= number(work, "release year") <= end
        for team in related(corpus, person, "team founded"):
            assert born + 25 <= number(team, "founding year") <= end
        for team in related(corpus, person, "team coached"):
            assert number(team, "founding year") < end


def test_places_are_older_than_their_persons_works_teams_and_events(corpus):
    for entity in corpus.entities.values():
        dates = [name for name in ("birth year", "release year", "founding year", "year") if name in entity.single]
        for place in (corpus.entities[fact.target] for fact in entity.facts if fact.target):
            if place.kind == "place":
                assert number(place, "founding year") < min(number(entity, name) for name in dates)


def test_winners_and_openers_fit_their_event_in_time_and_kind_and_a_series_has_one_sport(corpus):
    sports = {}
    for event in of_kind(corpus, "event"):
        year = number(event, "year")
        (opener,) = related(corpus, event, "opener")
        assert number(opener, "birth year") + 30 <= year <= last_year(opener) and event.name.endswith(str(year))
        for winner in related(corpus, event, "winner"):
            if winner.kind == "team":
                assert number(winner, "founding year") <= year and event.noun.split()[0] == winner.noun.split()[0]
            else:
                assert number(winner, "release year") + 1 == year and event.noun == f"{winner.noun} prize"
        if event.name.split()[-2] != "Fair":
            assert sports.setdefault(event.name.rsplit(" ", 1)[0], event.noun) == event.noun


def test_both_pages_of_a_relation_state_it(corpus):
    def pairs(relation):
        entities = corpus.entities.values()
        return {(entity.url, other.url) for entity in entities for other in related(corpus, entity, relation)}

    inverse = {"work": "author", "team founded": "founder", "team coached": "coach", "home team": "ground"}
    for relation, other in (inverse | {"event": "venue"}).items():
        assert pairs(relation) == {(target, url) for url, target in pairs(other)} != set()


PAGES = [
    {
        "url": "w/curie", "title": "Marie Curie", "kind": "physicist",
        "text": "Marie Curie was born in 1867. She worked with Pierre Curie.\nShe won prizes.",
        "links": ["w/pierre", "w/unknown"],
        "facts": [{"attribute": "birth year", "value": 1867, "sentence": "Marie Curie was born in 1867."}],
    },
    {"url": "w/pierre", "title": "Pierre Curie", "text": "Pierre Curie was a physicist."},
]  # fmt: skip


def write_pages(path, pages):
    path.write_text("\n".join(map(json.dumps, pages)), encoding="utf-8")
    return path


def test_a_users_corpus_has_its_facts_and_a_relation_for_each_linked_page(tmp_path):
    corpus = read_corpus(write_pages(tmp_path / "pages.jsonl", PAGES))
    curie = corpus.entities["w/curie"]
    assert curie.single["birth year"].value == "1867" and curie.noun == "physicist"
    assert [(fact.attribute, fact.target) for fact in curie.facts] == [("birth year", None), (LINK, "w/pierre")]
    assert curie.facts[1].sentence == "She worked with Pierre Curie."
    assert corpus.mentions == {"w/pierre": [curie.facts[1]]} and corpus.links("w/pierre") == [curie.facts[1]]
    assert corpus.read("Look: She worked with Pierre Curie.") == []
    assert corpus.read("Look! She worked with Pierre Curie.") == [curie.facts[1]]


FACT = {"attribute": "a", "value": "b", "sentence": "Pierre Curie was a physicist."}
WRONG_TYPES = {"title": None, "aliases": "Pierre", "links": "w/curie", "kind": ["a"]}


@pytest.mark.parametrize(("change", "error"), [
    ({"url": "w/curie"}, "two pages have the same url"),
    ({"facts": [FACT | {"sentence": "Not there b."}]}, "line 3: the text has no sentence"),
    ({"facts": [FACT | {"value": "physic"}]}, "line 3: the text has no sentence"),
    ({"facts": [FACT | {"value": ""}]}, "line 3 is not a page: facts.0.value"),
    ({"facts": [{"attribute": "a"}]}, "line 3 is not a page: facts.0.value"),
    ({"facts": ["a"]}, "line 3 is not a page: facts.0 "),
    *(({key: value}, f"line 3 is not a page: {key} ") for key, value in WRONG_TYPES.items()),
    ([], "line 3 is not a page"), (None, "line 3 is not a page"), ("text", "line 3 is not a page"),
])  # fmt: skip
def test_invalid_pages_are_refused_with_their_line_number(tmp_path, change, error):
    line = PAGES[1] | change if isinstance(change, dict) else change
    (tmp_path / "pages.jsonl").write_text(f"{json.dumps(PAGES[0])}\n\n{json.dumps(line)}\n", encoding="utf-8")
    with pytest.raises(UserError, match=error):
        read_corpus(tmp_path / "pages.jsonl")


def test_null_counts_as_missing_and_a_missing_or_empty_file_is_refused(tmp_path):
    nulls = dict.fromkeys(("kind", "aliases", "links", "facts"))
    (curie,) = read_corpus(write_pages(tmp_path / "pages.jsonl", [PAGES[0] | nulls])).entities.values()
    assert (curie.kind, curie.aliases, curie.facts) == ("subject", (), ())
    with pytest.raises(UserError, match="missing.jsonl is not a file; name a JSONL file of pages"):
        read_corpus(tmp_path / "missing.jsonl")
    (tmp_path / "blank.jsonl").write_text("\n \n", encoding="utf-8")
    with pytest.raises(UserError, match="blank.jsonl has no page; a page is a line with url, title and text"):
        read_corpus(tmp_path / "blank.jsonl")


def test_a_linked_title_inside_a_longer_word_is_not_a_relation(tmp_path):
    ann = {"url": "b", "title": "Ann", "text": "Ann."}
    for text, sentences in (("Bea knows Joanne, not Anna. Bea met Ann.", ["Bea met Ann."]), ("Bea knows Annette.", [])):
        bea = {"url": "a", "title": "Bea", "text": text, "links": ["b"]}
        corpus = read_corpus(write_pages(tmp_path / "pages.jsonl", [bea, ann]))
        assert [fact.sentence for fact in corpus.entities["a"].facts] == sentences
