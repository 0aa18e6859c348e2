"""Groups of known quality and a judge of known noise, without trajectories: what rankings are measured on.

Qualities are N(0, 1), and so a judge's errors are in units of their standard deviation. All topologies that rank a
group face the same verdicts: a call that several of them make has one outcome. Not in the paper.
"""

from dataclasses import dataclass

import numpy as np

from arenarl.studies.repeated_scores import mean_of_calls
from arenarl.system.seeds import stable_seed

ROUNDING = 0.25
PADDING = -0.5  # correlation of length with quality: a judge that likes length is drawn to the worse ones


@dataclass(frozen=True)
class Noise:
    """Standard deviations of a judge's errors; `position` is added to who is shown first and taken from who is shown
    last."""

    independent: float = 0.5  # drawn anew for every score
    shared: float = 0.0  # drawn once a call, for all that it shows
    sticking: float = 0.0  # drawn once a trajectory: asking again does not average it out
    position: float = 0.3
    length: float = 0.0  # points for a standard deviation of length


NOISE = {  # kind -> strength -> judge; the first three stand in the table of `fidelity`, at the strengths 1, 1 and 1.5
    "independent": lambda strength: Noise(independent=strength),
    "mixed": lambda strength: Noise(independent=0.7 * strength, shared=0.7 * strength),
    "shared": lambda strength: Noise(shared=strength),
    "sticking": lambda strength: Noise(sticking=strength),
    "position": lambda strength: Noise(position=strength),
    "length": lambda strength: Noise(length=strength),
}


class Group:
    """`size` trajectories and all that the judge would say of them; the same seed is the same group.

    `quality_G` (size,); `pair_scores` (first, second, 2); `point_scores` (size, calls).
    """

    def __init__(self, size: int, noise: Noise, seed: int):
        self.seed, self.noise = seed, noise
        rng = np.random.default_rng(seed)
        self.quality_G = rng.normal(size=size)
        length_G = PADDING * self.quality_G + np.sqrt(1 - PADDING**2) * rng.normal(size=size)
        # what all calls agree on
        self.seen_G = self.quality_G + noise.sticking * rng.normal(size=size) + noise.length * length_G
        pairs = np.stack([np.repeat(self.seen_G[:, None], size, 1), np.repeat(self.seen_G[None], size, 0)], axis=-1)
        self.pair_scores = self._scored(pairs + noise.position * np.array([1, -1]), rng)
        self.point_scores = self._scored(np.repeat(self.seen_G[:, None, None], size, 1), rng)[..., 0]

    def _scored(self, seen: np.ndarray, rng: np.random.Generator, times: float = 1.0) -> np.ndarray:
        """Scores (..., shown) of calls that show `seen`, with `times` the noise that calls have."""
        drift = self.noise.shared * rng.normal(size=(*seen.shape[:-1], 1))
        return (
            np.round((seen + times * (drift + self.noise.independent * rng.normal(size=seen.shape))) / ROUNDING)
            * ROUNDING
        )

    async def compare(self, i: int, j: int) -> tuple[float, float]:
        return tuple(self.pair_scores[i, j])

    async def choose(self, indices: tuple[int, ...], winners: int) -> list[int]:
        lead = self.noise.position * np.linspace(1, -1, len(indices))
        scores = self._scored(self.seen_G[list(indices)] + lead, np.random.default_rng(stable_seed(self.seed, indices)))
        return [indices[place] for place in np.argsort(-scores, kind="stable")[:winners]]

    def listwise(self, call: int, times: float = 1.0) -> np.ndarray:
        """Scores (size,) of listwise call number `call`, which shows all in an order of its own: one drift for all, the
        noise of a score each, and a lead that falls evenly over the places; `times` as much of each.
        """
        rng = np.random.default_rng(stable_seed(self.seed, "listwise", call))
        lead = np.linspace(1, -1, len(self.seen_G))[rng.permutation(len(self.seen_G))]
        return self._scored(self.seen_G + times * self.noise.position * lead, rng, times)

    def pointwise(self, calls: int) -> list[float]:
        """Mean scores (size,) of `calls` pointwise calls spread evenly over the group."""
        return mean_of_calls(self.point_scores, calls)
