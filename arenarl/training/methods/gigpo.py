"""GiGPO (arXiv 2505.10978): the trajectory's advantage in its group, plus the turn's among turns that share its state.

`rl.advantage: gigpo`, with `rl.state_weight`, `rl.discount` and `rl.state_norm`. A = A^E + omega A^S. A^E is GRPO's. A
turn's return is the trajectory's reward, discounted once per turn that follows. A^S standardises it among all turns of
the group with the same state before them, including those of one trajectory. A state that occurs once has A^S = 0.
States are exact: the world replays the trajectory. Departs from GiGPO: the state is the world's, not the text of the
observation; standard deviations have ddof 1, as in GRPO here.

Two trajectories with rewards 1 and 0 share their first state; the second returns to it:

>>> turns = turn_advantages([1.0, 0.0], [["s", "t"], ["s", "s"]], weight=1.0, discount=0.5, scale=center)
>>> [[round(advantage, 4) for advantage in of_one] for of_one in turns]
[[0.8333, 0.5], [-0.6667, -0.6667]]

The returns in s are .5, 0 and 0, with mean 1/6; A^E is .5 and -.5.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from arenarl.config.schema import Config
from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.grpo import standardize
from arenarl.training.methods.method import Advantages, GRPOTrainer, Judged, OnlineMethod, Rewards
from arenarl.training.methods.turns import STATE_WORLDS, Visits, make_turn_advantages


def turn_advantages(
    rewards_G: Rewards, states_G: Sequence[Sequence[Hashable]], weight: float, discount: float,
    scale: Callable[[Rewards], Sequence[float | None]],
) -> list[list[float]]:  # fmt: skip
    """Return each turn's advantage (G, turns); `states_G` are the states before the turns.

    Trajectories without a reward have advantage 0, and their turns do not count.
    """
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for row, (reward, states) in enumerate(zip(rewards_G, states_G, strict=True)):
        for turn, state in enumerate(states):
            if reward is not None:
                places[state].append((row, turn))
    advantages = [
        [float(advantage or 0.0)] * len(states) for advantage, states in zip(scale(rewards_G), states_G, strict=True)
    ]
    for shared in places.values():
        returns = [rewards_G[row] * discount ** (len(states_G[row]) - 1 - turn) for row, turn in shared]
        for (row, turn), advantage in zip(shared, scale(returns), strict=True):
            advantages[row][turn] += weight * float(advantage)
    return advantages


def make_advantages(trainer: GRPOTrainer, policy: str, config: Config, judged: Judged) -> Advantages:
    rl = config.rl
    standardized = partial(standardize, ddof=rl.advantage_ddof, eps=rl.advantage_epsilon)
    scale = standardized if rl.state_norm == "std" else center

    def of_group(rewards_G: Rewards, visits_G: Sequence[Visits]) -> list[list[float]]:
        states_G = [[state for state, _ in visits] for visits in visits_G]
        return turn_advantages(rewards_G, states_G, rl.state_weight, rl.discount, scale)

    return make_turn_advantages(trainer, config, judged, of_group)


METHOD = OnlineMethod(
    title="GiGPO",
    keys={"rl.advantage": "gigpo"},
    requires={"environment.domain": STATE_WORLDS, "rl.importance_sampling_level": ("token",)},
    reads=("rl.state_weight", "rl.state_norm", "rl.discount", "rl.advantage_ddof", "rl.advantage_epsilon"),
    learns_from_equal=True,
    make_advantages=make_advantages,
)
