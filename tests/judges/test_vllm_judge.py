"""A real model judges behind a real vLLM server, which is also too busy, paused, killed and started again,
and asked for what it cannot do.

./reproduce.sh test_vllm sets up where it runs. That the model judges badly is no matter here: each verdict is there and
has its form, or is counted.
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

pytest.importorskip("vllm", reason="./reproduce.sh test_vllm runs these, in an environment with vLLM")

pytestmark = [pytest.mark.vllm, pytest.mark.slow(seconds=240)]
CONTEXT, AT_ONCE = 4096, 8
MODEL = "smollm2-135m-instruct"
LIMITS = ("--max-model-len", str(CONTEXT), "--max-num-queued-reqs", str(AT_ONCE))
FLAGS = ("--served-model-name", MODEL, *LIMITS)


@pytest.fixture(scope="module")
def server(smollm2, tmp_path_factory):
    """The address of a server that lets few in at once, and its process."""
    policy = {"rl__init": smollm2, "policy__dtype": "bfloat16"}
    with vllm_server(tmp_path_factory.mktemp("vllm"), *FLAGS, **policy) as (url, process):
        yield url, process


def config_of(url, **changes):
    """The judge of configs/judges/smollm2.yaml at another address."""
    judge = ROOT / "configs" / "judges" / "smollm2.yaml"
    config = load_config(CONFIG, [f"judge.train.base={judge}", f"judge.train.base_url={url}/v1"])
    return replace(config.judge.train, **changes)


def verdicts(client, config, taught, count):
    """On pairs of attempts at a query each, all asked for at once."""
    judge = LLMJudge(config, client)

    async def together():
        calls = (judge.compare(one.query, one.trajectory, other.trajectory) for one, other in pairs)
        return await asyncio.gather(*calls)

    pairs = [(taught[index], taught[index + 1]) for index in range(0, 2 * count, 2)]
    return asyncio.run(together())


def asked(url, text="hi", **fields):
    """(status, body) of a chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0}
    body, headers = json.dumps(body | fields).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def as_read(refusal):
    return refusal[0], json.loads(refusal[1])


def test_20_verdicts_of_a_real_model_have_their_form_or_are_counted_though_the_server_is_too_busy(
    server, taught, tmp_path
):
    client, config = client_of(tmp_path), config_of(server[0])
    given = verdicts(client, config, taught, 20)
    usage, spent = client.take_usage()
    assert len(given) == usage.verdicts == 20 and usage.failed == given.count(None) and client.stop_reason is None
    assert usage.retries > 0 and spent.calls == usage.calls == 20 - usage.failed + usage.unreadable
    for (first, second), query in ((one.dimensions, taught[2 * index].query) for index, one in enumerate(given) if one):
        assert first.keys() == second.keys() == LLMJudge(config, client).weights(query).keys()
        assert all(0 <= score <= 10 for score in (*first.values(), *second.values()))


def test_what_it_cannot_do_it_says_as_our_own_servers_do(server):
    url, _ = server
    assert asked(url, model="m") == as_read(not_served("m"))
    assert asked(url, max_tokens=5000) == as_read(reply_too_long(CONTEXT, 5000))
    assert asked(url, text="word " * 10_000) == as_read(too_long(CONTEXT, 16, CONTEXT - 15))
    with ThreadPoolExecutor(4 * AT_ONCE) as threads:
        replies = list(threads.map(lambda number: asked(url, f"Number {number}."), range(4 * AT_ONCE)))
    assert as_read(BUSY) in replies and {status for status, _ in replies} == {200, BUSY[0]}


def test_a_prompt_that_it_has_no_room_for_fails_at_once_and_is_told_with_what_to_change(server, taught, tmp_path):
    client = client_of(tmp_path)
    assert verdicts(client, config_of(server[0], max_reply_tokens=CONTEXT - 10), taught, 2) == [None, None]
    assert (client.usage.failed, client.usage.retries, client.stop_reason) == (2, 0, None)
    assert "; lower max_reply_tokens or what a prompt shows" in client.report()


def test_a_model_that_it_does_not_serve_stops_the_run_with_what_to_change(server, taught, tmp_path):
    client = client_of(tmp_path)
    assert verdicts(client, config_of(server[0], model="qwen"), taught, 1) == [None]
    for part in ("The model `qwen` does not exist.", "; set model to a name that the API serves"):
        assert part in client.stop_reason


def test_what_it_aborts_is_asked_for_again(server, taught, tmp_path):
    """Paused, it answers with half a reply, and status 200."""
    url, _ = server
    client = client_of(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        judged = threads.submit(verdicts, client, config_of(url), taught, 2)
        counted = threads.submit(asked, url, "Count to a thousand.", max_tokens=2000, ignore_eos=True)
        wait_until_it_runs(url, 3)
        for what in ("pause?mode=abort", "resume"):
            urllib.request.urlopen(urllib.request.Request(f"{url}/{what}", method="POST"), timeout=60).close()
        (status, said), given = counted.result(), judged.result()
    aborted = as_read(broken_off(""))[1]["choices"][0]["finish_reason"]
    assert (status, said["choices"][0]["finish_reason"]) == (200, aborted)
    usage, _ = client.take_usage()
    assert len(given) == 2 and usage.retries >= 2 and usage.failed == given.count(None) and client.stop_reason is None


def test_over_a_restart_no_verdict_is_lost(server, taught, smollm2, tmp_path):
    """It is killed while it generates."""
    url, process = server
    client = client_of(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        judged = threads.submit(verdicts, client, config_of(url), taught, 3)
        wait_until_it_runs(url, 3)
        end(process)
        with vllm_server(tmp_path, *FLAGS, port=urlsplit(url).port, rl__init=smollm2, policy__dtype="bfloat16"):
            given = judged.result()
    usage, _ = client.take_usage()
    assert len(given) == 3 and usage.retries >= 3 and usage.failed == given.count(None) and client.stop_reason is None


def wait_until_it_runs(url, requests):
    """Until it generates for so many at once."""
    while True:
        with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        if sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")) >= requests:
            return
        time.sleep(0.1)
