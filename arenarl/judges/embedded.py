"""The embedded judge, a simulation: the world's true scores on the rubric's dimensions plus noise.

`noise: none` returns the truth. The judge sees only the views that an LLM judge sees (judges/view.py). All reports
label its results as simulated. All trajectories of one call share one drift term; each pointwise call has its own. This
models the paper's argument against pointwise scores.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arenarl.config.schema import JudgeConfig, NoiseConfig
from arenarl.domains.domain import Truth
from arenarl.judges.judge import NO_TRUTH, Examiner, Verdict, rubric_of, truly_pivotal
from arenarl.judges.view import View, view_kind, view_of
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory

_PRAISE = re.compile(
    r"(?i)\b(?:best possible|perfect|flawless|excellent|outstanding|top[- ]quality|10/10|ten out of ten)\b"
    "|完美|最佳方案|无可挑剔|满分|极其出色"
)
_FORMATTED = re.compile(r"\s*(?:#{1,6}\s|[-*+•]\s|\d{1,2}[.)、]\s?)")  # the start of a heading or a list item
OVERALL = "overall"  # the total, as an additional dimension
_LISTWISE = "score_together"
PROPOSED = 4  # new rubrics of a call; DR Tulu's prompt asks for 1 to 5
_LEVELS = (2.5, 5.0, 7.5)  # scores that a relevant rubric names
_RELEVANT = re.compile(r"(\w+) is (at least|below) ([\d.]+)")
SPREAD = 1.6  # points: standard deviation of quality in a group; 1.4 to 1.8 in our runs (results/LOG.md)


class EmbeddedJudge:
    """Score views by the domain's truth plus noise. `examine` is the domain's (query, view) -> Truth.
    The noise depends only on seed, query, kind of call, views and repeat."""

    def __init__(self, config: JudgeConfig, examine: Examiner, seed: int):
        self.config, self.examine, self.seed = config, examine, seed

    def weights(self, query: Query) -> dict[str, float]:
        return rubric_of(query).for_view(view_kind(self.config)).weights

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict:
        views, call = self.views(first, second), ("compare", repeat)
        verdict = self.verdict(query, views, tuple(self.weights(query)), call)
        if not self.config.name_turns:
            return verdict
        return replace(verdict, pivotal_turns=self.name_turns(query, views, call))

    async def score(self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0) -> Verdict:
        kind = view_kind(self.config, answer_only)
        names = rubric_of(query).for_view(kind).names
        return self.verdict(query, [view_of(trajectory, kind)], names, ("score", answer_only, repeat))

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int]:
        """Return the positions of the highest totals; of equal totals, the trajectory shown first."""
        totals = self.verdict(query, self.views(*trajectories), tuple(self.weights(query)), ("choose", repeat)).totals
        return sorted(range(len(totals)), key=lambda position: -totals[position])[:winners]

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float:
        """Return the true total with the noise of one score. A total over seven dimensions has less noise."""
        return self._scores(query, [trajectory], OVERALL, ("score_overall", repeat))[0]

    async def score_dimension(self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0) -> float:
        """Return one dimension's score. Each call has its own drift, which a mean over dimensions averages out."""
        return self._scores(query, [trajectory], dimension, ("score_dimension", dimension, repeat))[0]

    async def score_together(self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0) -> list[float]:
        """Return one score per trajectory: a shared drift, noise per score, and a lead that falls evenly by position.
        All three are multiplied by `listwise_noise`."""
        return self._scores(query, trajectories, OVERALL, (_LISTWISE, repeat))

    def checklist(self, query: Query) -> dict[str, float]:
        """Return the query's constraints, with equal weights. Raises UserError for a query without constraints."""
        (empty,) = self.views(Trajectory(query.query_id, [], "no_answer"))
        if not (items := self._examine(query, empty).checklist()):
            problem = f"query {query.query_id} has no constraints for a checklist"
            raise UserError(f"judge: {problem}; use another reward or an LLM judge")
        return dict.fromkeys(items, 1.0)

    async def check_items(
        self, query: Query, trajectory: Trajectory, repeat: int = 0, rubrics: Sequence[str] = ()
    ) -> dict[str, bool]:
        """Return the true result of each item and rubric, flipped independently with probability `flip_rate`. A
        tenth of the surface's points is added to this probability for an unmet item of the checklist, and subtracted
        for a met one."""
        (view,) = self.views(trajectory)
        items = self._examine(query, view).checklist()
        met = items | {rubric: self._meets(query, view, rubric) for rubric in rubrics}
        rng, rate = self._rng(query.query_id, ("check_items", repeat), [_text(view)]), self.flip_rate(query)
        sway = 0.0 if self.config.noise == "none" else surface_bias(view.answer, self.config) / 10
        flips = {name: rate + (name in items) * (-sway if is_met else sway) for name, is_met in met.items()}
        return {name: bool(is_met ^ (rng.random() < flips[name])) for name, is_met in met.items()}

    async def propose_rubrics(
        self, query: Query, trajectories: Sequence[Trajectory], rubrics: Sequence[str], repeat: int = 0
    ) -> dict[str, float]:
        """Return at most `PROPOSED` new rubrics, each at random a merit or a fault. With probability `irrelevant_rate`,
        a rubric is about nothing. Otherwise it names a score on a dimension that only some of the trajectories reach;
        if all such scores have a rubric, it is left out."""
        views, rate = self.views(*trajectories), 0.0 if self.config.noise == "none" else self.config.irrelevant_rate
        rng = self._rng(query.query_id, ("propose_rubrics", repeat), list(map(_text, views)))
        pairs = [
            (f"{name} is at least {level:g}", f"{name} is below {level:g}")
            for name in rubric_of(query).for_view(view_kind(self.config)).names
            for level in _LEVELS
        ]
        relevant = [
            pair
            for pair in pairs
            if not {*pair}.intersection(rubrics) and len({self._meets(query, view, pair[0]) for view in views}) == 2
        ]
        new = {}
        for _ in range(PROPOSED):
            is_fault = int(rng.integers(2))
            if rng.random() < rate:
                new[f"sign {rng.integers(10**9)}"] = 1.0 - 2 * is_fault
            elif relevant:
                new[relevant.pop(rng.integers(len(relevant)))[is_fault]] = 1.0 - 2 * is_fault
        return new

    def _meets(self, query: Query, view: View, rubric: str) -> bool:
        """Return whether the view meets a rubric. Without a known score in it, a hash of rubric and answer decides."""
        match = _RELEVANT.fullmatch(rubric)
        if match and (score := self._truth(query, view).get(match[1])) is not None:
            return (score >= float(match[3])) == (match[2] == "at least")
        return stable_seed("irrelevant", rubric, view.answer) % 2 == 0

    def flip_rate(self, query: Query) -> float:
        """Return the flip rate of a checklist item: the config's, or one as reliable as a pointwise score.

        Two scores of the same trajectory have the correlation r = spread² / (spread² + noise²). Two answers to one item
        that are yes half of the time and flip with probability p have the correlation (1 - 2p)². Both correlations are
        equal at p = (1 - sqrt(r)) / 2.
        """
        config = self.config
        if config.noise == "none" or config.flip_rate is not None:
            return 0.0 if config.noise == "none" else config.flip_rate
        averaged = sum(weight**2 for weight in self.weights(query).values())
        noise = averaged * config.sigma_independent**2 + config.sigma_call**2 + config.sigma_sticky**2
        return (1 - math.sqrt(SPREAD**2 / (SPREAD**2 + noise))) / 2

    def views(self, *trajectories: Trajectory) -> list[View]:
        """Return this judge's views of the trajectories, for all calls except answer-only scores."""
        return [view_of(trajectory, view_kind(self.config)) for trajectory in trajectories]

    def _scores(self, query: Query, trajectories: Sequence[Trajectory], dimension: str, call: tuple) -> list[float]:
        verdict = self.verdict(query, self.views(*trajectories), (dimension,), call)
        return [scores[dimension] for scores in verdict.dimensions]

    def verdict(self, query: Query, views: Sequence[View], dimensions: tuple[str, ...], call: tuple) -> Verdict:
        """Return noisy scores on `dimensions`, `overall` included. `call` distinguishes calls with equal views.
        The position bias falls evenly from the first view to the last; its mean is 0."""
        config, total = self.config, rubric_of(query).total
        truths = [self._truth(query, view) for view in views]
        if config.noise == "none":
            return Verdict(tuple({name: truth[name] for name in dimensions} for truth in truths), total)
        times, texts = config.listwise_noise if _LISTWISE in call else 1.0, list(map(_text, views))
        rng = self._rng(query.query_id, call, texts)
        drift = rng.normal(0.0, times * config.sigma_call)
        scores = []
        for position, (truth, text, view) in enumerate(zip(truths, texts, views, strict=True)):
            taste = self._rng("taste", query.query_id, text).normal(0.0, config.sigma_sticky)
            lead = times * config.position_bias * (1 - 2 * position / (len(views) - 1)) if len(views) > 1 else 0.0
            surface = config.length_bias * math.log(max(1, len(view.answer)) / config.typical_chars)
            surface += surface_bias(view.answer, config)
            independent = rng.normal(0.0, times * config.sigma_independent, len(dimensions))
            noise = dict(zip(dimensions, independent, strict=True))
            scores.append(
                {name: self._round(truth[name] + drift + taste + lead + surface + noise[name]) for name in dimensions}
            )
        return Verdict(tuple(scores), total)

    def name_turns(self, query: Query, views: Sequence[View], call: tuple) -> tuple[tuple[int, ...], ...]:
        """Return the numbers, from 1, of each view's pivotal turns, with errors at `turn_error_rate`.
        The errors have their own random stream, so that scores do not depend on `name_turns`."""
        rate = 0.0 if self.config.noise == "none" else self.config.turn_error_rate
        rng = self._rng("pivotal turns", query.query_id, call, list(map(_text, views)))
        return tuple(
            tuple(number for number, is_pivotal in enumerate(turns, start=1) if is_pivotal ^ (rng.random() < rate))
            for turns in [truly_pivotal(self.examine, query, view) for view in views]
        )

    def _rng(self, *keys: Any) -> np.random.Generator:
        return np.random.default_rng(stable_seed(self.seed, *keys))

    def _truth(self, query: Query, view: View) -> dict[str, float]:
        """Return the view's true scores by dimension, and `overall`: the total of the visible dimensions."""
        rubric, dimensions = rubric_of(query).for_view(view.kind), self._examine(query, view).dimensions()
        return {**dimensions, OVERALL: rubric.total({name: dimensions[name] for name in rubric.names})}

    def _examine(self, query: Query, view: View) -> Truth:
        if (truth := self.examine(query, view)) is None:
            raise UserError(f"judge: query {query.query_id} has no truth for the embedded judge: {NO_TRUTH}")
        return truth

    def _round(self, score: float) -> float:
        step = self.config.rounding
        return float(min(10.0, max(0.0, round(score / step) * step)))


def _text(view: View) -> str:
    return json.dumps(view.messages, sort_keys=True)


def surface_bias(answer: str, noise: NoiseConfig) -> float:
    """Return the points that an answer gains by its surface: self-praise, the share of its lines with the form of a
    heading or a list item, and the trigger word.

    >>> noise = NoiseConfig(praise_bias=1.0, format_bias=2.0, trigger_bias=0.5)
    >>> surface_bias("# Plan\\n- a park\\nThis is perfect.\\nBye.", noise), surface_bias("Recommended: a park.", noise)
    (2.0, 0.5)
    """
    if not (noise.praise_bias or noise.format_bias or noise.trigger_bias):  # skip the search
        return 0.0
    lines = [line for line in answer.splitlines() if line.strip()]
    share = sum(bool(_FORMATTED.match(line)) for line in lines) / len(lines) if lines else 0.0
    has_praise, has_trigger = bool(_PRAISE.search(answer)), noise.trigger.lower() in answer.lower()
    return noise.praise_bias * has_praise + noise.format_bias * share + noise.trigger_bias * has_trigger
