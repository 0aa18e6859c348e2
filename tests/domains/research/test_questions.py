"""Closed questions: trees and Algorithm 1's sub-trees, descriptions and their meaning, constraint sets that evade the
shallow retriever, and solvability with search and browse."""

import asyncio
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains import domain
from arenarl.domains.research.corpus import build_corpus, read_corpus
from arenarl.domains.research.descriptions import Description, Link, Space, ask, choose_clues, read_description, render
from arenarl.domains.research.engines import LocalEngine
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.facts import Clue
from arenarl.domains.research.questions import calls_needed, extract_subtree, grow_tree, main, make_questions, other_end
from arenarl.domains.research.search import SearchTools
from arenarl.domains.research.teacher import Solver
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
PLAIN = ResearchDataConfig(plain_share=1.0, hop_weights=[1.0, 1.0, 1.0], max_tool_calls=6)


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(0)


def environment_of(results):
    return ResearchEnvironment.from_config(EnvironmentConfig(results=results), "en")


@pytest.fixture(scope="module")
def fuzzy(corpus):
    return make_questions(corpus, environment_of("full"), ResearchDataConfig(), "fuzzy", 24)


@pytest.fixture(scope="module")
def plain(corpus):
    return make_questions(corpus, environment_of("full"), PLAIN, "plain", 60)


def description(query):
    return read_description(query.constraints["description"])


# In the tree of these examples, the root 0 has the children 1 and 2, 1 has 3 and 4, and 3 has 5.
@pytest.mark.parametrize(("budget", "draws", "chosen"), [
    (4, [5], {0, 1, 3, 5}),  # the path 5-3-1-0 costs 4, the whole budget
    (3, [5, 3], {0, 1, 3}),  # 5-3-1-0 costs 4 and is refused; then 3-1-0
    (3, [4, 4, 2, 2], {0, 1, 4}),  # 4-1-0 costs 3; nothing is left
    (4, [2, 2, 3], {0, 1, 2, 3}),  # 2-0 costs 2, then 0; 3-1 costs 2, because the root is chosen already
    (3, [2, 5, 3, 4, 1], {0, 1, 2}),  # 2-0 costs 2; of the rest, only 1 costs at most 1
    (1, [4, 0], {0}),
    (99, [5, 4, 2], {0, 1, 2, 3, 4, 5}),  # the number of nodes limits the budget
])  # fmt: skip
def test_the_budget_rule_worked_by_hand(budget, draws, chosen):
    nodes = iter(draws)
    rng = SimpleNamespace(randrange=lambda stop: next(nodes))
    assert extract_subtree([None, 0, 0, 1, 1, 3], budget, rng) == chosen


@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 20))
def test_a_subtree_uses_its_budget_and_contains_all_parents(seed, size, budget):
    rng = random.Random(seed)
    parents = [None, *(rng.randrange(node) for node in range(1, size))]
    chosen = extract_subtree(parents, budget, rng)
    assert len(chosen) == min(budget, size) and 0 in chosen
    assert all(parents[node] is None or parents[node] in chosen for node in chosen)


def test_a_tree_keeps_its_branching_has_no_entity_twice_and_links_by_facts_of_either_page(corpus):
    on_parents_page = set()
    for page in corpus.pages[:60]:
        tree = grow_tree(corpus, page.url, [3, 2, 1], random.Random(page.url))
        assert (tree[0].url, tree[0].parent) == (page.url, None)
        assert len({node.url for node in tree}) == len(tree) <= 16
        depth = {0: 0}
        for index, node in enumerate(tree[1:], start=1):
            parent = tree[node.parent].url
            depth[index] = depth[node.parent] + 1
            assert {node.link.url, node.link.target} == {parent, node.url} and other_end(node.link, parent) == node.url
            assert node.link in corpus.entities[node.link.url].facts
            on_parents_page.add(node.link.url == parent)
        for index in depth:
            assert sum(node.parent == index for node in tree) <= (3, 2, 1, 0)[depth[index]]
        assert list(depth.values()) == sorted(depth.values())  # breadth first
    assert on_parents_page == {True, False}


