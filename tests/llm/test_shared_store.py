"""One PostgreSQL database as the store of several processes: kills, lost connections and a restarted server."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from judge_servers import answering, completion, serving
from postgresql import PASSWORD
from scripts import wait_until

from arenarl.config.load import config_of_keys
from arenarl.domains.research.search import Cache
from arenarl.llm.reply_store import ReplyStore, StoredReply, Usage
from arenarl.system.errors import UserError

pytestmark = pytest.mark.slow(seconds=60)  # all tests together

REPLY = StoredReply('{"score": 7}', "m-2026", 100, 10)
CONCURRENCY = 8
CALLER = """
import asyncio, json, sys
from pydantic import BaseModel
from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.llm.client import LLMClient

class Score(BaseModel):
    score: float

url, store, first, last, most = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
client = LLMClient(JudgesConfig(store=store, concurrency=8, max_calls=most or None), "run/rl", {})
llm = LLMConfig(model="m", base_url=url, api_key_variable=None, timeout_s=60.0, price_in=1.0, price_out=1.0)

async def ask_all():
    prompts = [[{"role": "user", "content": str(number)}] for number in range(first, last)]
    return await asyncio.gather(*(client.ask(llm, prompt, Score, "{error}") for prompt in prompts))

scores = asyncio.run(ask_all())
usage = client.take_usage()[0]
print(json.dumps({"scores": [s and s.score for s in scores], "reason": client.stop_reason, "paid": usage.calls}))
"""


class Judge:
    """A judge whose score is the prompt's number, after 20 ms; it counts its requests."""

    def __init__(self):
        self.paid, self.app = 0, answering(self._reply)

    async def _reply(self, request):
        self.paid += 1
        text = (await request.json())["messages"][-1]["content"]
        await asyncio.sleep(0.02)
        return completion(json.dumps({"score": float(text)}))


def start(*words):
    command = [sys.executable, "-c", CALLER, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process):
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def test_two_processes_share_one_budget_exact_to_the_call(database):
    judge = Judge()
    with serving(judge.app) as url:
        results = [result_of(each) for each in [start(url, database, first, first + 100, 131) for first in (0, 100)]]
    assert judge.paid == 131 == sum(result["paid"] for result in results)
    assert ReplyStore(database).spent("run").calls == 131
    assert all(result["reason"].startswith("judge.max_calls=131 is used up") for result in results)


def test_a_server_killed_and_restarted_twice_costs_no_second_payment(database, postgresql):
    judge = Judge()
    with serving(judge.app) as url:
        processes = [start(url, database, first, first + 300, 0) for first in (0, 300)]
        for paid in (100, 300):
            wait_until(lambda: judge.paid >= paid)  # noqa: B023
            postgresql.kill()
            time.sleep(0.5)
            postgresql.start()
        results = [result_of(process) for process in processes]
        assert [score for result in results for score in result["scores"]] == [*map(float, range(600))]
        assert judge.paid <= 600 + 2 * 2 * CONCURRENCY
        spent = ReplyStore(database).spent("run")
        assert spent.calls == judge.paid and spent.tokens_in == 1000 * judge.paid
        paid = judge.paid
        assert result_of(start(url, database, 0, 600, 0))["paid"] == 0 and judge.paid == paid


def test_a_killed_process_pays_again_only_for_calls_under_way(database):
    judge = Judge()
    with serving(judge.app) as url:
        process = start(url, database, 0, 300, 0)
        wait_until(lambda: judge.paid >= 100)
        process.kill()
        process.communicate()
        before = judge.paid
        result = result_of(start(url, database, 0, 300, 0))
    assert result["scores"] == [*map(float, range(300))]
    assert 300 <= judge.paid <= 300 + CONCURRENCY and before < 300
    # calls that were under way stay reserved: the budget is never exceeded
    assert judge.paid <= ReplyStore(database).spent("run").calls <= judge.paid + CONCURRENCY


