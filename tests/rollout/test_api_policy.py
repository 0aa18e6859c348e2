"""Closed models as policies, with a real HTTP server on localhost that plays the model."""

import json
from dataclasses import replace

import pytest
from aiohttp import web
from judge_servers import CALL_LIMITS, client_of, serving
from policies import observations_of
from scripts import ROOT, read, run_well

from arenarl.config.load import load_config
from arenarl.config.schema import LLMConfig, RolloutConfig
from arenarl.llm.client import RunStopped, open_client
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.rollout.environment import NoTools
from arenarl.rollout.system_prompt import default_prompt
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, native_call, parse_turn, read_turns, reply_message

KEY = "sk-secret-of-the-tests"
LIMITS = RolloutConfig(max_turns=3, max_tokens=900, max_turn_tokens=300)
ANSWER = "<answer>\nLotus Park ¥20\n</answer>"


def native(name, arguments, call_id="call_a", **fields):
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"content": None, "tool_calls": [call], **fields}


LOOK = native("search_poi", '{"query": "Lotus Park"}')
IN_TEXT = '<tool_call>\n{"name": "search_poi", "arguments": {"query": "Lotus Park"}}\n</tool_call>'


class Policy:
    """A chat-completions server. `play(body, turn)` returns a text, a message (maybe with its finish_reason), or
    (status, error message). A reply costs 100 tokens, a message of the prompt 50."""

    def __init__(self, play, key=None):
        self.play, self.key, self.bodies = play, key, []
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._reply)

    async def _reply(self, request):
        if self.key and request.headers["Authorization"] != f"Bearer {self.key}":
            return _error(401, f"wrong key {request.headers['Authorization']}")
        body = await request.json()
        self.bodies.append(body)
        reply = self.play(body, sum(message["role"] == "assistant" for message in body["messages"]))
        if isinstance(reply, tuple):
            return _error(*reply)
        reply = {"content": reply} if isinstance(reply, str) else dict(reply)
        finish = reply.pop("finish_reason", "tool_calls" if reply.get("tool_calls") else "stop")
        tokens = 50 * len(body["messages"])
        return web.json_response({
            "id": "1", "object": "chat.completion", "created": 0, "model": "closed-2026-01-01",
            "choices": [{"index": 0, "message": {"role": "assistant", **reply}, "finish_reason": finish}],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 100, "total_tokens": tokens + 100},
        })  # fmt: skip


def _error(status, message):
    return web.json_response({"error": {"message": message}}, status=status, headers={"Retry-After": "0.05"})


def turns(*replies):
    """Return a `play` that gives the replies in order, the last for all later turns."""
    return lambda body, turn: replies[min(turn, len(replies) - 1)]


def query(number=0):
    return Query(f"q{number}", "travel", "Search", "en", f"Find quiet park number {number}.")


def engine_of(url, client, environment, config=LIMITS, **keys):
    llm = LLMConfig(name="llm", model="closed", base_url=url, **CALL_LIMITS | keys)
    return ApiRolloutEngine(llm, client, lambda: environment, config, "en")


def roll_out(tmp_path, environment, *replies, config=LIMITS, play=None):
    """Return a trajectory, and the server that played it."""
    policy = Policy(play or turns(*replies))
    with serving(policy.app) as url:
        engine = engine_of(url, client_of(tmp_path), environment, config)
        return engine.roll_out([Attempt(query(), 0.0, 7)])[0], policy


def test_without_tools_the_prompt_names_none_and_the_text_is_the_trajectory(tmp_path):
    trajectory, policy = roll_out(tmp_path, NoTools(), {"content": ANSWER, "reasoning_content": "hm"})
    (turn,) = read_turns(trajectory.messages)
    assert trajectory.valid and (turn.thought, turn.tool_calls) == ("hm", [])
    assert policy.bodies[0]["messages"][0]["content"] == default_prompt("en", has_tools=False)
    assert "tools" not in policy.bodies[0]