def test_a_description_starts_at_the_root_and_distinguishes_entities_with_one_noun():
    clue = Clue("birth year", "<subject> was born in the 1840s.", low=1840, high=1849)
    pupil = Description("writer", None, link=Link("teacher", "<subject> studied under <object>.", is_parents=False))
    work = Description("opera", None, link=Link("author", "<subject> was created by <object>.", is_parents=False))
    root = Description("writer", None, (clue,), (pupil, work))
    text, label = render(root)
    assert text == (
        "A writer was born in the 1840s. A second writer studied under the writer. An opera was created by the writer."
    )
    assert ask("birth year", label) == "When was the writer born?"
    assert read_description(json.loads(json.dumps(asdict(root)))) == root
    assert render(Description("town", "Kelmar")) == ("", "Kelmar")


def brute_force(corpus, node):
    """Return all entities that fit a description by trying each; `Space` uses indexes."""
    below = [(child, brute_force(corpus, child)) for child in node.children]

    def has_child(entity, child, fitting):
        links = [fact for fact in corpus.links(entity.url) if fact.attribute == child.link.attribute]
        links = [fact for fact in links if (fact.url == entity.url) == child.link.is_parents]
        return any((fact.target if child.link.is_parents else fact.url) in fitting for fact in links)

    def fits(entity):
        if node.name:
            return entity.name == node.name
        meets = all(any(map(clue.holds, entity.facts)) for clue in node.clues)
        return entity.noun == node.noun and meets and all(has_child(entity, *one) for one in below)

    return {entity.url for entity in corpus.entities.values() if fits(entity)}


def test_space_and_brute_force_find_the_same_entities(corpus, fuzzy, plain):
    space = Space(corpus)
    for query in fuzzy[:5] + plain[:8]:
        for node in description(query).walk():
            assert space.fitting(node) == brute_force(corpus, node)


def test_every_question_fits_one_root_and_does_not_reveal_the_answer(corpus, fuzzy, plain):
    space = Space(corpus)
    for query in fuzzy + plain:
        wanted, root = query.constraints, corpus.entities[query.constraints["root"]]
        node, (sentences, label) = description(query), render(description(query))
        assert space.fitting(node) == {root.url} and root.single[wanted["attribute"]].value == wanted["answer"]
        assert wanted["answer"].lower() not in query.query.lower() and wanted["entities"][0] == root.name
        assert query.query == f"{sentences} {ask(wanted['attribute'], label)}".strip()
        assert len(wanted["entities"]) == wanted["hops"] == len(list(node.walk()))
        assert (query.domain, query.subtask, query.language) == ("research", "synthetic_qa", "en")
    assert {query.constraints["hops"] for query in fuzzy} == {1, 2, 3, 4}
    assert {query.constraints["hops"] for query in plain} == {1, 2, 3}


def test_plain_questions_name_the_leaves_and_vague_ones_have_no_names_and_evade_the_retriever(corpus, fuzzy, plain):
    for query in plain:
        assert query.constraints["is_plain"]
        assert all((node.name is None) == bool(node.children) for node in description(query).walk())
    for query in fuzzy:  # Eq. 3
        assert not query.constraints["is_plain"] and not query.constraints["is_shallow"]
        assert not any(node.name for node in description(query).walk())
        assert not any(name in query.query for name in query.constraints["entities"])
        assert query.constraints["root"] not in {page.url for page, _ in corpus.index.search(query.query, 5)}


@pytest.mark.parametrize("results", ["compact", "full"])
def test_the_tools_find_the_answer_in_both_forms_within_the_budget(corpus, plain, fuzzy, results):
    environment = environment_of(results)

    def is_found(query, most):
        return asyncio.run(calls_needed(corpus, environment, query.constraints, most)) is not None

    assert all(is_found(query, 12) for query in plain[:30]) and sum(is_found(query, 80) for query in fuzzy[:8]) >= 7
    assert not is_found(max(fuzzy, key=lambda query: query.constraints["tool_calls"]), 2)


