"""The worked case: the group with the largest difference in points of the last step, with all parts of its rewards."""

import re

import pytest
from groups import QUERY, attempt, config_of, truth_of
from parts import arena_of

from arenarl.config.schema import GroupStageConfig, JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.report.worked_case import worked_case
from arenarl.system.errors import UserError
from arenarl.training.metrics import group_records
from arenarl.trajectory import RolloutGroup, append_step

EVEN, SPREAD = [5.0, 5.0, 5.0, 5.0], [1.0, 9.0, 3.0, 7.0]


def store(folder, method, steps):
    """Write the groups of the steps, by the judge without errors; the last trajectory of each group is invalid."""
    config = config_of(method)
    config.group_stage = GroupStageConfig(repeats=2, group=2, winners=1, final=1)
    arena = arena_of(config, EmbeddedJudge(JudgeConfig(noise="none"), truth_of, 0))
    for step, qualities in enumerate(steps):
        groups = [
            RolloutGroup(QUERY, [*(attempt(quality) for quality in group), attempt(8.0, "max_turns")])
            for group in qualities
        ]
        records = group_records(step, groups, arena.reward_groups(groups), None)
        append_step(folder / "rl" / "groups.jsonl", step, records)


def test_the_case_has_the_parts_of_table_8_and_two_answers(tmp_path):
    store(tmp_path, "tournament_grpo", [[SPREAD[::-1]], [EVEN, SPREAD, SPREAD[:2]]])
    text = worked_case(tmp_path)
    assert text.startswith(f"# Query {QUERY.query_id}, step 1\n")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d", line)]
    rewards, calls = [row for row in rows if len(row) == 5], [row for row in rows if len(row) == 4]
    assert rewards[0] == ["1", "4", "1", "1", "2"] and rewards[-1] == ["4", "-", "0", "0", "0"]
    for _, points, normalized, form, final in rewards[:-1]:
        assert float(normalized) == pytest.approx(float(points) / 4, abs=0.01)
        assert float(final) == pytest.approx(float(normalized) + float(form), abs=0.01)
    assert len(calls) == 2 * 3 and {call[3] for call in calls if "1" in call[2].split(", ")} == {"1"}
    assert "The most points: trajectory 1\n\n9.0" in text and text.endswith("trajectory 0\n\n1.0")


def test_a_run_without_points_or_groups_is_refused_and_other_tournaments_have_scores(tmp_path):
    with pytest.raises(UserError, match="groups.jsonl.*rl.eval_steps"):
        worked_case(tmp_path)
    store(tmp_path, "pointwise_answer", [[EVEN]])
    with pytest.raises(UserError, match="no group has points of a tournament"):
        worked_case(tmp_path)
    store(tmp_path / "other", "tournament", [[[1.0, 9.0, 3.0]]])
    assert "| trajectory | raw tournament score | final reward |" in worked_case(tmp_path / "other")
