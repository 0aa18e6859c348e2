"""Typed code that a user may write against the public interface. `test_types.py` checks it; nothing runs it."""

import asyncio
from pathlib import Path
from typing import Any

from arenarl.config.load import load_config
from arenarl.config.schema import Config, DataConfig, EnvironmentConfig, JudgeConfig
from arenarl.domains.domain import Domain, Truth, make_domain
from arenarl.judges.judge import Judge, Verdict, make_examiner
from arenarl.rollout.environment import Step, ToolError, tool_schema
from arenarl.tournament import play_tournament, run_tournament
from arenarl.tournament.schedules import Pairing, Results, Standing, Topology, mean_score
from arenarl.training.tournament_reward import tournament_reward
from arenarl.trajectory import Query, Trajectory


class LongestAnswer(Judge):
    """A judge with one method: the other methods of `Judge` give no verdict."""

    def __init__(self, config: JudgeConfig):
        self.most = config.max_reply_tokens

    def weights(self, query: Query) -> dict[str, float]:
        return {"length": 1.0}

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        scores = tuple({"length": min(10.0, len(shown.messages) / self.most)} for shown in (first, second))
        return Verdict(scores, lambda dimensions: dimensions["length"])


class Dice:
    """An environment with one tool."""

    tools = [tool_schema("roll", "Roll a die.", {"sides": {"type": "integer", "description": "sides"}})]

    def reset(self, query: Query) -> str | None:
        return None

    def call(self, name: str, arguments: dict[str, Any] | str) -> str | Step:
        if isinstance(arguments, str):
            raise ToolError("sides is missing")
        return Step("4", done=True, reward=1.0)


class Ring(Topology):
    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(i, (i + 1) % self.size, 0) for i in range(self.size)]

    def standings(self, results: Results) -> list[Standing | None]:
        scores = [mean_score(results, i, range(self.size)) for i in range(self.size)]
        return [None if score is None else Standing.of_score(score) for score in scores]


class DiceTruth(Truth):
    def dimensions(self) -> dict[str, float]:
        return {"length": 5.0}


class DiceDomain(Domain):
    name = "dice"

    def __init__(self, environment: EnvironmentConfig, data: DataConfig):
        super().__init__(environment, data)
        self.examine = lambda query, messages: DiceTruth()


async def compare(i: int, j: int) -> tuple[float, float] | None:
    return float(-i), float(-j)


def use() -> list[float | None]:
    config: Config = load_config(Path("configs/quickstart.yaml"))
    domain: Domain = make_domain(config.environment, config.data)
    make_examiner(domain)
    tournament_reward(judge=LongestAnswer(config.judge.train), num_generations=8)
    ranking = run_tournament("seeded_single_elimination", 4, compare, seed=1)
    ranking = asyncio.run(play_tournament("swiss", 4, compare, rounds=2))
    return ranking.ranks_G
