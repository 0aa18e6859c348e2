"""Rank the candidates of one prompt with a judge, without training: `rank_group`, `rank_groups` and `Ranker`.

    from arenarl.rank import rank_group
    ranked = await rank_group("Name a good tea.", ["Assam.", "Water."], judge="openai", rubric="helpful and true")
    ranked.ranks        # [0.0, 1.0]

A prompt and a candidate are texts or lists of OpenAI's messages, tool calls included. Candidates without an answer are
not judged and share the last rank. Candidate 0 is the anchor of topologies that have one.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from arenarl.config.load import config_of_keys
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.judges.llm import LLMJudge
from arenarl.judges.named import judge_keys, open_judge
from arenarl.judges.own import OwnJudge
from arenarl.judges.prompts import prompt_hash
from arenarl.llm.client import LLMClient, Usage, metered
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.tournament import play_tournament
from arenarl.tournament.group_stage import GroupStage, GroupStageRanking
from arenarl.tournament.mixed_model import quality_from_calls
from arenarl.tournament.play import check_call_options
from arenarl.tournament.ranking import Match, Ranking, scored_calls
from arenarl.tournament.topologies import build_topology, rehearse, resolve_ranking
from arenarl.training.rewards.group import Tally
from arenarl.training.rewards.tournament import rank_to_reward
from arenarl.training.validity import VerdictWatch
from arenarl.trajectory import Query, Trajectory
from arenarl.trajectory.chats import ROLES, Chat, chat_query, chat_trajectory, check_chat


@dataclass(frozen=True)
class RankedGroup:
    """The ranking of one prompt's candidates. Lists have shape (G,) and the order of the candidates."""

    ranking: Ranking
    qualities: list[float | None]  # expected score of one call, 0 to 10, from all scores; points for a group stage
    cost: float  # of the calls that were paid for; replies from the store are free
    paid_calls: int
    has_answer: list[bool]  # a candidate without an answer is not judged

    @property
    def ranks(self) -> list[float | None]:
        """0 is best; equal evidence shares a midrank; None without a verdict."""
        return self.ranking.ranks_G

    @property
    def rewards(self) -> list[float | None]:
        """1 for the first, 0 for the last of the ranked candidates; all None with fewer than two. Eq. 6, ArenaRL."""
        return rank_to_reward(self.ranks)

    @property
    def matches(self) -> list[Match]:
        return self.ranking.matches

    @property
    def calls(self) -> int:
        return self.ranking.judge_calls

    @property
    def failed_calls(self) -> int:
        return self.ranking.failed_calls

    @property
    def best(self) -> int | None:
        """The candidate with the best rank, the first of equal ones; None if no candidate with an answer is ranked."""
        ranked = [(rank, g) for g, rank in enumerate(self.ranks) if rank is not None and self.has_answer[g]]
        return min(ranked)[1] if ranked else None


