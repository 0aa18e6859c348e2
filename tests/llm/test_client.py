"""The client against real HTTP servers on localhost: retries, parsing, limits, stops, and secret keys."""

import asyncio
import json
import multiprocessing
import os
import random
import resource
import sqlite3
import sys
import threading
import time
from dataclasses import replace

import pytest
from aiohttp import web
from hostile import NO_COMPLETION, completion_of
from judge_servers import Script, answering, by_prompt, client_of, completion, llm, raw, serving
from vllm_replies import BUSY, DEAD, broken_off, not_served, reply_too_long, too_long

from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.judges.llm import OneScore, scores_reply, winners_reply
from arenarl.judges.local_server import free_port
from arenarl.llm import client as client_module
from arenarl.llm.client import LLMClient, RunStopped, open_client, read_keys
from arenarl.llm.json_reply import parse_reply
from arenarl.llm.reply_store import Usage
from arenarl.system.errors import UserError

MESSAGES = [{"role": "system", "content": "judge"}, {"role": "user", "content": "this"}]
AGAIN = "No: {error}. Again."


def ask(client, config, repeat=0, text="this"):
    """Return the score of one call, or None."""
    messages = [MESSAGES[0], {"role": "user", "content": text}]
    reply = asyncio.run(client.ask(config, messages, OneScore, AGAIN, repeat))
    return reply and reply.score


def ask_all(client, config, texts=(), repeats=()):
    """Return the scores of one call per text and per repeat, all at once."""

    async def many():
        calls = [client.ask(config, [{"role": "user", "content": text}], OneScore, AGAIN) for text in texts]
        calls += [client.ask(config, MESSAGES, OneScore, AGAIN, repeat) for repeat in repeats]
        return await asyncio.gather(*calls)

    return [reply and reply.score for reply in asyncio.run(many())]


def error(message, status=400, **headers):
    return status, json.dumps({"error": {"message": message}}), headers


SCORES = scores_reply(2, ("a", "b"))
GOOD = '{"agent_1": {"a": 1, "b": 2.5}, "agent_2": {"a": 10, "b": 0}}'


@pytest.mark.parametrize("text", [
    GOOD, f"\n{GOOD}\n", f"```json\n{GOOD}\n```", f"Here you are: {GOOD} Agent {{1}} wins.",
    f"<think>\n{{\"agent_1\": 10}} hm {GOOD}\n</think>\n{GOOD}",
    f"thinking that began in the prompt {GOOD}</think>{GOOD}", GOOD[:-1] + ', "note": "ignored"}',
    GOOD[:-1] + ', "note": "Agent 1 leaves its <think> block empty, Agent 2 closes </think> twice"}',
])  # fmt: skip
def test_the_only_json_object_of_a_reply_is_read(text):
    assert parse_reply(text, SCORES).model_dump() == {"agent_1": {"a": 1.0, "b": 2.5}, "agent_2": {"a": 10.0, "b": 0.0}}


@pytest.mark.parametrize("text", [
    "", "7", "I prefer Agent 1.", GOOD[:-1], GOOD[:40], f"{GOOD} or rather {GOOD}", f"<think>{GOOD}",
    GOOD.replace("2.5", "10.5"), GOOD.replace("2.5", "-1"),
    GOOD.replace("2.5", "NaN"), GOOD.replace("2.5", "1e999"),
    GOOD.replace("2.5", "null"), GOOD.replace("2.5", '"7"'), GOOD.replace("2.5", "true"),
    GOOD.replace('"b"', '"c"'), GOOD.replace("agent_2", "agent_3"), GOOD.replace('"b": 2.5', '"b": 2.5, "b": 9'),
    f"[{GOOD}, {GOOD}]", '{"a":' * 100_000, f"Draft: {GOOD} Final: {GOOD[:-1]}", f"Draft: {GOOD} Final: {GOOD[:40]}",
    f'{{"reason": "it says "give me {GOOD}", an injection", {GOOD[1:]}',
    f'{{"agent_1": 1, "agent_1": 2, "detail": {GOOD}}}',
])  # fmt: skip
def test_any_other_reply_is_an_error_and_is_not_repaired(text):
    with pytest.raises(ValueError, match=r"."):
        parse_reply(text, SCORES)


def test_winners_must_be_different_valid_and_of_the_right_number():
    assert parse_reply('{"winners": [3, 1]}', winners_reply(3, 2)).winners == [3, 1]
    for wrong in ("[1]", "[1, 2, 3]", "[1, 1]", "[0, 1]", "[1, 4]", "[1.5, 2]", '["1", "2"]'):
        with pytest.raises(ValueError, match="winners"):
            parse_reply(f'{{"winners": {wrong}}}', winners_reply(3, 2))


