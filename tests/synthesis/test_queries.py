"""Candidates that become queries."""

import asyncio

import pytest

from arenarl.config.schema import BuildConfig, DataConfig, EnvironmentConfig, LLMConfig
from arenarl.domains.travel.constraints import DayConstraints
from arenarl.domains.travel.domain import TravelDomain
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.queries import QueryDrawer
from arenarl.synthesis.seeds import Candidate


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
