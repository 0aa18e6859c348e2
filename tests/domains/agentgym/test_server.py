"""AgentGym's HTTP servers as environments, against a stand-in with real sockets, its faults included."""

import asyncio
import gc
import json
from contextlib import contextmanager
from dataclasses import asdict

import pytest
from agentgym_servers import BROKEN, StandIn
from judge_servers import serving
from policies import Scripted, call, observations_of

from arenarl.config.schema import DataConfig, EnvironmentConfig, RolloutConfig
from arenarl.domains.agentgym.server import TextCraftServer, _owners
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import ENVIRONMENTS, environment_maker, make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, write_jsonl

KINDS = [name.removesuffix("_server") for name in ENVIRONMENTS if name.endswith("_server")]
LIMITS = RolloutConfig(max_turns=4, max_tokens=600, max_turn_tokens=100)
UP = call("act", action="go  [up]!")


@contextmanager
def running(kind):
    server = StandIn(kind)
    with serving(server.app) as address:
        yield server, address.removesuffix("/v1")


def engine_of(tokenizer, name, url, turns=(UP, UP, UP, UP), timeout_s=60.0, **options):
    config = EnvironmentConfig(name=f"{name}_server", domain="agentgym", server=url, timeout_s=timeout_s)
    generator = Scripted(tokenizer, {"task": list(turns)})
    make = environment_maker(config, "en")
    return RolloutEngine(generator, tokenizer, make, LIMITS, False, timeout_s=timeout_s, **options)


def attempts(*items):
    texts = ("agentgym", "x", "en", "Do the task.")
    queries = [Query(f"q{item}.{row}", *texts, {"item": item}) for row, item in enumerate(items)]
    return [Attempt(query, 0.0, 1) for query in queries]


