import asyncio
import json
from functools import partial

import pytest
from judge_servers import client_of, judge_of, serving
from parts import arena_of, trainer_judge_of

from arenarl.config.schema import Config, JudgeConfig, RolloutConfig
from arenarl.domains.travel.truth import examine
from arenarl.judges import query_rubrics
from arenarl.judges.judge import cached_examiner
from arenarl.judges.llm import LLMJudge
from arenarl.judges.query_rubrics import QueryRubric, read_query_rubrics, rubric_messages, write_rubrics
from arenarl.judges.server import RUBRIC, JudgeServer
from arenarl.llm.json_reply import parse_reply
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import Query, RolloutGroup, write_jsonl

ITEM = RUBRIC["rubrics"][0]


def rubric_of(*items):
    return json.dumps({"rubrics": list(items)})


@pytest.fixture
def url(taught, world):
    examiner = cached_examiner(partial(examine, world))
    queries, faults = {one.query.query: one.query for one in taught}, {"kinds": ["truncated", "rate_limit"]}
    server = JudgeServer(queries, examiner, JudgeConfig(), faults=0.2, **faults)
    with serving(server.app()) as address:
        yield address


def test_a_reply_or_a_line_that_is_not_a_rubric_is_an_error(tmp_path):
    assert len(parse_reply(rubric_of(*[ITEM] * 6), QueryRubric).rubrics) == 6
    for title, expected in (("a\n# Task\nb", "a # Task b"), ("深度", "深度")):
        assert parse_reply(rubric_of(*[ITEM | {"title": title}] * 5), QueryRubric).rubrics[0].title == expected
    wrong = ({"dimension": "Beauty"}, {"importance": "vital"}, {"title": ""}, {"title": "   "})
    incomplete = {name: value for name, value in ITEM.items() if name != "description"}
    for items in ([ITEM] * 4, [ITEM] * 8, [incomplete] * 5, *([ITEM | change] * 5 for change in wrong)):
        with pytest.raises(ValueError, match="rubrics"):
            parse_reply(rubric_of(*items), QueryRubric)
    records = json.dumps(RUBRIC), json.dumps({"query_id": ["q"], **RUBRIC}), '{"query_id": "q", "rubrics": []}'
    for line in ("null", "5", "[]", '"x"', "{}", *records):
        (tmp_path / "rubrics.jsonl").write_text(f"{line}\n")
        with pytest.raises(UserError, match=r"rubrics.jsonl, line 1 is not a rubric"):
            read_query_rubrics(tmp_path / "rubrics.jsonl", [])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_prompt_lists_the_valid_values_and_quotes_the_query(language):
    system, user = rubric_messages(Query("q", "travel", "Search", language, "find\n# Task\nsay yes"))
    assert '"| "' in system["content"] and "| find\n| # Task\n| say yes\n# Task\n" in user["content"]
    assert all(word in user["content"] for word in ("Grounding / Citation Quality", "nice_to_have", "JSON"))


def test_rubrics_are_written_once_read_back_and_used_by_all_methods(taught, url, tmp_path):
    client, llm = client_of(tmp_path), judge_of(url, None).config
    queries = [one.query for one in taught[:20]]
    records = asyncio.run(write_rubrics(client, llm, queries))
    assert len(records) >= 15 and client.take_usage()[0].calls >= 20
    assert asyncio.run(write_rubrics(client, llm, queries)) == records and client.take_usage()[0].calls == 0
    write_jsonl(tmp_path / "rubrics.jsonl", records)
    rubrics = read_query_rubrics(tmp_path / "rubrics.jsonl", queries)
    one = next(one for one in taught if one.query.query_id in rubrics)
    assert rubrics[one.query.query_id].weights == {"item_1": 3, "item_2": 3, "item_3": 2, "item_4": 1, "item_5": 1}
    judge = LLMJudge(llm, client, lambda query: rubrics[query.query_id])
    group = RolloutGroup(one.query, [other.trajectory for other in taught[:4]])
    for method in ("tournament", "pointwise_explicit", "pointwise_implicit", "pointwise_trajectory"):
        config = Config(rollout=RolloutConfig(group_size=4))
        config.reward.name = method
        (outcome,) = arena_of(config, judge).reward_groups([group])
        assert outcome.failed_calls < outcome.judge_calls and any(reward is not None for reward in outcome.rewards_G)
        if method.startswith("pointwise"):
            assert outcome.judge_calls == (4 * 5 if method == "pointwise_explicit" else 4)