def test_the_most_selective_clues_are_chosen_unless_they_reveal_the_entity():
    """Among {a, b, c, d}, the colour fits {a, b}, the size {a, c} and the age {a}. The retriever finds `a` by its
    age."""

    class Sets:
        def matching(self, clue):
            return {"colour": {"a", "b"}, "size": {"a", "c"}, "age": {"a"}}[clue.attribute]

    def choose(most, is_found, fits="abcd"):
        pool = [Clue(name, f"<subject> has {name}.", value="x") for name in ("colour", "size", "age")]
        clues = choose_clues(Sets(), pool, set(fits), most, is_found)
        return {clue.attribute for clue in clues}

    def by_age(clues):
        return any(clue.attribute == "age" for clue in clues)

    assert choose(3, lambda clues: False) == {"age"} and choose(3, by_age) == {"colour", "size"}
    assert len(choose(1, by_age)) == 1 and choose(3, by_age, "a") == choose(3, lambda clues: True) == set()


def test_no_text_is_made_twice_and_too_small_a_corpus_is_refused(monkeypatch):
    monkeypatch.setattr(domain, "MOST_FAILURES", 2000)
    small = build_corpus(0, 100)
    environment = ResearchEnvironment(SearchTools(SearchConfig(), LocalEngine(small.index, "small")), "compact")
    taken = set()
    first, more = (make_questions(small, environment, PLAIN, "same", 20, taken) for _ in range(2))
    assert len({query.query for query in first + more}) == 40 == len(taken)
    one_hop = ResearchDataConfig(plain_share=1.0, hop_weights=[1.0], max_tool_calls=6)
    with pytest.raises(UserError, match="of 100000 different queries could be drawn: the corpus is too small"):
        make_questions(small, environment, one_hop, "all", 100_000)


def test_a_users_corpus_with_facts_yields_solvable_questions(tmp_path):
    """The own corpus is the embedded encyclopedia with other attribute names, as JSONL."""
    embedded, lines = build_corpus(0, 400), []
    for page in embedded.pages:
        entity = embedded.entities[page.url]
        facts = [asdict(fact) for fact in entity.facts if fact.attribute != "type"]
        facts = [fact | {"attribute": f"the {fact['attribute']}"} for fact in facts]
        lines.append(json.dumps(asdict(page) | {"kind": entity.noun, "facts": facts, "links": []}))
    (tmp_path / "own.jsonl").write_text("\n".join(lines), encoding="utf-8")
    own = read_corpus(tmp_path / "own.jsonl")
    environment = ResearchEnvironment(SearchTools(SearchConfig(), LocalEngine(own.index, "own")), "full")
    queries = make_questions(own, environment, ResearchDataConfig(plain_share=0.5, hop_weights=[1.0, 1.0]), "own", 12)
    assert all("What is the the " in query.query for query in queries)


def test_the_solver_finds_a_page_whose_title_contains_a_colon(tmp_path):
    page = {"url": "a", "title": "Bea: A Life", "text": "Bea: A Life appeared in 1901.", "kind": "book"}
    fact = {"attribute": "year", "value": "1901", "sentence": page["text"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(page | {"facts": [fact]}), encoding="utf-8")
    own = read_corpus(tmp_path / "own.jsonl")
    for results in ("compact", "full"):
        environment = ResearchEnvironment(SearchTools(SearchConfig(), LocalEngine(own.index, "own")), results)
        solver = Solver(own, environment, 3)
        assert asyncio.run(solver.look_up("Bea: A Life")) == "a"
        assert [known.value for known in asyncio.run(solver.facts("a", "year"))] == ["1901"]


def test_the_command_prints_histograms_and_questions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--config", f"{ROOT}/configs/quickstart.yaml", "--count", "6", "--show", "2"]
    monkeypatch.setattr(sys, "argv", ["questions", *words, "--set", "data.research.plain_share=1"])
    main()
    output = capsys.readouterr().out
    assert "entities (hops)" in output and "a shallow retriever finds the root of" in output
    assert output.count("calls)") == 2