def test_a_native_tool_call_runs_and_the_answer_ends_the_trajectory(tmp_path, compact):
    """A limit of tool results in tokens does not apply; signatures and reasoning details are sent back."""
    signed = LOOK["tool_calls"][0] | {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}], "reasoning_content": "where?"}
    look, limits = LOOK | details | {"tool_calls": [signed | {"index": 0}]}, replace(LIMITS, max_result_tokens=1)
    trajectory, policy = roll_out(tmp_path, compact, look, ANSWER, config=limits)
    observation = compact.call("search_poi", {"query": "Lotus Park"})
    look, answer = read_turns(trajectory.messages)
    assert trajectory.valid and trajectory.answer == answer.answer == "Lotus Park ¥20"
    assert (look.thought, look.observations) == ("where?", [observation])
    assert look.tool_calls[0].arguments == {"query": "Lotus Park"}
    assert [message["role"] for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    counts = {"turns": 2, "tool_calls": 1, "tool_errors": 0, "policy_tokens": 200}
    assert trajectory.meta == counts | {"model": "closed-2026-01-01"}
    first, second = policy.bodies
    system, user = first["messages"]
    assert (system["content"], user["content"]) == (default_prompt("en"), query().query)
    assert first["tools"] == second["tools"] == compact.tools
    assert (first["temperature"], first["max_tokens"]) == (0.0, 300)
    call, result = second["messages"][2:]
    assert call["tool_calls"] == [signed] and call.items() >= details.items()
    assert result == {"role": "tool", "content": observation, "tool_call_id": "call_a"}


def test_native_calls_and_calls_in_the_text_each_get_their_results(tmp_path, compact):
    in_text = f"<think>\nhm\n</think>\n\n{IN_TEXT.replace('Lotus', 'Jade')}"
    trajectory, policy = roll_out(tmp_path, compact, LOOK | {"content": in_text}, f"<think>\nso\n</think>\n\n{ANSWER}")
    lotus, jade = (compact.call("search_poi", {"query": f"{name} Park"}) for name in ("Lotus", "Jade"))
    look, answer = read_turns(trajectory.messages)
    assert trajectory.valid and (look.thought, answer.thought) == ("hm", "so") and look.observations == [lotus, jade]
    tool, user = policy.bodies[1]["messages"][3:]
    assert (tool["content"], user["content"]) == (lotus, f"<tool_response>\n{jade}\n</tool_response>")


DEEP = ['{"query": ' + "[" * depth + "]" * depth + "}" for depth in (70, 5000)]


@pytest.mark.parametrize("reply", [
    native("search_poi", '{"query": '), native("search_poi", "[" * 10_000), native("search_poi", '"Lotus Park"'),
    native("", "{}"), native("fly", '{"to": "moon"}'), native("search_poi", None),
    native("search_poi", '{"query": "\\ud800"}'), {"content": None, "tool_calls": [{"id": None, "function": None}]},
    "<tool_call>\n{broken\n</tool_call>", *(native("search_poi", deep) for deep in DEEP),
    *(IN_TEXT.replace('{"query": "Lotus Park"}', deep) for deep in DEEP),
], ids=range(13))  # fmt: skip
def test_a_malformed_call_becomes_an_observation_and_the_next_request_is_valid(tmp_path, compact, reply):
    trajectory, policy = roll_out(tmp_path, compact, reply, ANSWER)
    (observation,) = observations_of(trajectory)[0]
    assert trajectory.valid and (observation.startswith("Error: ") or observation == "no results")
    assert ("more than 64 brackets" in observation) == ("[" * 65 in str(reply))
    for call in policy.bodies[1]["messages"][2].get("tool_calls", []):
        assert isinstance(json.loads(call["function"]["arguments"]), dict) and call["function"]["name"] and call["id"]
    json.dumps(trajectory.to_record()).encode()


@pytest.mark.parametrize(("replies", "limits", "expected"), [
    (["Lotus Park is nice."], {}, "no_answer"), ([""], {}, "no_answer"), ([f"Here: {ANSWER}"], {}, "no_answer"),
    ([LOOK], {}, "max_turns"), ([{"content": ANSWER, "finish_reason": "length"}], {}, "max_tokens"),
    # at the end 4 more messages in the prompt and the last reply: 200 + 100
    ([LOOK, LOOK, ANSWER], {"max_tokens": 500}, "answer"),
    ([LOOK, LOOK, ANSWER], {"max_tokens": 299}, "max_tokens"),
])  # fmt: skip
def test_stop_reasons_equal_those_of_other_policies(tmp_path, compact, replies, limits, expected):
    config = RolloutConfig(max_turns=3, max_turn_tokens=300, **({"max_tokens": 900} | limits))
    trajectory, policy = roll_out(tmp_path, compact, *replies, config=config)
    assert trajectory.stop_reason == expected and trajectory.valid == (expected == "answer")
    assert all(0 < body["max_tokens"] <= 300 for body in policy.bodies) and len(policy.bodies) <= 3


@pytest.mark.parametrize(("keys", "sent"), [
    ({"token_limit_name": "max_completion_tokens", "extra_body": {"effort": "low"}},
     {"temperature": 0.8, "max_completion_tokens": 300, "effort": "low"}),
    ({}, {"temperature": 0.8, "max_tokens": 300}), ({"temperature": None}, {"max_tokens": 300}),
])  # fmt: skip
def test_the_config_sets_how_temperature_and_limit_are_sent(tmp_path, compact, keys, sent):
    policy = Policy(turns(ANSWER))
    with serving(policy.app) as url:
        engine_of(url, client_of(tmp_path), compact, **keys).roll_out([Attempt(query(), 0.8, 1)])
    names = {"temperature", "max_tokens", "max_completion_tokens", "effort"}
    assert {name: value for name, value in policy.bodies[0].items() if name in names} == sent


@pytest.mark.parametrize("calls", ["x", 7, [None], ["f"], [{"function": "f"}], [{"id": {}, "function": {}}]])
def test_a_reply_with_malformed_tool_calls_is_requested_again(tmp_path, compact, calls):
    replies = [{"content": None, "tool_calls": calls}, ANSWER]
    trajectory, policy = roll_out(tmp_path, compact, play=lambda body, turn: replies.pop(0))
    assert trajectory.valid and len(policy.bodies) == 2 and policy.bodies[0] == policy.bodies[1]


def test_a_rerun_makes_no_call_and_other_seeds_make_other_calls(tmp_path, compact):
    policy = Policy(turns(LOOK, ANSWER))
    with serving(policy.app) as url:
        attempts = [Attempt(query(), 0.8, seed) for seed in (1, 2)]
        first = engine_of(url, client_of(tmp_path), compact).roll_out(attempts)
        assert len(policy.bodies) == 4
    client = client_of(tmp_path, store_only=True)
    assert engine_of(url, client, compact).roll_out(attempts) == first and client.take_usage()[0].calls == 0
    with pytest.raises(RunStopped, match="store_only"):
        engine_of(url, client, compact).roll_out([Attempt(query(), 0.8, 3)])


def test_a_query_that_the_api_refuses_has_no_answer_and_too_many_stop_the_run(tmp_path, compact):
    """The refusal repeats a prompt that the API cut inside an emoji, and can be stored."""
    refusal = 400, "filtered: \ud83d"
    policy = Policy(lambda body, turn: refusal if "number 3." in body["messages"][1]["content"] else ANSWER)
    with serving(policy.app) as url:
        engine = engine_of(url, client_of(tmp_path), compact)
        trajectories = engine.roll_out([Attempt(query(number), 0.0, 1) for number in range(8)])
        assert [trajectory.valid for trajectory in trajectories] == [number != 3 for number in range(8)]
        write_json(tmp_path / "meta.json", trajectories[3].meta)
        refused = read_json(tmp_path / "meta.json")["refused"]
        assert trajectories[3].stop_reason == "no_answer" and "filtered: ?" in refused
        refused = r"refused 1 of 2 queries, above judge\.max_failure_share=0\.2; the last refusal: .*filtered"
        with pytest.raises(UserError, match=refused):
            engine.roll_out([Attempt(query(number), 0.0, 1) for number in (2, 3)])


def test_an_api_that_stays_silent_stops_the_run(tmp_path, compact):
    policy = Policy(turns((503, "down")))
    with serving(policy.app) as url, pytest.raises(RunStopped, match="no usable reply from"):
        engine_of(url, client_of(tmp_path), compact, patience_s=0.5).roll_out([Attempt(query(), 0.0, 1)])
    with pytest.raises(UserError, match="is behind an API and cannot be trained; set evaluate.api"):
        engine_of(url, client_of(tmp_path), compact).roll_out_groups([query()], seed=0)


def test_the_key_is_in_no_error_and_in_no_file(tmp_path, compact):
    policy = Policy(turns(ANSWER), key=KEY)
    with serving(policy.app) as url:
        good, bad = (client_of(tmp_path, keys={"POLICY_KEY": key}) for key in (KEY, KEY[:-1]))
        good, bad = (engine_of(url, client, compact, api_key_variable="POLICY_KEY") for client in (good, bad))
        (trajectory,) = good.roll_out([Attempt(query(), 0.0, 1)])
        with pytest.raises(RunStopped) as error:
            bad.roll_out([Attempt(query(1), 0.0, 1)])
    assert trajectory.valid and KEY[:-1] not in str(error.value) and "***" in str(error.value)
    assert KEY not in json.dumps(trajectory.to_record())
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_native_message_equals_the_text_form():
    text = reply_message({"content": f"<think>\nhm\n</think>\n\n{IN_TEXT}"})
    native = native_call("search_poi", '{"query": "Lotus Park"}')
    assert reply_message({"reasoning_content": "hm", "content": None}, [native]) == text
    assert parse_turn(reply_message({"content": ANSWER}, [native])).answer is None  # an answer beside a call


@pytest.mark.slow(seconds=16)
def test_evaluate_judges_a_closed_model_like_a_checkpoint(tmp_path):
    sizes = {"data__sft_size": 20, "data__rl_size": 5, "data__test_per_subtask": 1}
    run_well(tmp_path, "data/prepare.py", "travel", **sizes)
    policy = Policy(turns(native("search_poi", '{"query": "park"}'), ANSWER), key=KEY)
    options = {"name": "closed", "evaluate__decodings": ["greedy"], "extra_environment": {"POLICY_KEY": KEY}, **sizes}
    with serving(policy.app) as url:
        model = {"name": "llm", "model": "closed", "base_url": url, "api_key_variable": "POLICY_KEY"}
        model |= {"price_in": 1.0, "price_out": 2.0}
        printed = run_well(tmp_path, "evaluate.py", evaluate__api={"one": model}, **options)
    for words in ("at most 40 LLM calls", "LLM calls: 10 paid for", "closed so far: 11 calls"):
        assert words in printed
    summary = read(tmp_path / "runs" / "closed" / "summary.json")
    greedy, provenance = summary["one"]["greedy"], summary["provenance"]["api_policies"]["one"]
    assert summary["checkpoints"] == ["one"] and provenance["model"] == "closed"
    assert (greedy["valid_rate"]["mean"], greedy["tool_calls"]["mean"]) == (100.0, 1.0)
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(("override", "message"), [
    ("policy.model=configs/policies/gpt_4o.yaml", "cannot be trained"),
    ("rl.init=configs/policies/gpt_4o.yaml", "cannot be trained"),
    ("evaluate.checkpoints.a=configs/policies/gpt_4o.yaml", "evaluate.api={a: {base: configs/policies/gpt_4o.yaml}}"),
    ("evaluate.checkpoints.gpt-4o=x", "choose another"),
    ("evaluate.api={a: {}}", "set its name to llm"), ("evaluate.api.a=7", "is a section"),
    ("evaluate.api={a.b: {name: llm}}", "letters, digits"), ("evaluate.api=[a]", "mapping from names to sections"),
    ("evaluate.api.gpt-4o.pric_in=1", "did you mean evaluate.api.gpt-4o.price_in"),
    ("evaluate.api.gpt-4o.timeout_s=0", "must be above 0"),
    ("evaluate.api.gpt-4o.base_url=ftp://x", "http"), ("evaluate.api.gpt-4o.model=null", "model is missing"),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(override, message):
    with pytest.raises(UserError, match=r"^[^\n]+$") as error:
        load_config(ROOT / "configs/travel/closed_models.yaml", [override])
    assert message in str(error.value)


def test_every_policy_file_is_whole_and_a_missing_key_is_refused_at_the_start(monkeypatch):
    settings = ["evaluate.api.gpt-4o.timeout_s=7", "evaluate.checkpoints={mine: here}"]
    files = {path.stem: path for path in (ROOT / "configs" / "policies").glob("*.yaml")}
    for name, path in files.items():
        settings.append(f"evaluate.api.{name}.base={path}")
    config = load_config(ROOT / "configs/travel/closed_models.yaml", [*settings, "judge.max_cost=1"])
    evaluated = config.evaluated
    for model in (evaluated[name] for name in files):
        assert model.model and model.api_key_variable and model.price_in and model.price_out, model
    assert {"gpt-4o", "grok-4", "gemini-2_5-pro", "claude-3_7-sonnet"} < evaluated.keys()  # Table 3
    assert (evaluated["gpt-4o"].model, evaluated["gpt-4o"].timeout_s, evaluated["mine"]) == ("gpt-4o", 7.0, "here")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for stage in ("evaluate", "query"):
        unset = "set the environment variable OPENAI_API_KEY to the key for .*, for gpt-4o"
        with pytest.raises(UserError, match=unset):
            open_client(config.llms_of(stage), config.judge, stage)
    assert open_client(config.llms_of("rl"), config.judge, "rl") is None  # training calls no closed model
