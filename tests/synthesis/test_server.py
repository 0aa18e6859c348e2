"""The local server of all roles, called by the real client and the real rollout engine."""

import asyncio
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from judge_servers import CALL_LIMITS, client_of, judge_of, serving
from pydantic import create_model
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.config.schema import LLMConfig
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.domains.travel.truth import examine
from arenarl.judges.local_server import free_port
from arenarl.llm.json_reply import JSONReply
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.synthesis import prompts
from arenarl.synthesis.prompts import DIMENSIONS, Cell, Generated, Inspection, Refined
from arenarl.synthesis.query_pool import SIZE, QueryPool
from arenarl.synthesis.server import RoleServer, running_roles
from arenarl.system.errors import UserError
from arenarl.trajectory import read_turns

CONFIG = load_config(ROOT / "configs" / "data" / "local.yaml")


class Roles:
    """Calls each role like the build."""

    def __init__(self, url, folder, environment, language="en"):
        self.url, self.language, self.environment = url, language, environment
        self.client = client_of(folder, max_failure_share=1.0)

    def llm(self, role, **keys):
        return LLMConfig("llm", f"simulated-{role}", self.url, **CALL_LIMITS | keys)

    def ask(self, role, messages, reply_type, repeat=0, **keys):
        again = prompts.again(self.language)
        return asyncio.run(self.client.ask(self.llm(role, **keys), messages, reply_type, again, repeat))

    def generate(self, subtask="Search", count=20, examples=(), repeat=0, role="generator-plain"):
        cell = Cell(subtask, self.language)
        messages = prompts.generate_messages(cell, "short", self.environment.tools, examples, count)
        reply = self.ask(role, messages, Generated, repeat, temperature=0.7)
        return reply and reply.queries

    def refine(self, text):
        return self.ask("refiner", prompts.refine_messages(text, self.language, self.environment.tools), Refined)

    def extract(self, query, *more):
        form = create_model("Form", __base__=JSONReply, **dict.fromkeys([*query.constraints, *more], (object, ...)))
        messages = prompts.extract_messages(query.query, Cell(query.subtask, self.language), form)
        return self.ask("extractor", messages, form).model_dump()

    def inspect(self, query, trajectory):
        reply = self.ask("inspector", prompts.inspect_messages(query, trajectory, self.environment.tools), Inspection)
        return {name: getattr(reply, name) for name in DIMENSIONS}

    def solve(self, queries, role="teacher", attempts=1, temperature=0.8):
        engine = ApiRolloutEngine(self.llm(role), self.client, lambda: self.environment, CONFIG.rollout, self.language)
        return engine.roll_out([Attempt(query, temperature, number) for query in queries for number in range(attempts)])


@pytest.fixture
def serve_roles(compact, pool, tmp_path):
    """`serve_roles(mistakes, inspector_error, language, **faults)` starts a server and returns its roles."""
    with ExitStack() as servers:

        def serve_roles(mistakes=0.0, inspector_error=0.0, language="en", name="store", **faults):
            server = RoleServer(CONFIG, mistakes, inspector_error, pool, **faults)
            return Roles(servers.enter_context(serving(server.app())), tmp_path / name, compact, language)

        yield serve_roles


@pytest.fixture(scope="module")
def pool(world):
    return QueryPool(world, CONFIG.data.seed)


def sample(pool, count, language="en"):
    """`count` queries of every subtask."""
    return [query for subtask in SUBTASKS for query in pool.cell(subtask, language)[:count]]


def invents(world, query, trajectory):
    truth = examine(world, query, trajectory.messages)
    return truth.facts_grounded < truth.facts_stated


@pytest.mark.parametrize("language", ["en", "zh"])
def test_without_mistakes_all_replies_are_right(serve_roles, pool, world, language):
    roles = serve_roles(language=language)
    for subtask in SUBTASKS:
        texts = roles.generate(subtask)
        queries = [pool.find(text) for text in texts]
        assert len(set(texts)) == 20 and [query.query for query in queries] == texts
        assert {(query.subtask, query.language) for query in queries} == {(subtask, language)}
        for query, trajectory in zip(queries[:2], roles.solve(queries[:2]), strict=True):
            assert roles.refine(query.query) == Refined(query=query.query, can_be_served=True, reason="")
            assert roles.extract(query, "unsaid") == query.constraints | {"unsaid": None}
            assert trajectory.valid and not invents(world, query, trajectory)
            findings = roles.inspect(query, trajectory).values()
            assert all(finding.passes and not finding.turn and not finding.problem for finding in findings)


