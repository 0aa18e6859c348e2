"""A real model judges behind a real vLLM server, which is also busy, paused, restarted, and sent invalid requests.

Needs the environment of ./reproduce.sh test_vllm. The quality of the verdicts does not matter here: each verdict has
the right format, or is counted as failed.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from judge_servers import client_of
from scripts import CONFIG, ROOT
from vllm_replies import BUSY, broken_off, not_served, reply_too_long, too_long
from vllm_servers import end, vllm_server

from arenarl.config.load import load_config
from arenarl.judges.llm import LLMJudge

pytest.importorskip("vllm", reason="needs vLLM: ./reproduce.sh test_vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.slow(seconds=150)]
CONTEXT, AT_ONCE = 4096, 4
MODEL = "smollm2-135m-instruct"
LIMITS = ("--max-model-len", str(CONTEXT), "--max-num-queued-reqs", str(AT_ONCE))
FLAGS = ("--served-model-name", MODEL, *LIMITS)


@pytest.fixture(scope="module")
def server(smollm2, tmp_path_factory):
    """The address and the process of a server with a short queue."""
    policy = {"rl__init": smollm2, "policy__dtype": "bfloat16"}
    with vllm_server(tmp_path_factory.mktemp("vllm"), *FLAGS, **policy) as (url, process):
        yield url, process


def config_of(url, **changes):
    """Return the judge of configs/judges/smollm2.yaml, with another address."""
    judge = ROOT / "configs" / "judges" / "smollm2.yaml"
    config = load_config(CONFIG, [f"judge.train.base={judge}", f"judge.train.base_url={url}/v1"])
    return replace(config.judge.train, **changes)


def verdicts(client, config, taught, count):
    """Return verdicts on `count` pairs of trajectories, all called at once."""
    judge = LLMJudge(config, client)

    async def together():
        calls = (judge.compare(first.query, first.trajectory, second.trajectory) for first, second in pairs)
        return await asyncio.gather(*calls)

    pairs = [(taught[index], taught[index + 1]) for index in range(0, 2 * count, 2)]
    return asyncio.run(together())


def complete(url, text="hi", **fields):
    """Return (status, body) of a chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0}
    body, headers = json.dumps(body | fields).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def parsed(refusal):
    return refusal[0], json.loads(refusal[1])


def test_10_verdicts_from_a_busy_server_have_the_right_format_or_are_counted_as_failed(server, taught, tmp_path):
    client, config = client_of(tmp_path), config_of(server[0])
    results = verdicts(client, config, taught, 10)
    usage, spent = client.take_usage()
    assert len(results) == usage.verdicts == 10 and usage.failed == results.count(None) and client.stop_reason is None
    assert usage.retries > 0 and spent.calls == usage.calls == 10 - usage.failed + usage.unreadable
    for query, verdict in zip((example.query for example in taught[:20:2]), results, strict=True):
        for scores in verdict.dimensions if verdict else ():
            assert scores.keys() == LLMJudge(config, client).weights(query).keys()
            assert all(0 <= score <= 10 for score in scores.values())


def test_errors_of_the_server_equal_those_of_our_stand_ins(server):
    url, _ = server
    assert complete(url, model="m") == parsed(not_served("m"))
    assert complete(url, max_tokens=5000) == parsed(reply_too_long(CONTEXT, 5000))
    assert complete(url, text="word " * 10_000) == parsed(too_long(CONTEXT, 16, CONTEXT - 15))
    with ThreadPoolExecutor(4 * AT_ONCE) as threads:
        replies = list(threads.map(lambda number: complete(url, f"Number {number}."), range(4 * AT_ONCE)))
    assert parsed(BUSY) in replies and {status for status, _ in replies} == {200, BUSY[0]}


def test_a_prompt_without_room_fails_alone_and_a_wrong_model_stops_the_run(server, taught, tmp_path):
    client = client_of(tmp_path / "long")
    assert verdicts(client, config_of(server[0], max_reply_tokens=CONTEXT - 10), taught, 2) == [None, None]
    assert (client.usage.failed, client.usage.retries, client.stop_reason) == (2, 0, None)
    assert "; lower max_reply_tokens or a judge's " in client.report()
    client = client_of(tmp_path / "wrong")
    assert verdicts(client, config_of(server[0], model="qwen"), taught, 1) == [None]
    assert "The model `qwen` does not exist." in client.stop_reason
    assert "; set model to a name that the API serves" in client.stop_reason


def test_an_aborted_reply_is_requested_again(server, taught, tmp_path):
    """A paused server sends half a reply with status 200."""
    url, _ = server
    client = client_of(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        judging = threads.submit(verdicts, client, config_of(url), taught, 2)
        counting = threads.submit(complete, url, "Count to a thousand.", max_tokens=2000, ignore_eos=True)
        wait_until_running(url, 3)
        for command in ("pause?mode=abort", "resume"):
            urllib.request.urlopen(urllib.request.Request(f"{url}/{command}", method="POST"), timeout=60).close()
        (status, reply), results = counting.result(), judging.result()
    aborted = parsed(broken_off(""))[1]["choices"][0]["finish_reason"]
    assert (status, reply["choices"][0]["finish_reason"]) == (200, aborted)
    usage, _ = client.take_usage()
    assert len(results) == 2 and usage.retries >= 2 and usage.failed == results.count(None)
    assert client.stop_reason is None


def test_a_restart_loses_no_verdict(server, taught, smollm2, tmp_path):
    """The server is killed while it generates."""
    url, process = server
    client = client_of(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        judging = threads.submit(verdicts, client, config_of(url), taught, 2)
        wait_until_running(url, 2)
        end(process)
        with vllm_server(tmp_path, *FLAGS, port=urlsplit(url).port, rl__init=smollm2, policy__dtype="bfloat16"):
            results = judging.result()
    usage, _ = client.take_usage()
    assert len(results) == 2 and usage.retries >= 2 and usage.failed == results.count(None)
    assert client.stop_reason is None


def wait_until_running(url, requests):
    """Wait until the server generates replies to this many requests at once."""
    while True:
        with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        if sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")) >= requests:
            return
        time.sleep(0.1)
