"""Closed questions (3.1, A.1, InfoAgent): tree → sub-tree → vague facts → constraint sets → text → solvability check.

    python -m arenarl.domains.research.questions --config configs/quickstart.yaml --count 200

prints how many entities and tool calls such questions need, how many roots a shallow retriever finds, and examples. The
paper uses LLMs at every step and made 14k SFT trajectories and 5.7k RL questions. Here each step is exact, on a corpus
whose facts are known, and an LLM may reword the result (`data.research.rephraser`). `plain` questions name the leaves
of their trees; they are ours, for small policies.

The paper finds a node's children by named-entity recognition in its facts. Here they are the entities that the node's
relations name, and the entities whose pages name the node.
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arenarl.config.command_line import in_range, parse_arguments
from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig
from arenarl.domains.domain import draw_new
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.corpus import LARGER, LINK, Corpus, build_corpus, read_corpus
from arenarl.domains.research.descriptions import Description, Link, Space, ask, choose_clues, read_description, render
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.facts import Clue, Fact, fuzzify, pattern_of
from arenarl.domains.research.teacher import ResearchTools, Solver
from arenarl.system.errors import run_cli
from arenarl.trajectory import Query

SUBTASK = "synthetic_qa"
_REMEDY = (
    f"the corpus is too small, or data.research asks for too much; {LARGER} or "
    "data.research.max_tool_calls, or lower data.research.hop_weights for many entities"
)


@dataclass(frozen=True)
class Node:
    url: str
    parent: int | None  # index in the tree's list; None for the root
    link: Fact | None = None  # the relation with the parent, from either page


def grow_tree(corpus: Corpus, root: str, branching: Sequence[int], rng: random.Random) -> list[Node]:
    """Return the tree below `root`, breadth first, with at most `branching[d]` children at depth d, no entity twice."""
    tree, level, taken = [Node(root, None)], [0], {root}
    for max_children in branching:
        next_level = []
        for parent in level:
            url, children = tree[parent].url, 0
            links = [fact for fact in corpus.links(url) if other_end(fact, url) not in taken]
            rng.shuffle(links)
            for link in links:
                child = other_end(link, url)
                if child not in taken and children < max_children:
                    children += 1
                    taken.add(child)
                    next_level.append(len(tree))
                    tree.append(Node(child, parent, link))
        level = next_level
    return tree


def other_end(link: Fact, url: str) -> str:
    """Return the url of the other entity of a relation."""
    return link.target if link.url == url else link.url


def extract_subtree(parents: Sequence[int | None], budget: int, rng: random.Random) -> set[int]:
    """Return the nodes of a random sub-tree with the same root and `budget` nodes. Algorithm 1, InfoAgent.

    Nodes are drawn with their path to the root. A path is added if its new nodes fit the budget.

    >>> sorted(extract_subtree([None, 0, 1, 2], budget=3, rng=random.Random(0)))
    [0, 1, 2]
    """
    budget = min(budget, len(parents))
    chosen: set[int] = set()
    while budget > 0:
        path: set[int] = set()
        node: int | None = rng.randrange(len(parents))
        while node is not None and node not in chosen:
            path.add(node)
            node = parents[node]
        if len(path) <= budget:
            chosen |= path
            budget -= len(path)
    return chosen


def make_questions(
    corpus: Corpus,
    environment: ResearchTools,
    config: ResearchDataConfig,
    seed: str,
    count: int,
    taken: set[str] | None = None,
) -> list[Query]:
    """Return `count` closed queries with new texts that the scripted solver can answer; add the texts to `taken`.
    `constraints`: `answer`, `answer_aliases`; `entities`, the names in the tree; `root`, the root's url; `attribute`,
    the attribute in question; `hops`, the number of entities; `tool_calls` of the solver; `is_plain`; `is_shallow`,
    True if BM25 finds the root by the query's text; `description`, the content of the text as data.
    Raises UserError if the corpus yields too few."""
    rng, space, taken = random.Random(f"questions:{seed}"), Space(corpus), set() if taken is None else taken

    def draw_query(number: int) -> Query | None:
        draft = _draw_question(space, config, rng)
        if draft is None or draft[0] in taken:
            return None
        text, constraints = draft
        calls = runner.run(calls_needed(corpus, environment, constraints, config.max_tool_calls))
        constraints["tool_calls"] = calls
        query = Query(f"{seed}-{SUBTASK}-{number:05d}", "research", SUBTASK, "en", text, constraints)
        return None if calls is None else query

    with asyncio.Runner() as runner:
        return draw_new(draw_query, count, taken, _REMEDY)


def _draw_question(space: Space, config: ResearchDataConfig, rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """Draw tree, attribute and clues; return a question's text and constraints, or None if the draw yields none."""
    corpus = space.corpus
    hops = rng.choices(range(1, len(config.hop_weights) + 1), config.hop_weights)[0]
    tree = grow_tree(corpus, rng.choice(corpus.pages).url, config.branching, rng)
    if len(tree) < hops:
        return None
    nodes = {index: tree[index] for index in sorted(extract_subtree([node.parent for node in tree], hops, rng))}
    root, urls = corpus.entities[tree[0].url], [node.url for node in nodes.values()]
    single = [fact for fact in root.single.values() if fact.attribute not in ("type", LINK) and fact.target not in urls]
    if not single:
        return None
    fact, is_plain = rng.choice(single), rng.random() < config.plain_share
    description = _describe(space, config, rng, is_plain, fact.attribute, nodes)
    if space.fitting(description) != {root.url}:
        return None
    sentences, label = render(description)
    text = f"{sentences} {ask(fact.attribute, label)}".strip()
    is_shallow = root.url in _retrieve(corpus, text, config.retriever_results)
    if fact.value.lower() in text.lower() or is_shallow and not is_plain:
        return None
    return text, {
        "answer": fact.value,
        "answer_aliases": _aliases(corpus, fact),
        "entities": [corpus.entities[url].name for url in urls],
        "root": root.url,
        "attribute": fact.attribute,
        "hops": hops,
        "is_plain": is_plain,
        "is_shallow": is_shallow,
        "description": asdict(description),
    }


