"""One attempt: proxies, certificates and connections; then everything that a gateway may send with status 200."""

import asyncio
import gc
import json
import random

import pytest
from aiohttp import web
from amap_stand_in import tunnelling
from hostile import NO_COMPLETION, completion_of, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_servers import Script, answering, client_of, completion, llm, serving

from arenarl.judges.llm import OneScore
from arenarl.llm.transport import APIConnectionError, APIStatusError, NoCompletion, Transport, read_completion
from arenarl.system.event_loops import LoopThread

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def send(config, keys=None, count=1):
    """Make attempts at once; return the text of each reply."""

    async def attempts():
        transport, request = Transport(keys or {}), {"model": "m", "messages": [], "extra_body": {"n": 1}}
        try:
            replies = await asyncio.gather(*(transport.send(config, request) for _ in range(count)))
            return [reply.text() for reply in replies]
        finally:
            await transport.close()

    return asyncio.run(attempts())


def set_proxies(monkeypatch, **variables):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, variables.get(name, ""))


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_calls_go_through_the_proxy_unless_no_proxy_names_the_host(variable, monkeypatch):
    script = Script("through the proxy")
    with serving(script.app) as url:
        proxy = url.removesuffix("/v1").replace("http://", "user:pass%20word@")
        for scheme in ("", "http://"):
            set_proxies(monkeypatch, **{variable: scheme + proxy})
            assert send(llm("http://api.invalid:81/v1")) == ["through the proxy"]
        for hosts in ("api.invalid", ".invalid", "other.invalid, *", "api.invalid:81"):
            set_proxies(monkeypatch, NO_PROXY=hosts, **{variable: proxy})
            with pytest.raises(APIConnectionError, match="api.invalid"):
                send(llm("http://api.invalid:81/v1"))
    assert len(script.requests) == 2 and script.requests[0] == {"model": "m", "messages": [], "n": 1}


def test_calls_over_tls_go_through_the_proxy_and_trust_only_known_certificates(monkeypatch, tmp_path):
    with tunnelling(Script("safe").app, "api.invalid", tmp_path) as (proxy, certificate, heads):
        config = llm("https://api.invalid/v1", api_key_variable="K")
        set_proxies(monkeypatch, HTTPS_PROXY=proxy.replace("//", "//user:word@"), SSL_CERT_FILE=str(certificate))
        assert send(config, {"K": "sk-secret"}) == ["safe"]
        set_proxies(monkeypatch, HTTPS_PROXY=proxy)
        with pytest.raises(APIConnectionError, match="certificate verify failed"):
            send(config)
    assert heads[0].startswith("CONNECT api.invalid:443") and "Proxy-Authorization: Basic dXNlcjp3b3Jk" in heads[0]
    assert not any("sk-secret" in head for head in heads)
    set_proxies(monkeypatch)
    trusted = [Transport({})._options(llm(f"{scheme}://api.invalid/v1"))["ssl"] for scheme in ("https", "HTTPS")]
    assert trusted[0].get_ca_certs() == trusted[1].get_ca_certs()


@pytest.mark.slow(seconds=4)
def test_more_than_a_thousand_calls_run_at_once():
    """The server replies once all calls have arrived."""
    count, arrived, is_full = 1100, [], asyncio.Event()

    async def reply(request):
        arrived.append(request)
        if len(arrived) == count:
            is_full.set()
        await is_full.wait()
        return completion("full")

    with serving(answering(reply)) as url:
        assert send(llm(url), count=count) == ["full"] * count


def test_a_reply_without_end_is_cut_off():
    async def reply(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**20)

    with serving(answering(reply)) as url, pytest.raises(NoCompletion, match="larger than 67,108,864 bytes"):
        send(llm(url))


def test_of_an_error_only_the_beginning_is_read_for_secrets(monkeypatch):
    masked, transport = [], Transport({})
    monkeypatch.setattr("arenarl.llm.transport.mask", lambda text: masked.append(text) or text)
    long = "context length " * 2**20
    for error in (APIStatusError(400, {}, json.dumps({"error": {"message": long}}).encode()), NoCompletion(long)):
        shown = transport.explain(llm("http://127.0.0.1:1"), error)
        assert "context length" in shown and len(shown) < 1000 and len(transport.describe(error)) == 10_000
        assert ("lower max_reply_tokens" in shown) == isinstance(error, APIStatusError)
    assert len(masked) == 4 and max(map(len, masked)) <= 20_000


