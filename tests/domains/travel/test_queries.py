"""The share of evening stops without a fitting place, as data/README.md states it."""

import re

import pytest
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.domains.domain import even_counts
from arenarl.domains.travel.names import EVENING
from arenarl.domains.travel.queries import HELD_OUT, SUBTASKS, make_queries
from arenarl.domains.travel.world import build_world

README = " ".join((ROOT / "data" / "README.md").read_text(encoding="utf-8").split())
(STATED,) = re.findall(r"(\d+) of (\d+) evening stops \((\d+) %\) have none, .*? (\d+) of (\d+) \((\d+) %\)", README)


@pytest.mark.parametrize(("config", "stated"), [
    ("configs/travel/sft_qwen3_8b.yaml", STATED[:3]), ("configs/quickstart.yaml", STATED[3:]),
])  # fmt: skip
def test_the_readme_states_how_many_evening_stops_have_no_place_that_is_open(config, stated):
    data, taken, fitting = load_config(ROOT / config).data, set(), []
    world, taught = build_world(0), [subtask for subtask in SUBTASKS if subtask != HELD_OUT]
    sizes = {"test": len(SUBTASKS) * data.test_per_subtask, "rl": data.rl_size, "sft": data.sft_size}
    for split, size in sizes.items():  # as in `TravelDomain.splits`
        for subtask, count in even_counts(size, taught if split == "sft" else SUBTASKS):
            queries = make_queries(world, subtask, data.language, count, f"travel{data.seed}-{split}", taken)
            wishes = [query.constraints for query in queries if subtask == "1-Day" and query.constraints["evening"]]
            places = [(world.pois_in(wish["city"], wish["evening"]), wish["preference"]) for wish in wishes]
            fitting += [any(wish in poi.tags and poi.closes > EVENING for poi in pois) for pois, wish in places]
    missing = fitting.count(False)
    assert tuple(map(int, stated)) == (missing, len(fitting), round(100 * missing / len(fitting)))
