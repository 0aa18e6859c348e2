"""Trajectories of known quality, and every method that can reward their groups."""

from arenarl.config.schema import Config, TournamentConfig
from arenarl.domains.travel.truth import TravelTruth
from arenarl.tournament.topologies import TOPOLOGIES
from arenarl.trajectory import Query, Trajectory

OTHERS = [
    "pointwise_answer", "pointwise_trajectory", "win_rate", "pointwise_implicit", "pointwise_explicit", "ruler",
    "mixture", "dgr",
]  # fmt: skip
COARSE = ["brpo", "elo", "rubric_checklist", "evolving_rubrics", "circular"]  # methods that do not guarantee the order
# the first three topologies give the true order
METHODS = [("tournament", topology) for topology in list(TOPOLOGIES)[:3]] + [(name, None) for name in OTHERS]
QUERY = Query("q", "travel", "Search", "en", "Find a cafe.")


def config_of(method, topology=None, **tournament):
    config = Config()
    config.reward.name = method
    config.tournament = TournamentConfig(topology=topology or next(iter(TOPOLOGIES)), **tournament)
    return config


def attempt(quality, stop_reason="answer"):
    """Return a trajectory whose answer states its quality."""
    message = {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{quality}\n</answer>"}
    meta = {"tool_calls": 1, "tool_errors": 0, "turns": 1}
    return Trajectory("q", [message], stop_reason, policy_mask_T=[1, 1], meta=meta)


class Stated(TravelTruth):
    """A truth with a checklist: whether the clarity is above several limits."""

    def checklist(self):
        return {f"above {limit}": self.clarity * 10 > limit for limit in (2, 4, 6, 8)}


def truth_of(query, trajectory):
    """Return a truth in which every dimension has the quality in the answer."""
    share = float(trajectory.answer or 0) / 10
    shares = [share]
    return Stated(shares, shares, shares, shares, {}, clarity=share)
