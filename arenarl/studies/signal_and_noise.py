"""How well can the judge tell a group's trajectories apart, and does that change while the policy trains? Fig.
1a, ArenaRL.

    python -m arenarl.studies.signal_and_noise --config configs/quickstart.yaml

Takes the groups that train_rl.py kept (every `rl.eval_steps` steps, from the SFT policy's on), asks the training judge
pointwise about each valid trajectory several times over, and plays the config's tournament, whatever the run was
rewarded by. Whether scores and ranks follow the true quality or something else is told by Kendall's tau within the
group; that needs the embedded world.

Writes results/<run>/discrimination.json and a figure.
The paper shows one query; here figures are over all groups of a step.
"""

import asyncio
import math
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arenarl.config.command_line import parse_arguments
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
from arenarl.system.errors import UserError, guarded
from arenarl.training.arena import Arena
from arenarl.training.metrics import rank_correlation
from arenarl.training.queries import training_queries
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_jsonl


def measure(config: Config, repeats: int = 5) -> list[dict[str, Any]]:
    """A row for each kept step of the run, its groups taken together;
    invalid trajectories, and groups with fewer than two valid, left out.

    `trajectory` and `answer`, by what the judge was shown: `sigma_group` and `sigma_noise` (see
    `repeated_scores.sigmas`) and `snr`, their ratio: about 1 where different trajectories differ by noise alone.
    Trajectories are identical if the judge is shown the same text of them: the messages, or the answer. They share one
    true score, so a group counts them once. A group with fewer than two distinct ones counts in none of the three
    figures; `groups` is how many groups count. `sigma_quality`: the spread without noise, of the groups and
    trajectories of `trajectory`. Noise that sticks to a trajectory is in sigma_group alone: asking again does not show
    it. `tau`: signal -> property -> mean of Kendall's tau-b over groups (and rounds), over all valid trajectories,
    identical ones included; 0 where the signal tells no two apart; a property that is the same for all is left out.
    `calls`: judge calls a group, by signal; `one_round` has one for each distinct trajectory.

    Raises:
        UserError: no groups were kept.
    """
    if repeats < 2:
        raise UserError("--repeats must be 2 or more: the noise is what repeats differ by")
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
    """Optimizer step -> the groups that the run kept of it."""
    path = config.run_dir / "rl" / "groups.jsonl"
    if not path.is_file():
        raise UserError(f"{path} does not exist; run train_rl.py with this config, its rl.eval_steps above 0")
    asked = training_queries(domain, config.rl, config.reward.name, config.pass_rates)
    queries = {query.query_id: query for query in asked}
    groups: dict[int, list[RolloutGroup]] = {}
    for record in read_jsonl(path):
        trajectories = [Trajectory.from_record(one) for one in record["trajectories"]]
        groups.setdefault(record["step"], []).append(RolloutGroup(queries[record["query_id"]], trajectories))
    return groups


@dataclass(frozen=True)
class Judged:
    """The valid trajectories of a group (V,) and what the judge made of them;
    `points` are (V, rounds), by what it was shown."""

    query: Query
    trajectories_V: list[Trajectory]
    rewards_V: list[float | None]  # of their ranks
    calls: int  # of the tournament
    points: dict[str, np.ndarray]

    def distinct(self, seen: str = "trajectory") -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each distinct trajectory, and for each (V,) the index of its distinct one;
        `seen`: what the judge is shown."""
        texts_V = [one.answer if seen == "answer" else repr(one.messages) for one in self.trajectories_V]
        return np.unique(texts_V, return_index=True, return_inverse=True)[1:]

    def signals(self, quality_V: list[float]) -> dict[str, list[Sequence[float | None]]]:
        """Signal -> the orders (V,) that it gave: one for each round, or one alone.

        `as_many_calls` has the tournament's number of calls, at least a round of them and at most all, from every round
        on in turn. Trajectories with the same messages share theirs, as they enter a tournament once.
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
    """A step's groups, those with two valid trajectories or more, judged in both ways."""
    outcomes = arena.reward_groups(groups)
    arena.learn(len(groups[0].trajectories), [outcome.scored_calls for outcome in outcomes])
    valid = [[index for index, one in enumerate(group.trajectories) if one.valid] for group in groups]
    kept = [group for group in zip(groups, outcomes, valid, strict=True) if len(group[2]) > 1]
    shown = [replace(group, trajectories=[group.trajectories[row] for row in rows]) for group, _, rows in kept]
    judge = arena.referee.judge
    points = {seen: asyncio.run(pointwise_scores(judge, shown, repeats, seen == "answer")) for seen in SEEN}
    judged = []
    for index, (group, (_, outcome, rows)) in enumerate(zip(shown, kept, strict=True)):
        rewards_V = [outcome.rewards_G[row] for row in rows]
        points_of_group = {seen: scores[index] for seen, scores in points.items()}
        judged.append(Judged(group.query, group.trajectories, rewards_V, outcome.judge_calls, points_of_group))
    return judged


