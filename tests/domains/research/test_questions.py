"""Closed questions: descriptions say what they mean, constraint sets evade the shallow retriever, every question is
solved by search and browse."""

import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from scripts import printed_in_two_processes

from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.corpus import build_corpus, read_corpus
from arenarl.domains.research.descriptions import Description, Link, Space, ask, choose_clues, read_description, render
from arenarl.domains.research.engines import LocalEngine
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.facts import Clue
from arenarl.domains.research.questions import calls_needed, make_questions
from arenarl.domains.research.search import SearchTools
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
PLAIN = ResearchDataConfig(plain_share=1.0, hop_weights=[1.0, 1.0, 1.0], max_tool_calls=6)
SCRIPT = """
import hashlib
from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.questions import make_questions
environment = ResearchEnvironment.from_config(EnvironmentConfig(search=SearchConfig(corpus_size=400)), "en")
queries = make_questions(build_corpus(0, 400), environment, ResearchDataConfig(plain_share=0.5), "s", 6)
print(hashlib.sha256(repr(queries).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(0)


@pytest.fixture(scope="module", params=["compact", "full"])
def environment(request):
    return ResearchEnvironment.from_config(EnvironmentConfig(results=request.param), "en")


@pytest.fixture(scope="module")
def fuzzy(corpus):
    return make_questions(
        corpus, ResearchEnvironment.from_config(EnvironmentConfig(), "en"), ResearchDataConfig(), "fuzzy", 24
    )


@pytest.fixture(scope="module")
def plain(corpus):
    return make_questions(corpus, ResearchEnvironment.from_config(EnvironmentConfig(), "en"), PLAIN, "plain", 60)


def description(query):
    return read_description(query.constraints["description"])


def test_a_description_is_told_from_the_root_and_two_of_a_kind_are_told_apart():
    leaf = Description(
        "writer", None, (Clue("birth year", "<subject> was born in the 1840s.", low=1840, high=1849),), (), None
    )
    pupil = Description("writer", None, (), (), Link("teacher", "<subject> studied under <object>.", is_parents=False))
    work = Description("opera", None, (), (), Link("author", "<subject> was created by <object>.", is_parents=False))
    root = Description(leaf.noun, None, leaf.clues, (pupil, work), None)
    said, label = render(root)
    assert said == (
        "A writer was born in the 1840s. A second writer studied under the writer. An opera was created by the writer."
    )
    assert f"{said} {ask('birth year', label)}".endswith("When was the writer born?")
    assert read_description(json.loads(json.dumps(asdict(root)))) == root


def test_a_named_entity_is_only_named():
    assert render(Description("town", "Kelmar")) == ("", "Kelmar")


def brute_force(corpus, node):
    """All entities that fit, by trying each: what `Space` computes from indexes."""
    fitting, below = [], [(child, brute_force(corpus, child)) for child in node.children]
    for entity in corpus.entities.values():
        if node.name:
            fits = entity.name == node.name
        else:
            fits = entity.noun == node.noun and all(
                any(clue.holds(fact) for fact in entity.facts) for clue in node.clues
            )
            for child, those in below if fits else ():
                ends = {
                    fact.target if child.link.is_parents else fact.url
                    for fact in corpus.links(entity.url)
                    if fact.attribute == child.link.attribute and (fact.url == entity.url) == child.link.is_parents
                }
                fits &= bool(ends & those)
        if fits:
            fitting.append(entity.url)
    return set(fitting)


def test_the_entities_that_fit_are_those_that_trying_all_finds(corpus, fuzzy, plain):
    space = Space(corpus)
    for query in fuzzy[:5] + plain[:8]:
        for node in description(query).walk():
            assert space.described(node) == brute_force(corpus, node)


def test_every_question_has_one_root_whose_answer_it_does_not_tell(corpus, fuzzy, plain):
    space = Space(corpus)
    for query in fuzzy + plain:
        wanted, root = query.constraints, corpus.entities[query.constraints["root"]]
        assert space.described(description(query)) == {root.url}
        assert (
            root.single[wanted["attribute"]].value == wanted["answer"]
            and wanted["answer"].lower() not in query.query.lower()
        )
        said, label = render(description(query))
        assert query.query == f"{said} {ask(wanted['attribute'], label)}".strip()
        assert (
            len(wanted["entities"]) == wanted["hops"] == len(list(description(query).walk()))
            and wanted["entities"][0] == root.name
        )
        assert (query.domain, query.subtask, query.language) == ("research", "synthetic_qa", "en")
    assert {query.constraints["hops"] for query in fuzzy} == {1, 2, 3, 4} and {
        query.constraints["hops"] for query in plain
    } == {1, 2, 3}


def test_plain_questions_name_the_leaves_and_the_others_name_nobody(corpus, fuzzy, plain):
    for query in plain:
        assert query.constraints["is_plain"] and all(
            (node.name is None) == bool(node.children) for node in description(query).walk()
        )
    for query in fuzzy:
        assert not query.constraints["is_plain"] and not any(node.name for node in description(query).walk())
        assert not any(name in query.query for name in query.constraints["entities"])


def test_a_shallow_retriever_misses_the_hidden_entities(corpus, fuzzy):
    """Eq. 3: of the question as a whole, and wherever facts were told of an entity, of those facts."""
    for query in fuzzy:
        assert not query.constraints["is_shallow"]
        assert query.constraints["root"] not in {page.url for page, _ in corpus.index.search(query.query, 5)}


def test_the_answer_is_found_through_the_tools_of_both_forms(corpus, environment, plain, fuzzy):
    for query in plain[:30]:
        assert asyncio.run(calls_needed(corpus, environment, query.constraints, 12)) is not None
    assert (
        sum(asyncio.run(calls_needed(corpus, environment, query.constraints, 80)) is not None for query in fuzzy[:8])
        >= 7
    )


def test_harder_questions_take_more_calls(plain, fuzzy):
    def mean(queries):
        return sum(query.constraints["tool_calls"] for query in queries) / len(queries)

    assert mean(fuzzy) > 2 * mean(plain)
    by_hops = [mean([query for query in plain if query.constraints["hops"] == hops]) for hops in (1, 2, 3)]
    assert by_hops == sorted(by_hops) and 1 <= by_hops[0] < by_hops[-1] <= 6


def test_the_solver_keeps_to_its_budget_and_tells_when_it_found_nothing(corpus, fuzzy):
    environment = ResearchEnvironment.from_config(EnvironmentConfig(results="compact"), "en")
    query = max(fuzzy, key=lambda one: one.constraints["tool_calls"])
    assert asyncio.run(calls_needed(corpus, environment, query.constraints, 2)) is None


def test_clues_are_chosen_for_what_they_leave_and_dropped_where_they_give_away():
    """By hand: of the nouns' {a, b, c, d}, colour leaves {a, b}, size {a, c}, age {a};
    the retriever finds `a` by its age."""

    class Sets:
        def meeting(self, clue):
            return {"colour": {"a", "b"}, "size": {"a", "c"}, "age": {"a"}}[clue.attribute]

    def chosen(most, is_found, fits="abcd"):
        pool = [Clue(name, f"<subject> has {name}.", value="x") for name in ("colour", "size", "age")]
        clues = choose_clues(Sets(), pool, set(fits), most, random.Random(0), is_found)
        return {clue.attribute for clue in clues}

    def by_age(clues):
        return any(clue.attribute == "age" for clue in clues)

    assert chosen(3, lambda clues: False) == {"age"} and chosen(3, by_age) == {"colour", "size"}
    assert len(chosen(1, by_age)) == 1 and chosen(3, by_age, "a") == chosen(3, lambda clues: True) == set()


def test_the_same_seed_makes_the_same_questions_in_every_process():
    outputs = printed_in_two_processes(SCRIPT)
    assert outputs[0] == outputs[1]


def test_texts_that_are_taken_are_not_made_again_and_a_small_corpus_ends_in_one_line():
    small = build_corpus(0, 100)
    environment = ResearchEnvironment(
        SearchTools(SearchConfig(cache=None), LocalEngine(small.index, "small")), "compact"
    )
    taken = set()
    first, more = (make_questions(small, environment, PLAIN, "same", 20, taken) for _ in range(2))
    assert len({query.query for query in first + more}) == 40 == len(taken)
    with pytest.raises(UserError, match="of 100000 questions could be made: the corpus is too small"):
        make_questions(
            small, environment, ResearchDataConfig(plain_share=1.0, hop_weights=[1.0], max_tool_calls=6), "all", 100_000
        )


@pytest.mark.parametrize(
    ("answer", "is_right"), [("8,400", True), (" 8400.", True), ("8,400 people", False), ("", False), ("84", False)]
)
def test_an_answer_is_right_exactly(answer, is_right):
    assert is_correct({"answer": "8,400", "answer_aliases": ["8400"]}, answer) == is_right


def test_a_corpus_of_ones_own_with_facts_yields_questions_that_are_solved_over_it(tmp_path):
    """The embedded pages as anybody's JSONL: other words for what can be asked, facts with sentences,
    relations by target."""
    embedded = build_corpus(0, 400)
    records = []
    for page in embedded.pages:
        entity = embedded.entities[page.url]
        facts = [
            asdict(fact) | {"attribute": f"the {fact.attribute}"} for fact in entity.facts if fact.attribute != "type"
        ]
        records.append(
            {"url": page.url, "title": page.title, "text": page.text, "kind": entity.noun, "facts": facts, "links": []}
        )
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    own = read_corpus(path)
    environment = ResearchEnvironment(SearchTools(SearchConfig(cache=None), LocalEngine(own.index, "own")), "full")
    queries = make_questions(own, environment, ResearchDataConfig(plain_share=0.5, hop_weights=[1.0, 1.0]), "own", 12)
    assert all("What is the the " in query.query for query in queries)


def test_the_command_prints_histograms_and_questions(tmp_path):
    command = [
        sys.executable,
        "-m",
        "arenarl.domains.research.questions",
        "--config",
        str(ROOT / "configs" / "quickstart.yaml"),
    ]
    command += ["--count", "6", "--show", "2", "--set", "data.research.plain_share=1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (
        "entities (hops)" in done.stdout
        and "a shallow retriever finds the root of" in done.stdout
        and done.stdout.count("calls)") == 2
    )
