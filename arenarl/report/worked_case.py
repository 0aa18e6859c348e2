"""The worked case of a training run (Appendix H, Tournament-GRPO): a group's points and rewards, best and worst answer.

    python -m arenarl.report tables/tournament_grpo_g2_m8 --case

A rule chooses the group: among those of the last stored step, the first with the largest difference in points between
two valid trajectories.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from arenarl.report import markdown
from arenarl.system.errors import UserError, missing, printable_lines
from arenarl.training.rewards.formulas import min_max, zero_invalid
from arenarl.training.rewards.group import valid_of
from arenarl.trajectory import Trajectory, read_steps

Points = Sequence[float | None]


def worked_case(run_dir: Path) -> str:
    """Return the case of a run's training groups as Markdown.
    Raises UserError if no group is stored, or the run's reward plays no tournament."""
    path = run_dir / "rl" / "groups.jsonl"
    if not path.is_file():
        raise UserError(missing(path, "; RL writes it every rl.eval_steps steps"))
    last: list[dict[str, Any]] = []
    for _, of_step in groupby(read_steps(path), key=itemgetter("step")):
        last = list(of_step)
    case = max(last, key=_gap, default=None)  # of equal groups, the first
    if case is None or not _points_of_valid(case):
        raise UserError(f"{path}: no group has points of a tournament; take a run with reward.name=tournament_grpo")
    return "\n\n".join(_parts(case))


def _points_of_valid(record: dict[str, Any]) -> dict[int, float]:
    """Return the points of the valid trajectories that were ranked, by their number in the group."""
    points_G = record["ranking"]["scores_G"] if record["ranking"] else []
    return {
        g: points
        for g, (trajectory, points) in enumerate(zip(record["trajectories"], points_G, strict=False))
        if trajectory["valid"] and points is not None
    }


def _gap(record: dict[str, Any]) -> float:
    points = _points_of_valid(record).values()
    return max(points) - min(points) if points else -1.0


def _parts(record: dict[str, Any]) -> list[str]:
    trajectories = [Trajectory.from_record(trajectory) for trajectory in record["trajectories"]]
    ranking, points = record["ranking"], _points_of_valid(record)
    high, low = max(points, key=points.__getitem__), min(points, key=points.__getitem__)
    rows = _reward_columns(record, trajectories)
    order = sorted(range(len(trajectories)), key=lambda g: (record["rewards"][g] is None, -(record["rewards"][g] or 0)))
    table = [[str(g), *(_number(values[g]) for values in rows.values())] for g in order]
    calls = [
        [str(call["repeat"] + 1), str(call["round"] + 1), *(_listed(call[key]) for key in ("shown", "winners"))]
        for call in ranking.get("group_calls", [])
    ]
    heads = ["tournament", "round", "shown", "winners"]
    return [
        f"# Query {record['query_id']}, step {record['step']}",
        printable_lines(record["query"]),
        markdown.table(["trajectory", *rows], table),
        *([markdown.table(heads, calls)] if calls else []),
        *(
            f"## The {word} points: trajectory {g}\n\n{printable_lines(trajectories[g].answer)}"
            for word, g in (("most", high), ("fewest", low))
        ),
    ]


def _reward_columns(record: dict[str, Any], trajectories: Sequence[Trajectory]) -> dict[str, Points]:
    """Return the columns of Table 8, Tournament-GRPO. For other tournaments, leave out the parts of its reward."""
    columns: dict[str, Points] = {"raw tournament score": record["ranking"]["scores_G"]}
    if "group_calls" in record["ranking"]:
        valid_G = valid_of(trajectories)
        columns["normalized tournament reward"] = min_max(zero_invalid(record["ranking"]["scores_G"], valid_G))
        columns["format reward"] = [None if valid is None else float(valid) for valid in valid_G]
    columns["final reward"] = record["rewards"]
    return columns | ({"true quality, 0 to 10": record["quality"]} if record["quality"] else {})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _listed(trajectories: Sequence[int] | None) -> str:
    return "no verdict" if trajectories is None else ", ".join(map(str, trajectories))
