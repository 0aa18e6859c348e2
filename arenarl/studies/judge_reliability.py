"""How good is a judge? Does it contradict itself, does it see differences despite its noise, does it agree with labels?

    python -m arenarl.studies.judge_reliability --config configs/quickstart.yaml
        [--judge configs/judges/qwen3_max.yaml] [--labels labels.jsonl] [--injections]

The judge scores groups of the scripted teacher's attempts at test queries several times (Fig. 1a), and compares pairs
in both orders. Agreement (Fig. 4b) is with the domain's truth, or with `--labels`: JSONL of {"query": …, "first":
trajectory, "second": trajectory, "label": first | tie | second}. `--injections` also measures how often an answer that
asks for a high score moves the verdict (`judge_injections`). Without --judge, a local server runs the simulated
judge. Prints the figures, whether a run can use the judge, and JSON in the last line. Writes a JSON file to
runs/judge_check; those in results/judge_check are the source of docs/judges.md's table.
"""

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from scipy.stats import binomtest

from arenarl.config.command_line import add_overrides, in_range
from arenarl.config.load import configure
from arenarl.config.schema import Config
from arenarl.domains.domain import make_domain, needs
from arenarl.domains.environments import make_environment
from arenarl.evaluation.statistics import agreement, rounded
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import Examiner, Judge, make_examiner, true_quality
from arenarl.judges.local_server import free_port, running_server
from arenarl.llm.client import LLMClient, open_client
from arenarl.report import markdown
from arenarl.report.provenance import provenance
from arenarl.studies.judge_injections import injections_table, measure_injections
from arenarl.studies.repeated_scores import pointwise_scores, sigmas
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError, one_line, run_cli
from arenarl.system.repository import CONFIGS
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, RolloutGroup, Trajectory, numbered_records, read_turns

FOLDER = "judge_check"  # subfolder of `results`
LOCAL = CONFIGS / "judges" / "local_server.yaml"
TIE_WIDTH = 0.25  # largest difference of true qualities, 0 to 10, that is a tie
OUTCOMES = {"first": 1, "tie": 0, "second": -1}
COLUMNS = {  # column of docs/judges.md's table -> key of `findings`
    "parsed": "parse_rate", "failed": "failed_verdicts", "flips": "flip_rate", "ties": "tie_rate",
    "first place": "first_lead", "noise": "sigma_noise", "group": "sigma_group", "agreement": "agreement",
    "kappa": "kappa", "s": "seconds",
}  # fmt: skip
Pair = tuple[Query, Trajectory, Trajectory]
_QUERY = TypeAdapter(Query)


@dataclass
class Scores:
    """Verdicts of a check; NaN for a missing verdict.

    `points_GNR` (groups, trajectories, repeats) are pointwise totals. `calls_PRO` (pairs, repeats, orders, 2) are the
    totals of each call in the order shown; the second order shows the second trajectory first.
    """

    points_GNR: np.ndarray
    calls_PRO: np.ndarray

    @property
    def failed(self) -> int:
        """Number of missing verdicts."""
        return int(np.isnan(self.points_GNR).sum() + np.isnan(self.calls_PRO[..., 0]).sum())

    @property
    def verdicts(self) -> int:
        return self.points_GNR.size + self.calls_PRO[..., 0].size

    @property
    def leads_PR(self) -> np.ndarray:
        """Lead of a pair's first trajectory, summed over both orders (Eq. 3)."""
        calls = self.calls_PRO
        return np.round(calls[:, :, 0, 0] + calls[:, :, 1, 1] - calls[:, :, 0, 1] - calls[:, :, 1, 0], 6)


def teacher_groups(config: Config, count: int, size: int) -> list[RolloutGroup]:
    """Return groups of different attempts, of all skills, at test queries from all subtasks.

    A query without `size` different attempts is left out, and so is a user's own query without a truth, or without a
    key that the teacher reads. Raises UserError if no query is left.
    """
    domain = make_domain(config.environment, config.data)
    environment = make_environment(config.environment, config.data.language)
    solve = needs(domain, "solve", "makes the attempts to judge")

    def attempts(query: Query) -> list[Trajectory]:
        rng = random.Random(stable_seed("judge check", query.query_id))
        different: dict[str, Trajectory] = {}
        for index in range(20 * size):
            try:
                attempt = solve(query, environment, rng, skill=index % size / size)
            except LookupError:  # a user's own query, without a key that the teacher reads
                if domain.is_own:  # an error in the user's own teacher
                    raise
                return []
            different.setdefault(repr(attempt.messages), attempt)
        return list(different.values())[:size]

    known = list(filter(domain.has_truth, domain.read_test_set()[0]))
    groups = [RolloutGroup(query, attempts(query)) for query in domain.spread_over_subtasks(known, count)]
    if not any(group.trajectories for group in groups):
        remedy = "take the config of an embedded world with prepared data, such as configs/quickstart.yaml"
        raise UserError(f"the scripted teacher cannot solve the test queries of {config.data.folder}; {remedy}")
    if not (full := [group for group in groups if len(group.trajectories) == size]):
        raise UserError(f"no query has {size} different attempts; take a smaller --size or more --groups")
    return full


