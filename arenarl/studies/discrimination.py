"""How well can the judge tell a group's trajectories apart, and does that change while the policy trains? Fig. 1a, ArenaRL.

    python -m arenarl.studies.discrimination --config configs/quickstart.yaml

Takes the groups that train_rl.py kept (every `rl.eval_steps` steps, from the SFT policy's on), asks the training judge pointwise
about each valid trajectory several times over, and plays the config's tournament, whatever the run was rewarded by. Whether scores
and ranks follow the true quality or something else is told by Kendall's tau within the group; that needs the embedded world.

Writes results/<run>/discrimination.json and a figure. The paper shows one query; here figures are over all groups of a step.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arenarl.build import build_client, build_domain, build_examiner, build_judge, training_queries
from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, RewardConfig
from arenarl.domains.domain import needs
from arenarl.evaluation.statistics import nanmean
from arenarl.judges.judge import Examiner, true_quality
from arenarl.report import markdown
from arenarl.report.figures import LINES, STYLE, plot_band, save_figure
from arenarl.report.provenance import provenance
from arenarl.studies.judge_check import pointwise_scores, sigmas
from arenarl.studies.simulation import mean_of_calls
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError, guarded
from arenarl.training.rewarding import Arena, rank_correlation
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_jsonl

SIGNALS = {  # what may order a group -> what it is called
    "quality": "the truth itself",
    "ranks": "tournament",
    "as_many_calls": "pointwise, as many calls",
    "mean_of_rounds": "pointwise, mean of all rounds",
    "one_round": "pointwise, one round",
    "answer_mean_of_rounds": "answer only, mean of all rounds",
    "answer_one_round": "answer only, one round",
}
PROPERTIES = {  # what it may follow -> its name; the figures of the domain's truth come after
    "quality": "true quality",
    "answer_chars": "answer length",
    "tool_calls": "tool calls",
}
SEEN = {"trajectory": "whole trajectory", "answer": "answer only"}  # by the judge, when it scores pointwise


def measure(config: Config, repeats: int = 5) -> list[dict[str, Any]]:
    """A row for each kept step of the run, its groups taken together; invalid trajectories, and groups with fewer than two valid, left out.

    `trajectory` and `answer`, by what the judge was shown: `sigma_group` and `sigma_noise` (see `judge_check.sigmas`) and `snr`, their
    ratio: about 1 where different trajectories differ by noise alone. `sigma_quality`: the spread without noise. Noise that sticks to a
    trajectory is in sigma_group alone: asking again does not show it. `tau`: signal -> property -> mean of Kendall's tau-b over groups (and
    rounds), 0 where the signal tells no two apart; a property that is the same for all is left out. `calls`: judge calls a group, by
    signal; `one_round` has one for each different trajectory.

    Raises:
        UserError: no groups were kept.
    """
    if repeats < 2:
        raise UserError("--repeats must be 2 or more: the noise is what repeats differ by")
    groups_by_step = kept_groups(config)
    needs(build_domain(config), "examine", "tells what the judge should have seen")
    examine, client = build_examiner(config), build_client(config, "discrimination")
    judge = build_judge(config, config.judge.train, examine, client)
    arena = Arena(judge, replace(config, reward=RewardConfig(name="tournament")), client)
    rows = []
    for step, groups in groups_by_step.items():
        judged = judge_step(arena, groups, repeats)
        if client:
            client.check()
        if judged:
            rows.append({"step": step} | _row(judged, examine))
    return rows


def kept_groups(config: Config) -> dict[int, list[RolloutGroup]]:
    """Optimizer step -> the groups that the run kept of it."""
    path = config.run_dir / "rl" / "groups.jsonl"
    if not path.is_file():
        raise UserError(f"{path} does not exist; run train_rl.py with this config, its rl.eval_steps above 0")
    queries = {query.query_id: query for query in training_queries(config)}
    groups: dict[int, list[RolloutGroup]] = {}
    for record in read_jsonl(path):
        trajectories = [Trajectory.from_record(one) for one in record["trajectories"]]
        groups.setdefault(record["step"], []).append(RolloutGroup(queries[record["query_id"]], trajectories))
    return groups


@dataclass(frozen=True)
class Judged:
    """The valid trajectories of a group (V,) and what the judge made of them; `points` are (V, rounds), by what it was shown."""

    query: Query
    trajectories_V: list[Trajectory]
    rewards_V: list[float | None]  # of their ranks
    calls: int  # of the tournament
    points: dict[str, np.ndarray]

    @property
    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each different trajectory first stands, and for all (V,) which of these they are."""
        texts_V = [repr(trajectory.messages) for trajectory in self.trajectories_V]
        return np.unique(texts_V, return_index=True, return_inverse=True)[1:]

    def signals(self, quality_V: list[float]) -> dict[str, list[Sequence[float | None]]]:
        """Signal -> the orders (V,) that it gave: one for each round, or one alone.

        `as_many_calls` has the tournament's number of calls, at least a round of them and at most all, from every round on in turn.
        Trajectories with the same messages share theirs, as they enter a tournament once.
        """
        whole, answer = self.points.values()
        first, copies_V = self.distinct
        rounds, calls = whole.shape[1], max(self.calls, len(first))
        return {
            "quality": [quality_V],
            "ranks": [self.rewards_V],
            "as_many_calls": [np.array(mean_of_calls(np.roll(whole[first], -k, axis=1), calls))[copies_V] for k in range(rounds)],
            "mean_of_rounds": [nanmean(whole)],
            "one_round": list(whole.T),
            "answer_mean_of_rounds": [nanmean(answer)],
            "answer_one_round": list(answer.T),
        }


