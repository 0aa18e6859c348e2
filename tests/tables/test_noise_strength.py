"""The axis of `noise_strength`, measured with the rows' judges on the same groups."""

import asyncio
import math
import random
from functools import partial

import numpy as np
import pytest

from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import cached_examiner
from arenarl.studies.repeated_scores import pointwise_scores, sigmas
from arenarl.tables.rows import read_table
from arenarl.trajectory import RolloutGroup

REPEATS = 12


@pytest.fixture(scope="module")
def groups(taught, world, compact):
    """Groups of different attempts of the scripted teacher, of medium skill."""
    teacher, groups = Teacher(world, compact), []
    for query in (one.query for one in taught[::3]):
        attempts = [teacher.solve(query, random.Random(g), skill=0.4) for g in range(8)]
        groups.append(RolloutGroup(query, list({repr(attempt.messages): attempt for attempt in attempts}.values())))
    return [group for group in groups if len(group.trajectories) > 2]


def noise_over_spread(groups, judge):
    """Return the noise of a score divided by the spread of the means over repeats, without their noise."""
    scores = asyncio.run(pointwise_scores(judge, groups, REPEATS))
    _, noise = sigmas(scores)
    return noise / math.sqrt(np.mean([points.mean(axis=1).var(ddof=1) for points in scores]) - noise**2 / REPEATS)


def test_each_level_is_noise_divided_by_spread_and_its_rows_have_one_judge(groups, world):
    table, examiner = read_table("noise_strength"), cached_examiner(partial(examine, world))
    judges = {}
    for row in table.rows.values():
        keys = {key: value for key, value in (table.set | row.set).items() if key.startswith("judge.")}
        assert judges.setdefault((row.at, row.panel), keys) == keys
    configs = {level: load_config("configs/quickstart.yaml", as_overrides(keys)) for level, keys in judges.items()}
    level_judges = {level: EmbeddedJudge(config.judge.train, examiner, 0) for level, config in configs.items()}
    measured = {level: noise_over_spread(groups, judge) for level, judge in level_judges.items()}
    assert measured == pytest.approx({(at, panel): at for at, panel in judges}, rel=0.12)
