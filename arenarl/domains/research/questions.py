"""Closed questions (3.1, A.1, InfoAgent): tree → sub-tree → vague facts → constraint sets → text → solvability check.

    python -m arenarl.domains.research.questions --config configs/quickstart.yaml --count 200

prints how many entities and tool calls such questions take, what a shallow retriever solves of them, and a few of them.
The paper asks LLMs at every step and made 14k SFT trajectories and 5.7k RL questions; here each step is exact on a
corpus whose facts are known, and an LLM may reword the result (`data.research.rephraser`). `plain` questions, which
name the leaves of their trees, are ours, for small policies.

The paper finds a tree's children by named-entity recognition in a node's facts. Here they are the entities that the
node's relations name, and those whose pages name the node.
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.corpus import LINK, Corpus, build_corpus, read_corpus
from arenarl.domains.research.descriptions import Description, Link, Space, ask, choose_clues, read_description, render
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.facts import Clue, Fact, fuzzify, pattern_of
from arenarl.domains.research.teacher import ResearchTools, Solver
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import Query

SUBTASK = "synthetic_qa"
_PATIENCE = 2000  # attempts in a row without a new question
_TOO_MUCH = (
    "the corpus is too small, or data.research asks for too much; raise environment.search.corpus_size or "
    "data.research.max_tool_calls, or lower data.research.hop_weights for many entities"
)


@dataclass(frozen=True)
class Node:
    url: str
    parent: int | None  # place in the tree's list; None is the root's
    link: Fact | None = None  # the relation by which it hangs at its parent, on the page of either


def grow_tree(corpus: Corpus, root: str, branching: Sequence[int], rng: random.Random) -> list[Node]:
    """The tree below `root`, breadth first, with at most `branching[d]` children at depth d, no entity twice."""
    tree, level, taken = [Node(root, None)], [0], {root}
    for most in branching:
        below = []
        for parent in level:
            url, children = tree[parent].url, 0
            links = [fact for fact in corpus.links(url) if other_end(fact, url) not in taken]
            rng.shuffle(links)
            for link in links:
                child = other_end(link, url)
                if child not in taken and children < most:
                    children += 1
                    taken.add(child)
                    below.append(len(tree))
                    tree.append(Node(child, parent, link))
        level = below
    return tree


def other_end(link: Fact, url: str) -> str:
    """Of a relation's two entities the one that is not `url`."""
    return link.target if link.url == url else link.url


