"""The embedded judge: the world's truth on the rubric's dimensions, plus a documented noise model;
`noise: none` is the truth itself.

It examines what an LLM judge is shown (judges/view.py), and nothing else. It is a simulation: results from it are
labelled so wherever they appear. A call that shows several trajectories has one drift term for all of them, pointwise
calls do not share it with anyone: that is the paper's case against pointwise scores.
"""

import json
import math
from collections.abc import Sequence

import numpy as np

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import Truth
from arenarl.judges.judge import NO_TRUTH, Examiner, Verdict, rubric_of
from arenarl.judges.view import View, view_kind, view_of
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory

OVERALL = "overall"  # beside the rubric's dimensions: the total
_LISTWISE = "score_together"
# points: standard deviation of quality in a group, as the tables' runs have it (1.4 to 1.8, results/LOG.md)
SPREAD = 1.6


class EmbeddedJudge:
    """Score views by the domain's truth, plus noise.
    The noise depends only on seed, query, kind of call, views and repeat.

    Args:
        examine: (query, view) -> Truth, from the domain.
    """

    def __init__(self, config: JudgeConfig, examine: Examiner, seed: int):
        self.config = config
        self.examine = examine
        self.seed = seed

    def weights(self, query: Query) -> dict[str, float]:
        return rubric_of(query).for_view(view_kind(self.config)).weights

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict:
        return self.verdict(query, self.views(first, second), tuple(self.weights(query)), ("compare", repeat))

    async def score(self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0) -> Verdict:
        kind = view_kind(self.config, answer_only)
        names = rubric_of(query).for_view(kind).names
        return self.verdict(query, [view_of(trajectory, kind)], names, ("score", answer_only, repeat))

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int]:
        """The highest totals of one call; of equal ones those shown first."""
        totals = self.verdict(query, self.views(*trajectories), tuple(self.weights(query)), ("choose", repeat)).totals
        return sorted(range(len(totals)), key=lambda position: -totals[position])[:winners]

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float:
        """The true total with the noise of a single score: nothing averages out, unlike in a total of seven scores."""
        return self._scores(query, [trajectory], OVERALL, ("score_overall", repeat))[0]

    async def score_dimension(self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0) -> float:
        """Every call drifts on its own, so a mean over dimensions averages the drift out as well, at as many calls."""
        return self._scores(query, [trajectory], dimension, ("score_dimension", dimension, repeat))[0]

    async def score_together(self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0) -> list[float]:
        """One drift for all, the noise of a single score each, and a lead that falls evenly over the places:
        `listwise_noise` times as much."""
        return self._scores(query, trajectories, OVERALL, (_LISTWISE, repeat))

    def checklist(self, query: Query) -> dict[str, float]:
        """The query's constraints, of equal weight."""
        (nothing,) = self.views(Trajectory(query.query_id, [], "no_answer"))
        if not (items := self._examined(query, nothing).checklist()):
            problem = f"query {query.query_id} has no constraints for a checklist"
            raise UserError(f"judge: {problem}; take another reward, or an LLM judge")
        return dict.fromkeys(items, 1.0)

    async def check_items(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> dict[str, bool]:
        """The truth, of which each answer is turned round with the chance `flip_rate`, independently."""
        (view,) = self.views(trajectory)
        met = self._examined(query, view).checklist()
        text, rate = json.dumps(view.messages, sort_keys=True), self.flip_rate(query)
        rng = np.random.default_rng(stable_seed(self.seed, query.query_id, ("check_items", repeat), [text]))
        return {name: bool(is_met ^ (rng.random() < rate)) for name, is_met in met.items()}

    def flip_rate(self, query: Query) -> float:
        """Of an item: the config's, or the one that makes an answer as reliable as a pointwise score of the whole.

        Asked again, a score agrees with itself with the correlation r = spread² / (spread² + noise²); an answer that is
        yes as often as no, and turned round with chance p, with (1 - 2p)². Both are the same at p = (1 - sqrt(r)) / 2.
        """
        config = self.config
        if config.noise == "none" or config.flip_rate is not None:
            return 0.0 if config.noise == "none" else config.flip_rate
        averaged = sum(weight**2 for weight in self.weights(query).values())
        noise = averaged * config.sigma_independent**2 + config.sigma_call**2 + config.sigma_sticky**2
        return (1 - math.sqrt(SPREAD**2 / (SPREAD**2 + noise))) / 2

    def views(self, *trajectories: Trajectory) -> list[View]:
        """Return this judge's views of the trajectories, for every call but an answer-only score."""
        return [view_of(trajectory, view_kind(self.config)) for trajectory in trajectories]

    def _scores(self, query: Query, trajectories: Sequence[Trajectory], dimension: str, call: tuple) -> list[float]:
        verdict = self.verdict(query, self.views(*trajectories), (dimension,), call)
        return [scores[dimension] for scores in verdict.dimensions]

    def verdict(self, query: Query, views: Sequence[View], dimensions: tuple[str, ...], call: tuple) -> Verdict:
        """Scores on `dimensions`, of which `overall` is the total; `call` tells apart calls that show the same.

        Position bias falls evenly from whoever is shown first to whoever is shown last; their mean is 0.
        """
        config, total = self.config, rubric_of(query).total
        truths = [self._truth(query, view) for view in views]
        if config.noise == "none":
            return Verdict(tuple({name: truth[name] for name in dimensions} for truth in truths), total)
        texts = [json.dumps(view.messages, sort_keys=True) for view in views]
        times = config.listwise_noise if _LISTWISE in call else 1.0
        rng = np.random.default_rng(stable_seed(self.seed, query.query_id, call, texts))
        drift = rng.normal(0.0, times * config.sigma_call)
        scores = []
        for position, (truth, text, view) in enumerate(zip(truths, texts, views, strict=True)):
            of_text = np.random.default_rng(stable_seed(self.seed, "taste", query.query_id, text))
            taste = of_text.normal(0.0, config.sigma_sticky)
            lead = times * config.position_bias * (1 - 2 * position / (len(views) - 1)) if len(views) > 1 else 0.0
            length = config.length_bias * math.log(max(1, len(view.answer)) / config.typical_chars)
            independent = rng.normal(0.0, times * config.sigma_independent, len(dimensions))
            noise = dict(zip(dimensions, independent, strict=True))
            scores.append(
                {name: self._rounded(truth[name] + drift + taste + lead + length + noise[name]) for name in dimensions}
            )
        return Verdict(tuple(scores), total)

    def _truth(self, query: Query, view: View) -> dict[str, float]:
        """Return the view's true scores by dimension, and as `overall` the total of the dimensions that the view
        shows."""
        rubric, dimensions = rubric_of(query).for_view(view.kind), self._examined(query, view).dimensions()
        return {**dimensions, OVERALL: rubric.total({name: dimensions[name] for name in rubric.names})}

    def _examined(self, query: Query, view: View) -> Truth:
        if (truth := self.examine(query, view)) is None:
            raise UserError(f"judge: query {query.query_id} has no truth for the embedded judge: {NO_TRUTH}")
        return truth

    def _rounded(self, score: float) -> float:
        step = self.config.rounding
        return float(min(10.0, max(0.0, round(score / step) * step)))