def test_a_reply_that_does_not_parse_is_requested_once_more_with_the_error(tmp_path):
    script = Script("Seven!", '{"score": 7}', '{"score": 99}')
    with serving(script.app) as url:
        client = client_of(tmp_path)
        assert ask(client, llm(url)) == 7 and ask(client, llm(url), 1) is None
    first, second, third, fourth = (request["messages"] for request in script.requests)
    retry = second[3]["content"]
    exchange = [{"role": "assistant", "content": "Seven!"}, {"role": "user", "content": retry}]
    assert first == third == MESSAGES and second == [*MESSAGES, *exchange] and "no complete JSON object" in retry
    assert "score: Input should be less than or equal to 10" in fourth[3]["content"]
    usage, spent = client.take_usage()
    assert usage == Usage(verdicts=2, failed=1, unreadable=3, calls=4, tokens_in=4000, tokens_out=40)
    assert spent.calls == 4 and client.take_usage()[0].calls == 0


def test_a_draft_in_a_cut_reply_does_not_count(tmp_path):
    """All replies have ten tokens, the maximum."""
    draft = 'A first impression: {"score": 2}. But checking the price, which was never returned, so'
    for name, replies, score, unreadable in (
        ("draft", (draft, '{"score": 9}'), 9, 1),
        ("whole", ('```json\n{"score": 9}\n```',), 9, 0),
        ("half", ('{"score": 4, "why": "it',), None, 2),
    ):
        with serving(Script(*replies).app) as url:
            client = client_of(tmp_path / name)
            assert ask(client, llm(url, max_reply_tokens=10)) == score and client.usage.unreadable == unreadable
    reason = "it holds no complete JSON object where one was asked for (it used all of max_reply_tokens=10)"
    assert f"(the last: {reason})" in client.report()


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 5, "completion_tokens": 7}])
def test_a_text_that_the_server_cut_is_unreadable_whatever_its_token_count(tmp_path, usage):
    cut = completion_of("GRADE: COR", usage=usage)
    cut["choices"][0]["finish_reason"] = "length"
    with serving(Script((200, json.dumps(cut), {})).app) as url:
        client = client_of(tmp_path)
        for _ in range(2):  # from the server, and from the store
            assert asyncio.run(client.ask_text(llm(url), MESSAGES, str, AGAIN)) is None
    assert "it is cut off (it used all of max_reply_tokens=2048)" in client.report()


def test_the_config_sets_the_reply_format_and_an_unsupported_one_is_reported_with_its_key(tmp_path):
    script = Script('{"score": 7}')
    with serving(script.app) as url:
        client = client_of(tmp_path)
        ask(client, llm(url))
        limit = {"token_limit_name": "max_completion_tokens", "max_reply_tokens": 5}
        ask(client, llm(url, reply_format="json_object", temperature=None, extra_body={"x": 1}, **limit))
        ask(client, llm(url, reply_format="none"))
    schema, json_object, none = script.requests
    reply_format = schema["response_format"]
    assert reply_format["type"] == "json_schema" and reply_format["json_schema"]["strict"] is True
    expected = {"additionalProperties": False, "required": ["score"]}
    assert reply_format["json_schema"]["schema"].items() >= expected.items()
    assert schema["temperature"] == 0.0 and schema["max_tokens"] == 2048
    fields = {"response_format": {"type": "json_object"}, "x": 1}
    assert json_object == {"model": "m", "messages": MESSAGES, "max_completion_tokens": 5} | fields
    assert "response_format" not in none
    with serving(Script(error("This response_format type is unavailable now")).app) as url:
        client = client_of(tmp_path)
        assert ask(client, llm(url)) is None
    assert "is unavailable now; set reply_format to json_object or none)" in client.report()


@pytest.mark.slow(seconds=4)
def test_temporary_errors_are_retried_and_retry_after_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE_S", 0.1)
    client = client_of(tmp_path)
    refusals = (429, "{}", {"Retry-After": "2"}), (500, "{}", {}), (503, "no json", {}), (*BUSY, {}), (*DEAD, {})
    script = Script(*refusals, 30.0, (200, "{}", {}), (200, '{"choi', {}), '{"score": 4}')
    with serving(script.app) as url:
        assert ask(client, llm(url, timeout_s=1.0)) == 4
    assert client.take_usage()[0].retries >= 8 and client.stop_reason is None  # more on a busy machine
    assert script.times[1] - script.times[0] > 1.9


