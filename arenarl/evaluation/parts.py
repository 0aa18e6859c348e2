"""An evaluation, part by part: one part per policy, decoding, sample and, in worlds, budget of turns.

A missing part is generated and judged at the same time; every part is written at once, so a kill costs one part. vLLM
generates as many parts of a policy together as its cache holds, because one part leaves it half empty. Stored
trajectories are reused until their policy, queries or settings change. Verdicts and figures are computed each time,
with LLM replies from the store, so that changing a judge, a truth or a table needs no generation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from arenarl.config.schema import Config, LLMConfig, SearchConfig
from arenarl.evaluation.evaluation import (
    Case,
    Panel,
    StoredCase,
    gather_cases,
    judge_trajectories,
    roll_out_and_judge,
    summarize,
)
from arenarl.evaluation.inference_scaling import scaling_figures
from arenarl.evaluation.length import by_length
from arenarl.llm.client import LLMClient
from arenarl.llm.prompts import prompt_texts
from arenarl.rollout.engine import Attempt, RolloutEngine, attempts_at
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.processes import own_share
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import as_stored, hash_files, json_hash, read_json, write_json
from arenarl.system.errors import EVALUATE_AGAIN, UserError
from arenarl.system.own_code import own_code
from arenarl.system.progress import Bar, is_main_process, process_count, say
from arenarl.system.prompt_files import PROMPTS, prompt_file
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory, read_jsonl, write_jsonl

# Version of what this project's code generates. Raise it with every change after which the same policy, query and
# settings give another trajectory; stored trajectories are then generated again. tests/evaluation/test_parts.py checks.
GENERATION = 1


@dataclass(frozen=True)
class _Fingerprint:
    """Content of a fingerprint file."""

    fingerprint: str
    trajectories: str | None = None  # their hash; earlier versions stored none


class Part:
    """The stored cases of one policy, decoding, sample and budget of turns. A fingerprint file is written last.
    `trajectories` are the stored trajectories; None if the part is missing, incomplete or out of date."""

    def __init__(self, cases: Path, fingerprint: str):
        self.cases, self.path, self.fingerprint = cases, cases.with_suffix(".json"), fingerprint
        self.trajectories = self._read() if cases.is_file() else None

    def _read(self) -> list[Trajectory] | None:
        """Return the stored trajectories. None if they are missing or out of date, or, with a line, damaged."""
        try:
            stored = read_json(self.path, _Fingerprint)
            if stored is None or stored.fingerprint != self.fingerprint:
                return None
            records = list(read_jsonl(self.cases))
            if stored.trajectories in (None, _hash(records)):
                return [Trajectory.from_record(record) for record in records]
        except (UserError, LookupError, TypeError):
            pass
        say(f"{self.cases} or its fingerprint was changed; generating its trajectories again")
        return None

    def write(self, cases: Sequence[Case]) -> None:
        """Write the cases if they differ from the file: their findings and verdicts may have changed."""
        records = [case.to_record() for case in cases]
        if self.trajectories is None:
            self.path.unlink(missing_ok=True)  # the fingerprint would no longer match the cases
        elif list(read_jsonl(self.cases)) == records:
            return
        write_jsonl(self.cases, records)
        write_json(self.path, asdict(_Fingerprint(self.fingerprint, _hash(records))))


def _hash(records: Sequence[dict[str, Any]]) -> str:
    """Return the hash of the trajectories in these records of cases, without verdicts."""
    parts = [[record[key] for key in ("query_id", "messages", "meta")] for record in records]
    return json_hash(as_stored(parts))


Key = tuple[str, str, int, int]  # checkpoint, decoding, sample, most turns
Parts = Mapping[Key, Part]


@dataclass
class Tested:
    """The cases by policy and decoding, then by budget of turns, sample by sample, in the order of the queries.

    `reference` is set if no baselines were stored: the policy and decoding whose trajectories are the baselines.
    """

    by_turns: dict[tuple[str, str], dict[int, list[list[Case]]]]
    baselines: dict[str, Trajectory]
    reference: str | None = None

    @property
    def cases(self) -> dict[tuple[str, str], list[list[Case]]]:
        """The cases with the largest budget."""
        return {key: by_turns[max(by_turns)] for key, by_turns in self.by_turns.items()}

    @property
    def first_samples(self) -> dict[str, list[Case]]:
        return {f"{name} {decoding}": samples[0] for (name, decoding), samples in self.cases.items()}


def read_parts(config: Config, policies: Mapping[str, str | LLMConfig], folder: Path, budgets: Sequence[int]) -> Parts:
    """Return the parts of an evaluation, with their stored trajectories if these are up to date.
    `budgets` of turns have separate trajectories; the largest comes first."""
    parts: dict[Key, Part] = {}
    for name, policy in policies.items():
        for turns in budgets:
            print_of_part = fingerprint(config, policy, turns=turns)
            for attempt in config.evaluate.attempts:
                path = part_path(folder, name, *attempt, turns if turns < budgets[0] else None)
                parts[name, *attempt, turns] = Part(path, print_of_part)
    return parts


def part_path(folder: Path, name: str, decoding: str, sample: int, turns: int | None = None) -> Path:
    """Return the file of one part's cases in an evaluation's folder. `turns` is set for smaller budgets of turns."""
    endings = f"_{sample + 1}" if sample else "", f"_{turns}turns" if turns else ""
    return folder / f"{name}_{decoding}{''.join(endings)}.jsonl"


def read_cases(path: Path) -> list[StoredCase]:
    """Read the cases of a part, to compare runs.
    Raises UserError if the file is missing, damaged, or of an earlier version."""
    try:
        return list(map(StoredCase.from_record, read_jsonl(path)))
    except (UserError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is missing, incomplete, or was written by an earlier version; {EVALUATE_AGAIN}"
        ) from error


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
    """Generate missing parts, judge all parts and write them. Call it on all processes, which share the queries.

    `engine_of` is called only for policies with missing parts, `lap` on the main process after each generated part.
    Raises RunStopped if a limit on LLM calls is reached; all written parts are complete.
    """
    mine, tested, waiting = own_share(queries), Tested({}, baselines), list(parts)
    stored = sum(part.trajectories is not None for part in parts.values())
    with Bar("evaluate", len(parts) * len(mine), stored * len(mine)) as bar:

        def tick() -> None:
            bar.update()
            if client:
                client.check()

        # without stored baselines, the first part becomes the baseline of the others; it is scored alone, at any budget
        first = None if baselines else next(iter(parts))[:3]
        while waiting:
            alike = groupby(waiting, lambda key: (key[0], parts[key].trajectories is None, key[:3] == first))
            (name, must_generate, alone), same = next(alike)
            keys, judging = list(same), ({} if alone else tested.baselines, panel, bool(tested.reference))
            if must_generate:
                engine = engine_of(name)
                keys = keys[: 1 if alone else _parts_at_once(engine, len(queries))]
                attempts: list[Attempt] = []
                for _, decoding, sample, turns in keys:
                    attempts += attempts_at(mine, config.temperatures[decoding], config.seed, sample, turns)
                share = roll_out_and_judge(engine, attempts, *judging, tick)
            else:
                keys = keys[:1]
                share = judge_trajectories(mine, own_share(parts[keys[0]].trajectories), *judging)
            waiting = waiting[len(keys) :]
            if client:
                client.check()
            for number, key in enumerate(keys):
                part = parts[key]
                of_part = share[number * len(mine) : (number + 1) * len(mine)]
                cases = gather_cases(queries, of_part)
                tested.by_turns.setdefault(key[:2], {}).setdefault(key[3], []).append(cases)
                if not tested.baselines:  # no baselines are stored: use the first part's trajectories
                    tested.baselines = {case.query.query_id: case.trajectory for case in cases}
                    tested.reference = f"{name} {key[1]}"
                if is_main_process():
                    part.write(cases)
                    if part.trajectories is None:
                        lap()
    return tested


def _parts_at_once(engine: RolloutEngine, queries: int) -> int:
    """Return the number of parts that fill vLLM's cache, equal on all processes; 1 for other back ends."""
    rows = min(gather_object([getattr(engine.generator, "rows", 0)]))
    return max(1, -(-rows * process_count() // queries))


def figures_of_checkpoints(config: Config, tested: Tested) -> dict[str, dict[str, Any]]:
    """Return the figures of summary.json by policy and decoding."""
    figures: dict[str, dict[str, Any]] = {}
    resamples, seed = config.evaluate.bootstrap, config.seed
    for (name, decoding), samples in tested.cases.items():
        every = [case for cases in samples for case in cases]
        rolled = tested.by_turns[name, decoding]
        more = scaling_figures(samples, config.evaluate.max_turns, resamples, seed, rolled)
        more["by_length"] = by_length(every, tested.baselines, resamples, seed)
        figures.setdefault(name, {})[decoding] = summarize(every, resamples, seed) | more
    return figures


def fingerprint(
    config: Config, policy: str | LLMConfig, queries: Iterable[Path] | None = None, turns: int | None = None
) -> str:
    """Return a hash of everything that a policy's trajectories depend on; `turns` is their budget, by default the
    config's.

    That is: weights (or a hub id or model name), queries, settings, the searched folder, prompts of models behind an
    API and of LLMs behind tools, the user's own code, and `GENERATION` for this project's code. `queries` are files, by
    default the test split's.
    """
    weights = hash_weights(policy) if isinstance(policy, str) else asdict(policy)
    tested = Path(config.data.folder).glob("test_queries.jsonl") if queries is None else queries
    ours = sorted(path for name in ("search", "tickets") for path in PROMPTS.glob(f"{name}_*.yaml"))
    prompts = [*ours, *(own for path in ours if (own := prompt_file(path)) != path)]
    files = hash_files([*tested, *prompts, *own_code(config.environment.code_names)])
    settings = asdict(config)
    read = {key: settings[key] for key in ("seed", "threads", "policy", "data", "environment", "rollout")}
    # no trajectory of an evaluation depends on these
    del read["environment"]["timeout_s"], read["rollout"]["max_seconds"], read["rollout"]["send_adapter"]
    read["environment"]["server"] = None  # equal hashes at any address
    folder, turns = policy if isinstance(policy, str) else None, turns or config.test_turns
    searched = _search_fingerprint(config.environment.search)
    prompts_of_api = [] if folder else [prompt_texts("policy", config.data.language)]
    system = system_prompt(config)
    return str(stable_seed(GENERATION, files, folder, weights, read, system, turns, *searched, *prompts_of_api))


def _search_fingerprint(search: SearchConfig) -> list[str]:
    if search.engine != "folder":
        return []
    from arenarl.domains.research import engines  # loads trafilatura

    return [engines.fingerprint(Path(search.folder), search.search_chunk_tokens)]
