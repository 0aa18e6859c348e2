"""A user's own topology: its interface, and errors of a class that cannot rank, before any match."""

import pytest

from arenarl.config.load import load_config
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.tournament.play import run_tournament

HEAD = """
from dataclasses import dataclass
from arenarl.tournament.schedules import Anchor, Pairing, RoundRobin, Standing, Topology
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load(text)` returns the quickstart's config with the class `Own` from this text."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(text, *overrides):
        name = f"own_topology_{abs(hash((tmp_path, text)))}"
        (tmp_path / f"{name}.py").write_text(f"{HEAD}\n{text}\n")
        return load_config(CONFIGS / "quickstart.yaml", [f"tournament.topology={name}:Own", *overrides])

    return load


async def compare(i, j):
    return i, j


def test_a_subclass_and_a_schedule_ranked_by_scores_are_valid_with_keys_of_the_tournament_section(load):
    config = load("class Own(RoundRobin):\n    pass")
    assert run_tournament(config.tournament.topology, 4, compare).ranks_G == [3, 2, 1, 0]
    chain = "return [Pairing(i, i - 1, 0) for i in range(1, self.size)]"
    pairs = f"class Own(Topology):\n    rankings = ('scores',)\n    def ready(self, results):\n        {chain}"
    assert run_tournament(load(pairs).tournament.topology, 3, compare).ranks_G == [2, 1, 0]
    text = "@dataclass(frozen=True)\nclass Own(Anchor):\n    {name}: str = 'n'"
    assert load(text.format(name="matches"), "tournament.matches=3n").tournament.matches == "3n"
    with pytest.raises(UserError, match="has parameters that tournament lacks: depth"):
        load(text.format(name="depth"))


READY = "class Own(Anchor):\n    def ready(self, results):\n        return [{}]"
STANDINGS = "class Own(Anchor):\n    def standings(self, results):\n        return {}"


@pytest.mark.parametrize(("text", "words"), [
    ("Own = 3", "is not a subclass of arenarl.tournament.schedules.Topology"),
    ("class Own:\n    pass", "is not a subclass of arenarl.tournament.schedules.Topology"),
    ("class Other(Anchor):\n    pass", "tournament.topology: .* cannot be imported"),
    ("class Own(Topology):\n    pass", "cannot rank 2 entrants: NotImplementedError"),
    (READY.format("Pairing(0, 0, 0)"), r"\(0, 0\) is not a pair of entrants from 0 to 1"),
    (READY.format("Pairing(0, self.size, 0)"), r"\(0, 2\) is not a pair"),
    (READY.format("(0, 1)"), "cannot rank 2 entrants: ValueError"),
    (STANDINGS.format("[Standing.of_score(1.0)]"), "must return a Standing or None for each entrant"),
    (STANDINGS.format("[Standing((results[0, 1][0],), None)] * self.size"), "TypeError"),
    (STANDINGS.format("[Standing((float(self.size > 2) / (self.size - 3),), 1.0)] * self.size"),
     "cannot rank 3 entrants: ZeroDivisionError"),
])  # fmt: skip
def test_a_class_that_cannot_rank_is_an_error_of_one_line(load, text, words):
    with pytest.raises(UserError, match=words) as caught:
        load(text)
    assert "\n" not in str(caught.value)
