"""Stage `queries`: generators write many queries from seeds, and a second model refines them (Section 5, stages I and
II).

Seeds and generated texts take the same steps: drop near-repeats, refine, drop what the tools cannot serve, extract
constraints if the domain has a form for them. Only generated and refined texts are dropped for another language.
Dropped candidates are counted by reason. Their order is fixed, so stored replies give the same queries again.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from pydantic import BaseModel

from arenarl.config.schema import BuildConfig, LLMConfig
from arenarl.domains.domain import Domain
from arenarl.llm.client import LLMClient
from arenarl.llm.requests import Message
from arenarl.synthesis import prompts
from arenarl.synthesis.near_duplicates import NearDuplicates
from arenarl.synthesis.prompts import Cell, Generated, Refined
from arenarl.synthesis.seeds import TEST_SEED, Candidate
from arenarl.system.progress import Bar
from arenarl.trajectory import Query, language_of

_EXAMPLES = 4  # seeds in a generator's prompt
_PATIENCE = 3  # rounds without a new query after which a quota stays short


@dataclass
class Drawn:
    """A query with its origin."""

    query: Query
    origin: str  # values as in `Candidate`
    raw: str  # the text before refinement


@dataclass
class QueryDrawer:
    """Draws queries until the quotas are filled or no new query comes. `counts` has the candidates by outcome."""

    build: BuildConfig
    domain: Domain
    tools: Sequence[dict[str, Any]]
    client: LLMClient
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    drawn: list[Drawn] = field(default_factory=list)

    def __post_init__(self) -> None:
        # texts before and after refinement
        self._raw_texts, self._refined_texts = (NearDuplicates(self.build.near_duplicate) for _ in range(2))
        self._numbers: dict[Cell, count] = {}

    def draw(self, seeds: Sequence[Candidate], quotas: Counter[Cell]) -> list[Drawn]:
        """Return queries from the seeds and from the generators.
        Test seeds come first, so that their near-repeats do not enter training."""
        return asyncio.run(self._draw(sorted(seeds, key=lambda seed: seed.origin != TEST_SEED), Counter(quotas)))

    async def _draw(self, seeds: Sequence[Candidate], missing: Counter[Cell]) -> list[Drawn]:
        with Bar("queries", missing.total()) as bar:

            async def take(candidates: Sequence[Candidate]) -> None:
                new = await self._take(candidates, missing)
                trained = [drawn.query for drawn in new if drawn.origin != TEST_SEED]
                missing.subtract(Cell(query.subtask, query.language) for query in trained)
                bar.update(len(trained))

            await take(seeds)
            examples = [seed for seed in seeds if seed.origin != TEST_SEED]
            barren: Counter[Cell] = Counter()
            for number in count() if self.build.generators else ():
                cells = [cell for cell, wanted in missing.items() if wanted > 0 and barren[cell] < _PATIENCE]
                if not cells:
                    break
                before = dict(missing)
                generating = (self._generate(cell, missing[cell], examples, number) for cell in cells)
                await take([candidate for of_cell in await asyncio.gather(*generating) for candidate in of_cell])
                barren.update(cell for cell in cells if missing[cell] == before[cell])
        return self.drawn

    async def _generate(self, cell: Cell, missing: int, seeds: Sequence[Candidate], number: int) -> list[Candidate]:
        """Return the candidates of one round. Its calls run together and go to the generators in turn. The examples are
        seeds of the cell, else of its subtask, else all seeds."""
        size, generators = self.build.queries_per_call, self.build.generators
        of_cell = [seed for seed in seeds if seed.cell == cell]
        of_cell = of_cell or [seed for seed in seeds if seed.cell.subtask == cell.subtask] or list(seeds)

        async def ask(index: int) -> Generated | None:
            rng = random.Random(f"{self.seed}:{cell.subtask}:{cell.language}:{number}:{index}")
            examples = [seed.text for seed in rng.sample(of_cell, min(_EXAMPLES, len(of_cell)))]
            llm = generators[(number + index) % len(generators)]
            wanted = min(size, missing - index * size)
            messages = prompts.generate_messages(cell, llm.style, self.tools, examples, wanted)
            return await self._ask(llm, messages, Generated, cell.language, number * 10_000 + index)

        replies = await asyncio.gather(*map(ask, range(-(-missing // size))))
        self.counts["replies of generators that cannot be read"] += replies.count(None)
        return [Candidate(text, cell, "generated") for reply in replies if reply for text in reply.queries]

    async def _take(self, candidates: Sequence[Candidate], missing: Counter[Cell]) -> list[Drawn]:
        """Return the candidates that become queries, without candidates for cells whose quota is filled."""
        self.counts["candidates"] += len(candidates)
        new = []
        for candidate in candidates:
            if candidate.origin == "generated" and language_of(candidate.text) != candidate.cell.language:
                self.counts["in another language"] += 1
            elif not self._is_repeat(candidate.text, self._raw_texts):
                new.append(candidate)
        refined = await asyncio.gather(*map(self._refine, new))
        served = [pair for pair in refined if pair and not self._is_repeat(pair[0].text, self._refined_texts)]
        extracted = await asyncio.gather(*(self._extract(candidate) for candidate, _ in served))
        drawn, room = [], Counter(missing)
        for (candidate, raw), constraints in zip(served, extracted, strict=True):
            if constraints is None:
                continue
            if candidate.origin != TEST_SEED and room[candidate.cell] <= 0:
                self.counts["more than wanted"] += 1
                continue
            room[candidate.cell] -= candidate.origin != TEST_SEED
            drawn.append(Drawn(self._query(candidate, constraints), candidate.origin, raw))
        self.drawn += drawn
        return drawn

    def _is_repeat(self, text: str, others: NearDuplicates) -> bool:
        """Return True for a near-duplicate, otherwise record the text."""
        if nearest := others.nearest(text):
            self.counts["the same as another" if nearest[1] == 1 else "nearly the same as another"] += 1
        else:
            others.add(text)
        return bool(nearest)

    async def _refine(self, candidate: Candidate) -> tuple[Candidate, str] | None:
        """Return the refined candidate and its raw text; None if the tools cannot serve it, or without a reply."""
        if self.build.refiner.name == "embedded":
            return candidate, candidate.text
        messages = prompts.refine_messages(candidate.text, candidate.cell.language, self.tools)
        reply = await self._ask(self.build.refiner, messages, Refined, candidate.cell.language)
        if reply is None:
            self.counts["no reply of the refiner"] += 1
        elif not reply.can_be_served:
            self.counts["beyond the tools"] += 1
        elif language_of(reply.query) != candidate.cell.language:
            self.counts["in another language"] += 1
        else:
            self.counts["refined"] += reply.query != candidate.text
            return replace(candidate, text=reply.query), candidate.text
        return None

    async def _extract(self, candidate: Candidate) -> dict[str, Any] | None:
        """Return the query's constraints; {} if the domain has no form for them, or no extractor is set.
        Returns None if they cannot be read, or name things that the domain's own world lacks."""
        form = self.domain.constraints_of(candidate.cell.subtask)
        if form is None or self.build.extractor.name == "embedded":
            return {}
        messages = prompts.extract_messages(candidate.text, candidate.cell, form)
        reply = await self._ask(self.build.extractor, messages, form, candidate.cell.language)
        if reply is not None:
            constraints = reply.model_dump(mode="json")
            has_own_world = self.domain.environment.name == self.domain.name
            if not has_own_world or self.domain.has_truth(self._query(candidate, constraints, "probe")):
                return constraints
        self.counts["constraints that cannot be read"] += 1
        return None

    def _query(self, candidate: Candidate, constraints: dict[str, Any], name: str | None = None) -> Query:
        cell = candidate.cell
        number = name or f"{next(self._numbers.setdefault(cell, count())):05d}"
        query_id = f"{self.domain.name}-{cell.subtask}-{cell.language}-{number}"
        return Query(query_id, self.domain.name, cell.subtask, cell.language, candidate.text, constraints)

    async def _ask(
        self, llm: LLMConfig, messages: list[Message], reply_type: type[BaseModel], language: str, repeat: int = 0
    ) -> Any:
        again, about = prompts.again(language), reply_type.__name__
        return await self.client.ask(llm, messages, reply_type, again, repeat, about=about)
