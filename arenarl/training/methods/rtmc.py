"""RTMC (arXiv 2604.11037): the advantage of a turn is Q(s, a) - V(s), means over the group's rollouts that share them.

`rl.advantage: rtmc`. Q(s, a) is the mean reward of the rollouts that take the action a in the state s. V(s) is the mean
reward of the rollouts that visit s. A rollout counts once in each. So only turns where rollouts part get credit: a turn
has advantage 0 if all rollouts in its state take its action, also if only one rollout visits the state. If rollouts
never meet again, a rollout's advantages add up to its reward less the group's mean. States are exact: the
world replays the trajectory. The paper is known from its abstract and notes alone: V(s) and the absence of a prior are
our reconstruction.

Three rollouts share the first state; two take the same action there and part in the next state:

>>> visits = [[("s", "a"), ("t", "b")], [("s", "a"), ("t", "c")], [("s", "d"), ("u", "e")]]
>>> [[round(advantage, 4) for advantage in of_one] for of_one in turn_advantages([1.0, 0.5, 0.0], visits)]
[[0.25, 0.25], [0.25, -0.25], [-0.5, 0.0]]

V(s) is .5, Q(s, a) and V(t) are .75, Q(t, b) is 1.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from arenarl.config.schema import Config
from arenarl.training.methods.method import Advantages, GRPOTrainer, Judged, OnlineMethod, Rewards
from arenarl.training.methods.turns import STATE_WORLDS, Visits, make_turn_advantages


def turn_advantages(rewards_G: Rewards, visits_G: Sequence[Visits]) -> list[list[float]]:
    """Return each turn's advantage (G, turns); a visit is the state before a turn and the turn's action.

    Trajectories without a reward have advantage 0, and their visits do not count.
    """
    by_signature: dict[Any, dict[int, float]] = defaultdict(dict)  # a state, or state and action -> row -> reward
    for row, (reward, visits) in enumerate(zip(rewards_G, visits_G, strict=True)):
        for state, action in visits if reward is not None else ():
            by_signature["V", state][row] = by_signature["Q", state, action][row] = reward
    mean = {signature: fmean(rewards.values()) for signature, rewards in by_signature.items()}
    return [
        [0.0 if reward is None else mean["Q", state, action] - mean["V", state] for state, action in visits]
        for reward, visits in zip(rewards_G, visits_G, strict=True)
    ]


def make_advantages(trainer: GRPOTrainer, policy: str, config: Config, judged: Judged) -> Advantages:
    return make_turn_advantages(trainer, config, judged, turn_advantages)


METHOD = OnlineMethod(
    title="RTMC",
    keys={"rl.advantage": "rtmc"},
    requires={"environment.domain": STATE_WORLDS, "rl.importance_sampling_level": ("token",)},
    make_advantages=make_advantages,
)
