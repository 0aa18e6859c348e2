"""The local server of all roles, asked over the socket by the real client and the real rollout engine."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from judge_servers import client_of, judge_of, serving
from pydantic import create_model
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.config.schema import LLMConfig
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.domains.travel.truth import examine
from arenarl.judges.local_server import free_port, share
from arenarl.llm.json_reply import JSONReply
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.synthesis.prompts import (
    DIMENSIONS,
    Cell,
    Generated,
    Inspection,
    Refined,
    again,
    extract_messages,
    generate_messages,
    inspect_messages,
    refine_messages,
)
from arenarl.synthesis.query_pool import SIZE, QueryPool
from arenarl.synthesis.server import RoleServer, running_roles
from arenarl.trajectory import read_turns

CONFIG = load_config(ROOT / "configs" / "data" / "local.yaml")


class Asker:
    """Asks each role as the build does."""

    def __init__(self, url, folder, environment, language="en"):
        self.url, self.language, self.environment = url, language, environment
        self.client = client_of(folder, max_failure_share=1.0)

    def llm(self, role, **keys):
        return LLMConfig(
            "llm", f"simulated-{role}", self.url, None, **({"timeout_s": 60.0, "patience_s": 120.0} | keys)
        )

    def ask(self, role, messages, reply_type, repeat=0, **keys):
        return asyncio.run(self.client.ask(self.llm(role, **keys), messages, reply_type, again(self.language), repeat))

    def generate(self, subtask="Search", count=20, examples=(), repeat=0, role="generator-plain"):
        messages = generate_messages(Cell(subtask, self.language), "short", self.environment.tools, examples, count)
        reply = self.ask(role, messages, Generated, repeat, temperature=0.7)
        return reply and reply.queries

    def refine(self, text):
        return self.ask("refiner", refine_messages(text, self.language, self.environment.tools), Refined)

    def extract(self, query, *more):
        form = create_model("Form", __base__=JSONReply, **dict.fromkeys([*query.constraints, *more], (object, ...)))
        messages = extract_messages(query.query, Cell(query.subtask, self.language), form)
        return self.ask("extractor", messages, form).model_dump()

    def inspect(self, query, trajectory):
        found = self.ask("inspector", inspect_messages(query, trajectory, self.environment.tools), Inspection)
        return {name: getattr(found, name) for name in DIMENSIONS}

    def solve(self, queries, role="teacher", attempts=1, temperature=0.8):
        engine = ApiRolloutEngine(self.llm(role), self.client, lambda: self.environment, CONFIG.rollout, self.language)
        return engine.roll_out([Attempt(query, temperature, number) for query in queries for number in range(attempts)])


@pytest.fixture
def asks(compact, pool, tmp_path):
    """`asks(mistakes, inspector_error, language, **faults)`: who asks a server of its own."""
    contexts = []

    def asks(mistakes=0.0, inspector_error=0.0, language="en", name="store", **faults):
        context = serving(RoleServer(CONFIG, mistakes, inspector_error, pool, **faults).app())
        contexts.append(context)
        return Asker(context.__enter__(), tmp_path / name, compact, language)

    yield asks
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def pool(world):
    return QueryPool(world, CONFIG.data.seed)


def some(pool, count, language="en"):
    """`count` queries of every subtask."""
    return [query for subtask in SUBTASKS for query in pool.cell(subtask, language)[:count]]


def invents(world, query, trajectory):
    truth = examine(world, query, trajectory.messages)
    return truth.facts_grounded < truth.facts_stated


@pytest.mark.parametrize("language", ["en", "zh"])
def test_without_mistakes_all_that_the_roles_say_is_clean(asks, pool, world, language):
    asker = asks(language=language)
    for subtask in SUBTASKS:
        texts = asker.generate(subtask)
        queries = [pool.find(text) for text in texts]
        assert len(set(texts)) == 20 and [query.query for query in queries] == texts
        assert {(query.subtask, query.language) for query in queries} == {(subtask, language)}
        for query, trajectory in zip(queries[:2], asker.solve(queries[:2]), strict=True):
            assert asker.refine(query.query) == Refined(query=query.query, can_be_served=True, reason="")
            assert asker.extract(query, "unsaid") == query.constraints | {"unsaid": None}
            assert trajectory.valid and not invents(world, query, trajectory)
            found = asker.inspect(query, trajectory).values()
            assert all(one.passes and not one.turn and not one.problem for one in found)


def test_of_a_generators_queries_a_stated_share_is_bad_and_the_refiner_tells_which(asks, pool):
    asker = asks(mistakes=0.4)
    example = pool.cell("Search", "en")[7].query
    replies = [asker.generate(count=30, examples=[example], repeat=repeat) for repeat in range(20)]
    texts = [text for reply in replies if reply for text in reply]
    drawn = [asker.generate(role=f"generator-{name}", repeat=30) for name in "ab"]
    assert len({str(reply) for reply in [*replies, *drawn]}) > 19  # by its name and by the number of the call
    known = {query.query for query in pool.cell("Search", "en")}
    bad = [text for text in texts if text not in known]
    assert 0 < asker.client.take_usage()[0].unreadable < 6  # 1 in 10 is a refusal; asked again, it draws anew
    assert 0.3 < len(bad) / len(texts) < 0.5
    kinds = Counter(
        "unservable" if pool.find(text) is None else "repeat" if re.search("Hello|Thanks|Please", text) else "sloppy"
        for text in bad
    )
    assert min(kinds.values()) > len(bad) / 5 and len(kinds) == 3
    right = 0
    for text in bad[:60]:
        said, query = asker.refine(text), pool.find(text)
        right += said.can_be_served == (query is not None) == (not said.reason)
        assert query is None or said.query == query.query
    assert 45 < right < 60  # it errs in a tenth


def test_every_wording_that_the_server_makes_leads_to_one_query(pool):
    for language in ("en", "zh"):
        assert all(pool.find(query.query) is query for query in some(pool, SIZE, language))
        assert all(pool.find(f"  {query.query.upper()}\n") is query for query in some(pool, 50, language))
    assert pool.find("Find a quiet park on the moon.") is None and pool["What?"].constraints == {}


def test_an_extractor_errs_in_a_stated_share_of_the_queries_by_one_value(asks, pool):
    asker, wrong = asks(mistakes=0.4), []
    for query in pool.cell("Search", "en")[:100]:
        wrong.append(sum(value != query.constraints[name] for name, value in asker.extract(query).items()))
    assert set(wrong) == {0, 1} and 3 < sum(wrong) < 20


@pytest.mark.slow(seconds=4)
def test_a_teachers_attempts_differ_and_some_state_what_no_tool_returned(asks, pool, world):
    queries = some(pool, 6)
    trajectories = asks(mistakes=0.2).solve(queries, attempts=2)
    valid = [(queries[index // 2], one) for index, one in enumerate(trajectories) if one.valid]
    assert 0.9 < len(valid) / len(trajectories) and {one.stop_reason for one in trajectories} <= {"answer", "no_answer"}
    assert 0.6 < sum(not invents(world, *one) for one in valid) / len(valid) < 0.95
    pairs = zip(trajectories[::2], trajectories[1::2], strict=True)
    assert sum(first.messages != second.messages for first, second in pairs) > 15
    assert all(one.meta["tool_errors"] == 0 for one in trajectories)
    rewritten = zip(queries, asks(mistakes=0.6, name="rewriter").solve(queries, role="rewriter"), strict=True)
    assert 0.1 < sum(invents(world, *one) for one in rewritten) / len(queries) < 0.5  # a half of its mistakes


def test_at_temperature_0_attempts_are_the_same(asks, pool):
    first, second = asks(mistakes=0.5).solve(some(pool, 1)[:1], attempts=2, temperature=0.0)
    assert first.messages == second.messages


@pytest.mark.slow(seconds=4)
def test_an_inspector_finds_by_the_prompt_alone_what_is_invented_and_what_is_called_twice(asks, pool, world):
    asker = asks(mistakes=0.4)
    queries = some(pool, 6)
    seen = Counter()
    for query, trajectory in zip(queries, asker.solve(queries), strict=True):
        if not trajectory.valid:
            continue
        found, turns = asker.inspect(query, trajectory), read_turns(trajectory.messages)
        calls = [str(call) for turn in turns for call in turn.tool_calls]
        assert found["content"].passes == (not invents(world, query, trajectory)) == (not found["content"].problem)
        assert found["tool_use"].passes == (len(set(calls)) == len(calls))
        assert found["content"].turn == (0 if found["content"].passes else len(turns))
        seen.update(name for name, one in found.items() if not one.passes)
        wrong_query = replace(query, constraints={})  # the truth is not shown to it
        assert asker.inspect(wrong_query, trajectory) == found
    assert seen["content"] > 3 and seen["tool_use"] > 1


@pytest.mark.slow(seconds=3)
def test_an_inspector_that_errs_turns_its_stated_share_of_verdicts_round_and_stands_by_them(asks, pool):
    sure, unsure = asks(), asks(inspector_error=0.2, name="unsure")
    queries = some(pool, 6)
    trajectories = sure.solve(queries)
    verdicts = [unsure.inspect(query, trajectory) for query, trajectory in zip(queries, trajectories, strict=True)]
    wrong = [found for one in verdicts for found in one.values() if not found.passes]
    assert 0.1 < len(wrong) / (3 * len(verdicts)) < 0.3 and all(found.turn and found.problem for found in wrong)
    again = asks(inspector_error=0.2, name="again")
    assert verdicts[0] == again.inspect(queries[0], trajectories[0])


def test_faults_within_a_reply_are_asked_about_again_and_the_verdict_stands(asks, pool, compact):
    kinds = ("truncated", "prose", "wrong_range", "missing")
    sound, shaky = asks(mistakes=0.3), asks(mistakes=0.3, name="shaky", faults=0.5, kinds=kinds)
    texts = [query.query for query in some(pool, 6)]
    told = [(sound.refine(text), shaky.refine(text)) for text in texts]
    assert all(said in (None, true) for true, said in told) and sum(said is not None for _, said in told) > 20
    assert shaky.client.take_usage()[0].unreadable > 3


def test_every_other_model_is_the_judge_who_knows_the_queries_of_the_pool(asks, pool):
    asker = asks(mistakes=0.5)
    query = pool.cell("Search", "en")[0]
    good, bad = asks(name="good").solve([query])[0], asks(1.0, name="bad").solve([query])[0]
    verdict = asyncio.run(judge_of(asker.url, asker.client).compare(query, good, bad))
    assert verdict.totals[0] > verdict.totals[1]
    unknown = replace(query, query="What is there to see?")
    assert asyncio.run(judge_of(asker.url, asker.client).compare(unknown, good, bad)) is not None  # nothing but noise


def test_a_query_that_nobody_knows_is_refused_by_refiner_and_teacher(asks, pool):
    asker = asks()
    said = asker.refine("Write a poem about the sea.")
    assert not said.can_be_served and said.reason
    assert not asker.solve([replace(pool.cell("Search", "en")[0], query="Write a poem about the sea.")])[0].valid


@pytest.mark.slow(seconds=7)
def test_a_server_in_a_process_of_its_own_says_the_same(asks, compact, pool, tmp_path):
    def said(asker):
        trajectories = asker.solve(some(pool, 2))
        inspections = [asker.inspect(query, one) for query, one in zip(some(pool, 2), trajectories, strict=True)]
        return asker.generate(), [one.messages for one in trajectories], inspections

    options = ("--mistakes", "0.4", "--inspector-error", "0")
    with running_roles(str(ROOT / "configs" / "data" / "local.yaml"), [], free_port(), *options) as url:
        assert said(Asker(url, tmp_path / "other", compact)) == said(asks(mistakes=0.4))


@pytest.mark.slow(seconds=4)
def test_another_world_is_refused_in_a_line_and_a_share_is_from_0_to_1():
    command = [sys.executable, "-m", "arenarl.synthesis.server", "--config", "configs/research/quickstart.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    message = "error: .* travel world alone, not with environment.domain=research"
    assert done.returncode and re.search(message, done.stderr.splitlines()[-1])
    with pytest.raises(ValueError, match="2"):
        share("2")
