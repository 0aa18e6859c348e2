"""Step credit (ArenaFlow, arXiv 2609.21378): the reward less the group's mean, raised for the pivotal turns of winners.

`rl.advantage: step_credit`, with a tournament and `judge.train.name_turns`. In each match that a trajectory wins, the
judge names its pivotal turns. With the advantage A > 0, a pivotal turn gets A + A g; its gate g is exp(depth), divided
by its maximum within the trajectory. All other turns get A. The paper's text was not available, so two keys choose
between readings of its notes (our reconstruction). `rl.credit_depth`: the depth is a round, or the turn's number.
`rl.credit_orders`: which turns count if the two orders of a match name different turns.

A turn named in round 0 and another in round 2, at A = .5 and at A = -.5:

>>> [round(advantage, 4) for advantage in turn_advantages(0.5, {1: 0, 2: 2}, turns=4)]
[0.5, 0.5677, 1.0, 0.5]
>>> turn_advantages(-0.5, {1: 0, 2: 2}, turns=4)
[-0.5, -0.5, -0.5, -0.5]
"""

from collections import defaultdict
from collections.abc import Mapping
from math import exp
from typing import Any, Literal

from arenarl.config.schema import Config
from arenarl.tournament.ranking import Ranking
from arenarl.training.methods.method import Advantages, GRPOTrainer, Judged, OnlineMethod, Tensor
from arenarl.training.methods.turns import over_tokens, turn_counts
from arenarl.trajectory import RolloutGroup


def gates(depths: Mapping[int, int]) -> dict[int, float]:
    """Return the gate of each pivotal turn, 1 for the deepest.

    >>> {turn: round(gate, 4) for turn, gate in gates({1: 0, 2: 2}).items()}
    {1: 0.1353, 2: 1.0}
    """
    deepest = max(depths.values(), default=0)
    return {turn: exp(depth - deepest) for turn, depth in depths.items()}


def turn_advantages(advantage: float, depths: Mapping[int, int], turns: int) -> list[float]:
    """Return one advantage per turn. `depths` maps each pivotal turn, an index from 0, to its depth."""
    gate_of = gates(depths) if advantage > 0 else {}
    return [advantage + advantage * gate_of.get(turn, 0.0) for turn in range(turns)]


def depths_of(
    group: RolloutGroup, ranking: Ranking | None, by: Literal["round", "turn"] = "round",
    orders: Literal["either", "both"] = "either",
) -> list[dict[int, int]]:  # fmt: skip
    """Return each trajectory's pivotal turns, as indices from 0, with their depths (G,), from the matches that it won.

    Trajectories with equal messages share their matches. A match has the round in which it was played: a bracket match
    whose verdict stands from the seeding has round 0, and a bye has none.
    """
    by_messages: dict[str, dict[int, int]] = defaultdict(dict)
    for match in ranking.matches if ranking else []:
        if match.scores is None or match.is_tie:
            continue
        winner = match.i if match.scores[0] > match.scores[1] else match.j
        depths = by_messages[repr(group.trajectories[winner].messages)]
        details = [call.detail[0 if call.first == winner else 1] if call.detail else {} for call in match.calls]
        named = [set(detail.get("pivotal_turns", ())) for detail in details]
        for number in set.union(*named) if orders == "either" else set.intersection(*named):
            turn = number - 1
            depths[turn] = max(depths.get(turn, 0), match.round if by == "round" else turn)
    return [by_messages.get(repr(trajectory.messages), {}) for trajectory in group.trajectories]


def make_advantages(trainer: GRPOTrainer, policy: str, config: Config, judged: Judged) -> Advantages:
    """Return a function that raises TRL's advantages, (B,), on the pivotal turns, (B, T)."""
    from accelerate.utils import gather_object

    from arenarl.training.trl_internals import step_metrics

    def advantages(batch: dict[str, Any], rewards_B: Tensor) -> Tensor:
        own_BT = batch["completion_mask"] * batch["tool_mask"]
        depths_B = [
            depths
            for group, outcome in judged()
            for depths in depths_of(group, outcome.ranking, config.rl.credit_depth, config.rl.credit_orders)
        ]
        rows = list(zip(batch["advantages"].tolist(), depths_B, turn_counts(own_BT), strict=True))
        flags = [turn in depths for advantage, depths, turns in rows if advantage > 0 for turn in range(turns)]
        for is_pivotal in gather_object(flags):
            step_metrics(trainer)["credit/pivotal_turns"].append(float(is_pivotal))
        return over_tokens([turn_advantages(*row) for row in rows], own_BT)

    return advantages


METHOD = OnlineMethod(
    title="ArenaFlow's step credit",
    keys={"rl.advantage": "step_credit"},
    requires={"judge.train.name_turns": (True,), "rl.importance_sampling_level": ("token",)},
    reads=("judge.train.name_turns", "judge.train.turn_error_rate", "rl.credit_depth", "rl.credit_orders"),
    needs_matches=True,
    make_advantages=make_advantages,
)
