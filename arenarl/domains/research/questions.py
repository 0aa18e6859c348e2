"""Closed questions with known answers (3.1 and A.1, InfoAgent):
tree → sub-tree → vague facts → constraint sets → text → solvability check.

    python -m arenarl.domains.research.questions --config configs/quickstart.yaml --count 200

prints how many entities and tool calls such questions take, what a shallow retriever solves of them, and a few of them.
The paper asks LLMs at every step and made 14k SFT trajectories and 5.7k RL questions; here each step is exact on a
corpus whose facts are known, and an LLM may reword the result (`data.research.rephraser`). `plain` questions, which
name the leaves of their trees, are ours, for small policies.
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import EnvironmentConfig, ResearchDataConfig
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.constraint_sets import choose_clues
from arenarl.domains.research.corpus import LINK, Corpus, build_corpus, read_corpus
from arenarl.domains.research.descriptions import Description, Link, Space, ask, render
from arenarl.domains.research.entities import Fact
from arenarl.domains.research.entity_trees import Node, extract_subtree, grow_tree
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.fuzzification import Clue, fuzzify, pattern_of
from arenarl.domains.research.solver import ResearchTools, Solver
from arenarl.rollout.environment import observe
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import Query

SUBTASK = "synthetic_qa"
_PATIENCE = 2000  # attempts in a row without a new question


def make_questions(
    corpus: Corpus,
    environment: ResearchTools,
    config: ResearchDataConfig,
    seed: str,
    count: int,
    taken: set[str] | None = None,
) -> list[Query]:
    """`count` closed queries that the scripted solver can answer through `environment`, with texts not in `taken`,
    which grows by them.

    `constraints`: `answer`, `answer_aliases`; `entities`, the names of the tree's; `root`, its url; `attribute`, what
    is asked of it; `hops`, how many entities; `tool_calls`, that the solver made; `is_plain`; `is_shallow`, whether
    BM25 finds the root by the query's text; `description`, what the text says, as data.

    Raises:
        UserError: the corpus does not yield so many.
    """
    rng = random.Random(f"questions:{seed}")
    space, taken = Space(corpus), set() if taken is None else taken
    queries: list[Query] = []
    failures = 0
    with asyncio.Runner() as runner:
        while len(queries) < count:
            made = _attempt(space, config, rng)
            if made and made[0] not in taken:
                calls = runner.run(calls_needed(corpus, environment, made[1], config.max_tool_calls))
                if calls is not None:
                    taken.add(made[0])
                    queries.append(
                        Query(
                            f"{seed}-{SUBTASK}-{len(queries):05d}",
                            "research",
                            SUBTASK,
                            "en",
                            made[0],
                            made[1] | {"tool_calls": calls},
                        )
                    )
                    failures = 0
                    continue
            failures += 1
            if failures > _PATIENCE:
                raise UserError(
                    f"{len(queries)} of {count} questions could be made: the corpus is too small, or data.research "
                    "asks for too much; raise environment.search.corpus_size or data.research.max_tool_calls, "
                    "or lower data.research.hop_weights for many entities"
                )
    return queries


def _attempt(space: Space, config: ResearchDataConfig, rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """Text and constraints of one question, or None if this draw of tree, attribute and clues yields none."""
    corpus = space.corpus
    hops = rng.choices(range(1, len(config.hop_weights) + 1), config.hop_weights)[0]
    tree = grow_tree(corpus, rng.choice(corpus.pages).url, config.branching, rng)
    if len(tree) < hops:
        return None
    nodes = extract_subtree([node.parent for node in tree], hops, rng)
    root, in_tree = corpus.entities[tree[0].url], {tree[index].url for index in nodes}
    askable = [
        fact for fact in root.single.values() if fact.attribute not in ("type", LINK) and fact.target not in in_tree
    ]
    if not askable:
        return None
    asked = rng.choice(askable)
    is_plain = rng.random() < config.plain_share
    description = _Describer(space, config, rng, is_plain, asked, tree, nodes).describe(0)
    if space.described(description) != {root.url}:
        return None
    said, label = render(description)
    text = f"{said} {ask(asked.attribute, label)}".strip()
    is_shallow = root.url in _retrieved(corpus, text, config.retriever_results)
    if asked.value.lower() in text.lower() or is_shallow and not is_plain:
        return None
    return text, {
        "answer": asked.value,
        "answer_aliases": _aliases(corpus, asked),
        "entities": [corpus.entities[tree[index].url].name for index in sorted(nodes)],
        "root": root.url,
        "attribute": asked.attribute,
        "hops": hops,
        "is_plain": is_plain,
        "is_shallow": is_shallow,
        "description": description.to_record(),
    }


class _Describer:
    """Makes the description of a sub-tree, leaves first, so that each node's constraint set knows what its children
    leave open."""

    def __init__(
        self,
        space: Space,
        config: ResearchDataConfig,
        rng: random.Random,
        is_plain: bool,
        asked: Fact,
        tree: list[Node],
        nodes: set[int],
    ):
        self.space, self.config, self.rng, self.is_plain, self.asked = space, config, rng, is_plain, asked
        self.tree, self.nodes = tree, nodes

    def describe(self, index: int) -> Description:
        node = self.tree[index]
        entity = self.space.corpus.entities[node.url]
        children = tuple(self.describe(child) for child in sorted(self.nodes) if self.tree[child].parent == index)
        link = self._link(node) if node.link else None
        if self.is_plain and not children:
            return Description(entity.noun, entity.name, link=link)
        hidden = Description(entity.noun, None, (), children, link)
        facts = [
            fact
            for fact in entity.facts
            if fact.target is None and fact.attribute not in ("type", self.asked.attribute)
        ]
        pool = [fuzzify(fact, entity, self.rng) for fact in facts]
        is_found = None if self.is_plain else self._is_found(hidden, node.url)
        clues = choose_clues(self.space, pool, self.space.described(hidden), self.config.max_clues, self.rng, is_found)
        return replace(hidden, clues=tuple(clues))

    def _link(self, node: Node) -> Link:
        """The relation as the question says it, and which end is the parent's."""
        owner = self.space.corpus.entities[node.link.url]
        return Link(node.link.attribute, pattern_of(node.link, owner), is_parents=node.link.url != node.url)

    def _is_found(self, hidden: Description, url: str) -> Callable[[list[Clue]], bool]:
        """p(K): whether BM25 finds the entity by what a constraint set says of it."""

        def is_found(clues: list[Clue]) -> bool:
            said, _ = render(replace(hidden, clues=tuple(clues)))
            return url in _retrieved(self.space.corpus, said, self.config.retriever_results)

        return is_found


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

    async def call(thought: str, tool: str, argument: str) -> str:
        return await observe(environment, tool, {"query" if tool == "search" else "url": argument})

    solver = Solver(corpus, call, max_calls, environment.is_compact)
    answer = await solver.answer(Description.from_record(constraints["description"]), constraints["attribute"])
    return solver.calls if answer is not None and is_correct(constraints, answer) else None


