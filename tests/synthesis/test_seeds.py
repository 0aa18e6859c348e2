"""Seed files, read or refused with the line that is wrong, and candidates that become queries."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.config.schema import BuildConfig, DataConfig, EnvironmentConfig, LLMConfig
from arenarl.domains.domain import Domain
from arenarl.domains.travel.constraints import DayConstraints
from arenarl.domains.travel.domain import TravelDomain
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.queries import QueryDrawer
from arenarl.synthesis.seeds import TEST_SEED, UNSTATED, Candidate, read_seeds
from arenarl.system.errors import UserError


def written(tmp_path, text, name="seeds.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_json_lines_and_plain_lines_are_read_alike(tmp_path):
    lines = '{"query": "Find a quiet park."}\n\n{"query": "请找一家安静的餐厅。", "subtask": "Search"}\n'
    seeds = read_seeds(written(tmp_path, lines), ())
    assert [(seed.text, seed.cell) for seed in seeds] == [
        ("Find a quiet park.", Cell(UNSTATED, "en")), ("请找一家安静的餐厅。", Cell("Search", "zh")),
    ]  # fmt: skip
    plain = read_seeds(written(tmp_path, "\ufeffFind a quiet park.\r\n  \r\nCompare two trains.\r\n", "seeds.txt"), ())
    assert [seed.text for seed in plain] == ["Find a quiet park.", "Compare two trains."]
    assert read_seeds(written(tmp_path, '{"query": "Find a park."}'), ("Search",))[0].cell.subtask == "Search"


@pytest.mark.parametrize(("text", "subtasks", "message"), [
    ('{"query": "Find a park."}\n{"query": ', (), "line 2 is not JSON"),
    ('[\n{"query": "Find a park."}\n]', (), 'line 1 is not JSON: Expecting value at character 3; write one object'),
    ('{"query": "Find a park."}\n["Find a park."]', (), "line 2 is not a seed query"),
    ('{"query": "Find a park."}\n{"question": "Find a cafe."}', (), "line 2 is not a seed query"),
    ('{"query": "Find a park."}\n{"query": "Find a cafe.", "lang": "en"}', (), "line 2 is not a seed query: lang"),
    ('{"query": "Find a park.", "language": "fr"}', (), "line 1 is not a seed query: language"),
    ('{"query": "Find a park."}\n\n{"query": "find  a PARK."}', (), "line 3 repeats the query of line 1"),
    ('{"query": "  "}', (), "line 1 is not a seed query: query"), ("\n\n", (), "holds no seed query"),
    (b'{"query": "caf\xe9 near me"}', (), "is not UTF-8"),
    ('{"query": "Find a park.", "subtask": "Serach"}', ("Search", "Compare"),
     "line 1: the subtask Serach is not in build.subtasks; choose from Search, Compare"),
    ('{"query": "Find a park."}', ("Search", "Compare"), "line 1 names no subtask"),
])  # fmt: skip
def test_an_error_names_the_line_of_a_malformed_seed(tmp_path, text, subtasks, message):
    with pytest.raises(UserError) as refused:
        read_seeds(written(tmp_path, text), subtasks)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [
    '{"query": "Find a park."}', '\n["Find a park.", "Find a cafe."]', '{\n  "query": "Find a park."\n}',
    '[\n"Find it."]', 'Find a cafe.\n  {"query": "Find a park."},', '{"query": "Find a park."}\n{"query": ',
])  # fmt: skip
@pytest.mark.parametrize("name", ["seeds.txt", "seeds.md", "seeds", "seeds.JSON.txt"])
def test_json_in_a_file_of_plain_lines_is_refused_and_other_brackets_are_not(tmp_path, text, name):
    with pytest.raises(UserError, match=r"line [12] is JSON, but .*; rename it to seeds.*\.jsonl"):
        read_seeds(written(tmp_path, text, name), ())
    assert len(read_seeds(written(tmp_path, "[Find a park]\nFind {parks} now", name), ())) == 2


def test_a_near_repeat_of_a_test_seed_is_dropped_from_training(tmp_path):
    """Independent of the order of the files."""
    real, other = "Find a quiet cafe near Lotus Park in Wuhan.", "Compare trains from Xian to Wuhan."
    test = read_seeds(written(tmp_path, real, "test.txt"), (), origin=TEST_SEED)
    seeds = read_seeds(written(tmp_path, f"please {real.lower()}\n{other}", "seeds.txt"), ())
    for both in (seeds + test, test + seeds):
        drawer = QueryDrawer(BuildConfig(near_duplicate=0.7), Domain(None, None), [], None, 0)
        drawn = drawer.draw(both, Counter({Cell(UNSTATED, "en"): 10}))
        assert {(each.query.query, each.origin) for each in drawn} == {(real, TEST_SEED), (other, "seed")}


@pytest.mark.parametrize(("environment", "is_kept"), [("mcp", True), ("travel", False)])
def test_a_query_about_real_places_needs_other_tools_than_the_embedded_worlds(environment, is_kept, monkeypatch):
    async def extracted(*_):
        return DayConstraints(city="Hangzhou", categories=["museum"])

    domain = TravelDomain(EnvironmentConfig(name=environment, domain="travel"), DataConfig())
    drawer = QueryDrawer(BuildConfig(extractor=LLMConfig(name="llm", model="m")), domain, [], None, 0)
    monkeypatch.setattr(drawer, "_ask", extracted)
    candidate = Candidate("A day in Hangzhou, with a museum", Cell("1-Day", "en"), "seed")
    constraints = asyncio.run(drawer._extract(candidate))
    assert (constraints is not None) == is_kept and drawer.counts["constraints that cannot be read"] == (not is_kept)
    assert constraints is None or constraints["city"] == "Hangzhou"


@given(st.binary(max_size=200))
def test_any_file_gives_seeds_or_a_one_line_error(tmp_path_factory, content):
    for name in ("seeds.jsonl", "seeds.txt"):
        try:
            assert read_seeds(written(tmp_path_factory.mktemp("seeds"), content, name), ())
        except UserError as error:
            assert "\n" not in str(error)