def _describe(
    space: Space, config: ResearchDataConfig, rng: random.Random, is_plain: bool, attribute: str, nodes: dict[int, Node]
) -> Description:
    """Describe a sub-tree without the `attribute` in question, leaves first: a node's clues depend on its children."""
    corpus = space.corpus

    def describe(index: int) -> Description:
        node, link = nodes[index], None
        entity = corpus.entities[node.url]
        children = tuple(describe(child) for child in nodes if nodes[child].parent == index)
        if node.link:
            pattern = pattern_of(node.link, corpus.entities[node.link.url])
            link = Link(node.link.attribute, pattern, is_parents=node.link.url != node.url)
        if is_plain and not children:
            return Description(entity.noun, entity.name, link=link)
        hidden = Description(entity.noun, None, (), children, link)
        facts = [fact for fact in entity.facts if fact.target is None and fact.attribute not in ("type", attribute)]
        pool = [fuzzify(fact, entity, rng) for fact in facts]
        rng.shuffle(pool)  # breaks ties between clues at random

        def is_found(clues: list[Clue]) -> bool:
            """p(K): True if BM25 finds the entity by its clues. Always False for a plain question."""
            if is_plain:
                return False
            text, _ = render(replace(hidden, clues=tuple(clues)))
            return node.url in _retrieve(corpus, text, config.retriever_results)

        clues = choose_clues(space, pool, space.fitting(hidden), config.max_clues, is_found)
        return replace(hidden, clues=tuple(clues))

    return describe(0)


def _retrieve(corpus: Corpus, text: str, results: int | None) -> set[str]:
    """Return the urls that the shallow retriever finds; empty if it is switched off (`results` is None)."""
    return {page.url for page, _ in corpus.index.search(text, results)} if results else set()


def _aliases(corpus: Corpus, fact: Fact) -> list[str]:
    """Return other spellings of an answer."""
    if fact.target:
        return list(corpus.entities[fact.target].aliases)
    return [str(fact.number)] if fact.number is not None and "," in fact.value else []


async def calls_needed(
    corpus: Corpus, environment: ResearchTools, constraints: dict[str, Any], max_calls: int
) -> int | None:
    """Return how many tool calls the scripted solver needs; None if it does not find the answer in `max_calls`."""
    solver = Solver(corpus, environment, max_calls)
    answer = await solver.answer(read_description(constraints["description"]), constraints["attribute"])
    return solver.calls if answer is not None and is_correct(constraints, answer) else None


def open_corpus(config: ResearchDataConfig, environment: EnvironmentConfig) -> Corpus:
    """Return the corpus for making queries: `data.research.corpus`, or the embedded encyclopedia."""
    if config.corpus:
        return read_corpus(config.corpus)
    return build_corpus(environment.world_seed, environment.search.corpus_size)


def _print_histogram(title: str, values: list[int]) -> None:
    print(title)
    for value, count in sorted(Counter(values).items()):
        bar = "#" * round(40 * count / len(values))
        print(f"  {value:>4}  {count:>6}  {count / len(values):>4.0%}  {bar}")


def main() -> None:
    def add_count(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=in_range(int, 1), default=200, help="number of questions to make")
        parser.add_argument("--show", type=int, default=8, help="number of questions to print")

    config, arguments = parse_arguments(__doc__, add_count)
    environment, research = ResearchEnvironment.from_config(config.environment, "en"), config.data.research
    corpus, seed = open_corpus(research, config.environment), f"show{config.data.seed}"
    queries = make_questions(corpus, environment, research, seed, arguments.count)
    calls = [query.constraints["tool_calls"] for query in queries]
    _print_histogram("entities (hops)", [query.constraints["hops"] for query in queries])
    _print_histogram("tool calls of the scripted solver", calls)
    shallow = sum(query.constraints["is_shallow"] for query in queries) / len(queries)
    mean = sum(calls) / len(calls)
    print(f"{mean:.1f} tool calls on average; a shallow retriever finds the root of {shallow:.0%}")
    for query in queries[: arguments.show]:
        print(f"- {query.query} {query.constraints['answer']} ({query.constraints['tool_calls']} calls)")


if __name__ == "__main__":
    run_cli(main)