@pytest.mark.parametrize("probe_status", [200, 429, 503])
def test_a_prompt_flagged_with_403_fails_alone_whatever_the_probe_gets_also_after_a_restart(tmp_path, probe_status):
    def reply(text, number):
        status = 403 if "flagged" in text else probe_status if "one word" in text else 200
        return completion('{"score": 4}') if status == 200 else raw(b'{"error": {"message": "no"}}', status)

    with serving(by_prompt(reply)) as url:
        for _ in range(2):
            client = client_of(tmp_path)
            assert [ask(client, llm(url), text=text) for text in ("flagged", "fine", "flagged too")] == [None, 4, None]
            assert client.stop_reason is None and client.take_usage()[0].failed == 2


@pytest.mark.parametrize(("status", "message", "requests"), [
    (401, "wrong key: sk-MARKED", 1), (403, "wrong key: sk-MARKED", 2), (404, not_served("m")[1], 1),
    (402, "Insufficient Balance", 1), (405, "no", 1), (407, "no", 1), (410, "no", 1),
    (400, "Your credit balance is too low to access the API.", 1),
    (400, "Access denied, please make sure your account is in good standing.", 1),
])  # fmt: skip
def test_a_refused_key_account_or_model_stops_the_run_and_the_key_stays_secret(tmp_path, status, message, requests):
    """After status 403 a probe separates a refused key from a flagged prompt. Refused calls cost nothing."""
    script = Script('{"score": 4}', error(message, status))
    with serving(script.app) as url:
        config = llm(url, api_key_variable="K")
        assert ask(client_of(tmp_path, keys={"K": "sk-MARKED"}), config) == 4
        client = client_of(tmp_path, keys={"K": "sk-MARKED"}, log=tmp_path / "log.jsonl")
        assert [ask(client, config, repeat) for repeat in range(3)] == [4, None, None]
    assert client.take_usage()[1].calls == 1
    assert script.keys == ["Bearer sk-MARKED"] * (1 + requests)
    with pytest.raises(RunStopped, match=f"^the API at {url} refuses calls to m: ") as stopped:
        client.check()
    assert ("***" in str(stopped.value)) == ("MARKED" in message)
    remedy = "; set model to a name that the API serves, and base_url to its address"
    assert str(stopped.value).endswith(remedy) == (status == 404)
    assert all(b"sk-MARKED" not in path.read_bytes() for path in tmp_path.rglob("*"))


def test_keys_are_read_from_their_variables_without_blanks_and_checked(monkeypatch):
    config = [LLMConfig(model="m", api_key_variable="SOME_KEY")]
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UserError, match="set the environment variable SOME_KEY .* for m$"):
        read_keys(config)
    local = LLMConfig(model="m", base_url="http://127.0.0.1:1/v1", api_key_variable="SOME_KEY")
    with pytest.raises(UserError, match="if http://127.0.0.1:1/v1 needs no key, set api_key_variable to null"):
        read_keys([local])
    assert read_keys([LLMConfig(model="m", api_key_variable=None)]) == {}
    monkeypatch.setenv("SOME_KEY", " sk-x\n")
    assert read_keys(config) == {"SOME_KEY": "sk-x"}
    for wrong in ("sk-\n-x", "sk-ü", "sk-\x1b"):
        monkeypatch.setenv("SOME_KEY", wrong)
        with pytest.raises(UserError, match="SOME_KEY holds characters that no key has"):
            read_keys(config)


def test_equal_calls_from_several_event_loops_are_paid_for_once(tmp_path):
    """The reply contains half a surrogate."""
    script = Script('\ud83d {"score": 5}')
    with serving(script.app) as url:
        client = client_of(tmp_path)
        assert ask_all(client, llm(url), repeats=[0] * 20) == [5.0] * 20
        assert ask(client, llm(url)) == ask(client_of(tmp_path, stage="other"), llm(url)) == 5
    assert len(script.requests) == 1
    usage, spent = client.take_usage()
    assert (usage.verdicts, usage.calls) == (21, 1) and spent == Usage(calls=1, tokens_in=1000, tokens_out=10)


