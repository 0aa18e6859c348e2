"""Which candidates become queries."""

import asyncio

import pytest

from arenarl.config.schema import BuildConfig, DataConfig, EnvironmentConfig, LLMConfig
from arenarl.domains.travel.constraints import DayConstraints
from arenarl.domains.travel.domain import TravelDomain
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.queries import QueryDrawer
from arenarl.synthesis.seeds import Candidate


@pytest.mark.parametrize(("environment", "is_kept"), [("mcp", True), ("travel", False)])
def test_a_query_about_real_places_is_kept_where_the_tools_are_not_the_embedded_worlds(
    environment, is_kept, monkeypatch
):
    """Without a truth, which judges do without; the embedded world's tools could not serve it."""

    async def extracted(*_):
        return DayConstraints(city="Hangzhou", categories=["museum"])

    domain = TravelDomain(EnvironmentConfig(name=environment, domain="travel"), DataConfig())
    drawer = QueryDrawer(BuildConfig(extractor=LLMConfig(name="llm", model="m")), domain, [], None, 0)
    monkeypatch.setattr(drawer, "_ask", extracted)
    found = asyncio.run(drawer._extract(Candidate("A day in Hangzhou, with a museum", Cell("1-Day", "en"), "seed")))
    assert (found is not None) == is_kept and drawer.counts["constraints that cannot be read"] == (not is_kept)
    assert found is None or found["city"] == "Hangzhou"