def open_corpus(config: ResearchDataConfig, environment: EnvironmentConfig) -> Corpus:
    """The corpus that queries are made from: `data.research.corpus`, or the embedded encyclopedia."""
    if config.corpus:
        return read_corpus(config.corpus)
    return build_corpus(environment.world_seed, environment.search.corpus_size)


def _histogram(title: str, counts: Counter[int]) -> str:
    total = sum(counts.values())
    rows = [
        f"  {value:>4}  {count:>6}  {count / total:>4.0%}  {'#' * round(40 * count / total)}"
        for value, count in sorted(counts.items())
    ]
    return "\n".join([title, *rows])


def main() -> None:
    def add_count(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=200, help="how many to make")
        parser.add_argument("--show", type=int, default=8, help="how many to print")

    config, arguments = parse_arguments(__doc__, add_count)
    environment = ResearchEnvironment.from_config(config.environment, "en")
    research = config.data.research
    queries = make_questions(
        open_corpus(research, config.environment), environment, research, f"show{config.data.seed}", arguments.count
    )
    made = [query.constraints for query in queries]
    print(_histogram("entities (hops)", Counter(one["hops"] for one in made)))
    print(_histogram("tool calls of the scripted solver", Counter(one["tool_calls"] for one in made)))
    mean = sum(one["tool_calls"] for one in made) / len(made)
    print(
        f"{mean:.1f} tool calls on average; a shallow retriever finds the root of "
        f"{sum(one['is_shallow'] for one in made) / len(made):.0%}"
    )
    for query in queries[: arguments.show]:
        print(f"- {query.query} {query.constraints['answer']} ({query.constraints['tool_calls']} calls)")


if __name__ == "__main__":
    guarded(main)
