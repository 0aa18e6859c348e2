"""How well does the judge tell a group's trajectories apart, and does that change during training? Fig. 1a, ArenaRL.

    python -m arenarl.studies.signal_and_noise --config configs/quickstart.yaml

Reads the groups that train_rl.py stored, every `rl.eval_steps` steps from the SFT policy on. The training judge scores
each valid trajectory several times, and plays the config's tournament, for any reward of the run. In the embedded
world, Kendall's tau within the group shows whether scores and ranks follow the true quality or something else.

Writes runs/<run>/discrimination.json and a figure. The paper shows one query; here figures are over all groups of a
step.
"""

import asyncio
import math
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arenarl.config.command_line import in_range, parse_arguments
from arenarl.config.schema import Config, RewardConfig
from arenarl.domains.domain import Domain, make_domain, needs
from arenarl.evaluation.statistics import KEPT_BY_TABLES, nanmean, rounded
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import Examiner, make_examiner, true_quality
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import open_client
from arenarl.report.provenance import provenance
from arenarl.studies.repeated_scores import mean_of_calls, pointwise_scores, sigmas
from arenarl.studies.signal_figures import SEEN, SIGNALS, draw, table
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError, missing, run_cli
from arenarl.training.arena import Arena
from arenarl.training.metrics import rank_correlation
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_steps

Order = Sequence[float | None]  # one value per trajectory; higher is better


def measure(config: Config, repeats: int = 5) -> list[dict[str, Any]]:
    """Return a row for each stored step of the run, over all its groups with two or more valid trajectories.

    - `trajectory` and `answer`, the text that the judge was shown: `sigma_group`, `sigma_noise` (see
      `repeated_scores.sigmas`) and their ratio `snr`, about 1 if different trajectories differ by noise alone.
      Trajectories with the same shown text share one true score, so they count once. `groups` is the number of groups
      with two or more distinct trajectories; only these count. Noise that sticks to a trajectory is part of
      sigma_group: repeats cannot show it.
    - `sigma_quality`: the spread of the true quality over the trajectories of `trajectory`.
    - `tau`: signal -> property -> mean Kendall's tau-b over groups and rounds, over all valid trajectories, identical
      ones included. A signal without differences counts as 0; a property without differences is left out.
    - `calls`: judge calls per group, by signal. `one_round` has one call for each distinct trajectory.

    Raises UserError if no groups are stored.
    """
    domain = make_domain(config.environment, config.data)
    groups_by_step = kept_groups(config, domain)
    needs(domain, "examine", "tells what the judge should have seen")
    examine = make_examiner(domain)
    client = open_client(config.llms_of("discrimination"), config.judge, f"{config.run_name}/discrimination")
    judge = make_judge(config.judge.train, domain, examine, client, config.seed)
    verifier = Verifier(config.judge.verifier, client)
    arena = Arena(judge, RewardConfig(name="tournament"), config.tournament, config.group_stage, verifier, config.seed)
    rows = []
    for step, groups in groups_by_step.items():
        judged = judge_step(arena, groups, repeats)
        if client:
            client.check()
        if judged:
            rows.append({"step": step} | _row(judged, examine))
    return rows


def kept_groups(config: Config, domain: Domain) -> dict[int, list[RolloutGroup]]:
    """Return the run's stored groups by optimizer step. Raises UserError without groups, or for other data."""
    path = config.run_dir / "rl" / "groups.jsonl"
    if not path.is_file():
        raise UserError(missing(path, "; run train_rl.py with this config and rl.eval_steps above 0"))
    query_of = {query.query_id: query for query in domain.read_split("rl")}
    groups: dict[int, list[RolloutGroup]] = {}
    for record in read_steps(path):
        if record["query_id"] not in query_of:
            problem = f"query {record['query_id']} is not in {config.data.folder}/rl_queries.jsonl"
            raise UserError(f"{path}: {problem}; use the data that the run was trained on")
        trajectories = list(map(Trajectory.from_record, record["trajectories"]))
        groups.setdefault(record["step"], []).append(RolloutGroup(query_of[record["query_id"]], trajectories))
    return groups


