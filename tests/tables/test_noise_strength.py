"""The axis of `noise_strength` is measured: what the rows' judges make of the same groups."""

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
    """Of the scripted teacher: no two alike in a group, attempts of medium skill."""
    teacher, queries = Teacher(world, compact), [one.query for one in taught[::3]]
    attempts = [
        {repr(one.messages): one for one in (teacher.solve(query, random.Random(g), skill=0.4) for g in range(8))}
        for query in queries
    ]
    return [
        RolloutGroup(query, list(different.values()))
        for query, different in zip(queries, attempts, strict=True)
        if len(different) > 2
    ]


def noise_over_spread(groups, judge):
    """The spread is that of the means over repeats, less what noise is left in them."""
    scores = asyncio.run(pointwise_scores(judge, groups, REPEATS))
    _, noise = sigmas(scores)
    return noise / math.sqrt(np.mean([points.mean(axis=1).var(ddof=1) for points in scores]) - noise**2 / REPEATS)


def test_each_level_is_the_noise_of_a_score_over_the_spread_of_scores_and_all_its_rows_have_one_judge(groups, world):
    table, examiner = read_table("noise_strength"), cached_examiner(partial(examine, world))
    judges = {}
    for row in table.rows.values():
        keys = {key: value for key, value in (table.set | row.set).items() if key.startswith("judge.")}
        assert judges.setdefault((row.at, row.panel), keys) == keys
    configs = {level: load_config("configs/quickstart.yaml", as_overrides(keys)) for level, keys in judges.items()}
    measured = {
        level: noise_over_spread(groups, EmbeddedJudge(config.judge.train, examiner, 0))
        for level, config in configs.items()
    }
    assert measured == pytest.approx({(at, panel): at for at, panel in judges}, rel=0.12)
