"""A build with the user's own tools and queries, without truth or constraints, on a server that reads the prompts."""

import json
import re
from collections import Counter

import pytest
import small_world
from aiohttp import web
from judge_servers import completion, serving

from arenarl.config.load import load_config
from arenarl.synthesis.prompts import DIMENSIONS, read_sections
from arenarl.synthesis.stages import STAGES, run
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.trajectory import read_jsonl, read_turns

DISHES = ("soup", "pie", "tea")
PASSES = {"passes": True, "turn": 0, "problem": ""}
OWN = {"environment.name": "small_world:Menu", "environment.domain": "travel"}


class Models:
    """A server of all roles: the teacher invents a price for pies, the inspector demands politeness."""

    def __init__(self):
        self.requests, self.number = Counter(), 0
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._reply)

    async def _reply(self, request):
        body = await request.json()
        self.requests[body["model"]] += 1
        text = getattr(self, body["model"])(body["messages"])
        return completion(text if isinstance(text, str) else json.dumps(text))

    def generator(self, messages):
        queries = json.loads(messages[1]["content"].splitlines()[-1])["queries"]
        for index in range(len(queries)):
            self.number += 1
            dish = f"{DISHES[self.number % 3]} number {self.number} at table {self.number * 7}"
            queries[index] = f"What does {dish} come to for {self.number + 2} guests?"
        return {"queries": queries}

    def refiner(self, messages):
        return {"query": read_sections(messages)["Query"][0], "can_be_served": True, "reason": ""}

    def teacher(self, messages, is_right=False):
        texts = [message["content"] or "" for message in messages if message["role"] != "system"]
        dish = next(dish for dish in DISHES if dish in texts[0])
        results = [text for text in texts if "costs" in text]
        if not results:
            return f'<tool_call>\n{{"name": "price_of", "arguments": {{"dish": "{dish}"}}}}\n</tool_call>'
        price = re.search(r"costs (\d+)", results[-1])[1] if is_right or dish != "pie" else "777"
        return f"<answer>\nOne {dish} costs {price} yuan{', dear guest' if is_right else ''}.\n</answer>"

    def rewriter(self, messages):
        assert any(word in messages[0]["content"] for word in ("777", "polite")), messages[0]
        return self.teacher(messages, is_right=True)

    def inspector(self, messages):
        is_polite = "dear guest" in messages[1]["content"]
        content = PASSES if is_polite else {"passes": False, "turn": 2, "problem": "It is not polite."}
        return {name: content if name == "content" else PASSES for name in DIMENSIONS}


def build(folder, models, roles, **keys):
    """Run all stages with these models and roles."""
    (folder / "seeds.txt").write_text("What is the price of soup for two?\nIs tea cheaper than pie tonight?\n")
    with serving(models.app) as url:
        llm = {"name": "llm", "base_url": url, "api_key_variable": None, "price_in": 1.0, "price_out": 1.0}
        settings = {
            "name": "own", "data.folder": str(folder / "built"), "data.language": "en", "data.sft_size": 6,
            "data.rl_size": 4, "data.test_per_subtask": 2, "data.baseline_attempts": 1, "build.attempts": 1,
            "build.seeds": "seeds.txt", "build.near_duplicate": 1.0,
            "build.generators": [llm | {"model": "generator", "style": "plain"}],
            **{f"build.{role}": llm | {"model": role} for role in roles},
        }  # fmt: skip
        overrides = [f"{key}={json.dumps(value)}" for key, value in (settings | keys).items()]
        run(load_config(CONFIGS / "quickstart.yaml", overrides), list(STAGES))


def test_own_tools_and_queries_become_inspected_data(tmp_path, monkeypatch):
    """Kept turns need no request but repeat their calls. The rules find the invented price before a paid call."""
    monkeypatch.chdir(tmp_path)
    small_world.Menu.calls.clear()
    models, stages = Models(), tmp_path / "runs" / "own" / "build"
    build(tmp_path, models, ("refiner", "teacher", "inspector", "rewriter"), **OWN)
    sft = list(read_jsonl(tmp_path / "built" / "sft.jsonl"))
    answers = [read_turns(record["messages"])[-1].answer for record in sft]
    assert len(sft) == 6 and all("dear guest" in answer and "777" not in answer for answer in answers)
    others = [message for record in sft for message in record["messages"] if message["role"] != "assistant"]
    assert not any("dear guest" in message["content"] for message in others)
    inspected = [record["rounds"] for record in read_jsonl(stages / "inspected.jsonl")]
    rewritten = sum(len(rounds) > 1 for rounds in inspected)
    assert 0 < models.requests["rewriter"] == rewritten  # the last turn of each, and no more
    first = len(list(read_jsonl(stages / "trajectories.jsonl"))) + 2  # with the baselines
    assert len(small_world.Menu.calls) == first + rewritten
    assert {problem["rule"] for rounds in inspected for problem in rounds[0]} == {"facts", "content"}


FAILS = {"passes": False, "turn": 1, "problem": "It is not polite."}
INVENTED = "<answer>\nThe soup costs 777 yuan.\n</answer>"


@pytest.mark.parametrize(("change", "keys", "message"), [
    ({"teacher": lambda messages: INVENTED}, {}, "the split test: their baselines are dropped for: facts 2"),
    ({"inspector": lambda messages: dict.fromkeys(DIMENSIONS, FAILS)}, {"build.rounds": 0}, "sft: .* content [1-9]"),
    ({}, {"build.generators": []}, "split sft and rl: add seeds or generators"),
    ({}, {"build.generators": [], "build.test_seeds": "seeds.txt"}, "split sft and rl: add seeds"),
], ids=["test", "sft", "no generator", "test seeds"])  # fmt: skip
def test_a_split_without_a_query_ends_the_build_before_a_paid_stage(tmp_path, monkeypatch, change, keys, message):
    monkeypatch.chdir(tmp_path)
    models = Models()
    vars(models).update(change)
    with pytest.raises(UserError, match=message):
        build(tmp_path, models, ("refiner", "teacher", "inspector"), **OWN | {"build.rounds": 1} | keys)
    assert not (tmp_path / "built" / "test_queries.jsonl").exists()
    assert models.requests["inspector"] == 0 or "sft:" in message


def test_a_domain_without_tools_is_built_with_two_roles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = Models()
    answer = "<answer>\nDear guest, the soup is thirty, and the pie is more than that.\n</answer>"
    models.teacher = lambda messages: answer
    keys = {"environment.name": "none", "environment.domain": "writing", "rollout.max_turns": 1}
    build(tmp_path, models, ("teacher",), **keys)
    assert len(list(read_jsonl(tmp_path / "built" / "sft.jsonl"))) == 6
    assert set(models.requests) == {"generator", "teacher"}
    assert "inspection" not in (tmp_path / "built" / "README.md").read_text().split("## Splits")[0]