def _row(judged: Sequence[Judged], examine: Examiner) -> dict[str, Any]:
    found = [_properties(one.query, one.trajectories_V, examine) for one in judged]
    signals = [one.signals(properties["quality"]) for one, properties in zip(judged, found, strict=True)]
    rounds, distinct = judged[0].points["trajectory"].shape[1], np.mean([len(one.distinct()[0]) for one in judged])
    qualities = [np.array(properties["quality"])[:, None] for properties in found]
    true = _spread([points[one.distinct()[0]] for one, points in zip(judged, qualities, strict=True)])
    names = dict.fromkeys(name for properties in found for name in properties)
    matches = np.mean([one.calls for one in judged])
    calls = {"one_round": distinct, "mean_of_rounds": rounds * distinct, "ranks": matches}
    return {
        "groups": len(judged),
        "trajectories": sum(len(one.trajectories_V) for one in judged),
        "sigma_quality": true["sigma_group"],
        **{seen: _spread([one.points[seen][one.distinct(seen)[0]] for one in judged]) for seen in SEEN},
        "failed_calls": sum(int(np.isnan(scores).sum()) for one in judged for scores in one.points.values()),
        "calls": {name: rounded(number) for name, number in calls.items()},
        "tau": {
            signal: {
                name: _mean_tau([one[signal] for one in signals], [one.get(name, []) for one in found])
                for name in names
            }
            for signal in SIGNALS
        },
    }


def _spread(scores: list[np.ndarray]) -> dict[str, Any]:
    """Spread, noise and their ratio over groups of distinct trajectories (D, repeats); None where no group has two."""
    counted = [points for points in scores if len(points) > 1]
    sigma_group, sigma_noise = sigmas(counted) if counted else (math.nan, math.nan)
    snr = sigma_group / sigma_noise if sigma_noise else math.nan
    figures = {"sigma_group": rounded(sigma_group), "sigma_noise": rounded(sigma_noise), "snr": rounded(snr)}
    return {"groups": len(counted), **figures}


def _properties(query: Query, trajectories: Sequence[Trajectory], examine: Examiner) -> dict[str, list[float]]:
    """Of those, what the truth says of all trajectories of the group."""
    # which says so of a query without a truth
    quality_V = [true_quality(examine, query, trajectory) for trajectory in trajectories]
    figures = [examine(query, trajectory).figures() for trajectory in trajectories]
    names = [name for name in figures[0] if name not in KEPT_BY_TABLES]
    return {
        "quality": quality_V,
        "answer_chars": [len(trajectory.answer) for trajectory in trajectories],
        "tool_calls": [trajectory.meta["tool_calls"] for trajectory in trajectories],
        **{name: [one[name] for one in figures] for name in names if all(name in one for one in figures)},
    }


def _mean_tau(
    orders_by_group: Sequence[list[Sequence[float | None]]], property_by_group: Sequence[list[float]]
) -> float | None:
    """None if the property differs in no group."""
    taus = [
        rank_correlation(order, values)
        for orders, values in zip(orders_by_group, property_by_group, strict=True)
        if len(set(values)) > 1
        for order in orders
    ]
    return rounded(float(np.mean(np.nan_to_num(taus)))) if taus else None


def main() -> None:
    def add_repeats(parser: ArgumentParser) -> None:
        parser.add_argument("--repeats", type=int, default=5, help="rounds of pointwise calls")

    config, arguments = parse_arguments(__doc__, add_repeats)
    rows = measure(config, arguments.repeats)
    judge = config.judge.train
    path = config.results_dir / "discrimination.json"
    name = "simulated" if judge.is_simulated else judge.model or judge.name
    head = {"run": config.run_name, "seed": config.seed, "judge": name}
    write_json(path, head | {"repeats": arguments.repeats, "rows": rows, "provenance": provenance(config)})
    figure = draw([rows], config.results_dir / "figures" / "discrimination")
    print(table(rows))
    print(f"{head['judge']} judge; written: {path}, {figure}")


if __name__ == "__main__":
    guarded(main)
