"""The curve during RL (Fig. 4c): evaluate a few test queries at intervals, and log to W&B and curve.jsonl."""

from dataclasses import replace
from pathlib import Path

from accelerate.utils import gather_object

from arenarl.domains.domain import Domain
from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, Panel, evaluate_policy, figures_of, gather_cases, is_own_data
from arenarl.llm.client import LLMClient, RunStopped
from arenarl.rollout.engine import RolloutEngine
from arenarl.run.processes import own_share
from arenarl.run.tracking import log
from arenarl.system.progress import is_main_process
from arenarl.trajectory import append_step, read_steps

RESAMPLES = 1000  # for the interval of each point


class CurveRecorder:
    """Evaluates the engine's policy on `queries` test queries, at the temperature of each decoding."""

    def __init__(
        self,
        engine: RolloutEngine,
        domain: Domain,
        panel: Panel,
        queries: int,
        temperatures: dict[str, float],
        seed: int,
        folder: Path,
        client: LLMClient | None,
    ):
        self.engine, self.temperatures, self.seed, self.client = engine, temperatures, seed, client
        test, self.baselines = domain.read_test_set()
        self.panel = replace(panel, is_own=is_own_data(domain, test, self.baselines))
        self.queries = domain.spread_over_subtasks(test, queries)
        self.path = folder / "curve.jsonl"

    def record(self, step: int) -> None:
        """Evaluate and write a step's point. Call it on all processes, which share the queries.

        Raises RunStopped on all of them if the LLMs or tools of one reached a limit; a resumed run repeats this point.
        """
        mine, cases = own_share(self.queries), {}
        for decoding, temperature in self.temperatures.items():
            share, stop = [], None
            try:
                share = evaluate_policy(self.engine, mine, self.baselines, self.panel, temperature, self.seed)
            except RunStopped as error:
                stop = str(error)
            reasons = gather_object([stop or (self.client.stop_reason if self.client else None)])
            if any(reasons):
                raise RunStopped(next(filter(None, reasons)))
            cases[decoding] = gather_cases(self.queries, share)
        if is_main_process():
            self._write(step, cases)

    def has_point(self, step: int) -> bool:
        """True if the point of a step was written. Call it on all processes: the main process reads the file."""
        points = read_steps(self.path) if is_main_process() and self.path.is_file() else ()
        return any(gather_object([step in {point["step"] for point in points}]))

    def _write(self, step: int, cases: dict[str, list[Case]]) -> None:
        point, intervals = {}, {}
        for decoding, decoded in cases.items():
            figures = figures_of(decoded, RESAMPLES, seed=0)
            for name in statistics.shown_figures(figures):
                point[f"eval/{decoding}/{name}"] = figures[name]["mean"]
                intervals[f"eval/{decoding}/{name}"] = figures[name]["ci"]
        append_step(self.path, step, [{"step": step, **point, "ci": intervals}])
        log(point, step)
