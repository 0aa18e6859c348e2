"""Valid replies of an LLM judge: listwise scores by the agents' numbers, and an answer to every checklist item."""

import asyncio
import copy
import hashlib
import json
from itertools import permutations

import pytest
from groups import QUERY, attempt
from judge_servers import Script, client_of, judge_of, serving

from arenarl.config.load import load_config
from arenarl.config.schema import JudgeConfig
from arenarl.judges.factory import refuse_answers_alone
from arenarl.judges.judge import rubric_of, scores_and_detail
from arenarl.judges.llm import LLMJudge, checklist_reply, scores_reply
from arenarl.judges.prompts import render
from arenarl.llm.json_reply import parse_reply
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS

GROUP = [attempt(1.0), attempt(2.0), attempt(3.0)]


def listed(*scores):
    return json.dumps({"scores": [{"agent": agent, "explanation": "so", "score": score} for agent, score in scores]})


def score_together(folder, *replies):
    """Make a listwise call that gets these replies; return (scores, the server, the usage)."""
    server = Script(*replies)
    with serving(server.app) as url:
        client = client_of(folder)
        scores = asyncio.run(judge_of(url, client).score_together(QUERY, GROUP))
        return scores, server, client.take_usage()[0]


def test_listwise_scores_are_matched_to_agents_in_any_order(tmp_path):
    scores, server, _ = score_together(tmp_path, listed((3, 9.0), (1, 2.5), (2, 4.0)))
    assert scores == [2.5, 4.0, 9.0]
    (request,) = server.requests
    text = request["messages"][1]["content"]
    assert all(f"# Agent {number}\n" in text for number in (1, 2, 3)) and "each of the 3 agents" in text.lower()
    assert text.rpartition("\n")[2].count('"explanation"') == 3
    scores = request["response_format"]["json_schema"]["schema"]["properties"]["scores"]
    assert (scores["minItems"], scores["maxItems"]) == (3, 3)


@pytest.mark.parametrize("wrong", [
    listed((1, 5.0), (2, 5.0)), listed((1, 5.0), (2, 5.0), (2, 7.0)), listed((1, 5.0), (2, 5.0), (4, 5.0)),
    listed((0, 5.0), (1, 5.0), (2, 5.0)), listed((1, 5.0), (2, 5.0), (3, 5.0), (3, 5.0)),
    listed((1, 5.0), (2, 5.0), (3, 11.0)), listed((1, 5.0), (2, 5.0), ("3", 5.0)),
    listed((1, 5.0), (2, 5.0), (3, None)), listed((1, 5.0), (2, 5.0), (True, 5.0)), '{"scores": [5, 5, 5]}',
    '{"scores": {"1": 5, "2": 5, "3": 5}}', '{"scores": []}', "{}",
])  # fmt: skip
def test_a_reply_with_missing_or_repeated_agents_is_requested_once_more(tmp_path, wrong):
    scores, server, usage = score_together(tmp_path, wrong)
    assert scores is None and len(server.requests) == 2 and (usage.failed, usage.unreadable) == (1, 2)
    scores, server, usage = score_together(tmp_path / "again", wrong, listed((2, 1.0), (1, 2.0), (3, 3.0)))
    assert scores == [2.0, 1.0, 3.0] and usage.failed == 0
    assert "could not be used" in server.requests[1]["messages"][-1]["content"]


class Prompts:
    """A client that keeps the prompts and has no replies."""

    def __init__(self):
        self.texts = []

    async def ask(self, config, messages, *_, **__):
        self.texts.append(messages[1]["content"])


def test_a_trajectory_is_rendered_once_per_view_whatever_the_number_of_its_prompts():
    client, group = Prompts(), copy.deepcopy(GROUP)
    judge = LLMJudge(JudgeConfig(name="llm", model="m"), client)

    async def play():
        for first, second in permutations(group, 2):
            await judge.compare(QUERY, first, second)
        await judge.score_together(QUERY, group)

    render.cache_clear()
    for _ in range(2):
        asyncio.run(play())
        assert render.cache_info().misses == len(group)
    for _, trajectory in permutations(group, 2):
        asyncio.run(judge.score(QUERY, trajectory, answer_only=True))
    assert render.cache_info().misses == 2 * len(group)
    group[0].messages[-1]["content"] = "<answer>\nchanged later\n</answer>"
    asyncio.run(judge.score(QUERY, group[0]))
    assert "changed later" in client.texts[-1] and len(client.texts) == 2 * 7 + 6 + 1


