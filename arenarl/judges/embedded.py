"""The embedded judge: the world's truth on the rubric's dimensions, plus a documented noise model; `noise: none` is the truth itself.

It reads a trajectory as an LLM judge would (query, thoughts, calls, results, answer). It is a simulation: results from it are labelled so
wherever they appear. A call that shows several trajectories has one drift term for all of them, pointwise calls do not share it with
anyone: that is the paper's case against pointwise scores.
"""

import json
import math
from collections.abc import Sequence

import numpy as np

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import Truth
from arenarl.domains.rubrics import Rubric
from arenarl.judges.judge import NO_TRUTH, Examiner, Verdict, rubric_of
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory

_LISTWISE = "score_together"
SPREAD = 1.6  # points: standard deviation of quality in a group, as the tables' runs have it (1.4 to 1.8, results/LOG.md)


class EmbeddedJudge:
    """Scores against the truth, plus noise that depends only on (seed, what was shown, repeat).

    Args:
        examine: (query, trajectory) -> Truth, from the domain.
    """

    def __init__(self, config: JudgeConfig, examine: Examiner, seed: int):
        self.config = config
        self.examine = examine
        self.seed = seed

    def weights(self, query: Query) -> dict[str, float]:
        return self._rubric(query).weights

    def _rubric(self, query: Query, answer_only: bool = False) -> Rubric:
        """Who does not see the way to the answer is not asked about it."""
        rubric = rubric_of(query)
        return rubric.of_answer if answer_only or not self.config.process_aware else rubric

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        return self.verdict(query, [first, second], self._rubric(query).names, ("compare", repeat))

    async def score(self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0) -> Verdict | None:
        return self.verdict(query, [trajectory], self._rubric(query, answer_only).names, ("score", answer_only, repeat))

    async def choose(self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0) -> list[int] | None:
        """The highest totals of one call; of equal ones those shown first."""
        totals = self.verdict(query, trajectories, self._rubric(query).names, ("choose", repeat)).totals
        return sorted(range(len(totals)), key=lambda position: -totals[position])[:winners]

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        """The true total with the noise of a single score: nothing averages out, unlike in a total of seven scores."""
        return self.verdict(query, [trajectory], ("overall",), ("score_overall", repeat)).dimensions[0]["overall"]

    async def score_dimension(self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0) -> float | None:
        """Every call drifts on its own, so a mean over dimensions averages the drift out as well, at as many calls."""
        return self.verdict(query, [trajectory], (dimension,), ("score_dimension", dimension, repeat)).dimensions[0][dimension]

    async def score_together(self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0) -> list[float] | None:
        """One drift for all, the noise of a single score each, and a lead that falls evenly over the places: `listwise_noise` times as much."""
        return [one["overall"] for one in self.verdict(query, trajectories, ("overall",), (_LISTWISE, repeat)).dimensions]

    def checklist(self, query: Query) -> dict[str, float]:
        """The query's constraints, of equal weight."""
        if not (items := self._examined(query, Trajectory(query.query_id, [], "no_answer")).checklist()):
            raise UserError(f"judge: query {query.query_id} has no constraints for a checklist; take another reward, or an LLM judge")
        return dict.fromkeys(items, 1.0)

    async def check_items(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> dict[str, bool] | None:
        """The truth, of which each answer is turned round with the chance `flip_rate`, independently."""
        met = self._examined(query, trajectory).checklist()
        text, rate = json.dumps(trajectory.messages, sort_keys=True), self.flip_rate(query)
        rng = np.random.default_rng(stable_seed(self.seed, query.query_id, ("check_items", repeat), [text]))
        return {name: bool(is_met ^ (rng.random() < rate)) for name, is_met in met.items()}

    def flip_rate(self, query: Query) -> float:
        """Of an item: the config's, or the one that makes an answer as reliable as a pointwise score of the whole.

        Asked again, a score agrees with itself with the correlation r = spread² / (spread² + noise²); an answer that is yes as often as no, and
        turned round with chance p, with (1 - 2p)². Both are the same at p = (1 - sqrt(r)) / 2.
        """
        config = self.config
        if config.noise == "none" or config.flip_rate is not None:
            return 0.0 if config.noise == "none" else config.flip_rate
        averaged = sum(weight**2 for weight in self.weights(query).values())
        noise = averaged * config.sigma_independent**2 + config.sigma_call**2 + config.sigma_sticky**2
        return (1 - math.sqrt(SPREAD**2 / (SPREAD**2 + noise))) / 2

    def verdict(self, query: Query, shown: Sequence[Trajectory], dimensions: tuple[str, ...], call: tuple) -> Verdict:
        """Scores on `dimensions`, of which `overall` is the total; `call` tells apart calls that show the same.

        Position bias falls evenly from whoever is shown first to whoever is shown last; their mean is 0.
        """
        truths, total = [self._truth(query, trajectory) for trajectory in shown], rubric_of(query).total
        if self.config.noise == "none":
            return Verdict(tuple({name: truth[name] for name in dimensions} for truth in truths), total)
        texts = [json.dumps(trajectory.messages, sort_keys=True) for trajectory in shown]
        times = self.config.listwise_noise if _LISTWISE in call else 1.0
        rng = np.random.default_rng(stable_seed(self.seed, query.query_id, call, texts))
        drift = rng.normal(0.0, times * self.config.sigma_call)
        scores = []
        for position, (truth, text, trajectory) in enumerate(zip(truths, texts, shown, strict=True)):
            taste = np.random.default_rng(stable_seed(self.seed, "taste", query.query_id, text)).normal(0.0, self.config.sigma_sticky)
            lead = times * self.config.position_bias * (1 - 2 * position / (len(shown) - 1)) if len(shown) > 1 else 0.0
            length = self.config.length_bias * math.log(max(1, len(trajectory.answer)) / self.config.typical_chars)
            independent = rng.normal(0.0, times * self.config.sigma_independent, len(dimensions))
            noisy = [truth[name] + drift + taste + lead + length + noise for name, noise in zip(dimensions, independent, strict=True)]
            scores.append({name: self._rounded(score) for name, score in zip(dimensions, noisy, strict=True)})
        return Verdict(tuple(scores), total)

    def _truth(self, query: Query, trajectory: Trajectory) -> dict[str, float]:
        """The dimensions and their total. A judge that does not see the tool results has to believe the facts that an answer states."""
        rubric, dimensions = self._rubric(query), self._examined(query, trajectory).dimensions()
        return {**dimensions, "overall": rubric.total({name: dimensions[name] for name in rubric.names})}

    def _examined(self, query: Query, trajectory: Trajectory) -> Truth:
        if (truth := self.examine(query, trajectory)) is None:
            raise UserError(f"judge: query {query.query_id} has no truth for the embedded judge: {NO_TRUTH}")
        return truth if self.config.show_tool_results else truth.believed()

    def _rounded(self, score: float) -> float:
        step = self.config.rounding
        return float(min(10.0, max(0.0, round(score / step) * step)))