def extract_subtree(parents: Sequence[int | None], budget: int, rng: random.Random) -> set[int]:
    """The nodes of a random sub-tree with the same root: nodes are drawn, each taken with its whole path to the root if
    the budget has room for what is new of it. Algorithm 1, InfoAgent.

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
    """`count` closed queries that the scripted solver can answer through `environment`, with texts not in `taken`,
    which grows by them. Raises UserError if the corpus does not yield so many.

    `constraints`: `answer`, `answer_aliases`; `entities`, the names of the tree's; `root`, its url; `attribute`, what
    is asked of it; `hops`, how many entities; `tool_calls`, that the solver made; `is_plain`; `is_shallow`, whether
    BM25 finds the root by the query's text; `description`, what the text says, as data.
    """
    rng, space, taken = random.Random(f"questions:{seed}"), Space(corpus), set() if taken is None else taken
    queries: list[Query] = []
    failures = 0
    with asyncio.Runner() as runner:
        while len(queries) < count:
            text, constraints = _attempt(space, config, rng) or (None, {})
            calls = None
            if text and text not in taken:
                calls = runner.run(calls_needed(corpus, environment, constraints, config.max_tool_calls))
            if calls is not None:
                taken.add(text)
                query_id = f"{seed}-{SUBTASK}-{len(queries):05d}"
                queries.append(Query(query_id, "research", SUBTASK, "en", text, constraints | {"tool_calls": calls}))
                failures = 0
            elif (failures := failures + 1) > _PATIENCE:
                raise UserError(f"{len(queries)} of {count} questions could be made: {_TOO_MUCH}")
    return queries


def _attempt(space: Space, config: ResearchDataConfig, rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """Text and constraints of one question, or None if this draw of tree, attribute and clues yields none."""
    corpus = space.corpus
    hops = rng.choices(range(1, len(config.hop_weights) + 1), config.hop_weights)[0]
    tree = grow_tree(corpus, rng.choice(corpus.pages).url, config.branching, rng)
    if len(tree) < hops:
        return None
    nodes = {index: tree[index] for index in sorted(extract_subtree([node.parent for node in tree], hops, rng))}
    root, urls = corpus.entities[tree[0].url], [node.url for node in nodes.values()]
    own = [fact for fact in root.single.values() if fact.attribute not in ("type", LINK)]
    if not (askable := [fact for fact in own if fact.target not in urls]):
        return None
    asked, is_plain = rng.choice(askable), rng.random() < config.plain_share
    description = _describe(space, config, rng, is_plain, asked.attribute, nodes)
    if space.described(description) != {root.url}:
        return None
    sentences, label = render(description)
    text = f"{sentences} {ask(asked.attribute, label)}".strip()
    is_shallow = root.url in _retrieved(corpus, text, config.retriever_results)
    if asked.value.lower() in text.lower() or is_shallow and not is_plain:
        return None
    return text, {
        "answer": asked.value,
        "answer_aliases": _aliases(corpus, asked),
        "entities": [corpus.entities[url].name for url in urls],
        "root": root.url,
        "attribute": asked.attribute,
        "hops": hops,
        "is_plain": is_plain,
        "is_shallow": is_shallow,
        "description": asdict(description),
    }


def _describe(
    space: Space, config: ResearchDataConfig, rng: random.Random, is_plain: bool, asked: str, nodes: dict[int, Node]
) -> Description:
    """The description of a sub-tree, made leaves first: a node's constraint set needs what its children leave open."""
    corpus, untold = space.corpus, ("type", asked)

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
        facts = [fact for fact in entity.facts if fact.target is None and fact.attribute not in untold]
        pool = [fuzzify(fact, entity, rng) for fact in facts]
        rng.shuffle(pool)  # of clues that leave equally many entities, any

        def is_found(clues: list[Clue]) -> bool:
            """p(K): whether BM25 finds the entity by what a constraint set says of it. Plain questions may be found."""
            if is_plain:
                return False
            text, _ = render(replace(hidden, clues=tuple(clues)))
            return node.url in _retrieved(corpus, text, config.retriever_results)

        clues = choose_clues(space, pool, space.described(hidden), config.max_clues, is_found)
        return replace(hidden, clues=tuple(clues))

    return describe(0)


def _retrieved(corpus: Corpus, text: str, results: int | None) -> set[str]:
    """What the shallow retriever finds; nothing where there is none."""
    return {page.url for page, _ in corpus.index.search(text, results)} if results else set()


def _aliases(corpus: Corpus, fact: Fact) -> list[str]:
    """Other ways to write an answer."""
    if fact.target:
        return list(corpus.entities[fact.target].aliases)
    return [str(fact.number)] if fact.number is not None and "," in fact.value else []


async def calls_needed(
    corpus: Corpus, environment: ResearchTools, constraints: dict[str, Any], max_calls: int
) -> int | None:
    """How many tool calls the scripted solver makes for the answer; None if it does not find it within `max_calls`."""
    solver = Solver(corpus, environment, max_calls)
    answer = await solver.answer(read_description(constraints["description"]), constraints["attribute"])
    return solver.calls if answer is not None and is_correct(constraints, answer) else None


def open_corpus(config: ResearchDataConfig, environment: EnvironmentConfig) -> Corpus:
    """The corpus that queries are made from: `data.research.corpus`, or the embedded encyclopedia."""
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
        parser.add_argument("--count", type=int, default=200, help="how many to make")
        parser.add_argument("--show", type=int, default=8, help="how many to print")

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
    guarded(main)