FIRST = {"sciworld": "Count.\nAt 0 of 2.", "alfworld": "At 0 of 2.\nAVAILABLE ACTIONS: up,down"}
SENT = {"textcraft": "go up", "babyai": "go up", "webarena": "```go  [up]!```"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trajectory_on_each_server_has_its_observations_reward_and_end(tokenizer, kind):
    with running(kind) as (server, url):
        engine = engine_of(tokenizer, kind, url)
        tried = list(server.requests)
        won, lost, again = engine.roll_out(attempts(1, 9, 1))
        for trajectory in (won, again):
            assert trajectory.messages[0]["content"] == f"Do the task.\n\n{FIRST.get(kind, 'At 0 of 2.')}"
            assert observations_of(trajectory) == [["At 1 of 2."], ["At 2 of 2."]]
            assert (trajectory.stop_reason, trajectory.meta["reward"]) == ("done", 1.0)
        assert (lost.stop_reason, lost.meta["reward"], lost.valid) == ("horizon", 0.0, True)
        assert {body["action"] for route, body in server.requests if route == "step"} == {SENT.get(kind, "go  [up]!")}
        engine.roll_out(attempts(1))  # in an environment of before
        assert sum(route == "create" for route, _ in server.requests) == 4  # one to try the server
        has_close = ("close", {server.id_field: 0}) in tried
        assert has_close == (kind not in ("alfworld", "webshop", "sqlgym"))
        del engine
        gc.collect()
        assert len(server.worlds) == (0 if has_close else 4)


FAULTS = [(route, fault) for route in ("create", "reset", "step") for fault in (*BROKEN, "close", "hang", "restart")]
FAULTS.remove(("create", "restart"))  # harmless


@pytest.mark.parametrize(("route", "fault"), FAULTS)
def test_a_fault_restarts_the_trajectory_once_and_a_second_one_makes_it_void(tokenizer, route, fault, capfd):
    with running("textcraft") as (server, url):
        limits = (60.0, 2.0, 1.0) if fault == "hang" else (60.0, 60.0, 60.0)
        first, second, third = (engine_of(tokenizer, "textcraft", url, timeout_s=timeout_s) for timeout_s in limits)
        (whole,) = first.roll_out(attempts(1))
        server.faults[route] = [fault]
        (again,) = second.roll_out(attempts(1))
        assert again.meta["begun_again"] and again.messages == whole.messages and again.meta["reward"] == 1.0
        server.faults[route] = [fault, fault]
        (void,) = third.roll_out(attempts(1))
        assert void.is_void and void.meta["crash"] and "reward" not in void.meta


STEP = {"observation": "At 1 of 2.", "reward": 1, "done": True}
WRONG = [{"reward": value} for value in (float("nan"), float("inf"), 10**400, "1", None, [1])]
WRONG += [{"done": value} for value in (1, "true", None)] + [{"observation": value} for value in (3, None, ["a"])]
WRONG += [{"id": value} for value in (7, "0", None)]  # a reply for another environment


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_field_with_a_wrong_value_makes_a_trajectory_void_and_gives_no_reward(tokenizer, wrong, capfd):
    with running("textcraft") as (server, url):
        server.step = lambda body: STEP | wrong
        (void,) = engine_of(tokenizer, "textcraft", url).roll_out(attempts(1))
        assert void.is_void and void.meta["crash"] and "reward" not in void.meta


@pytest.mark.parametrize("actions", [None, "up", {"0": "up"}, ["up", None], ["up", ["down"]]])
def test_actions_that_are_no_list_of_texts_make_a_trajectory_void(tokenizer, actions, capfd):
    with running("alfworld") as (server, url):
        engine = engine_of(tokenizer, "alfworld", url)
        server.available_actions = lambda body: actions
        (void,) = engine.roll_out(attempts(1))
        assert void.is_void and "/available_actions: the reply has no usable" in void.meta["crash"]


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_never_share_an_environment_after_a_restart(tokenizer, kind, capfd):
    with running(kind) as (server, url):
        engine = engine_of(tokenizer, kind, url)
        engine.roll_out(attempts(1, 1, 1, 1))
        server.restart()
        server.faults = {"step": [None, None, "restart"]}
        for trajectory in engine.roll_out(attempts(1, 1, 1, 1)) + engine.roll_out(attempts(1, 1, 1, 1)):
            assert trajectory.is_void or observations_of(trajectory) == [["At 1 of 2."], ["At 2 of 2."]]
    assert all(trajectory.is_void for trajectory in engine.roll_out(attempts(1)))  # the server has ended


def test_a_reply_does_not_count_if_the_environment_went_to_another_trajectory_meanwhile(tokenizer, capfd):
    with running("textcraft") as (server, url):
        other, step = TextCraftServer(url), server.step

        def lost_once(body):
            server.step = step
            _owners[url, body["id"]] = other  # its /create had the same number as reply
            return {"observation": "At 1 of 1.", "reward": 1, "done": True}

        server.step = lost_once
        (again,) = engine_of(tokenizer, "textcraft", url).roll_out(attempts(1))
        assert again.meta["begun_again"] and observations_of(again) == [["At 1 of 2."], ["At 2 of 2."]]


def test_a_server_may_give_a_closed_environment_s_number_away_at_once():
    """Its reply to /close may arrive after its reply to another trajectory's /create."""
    with running("textcraft") as (server, url):
        first, second, close = TextCraftServer(url), TextCraftServer(url), server.close

        def close_slowly(body):
            _owners[url, body["id"]] = second
            return close(body)

        server.close = close_slowly

        async def start_and_close():
            await first.start(1)
            await first.close()
            assert await first.start(1) == "At 0 of 2."

        asyncio.run(start_and_close())


def test_a_wrong_set_up_is_refused_before_work_starts(tokenizer):
    def refused(name, url, **keys):
        with pytest.raises(UserError) as error:
            make_environment(EnvironmentConfig(name=f"{name}_server", server=url, **keys), "en")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "textcraft_server needs a server; set environment.server" in refused("textcraft", None)
    for address in ("127.0.0.1:1", "ftp://127.0.0.1:1", "http://", "not an address", "http://127.0.0.1:99999"):
        assert "not a working textcraft server: it is not an address such as http:" in refused("textcraft", address)
    with running("webshop") as (server, url):
        assert 'it says "ok" (status 200) instead of "TextCraft"' in refused("textcraft", url)
        assert "status 404" in refused("webshop", f"{url}/maze")
        server.faults = {"reset": ["status"]}
        assert "is not a working webshop server: /reset: status 500: Internal" in refused("webshop", url)
        make_environment(EnvironmentConfig(name="webshop_server", server=f"{url}/"), "en")  # it works again
    assert "is not a working sqlgym server: Cannot connect" in refused("sqlgym", url)
    with running("textcraft") as (server, url):
        server.faults = {"create": ["redirect", "deep", "latin", "hang"]}
        assert "/create: redirected to / (status 307); name the final address" in refused("textcraft", url)
        assert "/create: the reply is not JSON: [[" in refused("textcraft", url)
        assert "/create: the reply is not text in UTF-8" in refused("textcraft", url)
        assert "no reply within 0.5 s (environment.timeout_s" in refused("textcraft", url, timeout_s=0.5)
        server.faults = {"reset": ["status", "close", "hang"]}
        assert "/reset: status 500" in refused("textcraft", url) and not server.worlds  # closed again
        assert "Server disconnected" in refused("textcraft", url) and not server.worlds
        assert "no reply within 0.5 s" in refused("textcraft", url, timeout_s=0.5) and not server.worlds
    with running("webshop") as (server, url):
        server.reset = lambda body: ["a random item", None]  # as AgentGym's does without its own field
        assert "serves another world" in refused("sqlgym", url)
    with running("textcraft") as (_, url), pytest.raises(UserError, match="constraints.item is None"):
        query = Query("q", "agentgym", "x", "en", "Do the task.")
        engine_of(tokenizer, "textcraft", url).roll_out([Attempt(query, 0.0, 1)])


def test_queries_without_an_item_are_refused_when_they_are_read(tmp_path):
    config = EnvironmentConfig(name="textcraft_server", domain="agentgym", server="http://127.0.0.1:1")
    domain = make_domain(config, DataConfig(language="en", folder=str(tmp_path)))
    for item, is_right in ((3, True), ("3", False), (-1, False), (True, False), (1.0, False)):
        write_jsonl(tmp_path / "rl_queries.jsonl", [asdict(attempts(item)[0].query)])
        if is_right:
            assert [query.constraints["item"] for query in domain.read_split("rl")] == [item]
        else:
            with pytest.raises(UserError, match="constraints.item is .*; make it the item's number"):
                domain.read_split("rl")


def test_item_lists_become_queries_without_a_truth(tmp_path, capsys):
    for path, items in {"eval/webarena_test": (24, 238), "train/webarena_train": (0, 24, 7)}.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / f"{path}.json").write_text(json.dumps([{"item_id": f"webarena_{item}"} for item in items]))
    with running("webarena") as (_, url):
        config = EnvironmentConfig(name="webarena_server", domain="agentgym", server=url)
        domain = make_domain(config, DataConfig(language="en", items=str(tmp_path), rl_size=2))
        assert domain.examine is None
        splits = dict(domain.splits(make_environment(config, "en")))
    assert "webarena: 2 test and 3 training items, of which 1 are in both" in capsys.readouterr().out
    assert [query.constraints["item"] for query in splits["rl_queries"]] == [0, 24]
    assert [query.query_id for query in splits["test_queries"]] == ["webarena_24", "webarena_238"]
    with pytest.raises(UserError, match="needs environment.name of a server"):
        next(domain.splits(make_environment(EnvironmentConfig(name="none"), "en")))
