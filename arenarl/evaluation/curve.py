"""The curve during RL: a few held-out queries every so many steps, in some decodings,
to W&B and curve.jsonl (Fig. 4c)."""

from pathlib import Path

from accelerate.utils import gather_object

from arenarl.domains.domain import Domain
from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, Panel, evaluate_policy, figures_of, gather_cases
from arenarl.llm.client import LLMClient, RunStopped
from arenarl.rollout.engine import RolloutEngine
from arenarl.run.processes import own_share
from arenarl.run.tracking import log
from arenarl.system.progress import is_main_process
from arenarl.trajectory import append_step, read_jsonl

RESAMPLES = 1000  # for the interval of a point, of which there are many


class CurveRecorder:
    """Evaluates what `engine` generates with on `queries` test queries, spread over the subtasks.
    `temperatures` are by decoding."""

    def __init__(
        self,
        engine: RolloutEngine,
        domain: Domain,
        panel: Panel,
        queries: int,
        temperatures: dict[str, float],
        seed: int,
        folder: Path,
        client: LLMClient | None = None,
    ):
        self.engine, self.panel, self.temperatures, self.seed, self.client = engine, panel, temperatures, seed, client
        test, self.baselines = domain.read_test_set()
        self.queries = domain.spread_over_subtasks(test, queries)
        self.path = folder / "curve.jsonl"

    def record(self, step: int) -> None:
        """To be called on all processes: they share the queries, and the main one writes.

        Raises:
            RunStopped: on all of them, if one's LLMs or tools cannot be asked any more;
                the run goes on with this point.
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
        """Whether a step's point was written. To be called on all processes: the main one looks."""
        points = read_jsonl(self.path) if is_main_process() and self.path.is_file() else ()
        return any(gather_object([step in {point["step"] for point in points}]))

    def _write(self, step: int, cases: dict[str, list[Case]]) -> None:
        point, intervals = {}, {}
        for decoding, of_queries in cases.items():
            figures = figures_of(of_queries, RESAMPLES, seed=0)
            for name in statistics.shown_figures(figures):
                point[f"eval/{decoding}/{name}"] = figures[name]["mean"]
                intervals[f"eval/{decoding}/{name}"] = figures[name]["ci"]
        append_step(self.path, step, [{"step": step, **point, "ci": intervals}])
        log(point, step)