@contextmanager
def cutting(port, word, before):
    """Yield the port of a proxy that cuts the first connection on which the client sends `word`: before the server gets
    the word, or after the server has answered and before the client gets the answer."""
    listener, cuts = socket.create_server(("127.0.0.1", 0)), []

    def pass_on(source, goal, is_client):
        """Pass data on until an end closes, or until the cut."""
        while data := source.recv(65536):
            if is_client and word in data and not cuts:
                cuts.append(source)
                if before:
                    break
            elif not is_client and goal in cuts:
                break
            goal.sendall(data)
        for end in (source, goal):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept():
        with suppress(OSError):  # the listener is closed at the end of the test
            while True:
                client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
    assert cuts


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("word", [b"BEGIN", b"UPDATE spent", b"INSERT INTO writers", b"INSERT INTO replies", b"COMMIT"])
def test_a_call_counts_once_wherever_the_connection_is_cut(database, postgresql, word, before):
    direct = ReplyStore(database)
    direct.reserve("run", None, None)
    direct.release("run")
    with cutting(postgresql.port, word, before) as port:
        store = ReplyStore(database.replace(str(postgresql.port), str(port)))

        def charge_and_put():
            store.charge("run", Usage(tokens_in=5, cost=0.5))
            return store.put("k", REPLY)

        if word != b"INSERT INTO replies":
            assert store.reserve("run", 1, None) and not store.reserve("run", 1, None)
            store.release("run")
        assert store.reserve("run", 1, None)
        assert store.transaction(charge_and_put) == REPLY == direct.get("k")
    assert direct.spent("run") == Usage(calls=1, tokens_in=5, cost=0.5)


def test_a_process_that_stops_in_a_transaction_does_not_block_others(database):
    """Its session ends after 1 s here, after 20 s in a run."""
    program = """
import os, signal, sys
from arenarl.llm.reply_store import *
store = ReplyStore(sys.argv[1])
store._db._connection.execute("SET idle_in_transaction_session_timeout = '1s'")
store.reserve("run", None, None)

def stop():
    store.charge("run", Usage(tokens_in=7))
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

store.transaction(stop)
"""
    process = subprocess.Popen([sys.executable, "-c", program, database], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "stopped\n"
    try:
        store = ReplyStore(database)
        assert store.reserve("run", 2, None) and store.spent("run") == Usage(calls=2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_the_search_cache_is_shared_too(database):
    async def make():
        return {"text": "a\0b\ud800"}

    async def never():
        raise AssertionError

    for make_result in (make, never):
        assert asyncio.run(Cache(database).get("page", ("u",), make_result)) == {"text": "a\0b\ud800"}


def test_no_message_and_no_file_holds_the_password(database, postgresql, monkeypatch, capfd, tmp_path):
    user, port = "owner:" + PASSWORD, postgresql.port
    for url in (database.replace("owner", user), f"{database}?password={PASSWORD}", f"{database}?pass%77ord=x"):
        with pytest.raises(UserError, match="judge.store holds a password, .* set PGPASSWORD, or use ~") as error:
            config_of_keys({"judge": {"store": url}}, "test")
        assert PASSWORD not in str(error.value)
    assert config_of_keys({"judge": {"store": database}}, "test").judge.store == database
    with pytest.raises(UserError, match="must be a file, or a URL such as postgresql://"):
        config_of_keys({"environment": {"search": {"cache": "mysql://host/database"}}}, "test")
    monkeypatch.setenv("PGPASSWORD", "wrong-" + PASSWORD)
    with pytest.raises(UserError, match="password authentication failed .* judge.store and the server; set PGPASS"):
        ReplyStore(database)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(UserError, match='database "none" does not exist; check judge.store'):
        ReplyStore(f"postgresql://owner@127.0.0.1:{port}/none")
    with postgresql.connect(database.rpartition("/")[2]) as connection:
        store = ReplyStore(database)
        connection.execute("DROP TABLE spent")
        with pytest.raises(UserError, match=r'cannot use .*: relation "spent" does not exist'):
            store.reserve("run", None, None)
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()")
    assert store.get("k") is None
    printed = capfd.readouterr()
    assert "connection lost, reconnecting for up to 60 s" in printed.out
    assert PASSWORD not in printed.out + printed.err