def test_the_refiner_finds_the_share_of_bad_queries_of_a_generator(serve_roles, pool):
    roles = serve_roles(mistakes=0.4)
    example = pool.cell("Search", "en")[7].query
    replies = [roles.generate(count=30, examples=[example], repeat=repeat) for repeat in range(20)]
    texts = [text for reply in replies if reply for text in reply]
    drawn = [roles.generate(role=f"generator-{name}", repeat=30) for name in "ab"]
    # replies differ by the generator's name and the number of the call
    assert len({str(reply) for reply in [*replies, *drawn]}) > 19
    known = {query.query for query in pool.cell("Search", "en")}
    bad = [text for text in texts if text not in known]
    assert 0 < roles.client.take_usage()[0].unreadable < 6  # 1 in 10 is a refusal, followed by a new draw
    assert 0.3 < len(bad) / len(texts) < 0.5
    kinds = Counter(
        "unservable" if pool.find(text) is None else "repeat" if re.search("Hello|Thanks|Please", text) else "sloppy"
        for text in bad
    )
    assert min(kinds.values()) > len(bad) / 5 and len(kinds) == 3
    right = 0
    for text in bad[:60]:
        reply, query = roles.refine(text), pool.find(text)
        right += reply.can_be_served == (query is not None) == (not reply.reason)
        assert query is None or reply.query == query.query
    assert 45 < right < 60  # a tenth of its replies is wrong


def test_every_wording_leads_to_its_query(pool):
    for language in ("en", "zh"):
        assert all(pool.find(query.query) is query for query in sample(pool, SIZE, language))
        assert all(pool.find(f"  {query.query.upper()}\n") is query for query in sample(pool, 50, language))
    assert pool.find("Find a quiet park on the moon.") is None and pool["What?"].constraints == {}


def test_the_extractor_errs_in_one_value_of_its_share_of_queries(serve_roles, pool):
    roles, wrong = serve_roles(mistakes=0.4), []
    for query in pool.cell("Search", "en")[:100]:
        wrong.append(sum(value != query.constraints[name] for name, value in roles.extract(query).items()))
    assert set(wrong) == {0, 1} and 3 < sum(wrong) < 20


