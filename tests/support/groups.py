"""Rollout groups of known quality, and every method that can reward them."""

from arenarl.config.schema import Config, TournamentConfig
from arenarl.config.value_types import TOPOLOGIES
from arenarl.domains.travel.truth import TravelTruth
from arenarl.trajectory import Query, Trajectory

OTHERS = ["pointwise_answer", "pointwise_trajectory", "win_rate", "pointwise_implicit", "pointwise_explicit"]
METHODS = [("tournament", topology) for topology in TOPOLOGIES[:3]] + [(name, None) for name in OTHERS]  # these three give the true order
QUERY = Query("q", "travel", "Search", "en", "Find a cafe.")


def config_of(method, topology=None, **tournament):
    config = Config()
    config.reward.name = method
    config.tournament = TournamentConfig(topology=topology or TOPOLOGIES[0], **tournament)
    return config


def attempt(quality, stop_reason="answer"):
    """A trajectory whose answer states its quality."""
    message = {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{quality}\n</answer>"}
    meta = {"tool_calls": 1, "tool_errors": 0, "turns": 1}
    return Trajectory("q", [message], stop_reason, policy_mask_T=[1, 1], meta=meta)


def truth_of(query, trajectory):
    """Every dimension has the quality that the answer states."""
    share = float(trajectory.answer) / 10
    shares = [share]
    return TravelTruth(shares, shares, shares, shares, {}, clarity=share)