def judge_step(arena: Arena, groups: Sequence[RolloutGroup], repeats: int) -> list[Judged]:
    """A step's groups, those with two valid trajectories or more, judged in both ways."""
    outcomes = arena.reward_groups(groups)
    arena.learn([outcome.scored_calls for outcome in outcomes])
    valid = [[index for index, trajectory in enumerate(group.trajectories) if trajectory.valid] for group in groups]
    kept = [(group, outcome, rows) for group, outcome, rows in zip(groups, outcomes, valid, strict=True) if len(rows) > 1]
    shown = [replace(group, trajectories=[group.trajectories[row] for row in rows]) for group, _, rows in kept]
    points = {seen: asyncio.run(pointwise_scores(arena.judge, shown, repeats, seen == "answer")) for seen in SEEN}
    return [
        Judged(
            group.query,
            group.trajectories,
            [outcome.rewards_G[row] for row in rows],
            outcome.judge_calls,
            {seen: scores[index] for seen, scores in points.items()},
        )
        for index, (group, (_, outcome, rows)) in enumerate(zip(shown, kept, strict=True))
    ]


def _row(judged: Sequence[Judged], examine: Examiner) -> dict[str, Any]:
    found = [_properties(one.query, one.trajectories_V, examine) for one in judged]
    signals = [one.signals(properties["quality"]) for one, properties in zip(judged, found, strict=True)]
    rounds, distinct = judged[0].points["trajectory"].shape[1], np.mean([len(one.distinct[0]) for one in judged])
    names = dict.fromkeys(name for properties in found for name in properties)
    calls = {"one_round": distinct, "mean_of_rounds": rounds * distinct, "ranks": np.mean([one.calls for one in judged])}
    return {
        "groups": len(judged),
        "trajectories": sum(len(one.trajectories_V) for one in judged),
        "sigma_quality": _rounded(sigmas([np.array(properties["quality"])[:, None] for properties in found])[0]),
        **{seen: _spread([one.points[seen] for one in judged]) for seen in SEEN},
        "failed_calls": sum(int(np.isnan(scores).sum()) for one in judged for scores in one.points.values()),
        "calls": {name: _rounded(number) for name, number in calls.items()},
        "tau": {
            signal: {name: _mean_tau([one[signal] for one in signals], [one.get(name, []) for one in found]) for name in names}
            for signal in SIGNALS
        },
    }


def _spread(scores: list[np.ndarray]) -> dict[str, float | None]:
    sigma_group, sigma_noise = sigmas(scores)
    snr = sigma_group / sigma_noise if sigma_noise else math.nan
    return {"sigma_group": _rounded(sigma_group), "sigma_noise": _rounded(sigma_noise), "snr": _rounded(snr)}


def _properties(query: Query, trajectories: Sequence[Trajectory], examine: Examiner) -> dict[str, list[float]]:
    """Of those, what the truth says of all trajectories of the group."""
    figures = [examine(query, trajectory).figures() for trajectory in trajectories]
    return {
        "quality": [true_quality(examine, query, trajectory) for trajectory in trajectories],
        "answer_chars": [len(trajectory.answer) for trajectory in trajectories],
        "tool_calls": [trajectory.meta["tool_calls"] for trajectory in trajectories],
        **{name: [one[name] for one in figures] for name in figures[0] if all(name in one for one in figures)},
    }


