"""verifiers with the tournament as its reward: several attempts at a task are ranked, for any taskset and harness.

pip install verifiers==0.4.0 .
PYTHONPATH=examples vf-eval <taskset> --env.id verifiers_tournament --env.n 8 --env.judge openai \
    --env.rubric "helpful, true and well written" --env.max-cost 20 --model <model> --client.base-url <address>

prime-rl runs environments of verifiers too, but was not tried. The reward `tournament` adds to the taskset's own.
"""

from functools import cached_property

import verifiers.v1 as vf

from arenarl.integrations.verifiers import TournamentEnv, TournamentEnvConfig
from arenarl.rank import Ranker

__all__ = ["BudgetedTournament"]


class BudgetedTournamentConfig(TournamentEnvConfig):
    topology: str = "balanced"  # in simulation, ranks better than the paper's bracket: docs/tournament.md
    max_cost: float | None = None
    max_failure_share: float = 0.2


class BudgetedTournament(TournamentEnv, vf.Env[BudgetedTournamentConfig]):
    """A tournament with a budget for all processes and restarts of the same `run`."""

    @cached_property
    def ranker(self) -> Ranker:
        keys = self.config.model_dump(include={"judge", "rubric", "topology", "max_cost", "max_failure_share"})
        return Ranker(run="verifiers", **keys)