def test_a_checklist_reply_must_answer_every_item_also_one_named_name_with_true_or_false():
    reply = checklist_reply(("item_1", "item_2"))
    items = parse_reply('{"items": {"item_2": true, "item_1": false}}', reply).items
    assert items.model_dump() == {"item_1": False, "item_2": True}
    for wrong in ('{"items": {"item_1": true}}', '{"items": {"item_1": true, "item_2": "true"}}',
                  '{"items": {"item_1": true, "item_2": 1}}',
                  '{"items": {"item_1": true, "item_2": null}}', '{"item_1": true, "item_2": true}'):  # fmt: skip
        with pytest.raises(ValueError, match="item"):
            parse_reply(wrong, reply)
    assert "name" in scores_reply(1, ("name", "b")).model_json_schema()["$defs"]["Scores"]["properties"]
    assert "name" in str(checklist_reply(("name",)).model_json_schema())


def test_new_rubrics_repeat_no_item_of_the_prompt_and_are_not_both_merit_and_fault(tmp_path):
    """A reply may copy an item's name, its text, or its line of the prompt, on two lines too."""
    item, present = rubric_of(QUERY).items[0], "Cites\nsources."
    copied = [item.name, item.description, f"{item.name}: {item.description}", "rubric_1"]
    reply = {"merits": [*copied, "Short."], "faults": [f"rubric_1:\n{present}", present, "Both.", "Vague."]}
    server = Script(json.dumps(reply), json.dumps({"merits": ["Both."], "faults": ["Both."]}))
    with serving(server.app) as url:
        judge = judge_of(url, client_of(tmp_path))
        assert asyncio.run(judge.propose_rubrics(QUERY, GROUP, [present])) == {
            "Short.": 1.0,
            "Both.": -1.0,
            "Vague.": -1.0,
        }
        assert asyncio.run(judge.propose_rubrics(QUERY, GROUP, [])) == {}


@pytest.mark.parametrize(("overrides", "problem"), [
    (["judge.train.name=llm", "judge.train.model=m", "reward.name=pointwise_answer"],
     "reward.name=pointwise_answer: .* babyai end without"),
    (["judge.eval.0.name=llm", "judge.eval.0.model=m", "judge.eval.0.process_aware=false"],
     "judge.eval.0.process_aware=false: .* set it to true"),
    (["judge.watch.name=llm", "judge.watch.model=m", "judge.watch.process_aware=false", "judge.watch_share=0.5"],
     "judge.watch.process_aware=false"),
    (["judge.train.name=llm", "judge.train.model=m", "reward.name=pointwise_trajectory"], None),
    (["reward.name=pointwise_trajectory"], None),
    (["reward.name=pointwise_answer"], "reward.name=pointwise_answer: .* babyai end without"),
])  # fmt: skip
def test_judging_answers_alone_is_an_error_if_trajectories_end_without_an_answer(overrides, problem):
    config = load_config(CONFIGS / "agentgym" / "babyai.yaml", overrides)
    if problem is None:
        return refuse_answers_alone(config, is_training=True)
    with pytest.raises(UserError, match=problem):
        refuse_answers_alone(config, is_training=True)
    if "judge.eval" not in problem:
        refuse_answers_alone(config, is_training=False)
    refuse_answers_alone(load_config(CONFIGS / "quickstart.yaml", overrides), is_training=True)


def test_a_reason_is_requested_only_for_comparisons_and_only_if_explain_is_set(tmp_path):
    scores = {"answer_clarity": 5.0}
    reply = {"reason": "the first is clearer", "agent_1": scores, "agent_2": scores}
    bodies = {}
    for explain in (False, True):
        server = Script(json.dumps({key: reply[key] for key in reply if explain or key != "reason"}))
        with serving(server.app) as url:
            judge = judge_of(url, client_of(tmp_path / str(explain)), explain=explain)
            judge.rubric = lambda query: rubric_of(query).only("answer_clarity")
            verdict = asyncio.run(judge.compare(QUERY, *GROUP[:2]))
            asyncio.run(judge.score(QUERY, GROUP[0]))
        assert verdict.dimensions == (scores, scores) and verdict.reason == (reply["reason"] if explain else "")
        assert scores_and_detail(verdict)[2] == [scores, scores, *([reply["reason"]] if explain else [])]
        bodies[explain] = [[body["messages"], body["response_format"]] for body in server.requests]
    assert bodies[True][1:] == bodies[False][1:] and "reason" not in json.dumps(bodies[False])
    forms = [body[0][0][1]["content"].rpartition("\n")[2] for body in (bodies[True], bodies[False])]
    assert forms[0] == forms[1].replace('{"agent_1"', '{"reason": "<one sentence>", "agent_1"', 1)
    digest = hashlib.sha256(json.dumps(bodies[False][0]).encode()).hexdigest()
    assert digest[:16] == "b26ec70d118fb4e9"  # of the version before `explain`