def neighbours(group: RolloutGroup) -> list[Pair]:
    """Pair each trajectory with the next, the last with the first; identical trajectories make no pair."""
    following = [*group.trajectories[1:], *group.trajectories[: len(group.trajectories) > 2]]
    pairs = zip(group.trajectories, following, strict=False)
    return [(group.query, first, second) for first, second in pairs if first.messages != second.messages]


def read_labels(path: Path) -> tuple[list[Pair], np.ndarray]:
    """Return labelled pairs and their labels (P,): 1 if the first is better, 0 for a tie, -1 if the second is.
    Raises UserError with file and line for a record that is not a labelled pair."""
    pairs, labels, keys = [], [], f"query, first, second and a label of {', '.join(OUTCOMES)}"
    for number, record in numbered_records(path):
        try:
            query = _QUERY.validate_python(record["query"])
            pairs.append((query, _attempt(record["first"]), _attempt(record["second"])))
            labels.append(OUTCOMES[record["label"]])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {one_line(error)}"
            raise UserError(f"{path}, line {number}: needs {keys} ({problem})") from error
    if not pairs:
        raise UserError(f"{path} has no labelled pair; write one per line, with {keys}")
    return pairs, np.array(labels)


def _attempt(record: dict[str, Any]) -> Trajectory:
    """Return a trajectory; raise TypeError, ValueError or KeyError if a judge cannot be shown its turns."""
    attempt = Trajectory.from_record(record)
    if not all(isinstance(message["content"], str) for message in attempt.messages):
        raise TypeError("a message's content must be a text")
    read_turns(attempt.messages)
    if attempt.stop_reason == "answer" and not attempt.answer:
        raise ValueError("its last message must end with <answer>…</answer> and nothing after it")
    return attempt


async def judge_all(judge: Judge, groups: Sequence[RolloutGroup], pairs: Sequence[Pair], repeats: int) -> Scores:
    """Make all calls of a check at once."""

    async def call(query: Query, first: Trajectory, second: Trajectory, repeat: int) -> tuple[float, ...]:
        verdict = await judge.compare(query, first, second, repeat)
        return (math.nan, math.nan) if verdict is None else verdict.totals

    orders = [(query, *order) for query, a, b in pairs for order in ((a, b), (b, a))]
    comparisons = [call(*order, repeat) for order in orders for repeat in range(repeats)]
    points, *calls = await asyncio.gather(pointwise_scores(judge, groups, repeats), *comparisons)
    return Scores(np.array(points), np.array(calls).reshape(len(pairs), 2, repeats, 2).swapaxes(1, 2))


def findings(scores: Scores, truth_GN: np.ndarray, length_GN: np.ndarray, labels_P: np.ndarray) -> dict[str, Any]:
    """Return the figures of a check.

    - `flip_rate`: share of matches whose winner depends on the order shown.
    - `tie_rate`: share of matches drawn over both orders.
    - `consistency`: share of pairs of repeats with the same outcome.
    - `first_lead`: points that the trajectory shown first gains.
    - `sigma_group`, `sigma_noise`: see `repeated_scores.sigmas`; `snr` is their ratio.
    - `length_bias`: points gained by an answer e times as long, beyond the effect of true quality.
    """
    points, leads = scores.points_GNR, scores.leads_PR
    first_leads = scores.calls_PRO[..., 0] - scores.calls_PRO[..., 1]  # (pairs, repeats, orders)
    judged = np.isfinite(leads)
    outcomes = np.where(judged, np.sign(leads), np.nan)
    upper = np.triu_indices(leads.shape[1], 1)
    agreeing = (outcomes[:, upper[0]] == outcomes[:, upper[1]])[judged[:, upper[0]] & judged[:, upper[1]]]
    sigma_group, sigma_noise = sigmas(points)
    return {
        "flip_rate": _share(first_leads.prod(axis=2)[judged] > 0),
        "tie_rate": _share(leads[judged] == 0),
        "consistency": _share(agreeing),
        "first_lead": rounded(np.nanmean(first_leads), 3),
        "sigma_group": rounded(sigma_group, 3),
        "sigma_noise": rounded(sigma_noise, 3),
        "snr": rounded(sigma_group / sigma_noise, 3) if sigma_noise else None,
        "length_bias": _length_bias(np.nanmean(points, axis=2), truth_GN, length_GN),
        "verdicts": scores.verdicts,
        "failed_verdicts": scores.failed,
        **agreement(outcomes[:, 0], labels_P),
    }


