"""All that one evaluation looks at, part by part: a checkpoint or a model behind an API, a decoding, a sample.

A part that is stored is judged, one that is not is generated first;
each is written as soon as it is there, so a kill costs one part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, LLMConfig
from arenarl.evaluation.evaluation import Case, Panel, evaluate_policy, gather_cases, judge_trajectories, summarize
from arenarl.evaluation.inference_scaling import scaling_figures
from arenarl.evaluation.length import by_length
from arenarl.evaluation.parts import Part, fingerprint
from arenarl.llm.client import LLMClient
from arenarl.rollout.engine import RolloutEngine
from arenarl.run.processes import own_share
from arenarl.system.progress import Bar, is_main_process
from arenarl.trajectory import Query, Trajectory

Parts = Mapping[tuple[str, str, int], Part]  # by checkpoint, decoding, sample


@dataclass
class Tested:
    """What was found. `cases` are by checkpoint and decoding, sample by sample, in the order of the queries;
    `reference` names the first of them, whose trajectories are the baselines, where none were stored."""

    cases: dict[tuple[str, str], list[list[Case]]]
    baselines: dict[str, Trajectory]
    reference: str | None = None

    @property
    def first_samples(self) -> dict[str, list[Case]]:
        return {f"{name} {decoding}": samples[0] for (name, decoding), samples in self.cases.items()}


def read_parts(config: Config, policies: Mapping[str, str | LLMConfig], folder: Path) -> Parts:
    """Those of an evaluation, each with its stored trajectories if nothing that they depend on has changed."""
    prints = {name: fingerprint(config, policy) for name, policy in policies.items()}
    return {
        (name, decoding, sample): Part(
            folder / f"{name}_{decoding}{f'_{sample + 1}' if sample else ''}.jsonl", prints[name]
        )
        for name in policies
        for decoding, sample in config.evaluate.attempts
    }


def run_parts(
    config: Config,
    parts: Parts,
    engine_of: Callable[[str], RolloutEngine],
    queries: Sequence[Query],
    baselines: dict[str, Trajectory],
    panel: Panel,
    client: LLMClient | None,
    lap: Callable[[], None],
) -> Tested:
    """Generate what is missing, judge all, write it; to be called on all processes, which share the queries.

    Args:
        engine_of: makes a checkpoint's engine, and is asked only for those that have something to generate.
        lap: called on the main process after each part that was generated.

    Raises:
        RunStopped: the LLMs cannot be asked any more; what is written is whole.
    """
    mine, tested = own_share(queries), Tested({}, baselines)
    stored = sum(part.trajectories is not None for part in parts.values())
    with Bar("evaluate", len(parts) * len(mine), stored * len(mine)) as bar:
        for (name, decoding, sample), part in parts.items():
            if part.trajectories is None:
                temperature, turns = config.temperatures[decoding], config.test_turns
                share = evaluate_policy(
                    engine_of(name), mine, tested.baselines, panel, temperature, config.seed, bar.update, sample, turns
                )
            else:
                share = judge_trajectories(mine, own_share(part.trajectories), tested.baselines, panel)
            if client:
                client.check()
            cases = gather_cases(queries, share)
            tested.cases.setdefault((name, decoding), []).append(cases)
            if not tested.baselines:  # none are stored: what the first made takes their place
                tested.baselines, tested.reference = (
                    {case.query.query_id: case.trajectory for case in cases},
                    f"{name} {decoding}",
                )
            if is_main_process():
                part.write(cases)
                if part.trajectories is None:
                    lap()
    return tested


def figures_of_checkpoints(config: Config, tested: Tested) -> dict[str, dict[str, Any]]:
    """By checkpoint and decoding, what summary.json holds of them."""
    figures: dict[str, dict[str, Any]] = {}
    resamples, seed = config.evaluate.bootstrap, config.seed
    for (name, decoding), samples in tested.cases.items():
        every = [case for cases in samples for case in cases]
        more = scaling_figures(samples, config.evaluate.max_turns, resamples, seed)
        more["by_length"] = by_length(every, tested.baselines, resamples, seed)
        figures.setdefault(name, {})[decoding] = summarize(every, resamples, seed) | more
    return figures