@pytest.mark.slow(seconds=4)
def test_a_teachers_attempts_differ_and_some_invent_facts(serve_roles, pool, world):
    queries = sample(pool, 6)
    trajectories = serve_roles(mistakes=0.2).solve(queries, attempts=2)
    valid = [(queries[index // 2], each) for index, each in enumerate(trajectories) if each.valid]
    assert 0.9 < len(valid) / len(trajectories)
    assert {each.stop_reason for each in trajectories} <= {"answer", "no_answer"}
    assert 0.6 < sum(not invents(world, *pair) for pair in valid) / len(valid) < 0.95
    pairs = zip(trajectories[::2], trajectories[1::2], strict=True)
    assert sum(first.messages != second.messages for first, second in pairs) > 15
    assert all(each.meta["tool_errors"] == 0 for each in trajectories)
    rewritten = zip(queries, serve_roles(mistakes=0.6, name="rewriter").solve(queries, role="rewriter"), strict=True)
    assert 0.1 < sum(invents(world, *pair) for pair in rewritten) / len(queries) < 0.5  # half of its mistakes


@pytest.mark.slow(seconds=4)
def test_the_inspector_finds_inventions_and_repeated_calls_from_the_prompt_alone(serve_roles, pool, world):
    roles = serve_roles(mistakes=0.4)
    queries = sample(pool, 6)
    seen = Counter()
    for query, trajectory in zip(queries, roles.solve(queries), strict=True):
        if not trajectory.valid:
            continue
        findings, turns = roles.inspect(query, trajectory), read_turns(trajectory.messages)
        calls = [str(call) for turn in turns for call in turn.tool_calls]
        content, tool_use = findings["content"], findings["tool_use"]
        assert content.passes == (not invents(world, query, trajectory)) == (not content.problem)
        assert content.turn == (0 if content.passes else len(turns))
        assert tool_use.passes == (len(set(calls)) == len(calls))
        seen.update(name for name, finding in findings.items() if not finding.passes)
        wrong_query = replace(query, constraints={})  # it does not read the truth
        assert roles.inspect(wrong_query, trajectory) == findings
    assert seen["content"] > 3 and seen["tool_use"] > 1


@pytest.mark.slow(seconds=3)
def test_the_inspector_reverses_its_share_of_verdicts_and_repeats_them(serve_roles, pool):
    sure, unsure = serve_roles(), serve_roles(inspector_error=0.2, name="unsure")
    queries = sample(pool, 6)
    trajectories = sure.solve(queries)
    verdicts = [unsure.inspect(query, trajectory) for query, trajectory in zip(queries, trajectories, strict=True)]
    wrong = [finding for verdict in verdicts for finding in verdict.values() if not finding.passes]
    assert 0.1 < len(wrong) / (3 * len(verdicts)) < 0.3 and all(finding.turn and finding.problem for finding in wrong)
    again = serve_roles(inspector_error=0.2, name="again")
    assert verdicts[0] == again.inspect(queries[0], trajectories[0])


def test_at_temperature_0_attempts_are_the_same(serve_roles, pool):
    first, second = serve_roles(mistakes=0.5).solve(sample(pool, 1)[:1], attempts=2, temperature=0.0)
    assert first.messages == second.messages


def test_a_faulty_reply_is_requested_again_with_the_same_verdict(serve_roles, pool, compact):
    kinds = ("truncated", "prose", "wrong_range", "missing")
    sound, shaky = serve_roles(mistakes=0.3), serve_roles(mistakes=0.3, name="shaky", faults=0.5, kinds=kinds)
    texts = [query.query for query in sample(pool, 6)]
    replies = [(sound.refine(text), shaky.refine(text)) for text in texts]
    assert all(reply in (None, expected) for expected, reply in replies)
    assert sum(reply is not None for _, reply in replies) > 20
    assert shaky.client.take_usage()[0].unreadable > 3


def test_every_other_model_is_the_judge_of_the_pools_queries(serve_roles, pool):
    roles = serve_roles(mistakes=0.5)
    query = pool.cell("Search", "en")[0]
    good, bad = serve_roles(name="good").solve([query])[0], serve_roles(1.0, name="bad").solve([query])[0]
    verdict = asyncio.run(judge_of(roles.url, roles.client).compare(query, good, bad))
    assert verdict.totals[0] > verdict.totals[1]
    unknown = replace(query, query="What is there to see?")
    assert asyncio.run(judge_of(roles.url, roles.client).compare(unknown, good, bad)) is not None  # only noise


def test_refiner_and_teacher_refuse_an_unknown_query(serve_roles, pool):
    roles = serve_roles()
    reply = roles.refine("Write a poem about the sea.")
    assert not reply.can_be_served and reply.reason
    assert not roles.solve([replace(pool.cell("Search", "en")[0], query="Write a poem about the sea.")])[0].valid


@pytest.mark.slow(seconds=5)
def test_a_server_in_another_process_gives_the_same_replies(serve_roles, compact, pool, tmp_path):
    def replies(roles):
        trajectories = roles.solve(sample(pool, 1))
        pairs = zip(sample(pool, 1), trajectories, strict=True)
        return roles.generate(), [each.messages for each in trajectories], [roles.inspect(*pair) for pair in pairs]

    options = ("--mistakes", "0.4", "--inspector-error", "0")
    with running_roles(str(ROOT / "configs" / "data" / "local.yaml"), [], free_port(), *options) as url:
        assert replies(Roles(url, tmp_path / "other", compact)) == replies(serve_roles(mistakes=0.4))


def test_another_world_is_refused():
    config = load_config(ROOT / "configs" / "research" / "quickstart.yaml")
    with pytest.raises(UserError, match="travel world alone, not with environment.domain=research"):
        RoleServer(config, 0.0, 0.0)