def conclusion(found: dict[str, Any], max_failure_share: float) -> str:
    """Return whether a run can use the judge, and why.

    Enough calls must give a verdict. Where judge and label both name a winner, the judge must be right in more than
    half of the pairs: a one-sided binomial test at 5 %, rough because a group's pairs share trajectories. Our choice.
    """
    if found["failed_verdicts"] > max_failure_share * found["verdicts"]:
        share = f"{found['failed_verdicts'] / found['verdicts']:.0%} failed"
        return f"not usable, too few verdicts: {share}, above judge.max_failure_share={max_failure_share:g}"
    wins, ties, losses = found["confusion"]
    right, wrong, undecided = wins[0] + losses[2], wins[2] + losses[0], ties[0] + ties[2]
    p = binomtest(right, right + wrong, alternative="greater").pvalue if right + wrong else 1.0
    counts = f"right on {right} pairs, wrong on {wrong}, a tie on {undecided} that the labels decide"
    verdict = "better than a coin" if p < 0.05 else "not usable, no better than a coin"
    return f"{verdict}: {counts} (p = {p:.2g} by chance)"


def _length_bias(points_GN: np.ndarray, truth_GN: np.ndarray, length_GN: np.ndarray) -> float | None:
    """Return the slope on log length of a least-squares fit of score on true quality and log length.
    All three are centred within the group. None without scores, or if all answers have one length."""
    arrays = (truth_GN, np.log(length_GN), points_GN)
    truth, length, points = ((values - values.mean(axis=1, keepdims=True)).ravel() for values in arrays)
    known = np.isfinite(points)
    if not known.any() or np.ptp(length[known]) == 0:
        return None
    return rounded(np.linalg.lstsq(np.stack([truth, length], axis=1)[known], points[known], rcond=None)[0][1], 3)


def _share(conditions: np.ndarray) -> float | None:
    return rounded(conditions.mean(), 3) if conditions.size else None


def check(
    config: Config, name: str, groups: Sequence[RolloutGroup], labels: Path | None, repeats: int, injects: bool = False
) -> dict:
    """Judge groups and pairs, print and write the figures, and return them. With `injects`, also inject sentences."""
    file = Path(config.results) / FOLDER / f"{name}.json"
    domain = make_domain(config.environment, config.data)
    needs(domain, "examine", "a judge is measured against")
    examine = make_examiner(domain)
    client = open_client(config.llms_of("judge_check"), config.judge, f"{config.run_name}/judge_check")
    if labels:
        pairs, labels_P = read_labels(labels)
    else:
        pairs = [pair for group in groups for pair in neighbours(group)]
        labels_P = true_labels(examine, pairs)
    answered = [pair for pair in pairs if all(one.answer for one in pair[1:])]
    if injects and not answered:
        raise UserError("no pair has two answers, to which --injections adds a sentence; leave it out")
    judge, start = make_judge(config.judge.train, domain, examine, client, config.seed), time.monotonic()
    scores = asyncio.run(judge_all(judge, groups, pairs, repeats))
    seconds = round(time.monotonic() - start)
    if client:
        client.check()
        seconds = None if client.usage.from_store else seconds  # stored replies take no time
    if scores.failed == scores.verdicts:
        raise UserError(f"{name} gave no verdict. {client.report() if client else 'Its class logged the reason above'}")
    truth_GN = np.array([[true_quality(examine, group.query, one) for one in group.trajectories] for group in groups])
    length_GN = np.array([[max(1, len(one.answer)) for one in group.trajectories] for group in groups])
    result = {"parse_rate": _parse_rate(client), **findings(scores, truth_GN, length_GN, labels_P)}
    if config.judge.train.name == "llm" and config.judge.train.temperature == 0:
        result |= dict.fromkeys(("consistency", "sigma_noise", "snr"))
        advice = "set the temperature of your runs, such as 0.7"
        print(f"judge.train.temperature=0: all replies to a prompt are equal, so repeats show no noise; {advice}")
    result["conclusion"] = conclusion(result, config.judge.max_failure_share)
    injected = {"injections": asyncio.run(measure_injections(judge, answered))} if injects else {}
    if client:
        client.check()
    is_simulated, size = config.judge.train.is_simulated, truth_GN.shape[1]
    sizes = f"{len(groups)} groups of {size}, {len(pairs)} pairs, {repeats} repeats"
    print(f"{name}{' (simulated)' if is_simulated else ''}: {sizes}")
    for figure, value in result.items():
        print(f"  {figure:16} {value}")
    if injects:
        print(injections_table(injected["injections"]))
    if client:
        print(client.report())
    about = {"judge": name, "simulated": is_simulated, "groups": len(groups), "size": size}
    about |= {"repeats": repeats, "seconds": seconds}
    write_json(file, about | result | injected | {"provenance": provenance(config)})
    print(f"written: {file}")
    return result