class Ranker:
    """A judge and a topology that rank any number of groups. The groups share connections, budget and concurrency.

    Args:
        judge: a name in configs/judges, a YAML file of that form, or an instance of your own `Judge`, with its rubric.
        rubric: a YAML file as in configs/rubrics, or the criteria in words; None takes the rubric of writing.
        language: language of the judge's prompt, en or zh.
        topology: as in `play_tournament`, such as `balanced` or `group_stage`.
        seed: for the topology's random order.
        run, store: the budget's name, and the file of replies. The limits hold for all processes and restarts with the
            same two.
        client: makes an LLM judge's calls, with a store and limits of its own; None opens one for `run` and `store`,
            with the limits below.
        store_only, concurrency, max_calls, max_cost, max_failure_share: as under `judge` in docs/config.md.
        params: further arguments of `play_tournament`: `bidirectional`, `timeout_s`, `ranking`, and the topology's
            parameters, such as `matches="n"`.

    Raises UserError for an invalid argument.
    """

    def __init__(
        self,
        /,  # `params` may hold any name
        judge: str | Path | Judge = "openai",
        *,
        rubric: str | Path | None = None,
        language: str = "en",
        topology: str = "seeded_single_elimination",
        seed: int = 0,
        run: str = "rank",
        store: str | Path = "runs/replies.sqlite",
        client: LLMClient | None = None,
        store_only: bool = False,
        concurrency: int = 64,
        max_calls: int | None = None,
        max_cost: float | None = None,
        max_failure_share: float = 0.2,
        **params: Any,
    ):
        limits = {"max_calls": max_calls, "max_cost": max_cost, "max_failure_share": max_failure_share}
        limits |= {"concurrency": concurrency, "store": str(store), "store_only": store_only}
        keys = {"name": run, "judge": judge_keys("rank", judge) | limits}
        section = config_of_keys(keys, "rank").judge
        _check_topology(topology, params)
        self.language, self.topology, self.seed, self.params = language, topology, seed, params
        self.concurrency = concurrency
        self.judge, self.client = open_judge("rank", judge, rubric, language, section, f"{run}/rank", client)
        self._verdicts = VerdictWatch(max_failure_share)
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @property
    def judge_name(self) -> str:
        """The model of an LLM judge, the class of an own judge."""
        return self.judge.config.model if isinstance(self.judge, LLMJudge) else self.judge.name

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that decide the ranks, as JSON; an own judge is named by its class."""
        if isinstance(self.judge, LLMJudge):
            config = self.judge.config
            judge: Any = [
                config.model, config.base_url, config.temperature, config.max_reply_tokens, config.reply_format,
                config.extra_body, config.process_aware, config.show_tool_results, config.max_text_chars,
                config.max_result_chars, prompt_hash(self.judge.rubric(None), self.language),
                *(key for key in ("explain", "name_turns") if getattr(config, key)),
            ]  # fmt: skip
        else:
            judge = self.judge_name
        return {"judge": judge, "topology": self.topology, "seed": self.seed, "params": self.params}

    async def rank(self, prompt: Chat, candidates: Sequence[Chat]) -> RankedGroup:
        """Rank the candidates of one prompt.

        Raises ValueError if the prompt or a candidate has the wrong form, or candidates are empty, and RunStopped if
        the budget is spent, the API refuses all calls, or too many verdicts failed.
        """
        return await self._rank(*read_group(prompt, candidates, self.language))

    async def rank_all(self, groups: Sequence[tuple[Chat, Sequence[Chat]]]) -> list[RankedGroup]:
        """Rank all groups, (prompt, candidates) each, at the same time. Raises as `rank` does."""
        read = [read_group(*group, self.language) for group in groups]
        return await asyncio.gather(*(self._rank(*group) for group in read))

    def _limit(self) -> asyncio.Semaphore | None:
        """Return this event loop's limit on calls of an own judge; None for an LLM client, which has its own limit."""
        if self.client:
            return None
        return self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))

    async def _rank(self, query: Query, candidates: Sequence[Trajectory]) -> RankedGroup:
        judge = self.judge

        async def compare(i: int, j: int) -> tuple | None:
            return scores_and_detail(await judge.compare(query, candidates[i], candidates[j]))

        async def choose(indices: tuple[int, ...], winners: int, repeat: int = 0) -> list[int] | None:
            positions = await judge.choose(query, [candidates[i] for i in indices], winners, repeat)
            return None if positions is None else [indices[position] for position in positions]

        texts = [repr(candidate.messages) for candidate in candidates]
        has_answer = [candidate.valid for candidate in candidates]
        with metered() as calls:
            ranking = await play_tournament(
                self.topology,
                len(candidates),
                choose if self.topology == "group_stage" else compare,
                seed=stable_seed(self.seed, query.query_id),
                entrants=texts,
                valid_G=has_answer,
                limit=self._limit(),
                failures=TimeoutError,  # a judge returns None for a missing verdict; any other error is a bug
                **self.params,
            )
        if self.client:
            self.client.check()
        elif isinstance(judge, OwnJudge):
            self._verdicts.look([Tally(calls=ranking.judge_calls, failed_calls=ranking.failed_calls)])
        if isinstance(ranking, GroupStageRanking):
            qualities = ranking.scores_G
        else:
            played = quality_from_calls(len(candidates), scored_calls(ranking.matches))
            qualities = [played[texts.index(text)] for text in texts]  # only the first of identical candidates plays
        paid = sum(calls, start=Usage())
        return RankedGroup(ranking, qualities, paid.cost, paid.calls, has_answer)


async def rank_group(
    prompt: Chat, candidates: Sequence[Chat], judge: str | Path | Judge = "openai", **options: Any
) -> RankedGroup:
    """Rank the candidates of one prompt; `options` as in `Ranker`. For many groups, use `rank_groups` or a `Ranker`."""
    return await Ranker(judge, **options).rank(prompt, candidates)


async def rank_groups(
    groups: Sequence[tuple[Chat, Sequence[Chat]]], judge: str | Path | Judge = "openai", **options: Any
) -> list[RankedGroup]:
    """Rank many groups, (prompt, candidates) each, at the same time; `options` as in `Ranker`."""
    return await Ranker(judge, **options).rank_all(groups)


def read_group(prompt: Chat, candidates: Sequence[Chat], language: str) -> tuple[Query, list[Trajectory]]:
    """Return a prompt and its candidates as the judge's query and trajectories.
    Raises ValueError for a wrong form and for empty candidates."""
    check_chat("the prompt", prompt)
    if isinstance(candidates, str) or not isinstance(candidates, Sequence) or not candidates:
        raise ValueError("candidates must be a list of texts, or of lists of messages, with at least one entry")
    for number, candidate in enumerate(candidates):
        check_chat(f"candidate {number}", candidate, ROLES)
    query = chat_query(prompt, language)
    return query, [chat_trajectory(query, candidate) for candidate in candidates]


def _check_topology(name: str, params: dict[str, Any]) -> None:
    """Raise UserError for a topology or parameters that cannot work."""
    of_calls = {key: value for key, value in params.items() if key in ("bidirectional", "timeout_s")}
    own = {key: value for key, value in params.items() if key not in ("ranking", *of_calls)}
    try:
        check_call_options(name, **of_calls)
        resolve_ranking(name, params.get("ranking"))
        if name == "group_stage":
            GroupStage.of(own)
        else:
            build_topology(name, 4, **own)
            if ":" in name:
                rehearse(name, 4, **own)
    except ValueError as error:
        raise UserError(f"rank: {error}") from error
