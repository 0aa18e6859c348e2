import json
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from arenarl.llm.reply_store import ReplyStore, StoredReply, Usage, reply_key
from arenarl.system.errors import UserError

REPLY = StoredReply('{"score": 7}', "m-2026", 100, 10)


def test_the_store_returns_a_reply_again_and_keeps_the_first_of_two(place):
    store = ReplyStore(place)
    assert store.get("k") is None
    assert store.put("k", REPLY) == REPLY == store.get("k")
    assert store.put("k", StoredReply("other", "m", 1, 1)) == REPLY
    assert ReplyStore(place).get("k") == REPLY
    strange = StoredReply("it's 100 % \\ 漢字 😀 %(key)s :key '' \x1b\0", "m", None, 2**40)
    assert store.put("strange", strange) == store.get("strange")
    assert store.get("strange").text == strange.text.replace("\0", "\ufffd")


def test_a_reply_is_stored_and_charged_together_or_not_at_all(place):
    """A process that is killed leaves its transaction open, as the exception does."""
    store = ReplyStore(place)
    assert store.reserve("run", None, None)

    def charge_and_put(reply=REPLY):
        store.charge("run", Usage(tokens_in=5))
        assert store.put("k", reply) == reply
        if reply is not REPLY:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.transaction(lambda: charge_and_put(StoredReply("lost", "m", 1, 1)))
    assert store.get("k") is None and store.spent("run") == Usage(calls=1)
    store.transaction(charge_and_put)
    assert ReplyStore(place).get("k") == REPLY and store.spent("run") == Usage(calls=1, tokens_in=5)


def test_a_full_disk_is_named_and_keeps_neither_a_charge_nor_a_lock(tmp_path):
    store, other = ReplyStore(tmp_path / "s"), ReplyStore(tmp_path / "s")
    assert store.reserve("run", None, None)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")

    def charge_and_put():
        store.charge("run", Usage(tokens_in=5))
        store.put("k", StoredReply("x" * 100_000, "m", 1, 1))

    with pytest.raises(UserError, match="database or disk is full"):
        store.transaction(charge_and_put)
    assert store.get("k") is None and store.spent("run") == Usage(calls=1)
    assert other.put("k", REPLY) == REPLY


def test_a_changed_reply_is_not_returned_and_an_unusable_store_is_an_error_that_names_its_key(tmp_path):
    store = ReplyStore(tmp_path / "s")
    for column, value in {"text": '{"score": 9}', "model": "n", "tokens_in": 1, "tokens_out": None}.items():
        assert store.put("k", REPLY) == REPLY
        sqlite3.connect(tmp_path / "s", isolation_level=None).execute(f"UPDATE replies SET {column} = ?", (value,))
        assert store.get("k") is None
    store.put("k", REPLY)
    sqlite3.connect(tmp_path / "s", isolation_level=None).execute("DELETE FROM hashes")  # as an earlier version left it
    assert store.get("k") == REPLY
    (tmp_path / "text").write_text("not a database " * 100)
    for path in (tmp_path / "text", tmp_path / "text" / "below"):
        with pytest.raises(UserError, match=r"judge\.store"):
            ReplyStore(path)


def test_a_key_depends_on_every_part_of_the_request():
    request = {"model": "m", "messages": [{"role": "user", "content": "q"}], "temperature": 0.0}
    keys = {
        reply_key("u", request, 0), reply_key("v", request, 0), reply_key("u", request, 1),
        reply_key("u", request | {"model": "n"}, 0),
        reply_key("u", request | {"messages": [{"role": "user", "content": "\ud800"}]}, 0),
        reply_key("u", request | {"temperature": 0.5}, 0),
        reply_key("u", request | {"response_format": {"type": "json_object"}}, 0),
    }  # fmt: skip
    assert len(keys) == 7 and reply_key("u", dict(reversed(request.items())), 0) in keys
    request = {"model": "m", "messages": [{"role": "user", "content": "q é"}], "temperature": 0.5, "max_tokens": 9}
    # as in earlier versions
    assert reply_key("http://u/v1", request, 2) == "55eb835004feec6ead2060b997b0fed098905b92067ec7ab11e98f56ed7dc2dc"


def test_limits_apply_to_all_stages_of_a_run_together(place):
    store = ReplyStore(place)
    assert store.spent("run") == Usage()
    assert store.reserve("run/data", 3, None) and store.reserve("run/rl", 3, None) and store.reserve("run", 3, None)
    assert not any(store.reserve(stage, 3, None) for stage in ("run/rl", "run/evaluate", "run"))
    assert all(store.reserve(stage, 3, None) for stage in ("run-seed1/rl", "runs/rl", "other/run"))
    store.release("run/rl")
    assert store.reserve("run/evaluate", 3, None)
    store.charge("run/evaluate", Usage(tokens_in=100, tokens_out=10, cost=0.5))
    assert store.spent("run/rl") == store.spent("run") == Usage(calls=3, tokens_in=100, tokens_out=10, cost=0.5)
    assert not store.reserve("run/rl", None, 0.5) and store.reserve("run/rl", None, 0.51)


def test_a_damaged_page_is_an_error_that_names_the_key_and_gives_no_other_reply(tmp_path):
    path, replies = tmp_path / "s", {str(key): replace(REPLY, text=f"{key} " * (key % 60)) for key in range(120)}
    store = ReplyStore(path)
    for key, reply in replies.items():
        store.put(key, reply)
    store._db._connection.close()  # writes all changes into the file
    whole, found = path.read_bytes(), set()
    for place in range(4096, len(whole), 4096):
        path.write_bytes(whole[:place] + bytes(4096) + whole[place + 4096 :])
        store = ReplyStore(path)
        for key, reply in replies.items():
            try:
                found.add(type(stored := store.get(key)))
                assert stored in (reply, None)
            except UserError as error:
                found.add(UserError)
                assert "change judge.store" in str(error)
    assert {UserError, type(REPLY)} <= found


WRITER = """
import sys
from arenarl.llm.reply_store import *
store, number = ReplyStore(sys.argv[1]), int(sys.argv[2])
first = 0
for key in range(200):
    first += store.put(str(key), StoredReply(str(number), "m", 1, 1)).text == str(number)
    if store.reserve("run", 500, None):
        store.charge("run", Usage(tokens_in=2, tokens_out=3, cost=0.25))
print(first)
"""


def test_four_processes_can_write_at_once_and_agree(place):
    command = [sys.executable, "-c", WRITER, place]
    writers = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(4)]
    assert sum(json.loads(writer.communicate(timeout=600)[0]) for writer in writers) == 200
    assert ReplyStore(place).spent("run") == Usage(calls=500, tokens_in=1000, tokens_out=1500, cost=125.0)


OPENERS = """
import multiprocessing, pathlib, sys
from arenarl.llm.reply_store import ReplyStore

def open_all(folder, barrier):
    for number in range(100):
        barrier.wait(60)
        ReplyStore(pathlib.Path(folder, str(number)))

context = multiprocessing.get_context("fork")
barrier = context.Barrier(4)
openers = [context.Process(target=open_all, args=(sys.argv[1], barrier)) for _ in range(4)]
[opener.start() for opener in openers]
[opener.join() for opener in openers]
print([opener.exitcode for opener in openers])
"""


def test_processes_can_create_a_store_at_the_same_moment(tmp_path):
    done = subprocess.run([sys.executable, "-c", OPENERS, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.stdout == "[0, 0, 0, 0]\n", done.stderr