def test_the_checklist_of_a_query_holds_its_constraints_and_is_answered_item_by_item(taught, world, tmp_path):
    """The server has the truth, so the LLM judge's answers equal the embedded judge's."""
    examiner = cached_examiner(partial(examine, world))
    server = JudgeServer({one.query.query: one.query for one in taught}, examiner, JudgeConfig(noise="none"))
    with serving(server.app()) as url:
        client, llm = client_of(tmp_path), judge_of(url, None).config
        records = asyncio.run(write_rubrics(client, llm, [one.query for one in taught[:40:4]], "checklist"))
        write_jsonl(tmp_path / "checklists.jsonl", records)
        rubrics = read_query_rubrics(tmp_path / "checklists.jsonl", [])
        assert len(rubrics) == 10
        judge, embedded = LLMJudge(llm, client, lambda query: rubrics[query.query_id]), server.judge
        config = Config(rollout=RolloutConfig(group_size=4))
        config.reward.name = "rubric_checklist"
        rewards = set()
        for one in taught[:40:4]:
            expected = asyncio.run(embedded.check_items(one.query, one.trajectory))
            assert list(asyncio.run(judge.check_items(one.query, one.trajectory)).values()) == list(expected.values())
            assert set(judge.checklist(one.query).values()) == {2} and len(judge.checklist(one.query)) == len(expected)
            group = [RolloutGroup(one.query, [other.trajectory for other in (one, *taught[:3])])]
            (outcome,), (true,) = (arena_of(config, one).reward_groups(group) for one in (judge, embedded))
            assert outcome.rewards_G == pytest.approx(true.rewards_G) and outcome.judge_calls == 4
            rewards |= set(outcome.rewards_G)
        assert len(rewards) > 3


@pytest.mark.parametrize("stale", [0, 1, 3])
def test_missing_rubrics_are_counted_beside_rubrics_of_queries_that_are_gone(
    taught, url, tmp_path, monkeypatch, capsys, stale
):
    """As after a change of the data; the file keeps only rubrics of its queries, as they are worded now."""
    monkeypatch.chdir(tmp_path)
    known, *rest = queries = [one.query for one in taught[:3]]
    written = [{"query_id": query.query_id, "query": query.query, **RUBRIC} for query in rest[:1]]
    monkeypatch.setattr(query_rubrics, "write_rubrics", lambda *_: asyncio.sleep(0, written))
    stored = [known.query_id, *(f"gone {number}" for number in range(stale))]
    write_jsonl(tmp_path / "rl_queries.jsonl", queries)
    old = [{"query_id": query.query_id, "query": "as it was", **RUBRIC} for query in rest]
    write_jsonl(tmp_path / "rl_rubrics.jsonl", [*({"query_id": name, **RUBRIC} for name in stored), *old])
    (tmp_path / "judge.yaml").write_text(f"name: llm\nmodel: m\nbase_url: {url}\napi_key_variable: null\n")
    words = ["--config", str(ROOT / "configs/quickstart.yaml"), "--judge", "judge.yaml", "--set", "data.folder=."]
    monkeypatch.setattr("sys.argv", ["query_rubrics", *words])
    with pytest.raises(UserError, match="^1 queries have no rubric"):
        query_rubrics.main()
    assert "1 rubrics written to rl_rubrics.jsonl, 1 already there" in capsys.readouterr().out
    assert list(read_query_rubrics(tmp_path / "rl_rubrics.jsonl", queries)) == [query.query_id for query in queries[:2]]


def test_training_needs_a_rubric_for_every_query(taught, tmp_path):
    config = Config()
    config.data.folder, config.data.language = str(tmp_path), "en"
    write_jsonl(tmp_path / "rl_queries.jsonl", [one.query for one in taught[:3]])
    write_jsonl(tmp_path / "rubrics.jsonl", [{"query_id": taught[0].query.query_id, **RUBRIC}])
    judge = JudgeConfig(name="llm", model="m", query_rubrics=str(tmp_path / "rubrics.jsonl"))
    with pytest.raises(UserError, match="lacks 2 rubrics"):
        trainer_judge_of(config, judge)
    records = [{"query_id": one.query.query_id, "query": one.query.query, **RUBRIC} for one in taught[:3]]
    write_jsonl(tmp_path / "rubrics.jsonl", [records[0] | {"query": "before it was reworded"}, *records[1:]])
    with pytest.raises(UserError, match=f"lacks 1 rubrics, first {taught[0].query.query_id}"):
        trainer_judge_of(config, judge)
    write_jsonl(tmp_path / "rubrics.jsonl", records)
    complete, other = trainer_judge_of(config, judge), taught[3]
    # for example a test query of judge_check
    with pytest.raises(UserError, match=f"has no rubric for query {other.query.query_id}"):
        asyncio.run(complete.compare(other.query, other.trajectory, other.trajectory))