HEAD = b"HTTP/1.1 200 OK\r\n"
VIOLATIONS = [
    b"", b"\x00\xff nonsense\r\n\r\n", HEAD + b"Content-Le", HEAD + b"Content-Length: 900\r\n\r\n{}",
    HEAD + b"Content-Length: -5\r\n\r\n{}", HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{}", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    HEAD + b"X: " + b"a" * 300_000 + b"\r\n\r\n{}", HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/2 200\r\n\r\n{}", b"HTTP/1.1 1000 X\r\n\r\n",
]  # fmt: skip


def test_a_reply_that_violates_http_is_a_connection_error_and_an_odd_status_is_retried(tmp_path):
    replies = [*VIOLATIONS, b"HTTP/1.1 101 X\r\n\r\n", b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n"]
    good = json.dumps(completion_of('{"score": 4}')).encode()
    replies.append(HEAD + b"X: " + b"a" * 30_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(good) + good)
    left, thread = iter(replies), LoopThread("raw")

    async def reply(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(left))
        writer.close()

    server = thread.submit(asyncio.start_server(reply, "127.0.0.1", 0)).result(60)
    config = llm(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    for _ in VIOLATIONS:
        with pytest.raises(APIConnectionError):
            send(config)
    client = client_of(tmp_path)
    assert asyncio.run(client.ask(config, [], OneScore, "")).score == 4
    assert client.take_usage()[0].retries == 2
    thread.close()


def test_a_forgotten_client_closes_its_connections_without_a_warning(tmp_path, caplog):
    gc.collect()
    caplog.clear()  # warnings about objects of earlier tests
    with serving(Script('{"score": 4}').app) as url:
        client = client_of(tmp_path)
        asyncio.run(client.ask(llm(url), [], OneScore, ""))
        thread, session = client._thread._thread, client.transport._session
        del client
        gc.collect()
        thread.join(60)
        assert session.closed and not thread.is_alive()
        del session
        gc.collect()
    assert not caplog.records


def read(reply):
    return read_completion(json.dumps(reply).encode())


@pytest.mark.parametrize("name", NO_COMPLETION)
def test_the_error_of_an_invalid_completion_is_one_line_with_its_start(name):
    with pytest.raises(NoCompletion, match="^status 200, but no chat completion") as caught:
        read_completion(NO_COMPLETION[name])
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 700


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_reply_is_not_a_completion(reason):
    reply = completion_of()
    reply["choices"][0]["finish_reason"] = reason
    with pytest.raises(NoCompletion, match=f"aborted the reply .finish_reason {reason}") as caught:
        read(reply)
    assert caught.value.tokens == (1000, 10)


def check(body):
    """Check that the body raises NoCompletion, or gives a completion with valid parts."""
    try:
        completion = read_completion(body)
    except NoCompletion:
        return
    assert isinstance(completion.message, dict) and isinstance(completion.message.get("content"), str | list | None)
    assert completion.tokens is None or (0 < completion.tokens[0] <= 10**7 and 0 <= completion.tokens[1] <= 10**7)
    json.dumps([completion.message, completion.model], ensure_ascii=False).encode()


@settings(max_examples=50)
@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary())
def test_any_bytes_are_a_completion_or_raise_no_completion(body):
    check(body)


def test_any_mutated_completion_is_a_completion_or_raises_no_completion():
    rng = random.Random(0)
    for _ in range(3000):
        check(json.dumps(mutated(rng, completion_of())).encode())


def test_a_completion_with_an_impossible_usage_or_model_has_unknown_tokens_or_model():
    counts = [
        (None, None), ("5", "5"), (-5, 5), (5, -5), (10**30, 5), (5, 10**8), (float("nan"), 5), (True, 5), (0, 0),
        (5.5, 5), ([], {}),
    ]  # fmt: skip
    usages = [{"prompt_tokens": tokens_in, "completion_tokens": tokens_out} for tokens_in, tokens_out in counts]
    for usage in (None, {}, [], 7, "many", {"prompt_tokens": 5}, *usages):
        assert read(completion_of(usage=usage)).tokens is None
    assert read(completion_of()).tokens == (1000, 10)
    assert read(completion_of(model={"name": "m"})).model is None and read(completion_of(model="m\ud800")).model == "m?"


@pytest.mark.parametrize(("total", "billed"), [
    (1010, 10), (9000, 8000), (None, 10), (5, 10), (-1, 10), (10**30, 10), ("9000", 10), (True, 10), (9000.0, 10),
])  # fmt: skip
def test_thinking_that_only_the_total_includes_is_billed(total, billed):
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": total}
    assert read(completion_of(usage=usage)).tokens == (1000, billed)