@dataclass(frozen=True)
class Judged:
    """A group's valid trajectories (V,) with rewards and scores."""

    query: Query
    trajectories_V: list[Trajectory]
    rewards_V: list[float | None]  # rewards by the tournament's ranks
    calls: int  # judge calls of the tournament
    points: dict[str, np.ndarray]  # text shown to the judge -> its scores (V, rounds)

    def distinct(self, seen: str = "trajectory") -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each distinct trajectory, and the index (V,) of each row's distinct trajectory.
        `seen` is the text that the judge is shown, `trajectory` or `answer`."""
        texts_V = [
            trajectory.answer if seen == "answer" else repr(trajectory.messages) for trajectory in self.trajectories_V
        ]
        return np.unique(texts_V, return_index=True, return_inverse=True)[1:]

    def signals(self, quality_V: list[float]) -> dict[str, list[Order]]:
        """Return the orders (V,) of each signal: one for each round, or only one.

        `as_many_calls` uses the tournament's number of calls, but at least one round and at most all rounds. It has one
        order for each round at which it can start. Trajectories with equal messages share calls, as in a tournament.
        """
        whole, answer = self.points.values()
        first, copies_V = self.distinct()
        calls = max(self.calls, len(first))
        rolled = [np.roll(whole[first], -k, axis=1) for k in range(whole.shape[1])]
        return {
            "quality": [quality_V],
            "ranks": [self.rewards_V],
            "as_many_calls": [np.array(mean_of_calls(scores, calls))[copies_V] for scores in rolled],
            "mean_of_rounds": [nanmean(whole)],
            "one_round": list(whole.T),
            "answer_mean_of_rounds": [nanmean(answer)],
            "answer_one_round": list(answer.T),
        }


def judge_step(arena: Arena, groups: Sequence[RolloutGroup], repeats: int) -> list[Judged]:
    """Judge a step's groups with two or more valid trajectories, by tournament and pointwise."""
    outcomes = arena.reward_groups(groups)
    arena.learn(len(groups[0].trajectories), [outcome.scored_calls for outcome in outcomes])
    valid = [[index for index, trajectory in enumerate(group.trajectories) if trajectory.valid] for group in groups]
    kept = [group for group in zip(groups, outcomes, valid, strict=True) if len(group[2]) > 1]
    cut = [replace(group, trajectories=[group.trajectories[row] for row in rows]) for group, _, rows in kept]
    judge = arena.referee.judge
    points = {seen: asyncio.run(pointwise_scores(judge, cut, repeats, seen == "answer")) for seen in SEEN}
    judged = []
    for index, (group, (_, outcome, rows)) in enumerate(zip(cut, kept, strict=True)):
        rewards_V = [outcome.rewards_G[row] for row in rows]
        points_of_group = {seen: scores[index] for seen, scores in points.items()}
        judged.append(Judged(group.query, group.trajectories, rewards_V, outcome.judge_calls, points_of_group))
    return judged


def _row(judged: Sequence[Judged], examine: Examiner) -> dict[str, Any]:
    properties = [_properties(group.query, group.trajectories_V, examine) for group in judged]
    signals = [group.signals(values["quality"]) for group, values in zip(judged, properties, strict=True)]
    first = [group.distinct()[0] for group in judged]
    qualities = [np.array(values["quality"])[rows, None] for values, rows in zip(properties, first, strict=True)]
    rounds, distinct = judged[0].points["trajectory"].shape[1], np.mean(list(map(len, first)))
    matches = np.mean([group.calls for group in judged])
    calls = {"one_round": distinct, "mean_of_rounds": rounds * distinct, "ranks": matches}
    names = dict.fromkeys(name for values in properties for name in values)
    return {
        "groups": len(judged),
        "trajectories": sum(len(group.trajectories_V) for group in judged),
        "sigma_quality": _spread(qualities)["sigma_group"],
        **{seen: _spread([group.points[seen][group.distinct(seen)[0]] for group in judged]) for seen in SEEN},
        "failed_calls": sum(int(np.isnan(scores).sum()) for group in judged for scores in group.points.values()),
        "calls": {name: rounded(number) for name, number in calls.items()},
        "tau": {
            signal: {
                name: _mean_tau([orders[signal] for orders in signals], [values.get(name, []) for values in properties])
                for name in names
            }
            for signal in SIGNALS
        },
    }


def _spread(scores: list[np.ndarray]) -> dict[str, Any]:
    """Return spread, noise and ratio over groups of distinct trajectories (D, repeats); None if each has only one."""
    counted = [points for points in scores if len(points) > 1]
    sigma_group, sigma_noise = sigmas(counted) if counted else (math.nan, math.nan)
    snr = sigma_group / sigma_noise if sigma_noise else math.nan
    figures = {"sigma_group": sigma_group, "sigma_noise": sigma_noise, "snr": snr}
    return {"groups": len(counted)} | {name: rounded(value) for name, value in figures.items()}


def _properties(query: Query, trajectories: Sequence[Trajectory], examine: Examiner) -> dict[str, list[float]]:
    """Return the values (V,) of each property that the truth has for all trajectories of the group."""
    quality_V = [true_quality(examine, query, trajectory) for trajectory in trajectories]  # raises without a truth
    figures = [examine(query, trajectory).figures() for trajectory in trajectories]
    names = [name for name in figures[0] if name not in KEPT_BY_TABLES and all(name in values for values in figures)]
    return {
        "quality": quality_V,
        "answer_chars": [len(trajectory.answer) for trajectory in trajectories],
        "tool_calls": [trajectory.meta["tool_calls"] for trajectory in trajectories],
        **{name: [values[name] for values in figures] for name in names},
    }


def _mean_tau(orders_by_group: Sequence[list[Order]], values_by_group: Sequence[list[float]]) -> float | None:
    """Return the mean tau of orders to a property; None if the property differs in no group."""
    pairs = zip(orders_by_group, values_by_group, strict=True)
    taus = [rank_correlation(order, values) for orders, values in pairs if len(set(values)) > 1 for order in orders]
    return rounded(float(np.mean(np.nan_to_num(taus)))) if taus else None


def main() -> None:
    def add_repeats(parser: ArgumentParser) -> None:
        parser.add_argument("--repeats", type=in_range(int, 2), default=5, help="rounds of pointwise calls")

    config, arguments = parse_arguments(__doc__, add_repeats)
    rows = measure(config, arguments.repeats)
    judge = config.judge.train
    path = config.results_dir / "discrimination.json"
    name = "simulated" if judge.is_simulated else judge.model or judge.name
    head = {"run": config.run_name, "seed": config.seed, "judge": name, "repeats": arguments.repeats}
    write_json(path, head | {"rows": rows, "provenance": provenance(config)})
    figure = draw([rows], config.results_dir / "figures" / "discrimination")
    print(table(rows))
    print(f"{name} judge; written: {path}, {figure}")


if __name__ == "__main__":
    run_cli(main)