def _mean_tau(orders_by_group: Sequence[list[Sequence[float | None]]], property_by_group: Sequence[list[float]]) -> float | None:
    """None if the property differs in no group."""
    taus = [
        rank_correlation(order, values)
        for orders, values in zip(orders_by_group, property_by_group, strict=True)
        if len(set(values)) > 1
        for order in orders
    ]
    return _rounded(float(np.mean(np.nan_to_num(taus)))) if taus else None


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 4)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a step: the spread and the noise of whole trajectories' scores, and tau to the true quality."""
    names = ("ranks", "as_many_calls", "one_round", "answer_one_round")
    head = ["step", "groups", "sigma_group", "sigma_noise", "SNR", "sigma_quality", *(f"tau: {SIGNALS[name]}" for name in names)]
    lines = [
        [row["step"], row["groups"], *row["trajectory"].values(), row["sigma_quality"], *(row["tau"][name]["quality"] for name in names)]
        for row in rows
    ]
    return markdown.table(head, [[str(cell) for cell in line] for line in lines])


def draw(rows_by_seed: Sequence[list[dict[str, Any]]], path: Path) -> Path:
    """Spread and noise over training, agreement with the truth, and what the signals follow; one list of rows a seed. Returns the SVG.

    Lines are means over seeds at the steps that all of them have, bands go from the lowest to the highest.
    """
    by_seed = [{row["step"]: row for row in rows} for rows in rows_by_seed]
    steps = sorted(set.intersection(*map(set, by_seed)))
    seeds = f"{len(by_seed)} seeds: mean, lowest to highest" if len(by_seed) > 1 else "one seed"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 6.6), layout="constrained")
        (whole, answer), (truth, bias) = figure.subplots(2, 2)
        for axes, seen in zip((whole, answer), SEEN, strict=True):
            lines = {"spread in a group, one round": (seen, "sigma_group"), "noise of one score": (seen, "sigma_noise")}
            _plot_lines(axes, by_seed, steps, lines | {"spread of the true quality": ("sigma_quality",)})
            axes.set_ylim(bottom=0)
            axes.set_title(f"standard deviation, {SEEN[seen]}, points of 10")
        names = ("ranks", "as_many_calls", "one_round", "answer_one_round")
        _plot_lines(truth, by_seed, steps, {SIGNALS[name]: ("tau", name, "quality") for name in names})
        truth.set_title("Kendall's tau to the true quality")
        for axes in (whole, answer, truth):
            axes.set_xlabel("optimizer step")
            axes.legend(fontsize=8)
        _plot_properties(bias, by_seed, steps[-1])
        figure.suptitle(f"What a judge tells apart ({seeds})", fontsize=10)
        return save_figure(figure, path)


def _plot_lines(axes: Axes, by_seed: Sequence[dict[int, dict]], steps: list[int], lines: dict[str, tuple[str, ...]]) -> None:
    axes.set_xticks(steps)
    for (label, keys), line in zip(lines.items(), LINES, strict=False):
        values = np.array([[_value(rows[step], *keys) for step in steps] for rows in by_seed])
        plot_band(axes, steps, values.mean(axis=0), (values.min(axis=0), values.max(axis=0)), label=label, **line)


def _plot_properties(axes: Axes, by_seed: Sequence[dict[int, dict]], step: int) -> None:
    """What each signal follows at a step, beside what the truth itself would."""
    names = ("quality", "ranks", "as_many_calls", "one_round", "answer_one_round")
    properties = list(by_seed[0][step]["tau"]["quality"])
    for k, name in enumerate(names):
        values = np.array([[_value(rows[step], "tau", name, key) for key in properties] for rows in by_seed])
        means, style = values.mean(axis=0), LINES[k]
        places = np.arange(len(properties)) + (k - (len(names) - 1) / 2) * 0.15
        bounds = np.array([values.min(axis=0), values.max(axis=0)])
        axes.errorbar(places, means, abs(bounds - means), color=style["color"], marker=style["marker"], linestyle="", capsize=2, label=SIGNALS[name])
    axes.axhline(0, color="#666666", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(properties)), [PROPERTIES.get(name, name.replace("_", " ")).replace(" ", "\n") for name in properties])
    axes.grid(visible=False, axis="x")
    axes.set_title(f"Kendall's tau to …, step {step}")
    axes.legend(fontsize=8)


def _value(row: dict[str, Any], *keys: str) -> float:
    for key in keys:
        row = row[key]
    return math.nan if row is None else row


def main() -> None:
    config, arguments = parse_arguments(
        __doc__, lambda parser: parser.add_argument("--repeats", type=int, default=5, help="rounds of pointwise calls")
    )
    rows = measure(config, arguments.repeats)
    judge = config.judge.train
    path = config.results_dir / "discrimination.json"
    head = {"run": config.run_name, "seed": config.seed, "judge": "simulated" if judge.is_simulated else judge.model or judge.name}
    write_json(path, head | {"repeats": arguments.repeats, "rows": rows, "provenance": provenance(config)})
    figure = draw([rows], config.results_dir / "figures" / "discrimination")
    print(table(rows))
    print(f"{head['judge']} judge; written: {path}, {figure}")


if __name__ == "__main__":
    guarded(main)
