"""From one advantage per turn to one per token, and advantages from the states of a world.

A turn's tokens are a run of the policy's own tokens; the template's tokens and observations lie between two turns.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from arenarl.config.schema import Config
from arenarl.training.methods.method import Advantages, GRPOTrainer, Judged, Rewards, Tensor

STATE_WORLDS = ("textcraft", "babyai")  # domains whose `visits` have exact states
Visits = Sequence[tuple[Hashable, str | None]]  # per turn: the state before it, and its action


def make_turn_advantages(
    trainer: GRPOTrainer, config: Config, judged: Judged,
    of_group: Callable[[Rewards, Sequence[Visits]], list[list[float]]],
) -> Advantages:  # fmt: skip
    """Return a function that computes advantages (B, T), and logs the share of turns whose state another trajectory of
    the group visited too. `of_group` maps a group's rewards (G,) and visits (G, turns) to advantages (G, turns)."""
    from accelerate.utils import gather_object

    from arenarl.domains.domain import make_domain
    from arenarl.training.trl_internals import step_metrics

    domain = make_domain(config.environment, config.data)

    def advantages(batch: dict[str, Any], rewards_B: Tensor) -> Tensor:
        turns_B, shared = [], []
        for group, outcome in judged():
            visits_G = [
                [] if trajectory.is_void else domain.visits(group.query, trajectory.messages)  # it would crash again
                for trajectory in group.trajectories
            ]
            turns_B += of_group(outcome.rewards_G, visits_G)
            rows = Counter(state for visits in visits_G for state in {state for state, _ in visits})
            shared += [rows[state] > 1 for visits in visits_G for state, _ in visits]
        for is_shared in gather_object(shared):
            step_metrics(trainer)["credit/shared_states"].append(float(is_shared))
        return over_tokens(turns_B, batch["completion_mask"] * batch["tool_mask"])

    return advantages


def turn_counts(own_BT: Tensor) -> list[int]:
    """Return the number of turns of each trajectory (B,).

    >>> import torch
    >>> turn_counts(torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0]]))
    [2, 0]
    """
    return _starts(own_BT).sum(dim=1).tolist()


def over_tokens(turns_B: Sequence[Sequence[float]], own_BT: Tensor) -> Tensor:
    """Return advantages (B, T): each of a turn's tokens gets the turn's advantage, other tokens get 0.

    >>> import torch
    >>> over_tokens([[0.5, 2.0], []], torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0]]))
    tensor([[0.5000, 0.5000, 0.0000, 2.0000],
            [0.0000, 0.0000, 0.0000, 0.0000]])
    """
    advantages_BT, turn_BT = own_BT.new_zeros(own_BT.shape).float(), _starts(own_BT).cumsum(dim=1) - 1
    for row, turns in enumerate(turns_B):
        if turns:
            advantages_BT[row] = advantages_BT.new_tensor(turns)[turn_BT[row].clamp(min=0)] * own_BT[row]
    return advantages_BT


def _starts(own_BT: Tensor) -> Tensor:
    """Return 1 (B, T) at the first token of each turn."""
    before_BT = own_BT.roll(1, dims=1)
    before_BT[:, 0] = 0
    return own_BT * (1 - before_BT)