def _parse_rate(client: LLMClient | None) -> float | None:
    """Return the share of readable replies, counting repeated requests."""
    replies = client.usage.calls + client.usage.from_store if client else 0
    return rounded(1 - client.usage.unreadable / replies, 3) if replies else None


def judges_table(results: Path) -> str:
    """Return docs/judges.md's table: a row for each judge in `results`/judge_check."""
    rows = []
    for result in _stored_checks(results):
        sizes = f"{result['groups']} of {result['size']}, {result['repeats']} times"
        figures = ["-" if result[key] is None else f"{result[key]:g}" for key in COLUMNS.values()]
        rows.append([_shown_name(result), sizes, *figures, result["conclusion"].partition(":")[0]])
    return markdown.table(["judge", "groups", *COLUMNS, "usable"], rows)


def stored_injections(results: Path) -> str:
    """Return docs/judges.md's tables of `--injections`, one for each judge in `results`/judge_check that has them."""
    checks = [result for result in _stored_checks(results) if "injections" in result]
    return "\n\n".join(f"{_shown_name(one)}:\n\n{injections_table(one['injections'])}" for one in checks)


def _stored_checks(results: Path) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted((results / FOLDER).glob("*.json"))]


def _shown_name(result: dict[str, Any]) -> str:
    model = result["provenance"]["judge_train"]
    if isinstance(model, dict):  # otherwise the name of a user's class
        model = model["model"]
    return f"`{result['judge']}`, {'**simulated**' if result['simulated'] else model}"


def true_labels(examine: Examiner, pairs: Sequence[Pair]) -> np.ndarray:
    """Return labels by the noise-free quality, as `read_labels` does."""
    qualities = np.array([[true_quality(examine, query, one) for one in pair] for query, *pair in pairs])
    leads = qualities[:, 0] - qualities[:, 1]
    return np.where(np.abs(leads) <= TIE_WIDTH, 0, np.sign(leads)).astype(int)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", required=True, help="the run's YAML, for its test queries and environment")
    parser.add_argument("--judge", help="a file in configs/judges (default: the simulated judge behind a local server)")
    parser.add_argument("--labels", type=Path, help="JSONL of labelled pairs")
    parser.add_argument("--injections", action="store_true", help="also let losers' answers ask for high scores")
    parser.add_argument("--groups", type=in_range(int, 1), default=25)
    parser.add_argument("--size", type=in_range(int, 2), default=8, help="trajectories per group")
    parser.add_argument("--repeats", type=in_range(int, 2), default=4)
    add_overrides(parser)
    arguments = parser.parse_args()
    server, sets = nullcontext(), [f"judge.train.base={arguments.judge or LOCAL}"]
    if not arguments.judge:
        port = free_port()
        server = running_server(arguments.config, arguments.overrides, port)
        sets.append(f"judge.train.base_url=http://127.0.0.1:{port}/v1")
    config = configure(arguments.config, [*sets, *arguments.overrides])
    with server:
        groups = teacher_groups(config, arguments.groups, arguments.size)
        name, labels = Path(arguments.judge or LOCAL).stem, arguments.labels
        result = check(config, name, groups, labels, arguments.repeats, arguments.injections)
    last = ("flip_rate", "tie_rate", "sigma_group", "sigma_noise", "snr", "agreement", "kappa")
    print(json.dumps({name: result[name] for name in last}))


if __name__ == "__main__":
    run_cli(main)