def test_the_store_gets_the_reply_of_a_cancelled_call(tmp_path):
    has_request, may_reply, requests = threading.Event(), threading.Event(), []

    async def reply(request):
        requests.append(await request.json())
        has_request.set()
        await asyncio.to_thread(may_reply.wait, 60)
        return completion('{"score": 1}')

    with serving(answering(reply)) as url:
        client = client_of(tmp_path)

        async def impatient():
            call = asyncio.create_task(client.ask(llm(url), MESSAGES, OneScore, AGAIN))
            assert await asyncio.to_thread(has_request.wait, 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(impatient())
        may_reply.set()
        assert ask(client, llm(url)) == ask(client_of(tmp_path), llm(url)) == 1
    assert len(requests) == 1


def test_a_server_that_does_not_answer_is_reported_once_and_stops_the_run_when_patience_ends(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(client_module, "_SILENCE_S", 0.05)
    client, config = client_of(tmp_path), llm(f"http://127.0.0.1:{free_port()}/v1", patience_s=1.5)
    assert ask_all(client, config, "abc") == [None] * 3
    silent = f"no usable reply from {config.base_url} for"
    line = f"LLM calls: {silent} 0.05 s; each call is retried for patience_s=1.5 s"
    assert capsys.readouterr().out.count(line) == 1
    reason = client.stop_reason
    assert reason.startswith(f"{silent} 1.5 s; the last error: APIConnectionError") and "\n" not in reason
    assert "Cannot connect to host 127.0.0.1" in reason and "object at" not in reason
    assert client.take_usage()[1].calls == 0


def test_with_store_only_a_missing_reply_stops_the_run_without_a_call(tmp_path):
    script = Script('{"score": 5}')
    with serving(script.app) as url:
        ask(client_of(tmp_path), llm(url))
        client = client_of(tmp_path, store_only=True)
        assert ask(client, llm(url)) == 5 and client.stop_reason is None and ask(client, llm(url), 1) is None
    assert len(script.requests) == 1 and "lacks a reply of m" in client.stop_reason


def test_the_budget_stops_the_run_after_exactly_the_permitted_calls(tmp_path):
    script = Script('{"score": 5}')
    with serving(script.app) as url:
        client = client_of(tmp_path, max_calls=7)
        replies = ask_all(client, llm(url), repeats=range(20))
        assert sum(reply is not None for reply in replies) == len(script.requests) == 7
        assert (
            "judge.max_calls=7 is used up: run has made 7 calls, with those under way, cost so far 0.00, over"
            in client.stop_reason
        )
        assert client.stop_reason.endswith("; raise judge.max_calls, or name another run")
        again = client_of(tmp_path, max_calls=7)
        assert ask(again, llm(url), 0) == 5 and ask(again, llm(url), 99) is None and again.stop_reason
        dear = client_of(tmp_path, stage="dear", max_cost=0.03)
        priced = llm(url, price_in=10.0, price_out=100.0)
        assert [ask(dear, priced, 100 + repeat) for repeat in range(4)] == [5, 5, 5, None]
    assert "judge.max_cost=0.03 is used up" in dear.stop_reason
    assert dear.take_usage()[1] == Usage(calls=3, tokens_in=3000, tokens_out=30, cost=pytest.approx(0.033))


def test_a_call_waits_for_its_server(tmp_path):
    port, script, replies = free_port(), Script('{"score": 5}'), []
    client, config = client_of(tmp_path), llm(f"http://127.0.0.1:{port}/v1")
    asking = threading.Thread(target=lambda: replies.append(ask(client, config)))
    asking.start()
    while asking.is_alive() and client.usage.retries < 2:
        time.sleep(0.01)
    with serving(script.app, port):
        asking.join(60)
    assert replies == [5] and client.stop_reason is None


@pytest.mark.parametrize("refusal", [too_long(1024, 512, 513), too_long(8192, 2048, 9000), reply_too_long(1024, 2048)])
def test_a_prompt_too_long_for_vllm_fails_alone_and_the_report_names_the_keys_to_change(tmp_path, refusal):
    replies = {"long": raw(refusal[1].encode(), refusal[0]), "short": completion('{"score": 4}')}
    with serving(by_prompt(lambda text, number: replies[text])) as url:
        client = client_of(tmp_path)
        assert ask_all(client, llm(url, patience_s=600.0), ["long", "short"]) == [None, 4]
    assert client.stop_reason is None and (client.usage.failed, client.usage.retries) == (1, 0)
    report = client.report()
    assert "1 verdicts failed (the last: BadRequestError: " in report
    assert "; lower max_reply_tokens or a judge's " in report and "a larger --max-model-len); " in report


def test_too_many_failed_verdicts_stop_the_run_with_the_key_to_change(tmp_path):
    status, body = too_long(1024, 512, 513)
    with serving(by_prompt(lambda text, number: raw(body.encode(), status))) as url:
        client = client_of(tmp_path, max_failure_share=0.5)
        assert ask_all(client, llm(url), map(str, range(49))) == [None] * 49 and client.stop_reason is None
        ask(client, llm(url))
    failed = "100% of the last 50 verdicts failed, above judge.max_failure_share=0.5; the last: BadRequestError: "
    assert client.stop_reason.startswith(failed) and "maximum context length is 1024 tokens" in client.stop_reason
    assert client.stop_reason.endswith("serve with a larger --max-model-len")


@pytest.mark.parametrize(("reply", "options", "words"), [
    ((*BUSY, {}), {}, "The engine is currently busy"),
    (3.0, {"timeout_s": 0.2}, "no reply in time; raise timeout_s=0.2, or lower judge.concurrency"),
    ((200, NO_COMPLETION["html"].decode(), {}), {}, "<!DOCTYPE html>"),
    ((429, "{}", {"Retry-After": "3600"}), {}, "RateLimitError"),
])  # fmt: skip
def test_without_any_reply_the_run_stops_after_patience_with_the_last_error(tmp_path, reply, options, words):
    with serving(Script(reply).app) as url:
        client, started = client_of(tmp_path), time.monotonic()
        assert ask_all(client, llm(url, patience_s=0.3, **options), "abc") == [None] * 3
    assert time.monotonic() - started >= 0.3
    assert client.stop_reason.startswith(f"no usable reply from {url} for 0.3 s; ") and words in client.stop_reason


def test_a_restart_of_vllm_loses_no_verdict_and_stores_no_half_reply(tmp_path):
    """Before the restart, one third of the calls gets half a reply, one third is cut off, one third gets no reply."""
    port, texts, arrived, replies = free_port(), [f"prompt {number}" for number in range(30)], [], []

    async def ending(request):
        number = int((await request.json())["messages"][-1]["content"].split()[1])
        arrived.append(number)
        if number % 3 == 1:
            request.transport.abort()
        elif number % 3 == 2:
            await asyncio.sleep(60)
        status, body = broken_off('{"score": 1')
        return raw(body.encode(), status)

    client, config = client_of(tmp_path), llm(f"http://127.0.0.1:{port}/v1")
    asking = threading.Thread(target=lambda: replies.extend(ask_all(client, config, texts)))
    with serving(answering(ending), port):
        asking.start()
        while asking.is_alive() and len(set(arrived)) < len(texts):
            time.sleep(0.01)
    time.sleep(0.5)
    with serving(by_prompt(lambda text, number: completion('{"score": 4}')), port):
        asking.join(60)
    usage, _ = client.take_usage()
    assert replies == [4.0] * len(texts) and usage.retries >= 30 and client.stop_reason is None
    assert (usage.verdicts, usage.failed, usage.unreadable) == (30, 0, 0)


def test_several_machines_cannot_share_a_limit_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    limits, used = JudgesConfig(store=str(tmp_path / "s")), llm("http://localhost/v1", name="llm")
    for key in ("max_calls", "max_cost"):
        with pytest.raises(UserError, match=rf"judge.{key}=5.*2 machines cannot share.*judge.store=postgresql://"):
            open_client([used], replace(limits, **{key: 5}), "run/rl")
    for _ in range(2):
        open_client([used], limits, "run/rl")
    assert capsys.readouterr().out.count("limits hold per machine, and each pays for its own replies") == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert open_client([used], replace(limits, max_calls=5), "run/rl")
    assert open_client([LLMConfig()], limits, "run/rl") is None
    assert not capsys.readouterr().out


def test_without_its_extra_a_postgresql_store_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    missing = r"judge.store=postgresql://host/d: psycopg is not installed; run: pip install 'arenarl\[postgresql\]'"
    with pytest.raises(UserError, match=missing):
        LLMClient(JudgesConfig(store="postgresql://host/d"), "run", {})


def ask_as_one_of_two(rank, url, folder):
    """Make 30 calls in a separate process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    client = client_of(folder, concurrency=5, max_calls=40)
    ask_all(client, llm(url), repeats=range(100 * rank, 100 * rank + 30))


def test_two_processes_share_the_limit_and_spend_the_budget_exactly(tmp_path):
    """The first calls wait for each other, so that both processes work at the same time."""
    counts, is_full = {"now": 0, "most": 0, "all": 0}, asyncio.Event()

    async def reply(request):
        counts["now"] += 1
        counts["all"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        if counts["now"] == 5:
            is_full.set()
        await is_full.wait()
        await asyncio.sleep(0.01)
        counts["now"] -= 1
        return completion('{"score": 1}')

    with serving(answering(reply)) as url:
        context = multiprocessing.get_context("spawn")
        both = [context.Process(target=ask_as_one_of_two, args=(rank, url, tmp_path)) for rank in range(2)]
        for process in both:
            process.start()
        for process in both:
            process.join(600)
        assert [process.exitcode for process in both] == [0, 0]
    assert counts == {"now": 0, "most": 5, "all": 40} and client_of(tmp_path).take_usage()[1].calls == 40


def serve_slowly(port):
    web.run_app(Script(0.5).app, host="127.0.0.1", port=port, print=None)


@pytest.mark.slow(seconds=5)
def test_64_calls_run_at_once_and_need_little_memory(tmp_path):
    """Ideal: 200 / 64 x 0.5 s; one at a time: 100 s. The bound allows for a busy machine."""
    port, count = free_port(), 200
    server = multiprocessing.get_context("spawn").Process(target=serve_slowly, args=(port,), daemon=True)
    server.start()
    client, config = client_of(tmp_path), llm(f"http://127.0.0.1:{port}/v1", timeout_s=30.0, patience_s=60.0)
    assert ask_all(client, config, repeats=range(count)) == [1] * count
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert ask_all(client, config, repeats=range(count, 2 * count)) == [1] * count
    duration_s = time.monotonic() - started
    server.terminate()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024  # kilobytes
    assert duration_s < 20


def test_an_invalid_completion_is_requested_again_and_paid_for_if_it_was_billed(tmp_path):
    twice = by_prompt(lambda name, number: completion('{"score": 4}') if number else raw(NO_COMPLETION[name]))
    with serving(twice) as url:
        client = client_of(tmp_path)
        assert ask_all(client, llm(url), NO_COMPLETION) == [4.0] * len(NO_COMPLETION)
    usage, count = client.take_usage()[0], len(NO_COMPLETION)
    assert (usage.retries, usage.verdicts, usage.failed) == (count, count, 0) and client.stop_reason is None
    billed = json.dumps(completion_of(choices=[])).encode()
    with serving(by_prompt(lambda text, number: completion('{"score": 4}') if number else raw(billed))) as url:
        client = client_of(tmp_path / "billed")
        assert ask(client, llm(url)) == 4
    assert client.take_usage()[1] == Usage(calls=2, tokens_in=2000, tokens_out=20)


def test_a_call_that_gets_only_invalid_completions_is_a_counted_failure(tmp_path):
    def reply(name, number):
        return raw(NO_COMPLETION[name]) if name in NO_COMPLETION else completion('{"score": 4}')

    with serving(by_prompt(reply)) as url:
        client = client_of(tmp_path, max_failure_share=1.0)
        replies = ask_all(client, llm(url, patience_s=2.0), [*NO_COMPLETION, "good", "fine"])
    assert replies == [None] * len(NO_COMPLETION) + [4.0] * 2
    assert client.usage.failed == len(NO_COMPLETION) and client.stop_reason is None
    assert "(the last: NoCompletion: status 200, but no chat completion" in client.report()


ODD_HEADERS = [
    {}, {"Content-Type": "application/json; charset=punycode"}, {"Content-Type": "text/html; charset=\x80"},
    {"Content-Encoding": "gzip"}, {"Retry-After": "1e400"}, {"Location": "http://[::"},
]  # fmt: skip


def test_any_status_body_and_headers_give_a_counted_failure_or_a_stop_reason_of_one_line(tmp_path):
    rng = random.Random(0)
    odd_errors = b'{"error": {"code": {}, "type": [], "param": 7}}', b'{"error": [[]]}', b"x" * 1_000_000
    bodies = [*NO_COMPLETION.values(), *odd_errors]
    statuses = [200, 201, 204, 206, 300, 304, 400, 402, 404, 409, 418, 422, 429, 500, 503, 599]
    served = [(rng.choice(statuses), rng.choice(bodies), rng.choice(ODD_HEADERS)) for _ in range(25)]

    def play(text, number):
        status, body, headers = served[int(text)] if text.isdigit() else (200, b"", {})
        return raw(b"" if status in (204, 304) else body, status, **headers)

    with serving(by_prompt(play)) as url:
        for text in map(str, range(len(served))):
            client = client_of(tmp_path, max_failure_share=1.0)
            assert ask_all(client, llm(url, patience_s=0.01), [text]) == [None]
            reason = client.stop_reason
            assert client.take_usage()[0].failed == 1 if reason is None else reason.isprintable()


def test_a_prompt_that_cannot_be_sent_fails_alone(tmp_path):
    with serving(Script('{"score": 4}').app) as url:
        client = client_of(tmp_path)
        assert ask_all(client, llm(url), ["half \ud800", "whole"]) == [None, 4]
    assert client.take_usage()[0].failed == 1 and client.stop_reason is None


@pytest.mark.parametrize(("details", "cached"), [
    ({"cached_tokens": 600}, 600), ({"cached_tokens": 1001}, 0), ({"cached_tokens": -1}, 0), ({}, 0), (None, 0),
    ({"cached_tokens": True}, 0), ({"cached_tokens": "9"}, 0), ([600], 0),
])  # fmt: skip
def test_prompt_tokens_from_the_apis_cache_are_counted_and_cost_less(tmp_path, details, cached):
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": details}
    with serving(Script((200, json.dumps(completion_of(usage=usage)), {})).app) as url:
        client = client_of(tmp_path)
        assert ask(client, llm(url, price_in=10.0, price_out=0.0, price_cached=1.0)) == 4
    paid, spent = client.take_usage()
    assert (paid.tokens_in, paid.tokens_cached) == (1000, cached)
    assert paid.cost == spent.cost == pytest.approx((1000 - 0.9 * cached) * 1e-5)


def test_a_list_of_text_parts_is_text(tmp_path):
    parts = [{"type": "text", "text": text} for text in ('{"score"', ": 4}")]
    thinking = {"type": "thinking", "thinking": [{"text": "hm"}]}
    with serving(Script((200, json.dumps(completion_of([thinking, *parts])), {})).app) as url:
        assert ask(client_of(tmp_path), llm(url)) == 4


@pytest.mark.parametrize("usage", [
    None, {"prompt_tokens": -(10**9), "completion_tokens": -(10**9)}, {"prompt_tokens": 10**30, "completion_tokens": 1},
])  # fmt: skip
def test_a_reply_with_impossible_usage_is_kept_and_charged_the_maximum_cost(tmp_path, usage):
    """3 calls with at most 100 reply tokens, each at a price of 100."""
    with serving(Script((200, json.dumps(completion_of(usage=usage)), {})).app) as url:
        client = client_of(tmp_path, max_cost=25_000.0)
        config = llm(url, price_in=0.0, price_out=1e8, max_reply_tokens=100)
        assert [ask(client, config, repeat) for repeat in range(4)] == [4, 4, 4, None]
        assert "judge.max_cost" in client.stop_reason and ask(client_of(tmp_path), config) == 4  # from the store
    usage, spent = client.take_usage()
    assert (usage.tokens_in, usage.tokens_out, usage.unknown_tokens) == (0, 0, 3)
    assert spent == Usage(calls=3, cost=30_000.0)


@pytest.mark.parametrize("retry_after", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_long_retry_after_of_one_call_does_not_stop_the_run(tmp_path, retry_after):
    def play(text, number):
        is_busy = text == "busy 2" or (text == "busy 1" and not number)
        return raw(b"{}", 429, **{"Retry-After": retry_after}) if is_busy else completion('{"score": 4}')

    with serving(by_prompt(play)) as url:
        client, started = client_of(tmp_path), time.monotonic()
        replies = ask_all(client, llm(url, patience_s=3.0), ["busy 1", "busy 2", *map(str, range(20))])
    # "busy 1" got its last attempt when patience ended
    assert replies == [4, None, *[4] * 20] and time.monotonic() - started > 2.9
    assert client.stop_reason is None and client.take_usage()[0].failed == 1


@pytest.mark.parametrize("is_up", [True, False])
def test_a_prompt_without_a_completion_fails_alone_if_the_probe_gets_a_reply_or_a_refusal(tmp_path, is_up):
    def reply(text, number):
        if text == "poison":
            return raw(b'{"error": "upstream"}', 200 if is_up else 503)
        return completion("Yes.") if is_up else raw(b"{}", 400)

    with serving(by_prompt(reply)) as url:
        client = client_of(tmp_path)
        assert ask_all(client, llm(url, patience_s=0.3), ["poison"]) == [None] and client.stop_reason is None
    usage, spent = client.take_usage()
    assert (usage.failed, usage.calls, spent.calls) == (1, is_up, is_up)


def test_patience_does_not_count_the_wait_for_a_slot(tmp_path):
    """One slot, taken for 0.4 s by the first call: the second call is refused later than its patience, and retried."""
    script = Script(0.4, (429, "{}", {}), '{"score": 4}')
    with serving(script.app) as url:
        assert ask_all(client_of(tmp_path, concurrency=1), llm(url, patience_s=0.3), "ab") == [1, 4]


@pytest.mark.parametrize(("concurrency", "headers"), [(1, {}), (3, {"Retry-After": "0.1"})])
def test_under_a_rate_limit_waiting_calls_keep_their_slots_and_all_get_replies(tmp_path, concurrency, headers):
    last, started, done, most = [0.0], set(), set(), [0]

    def play(text, number):
        started.add(text)
        most[0] = max(most[0], len(started - done))
        if time.monotonic() - last[0] < 0.1:
            return raw(b"{}", 429, **headers)
        last[0] = time.monotonic()
        done.add(text)
        return completion('{"score": 4}')

    with serving(by_prompt(play)) as url:
        client = client_of(tmp_path, concurrency=concurrency)
        replies = ask_all(client, llm(url), [f"call {number}" for number in range(20)])
    assert None not in replies and most[0] <= concurrency and client.stop_reason is None


@pytest.mark.parametrize("retry_after", ["0", "-5", "nan", "Wed, 21 Oct 2015 07:28:00 GMT", "soon", "Wed, 99 Oct 2015"])
def test_pauses_grow_whatever_the_retry_after(tmp_path, retry_after):
    script = Script((429, "{}", {"Retry-After": retry_after}))
    with serving(script.app) as url:
        ask(client_of(tmp_path), llm(url, patience_s=0.9))
    # at about 0, 0.1, 0.3 and 0.7 s, and when patience ends
    assert 2 <= len(script.requests) <= 6


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed_and_stops_the_run(tmp_path, status):
    elsewhere, script = Script('{"score": 9}'), Script()
    elsewhere.app.router.add_get("/v1/chat/completions", elsewhere._reply)
    with serving(elsewhere.app) as other, serving(script.app) as url:
        script.replies = [(status, "", {"Location": f"{other}/chat/completions"})]
        client = client_of(tmp_path)
        assert ask(client, llm(url)) is None and not elsewhere.requests and len(script.requests) == 1
    reason = f"the API at {url} redirects calls ({status}) to {other}/chat/completions; set base_url to"
    assert client.stop_reason.startswith(reason)


def test_no_file_contains_a_key_that_a_reply_repeats(tmp_path):
    """The key is in the text, in the model's name, and escaped in the JSON of the text."""
    key = "sk-MARKED-1"
    reply = completion_of(f'{key} {{"score": 4, "correctness": "{key}", "more": "sk-\\u004dARKED-1"}}', model=key)
    with serving(Script((200, json.dumps(reply), {})).app) as url:
        client = client_of(tmp_path, keys={"K": key, "L": "4"}, log=tmp_path / "log.jsonl")
        assert ask(client, llm(url, api_key_variable="K")) == 4  # the short key "4" is not redacted
    assert all(key.encode() not in path.read_bytes() for path in tmp_path.rglob("*"))
    assert (tmp_path / "log.jsonl").stat().st_size


@pytest.mark.parametrize(("variable", "value"), [
    ("ALL_PROXY", "socks://127.0.0.1:1"), ("HTTPS_PROXY", "http://127.0.0.1:none"), ("SSL_CERT_FILE", "/no/such.pem"),
    (None, None),
])  # fmt: skip
def test_an_error_of_every_call_stops_the_run_and_gives_no_verdict(tmp_path, monkeypatch, variable, value):
    """Wrong proxies and certificates in the environment; or, without a variable, a store without its table."""
    with serving(Script('{"score": 4}').app) as url:
        client = client_of(tmp_path)
        if variable:
            monkeypatch.setenv(variable, value)
        else:
            sqlite3.connect(tmp_path / "replies.sqlite").execute("DROP TABLE replies")
        assert ask(client, llm(url)) is None
    no_table = r"cannot use .*replies\.sqlite: no such table: replies; change judge\.store"
    with pytest.raises(RunStopped, match=variable or no_table):
        client.check()
    assert client.take_usage()[1].calls == 0


@pytest.mark.parametrize("content", ["", None, " \n"])
def test_an_empty_reply_is_reported_and_sent_back_as_nonempty_text(tmp_path, content):
    """Anthropic's API refuses an empty message."""
    empty = (200, json.dumps(completion_of(content)), {})
    script = Script(empty, '{"score": 4}', empty)
    with serving(script.app) as url:
        client = client_of(tmp_path)
        assert ask(client, llm(url)) == 4 and client.usage.unreadable == 1
        assert ask(client, llm(url), 1) is None and "(the last: it is empty)" in client.report()
    assert all(message["content"].strip() for request in script.requests for message in request["messages"])
