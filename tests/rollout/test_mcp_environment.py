"""Tools of MCP servers, with real servers that fail in every way (tests/support/faulty_mcp_server.py)."""

import asyncio
import re
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import psutil
import pytest

pytest.importorskip("mcp", reason="the SDK mcp is not installed: pip install mcp==2.3.0")

from mcp_servers import FAULTY, ask, environment_of, faulty, maker_of, say, serving_http  # noqa: E402
from policies import ANSWER, Scripted, call, query  # noqa: E402

from arenarl.config.load import load_config  # noqa: E402
from arenarl.config.schema import MCPServerConfig, RenamedToolConfig, RolloutConfig  # noqa: E402
from arenarl.rollout import mcp_session  # noqa: E402
from arenarl.rollout.engine import Attempt, RolloutEngine  # noqa: E402
from arenarl.rollout.environment import ToolCrash  # noqa: E402
from arenarl.system.errors import UserError  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SILENT = socket.create_server(("127.0.0.1", 0))  # accepts connections and never replies
LIMITS = RolloutConfig(group_size=4, max_turns=3, max_tokens=600, max_turn_tokens=200)


@pytest.fixture(scope="module")
def working():
    """An environment with a server that these tests do not break."""
    return environment_of(faulty(max_chars=1000, concurrency=3, env={"PLACE": "here"}))


def roll_out(tokenizer, make, *turns, attempts=1):
    engine = RolloutEngine(Scripted(tokenizer, {"park": turns}), tokenizer, make, LIMITS, schemas_in_prompt=False)
    return engine.roll_out([Attempt(query(query_id=str(number)), 0.0, number) for number in range(attempts)])


def results_of(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


def refused(*servers, **options):
    with pytest.raises(UserError) as caught:
        environment_of(*servers, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_kind_of_content_becomes_text(working):
    assert say(working, "echo", text="公园 & <b>") == "公园 & <b>"
    assert say(working, "picture") == "Here:\n[image, image/png, 300 bytes, not shown]"
    assert say(working, "resources") == "the text\n[a://c, audio/wav, not shown]\n[guide: https://example.org/guide]"
    assert say(working, "structured") == '{"place": "公园"}' and say(working, "nothing") == ""
    assert say(working, "huge", characters=5000) == "x" * 1000 + "… [4,000 more characters]"
    assert say(working, "junk") == "done"  # it prints text that is not a message


def test_every_form_of_an_error_is_an_observation(working):
    assert say(working, "fail") == "Error: no such place"
    assert say(working, "says_error") == "Error: busy." and say(working, "json_error") == "Error: quota"
    assert say(working, "crash") == "Error: inside" and say(working, "no_result").startswith("Error: ")
    assert say(working, "echo") == "Error: echo needs the argument text."
    assert say(working, "ecko", text="x").startswith('Error: unknown tool "ecko". Did you mean "echo"?')

    assert say(working, "wait", seconds="soon") == 'Error: seconds must be a number, not "soon".'  # by the schema
    assert say(working, "wait", seconds="0.01") == "done"


def test_a_server_gets_only_the_variables_that_the_config_names(working, monkeypatch):
    monkeypatch.setenv("SECRET_OF_OURS", "hidden-from-servers")
    named = environment_of(faulty(variables=["SECRET_OF_OURS"]))
    assert say(named, "environment", name="SECRET_OF_OURS") == "***"  # the server has it, and its reply is masked
    values = [say(working, "environment", name=name) for name in ("SECRET_OF_OURS", "PLACE", "PATH")]
    assert values[:2] == ["unset", "here"] and values[2] != "unset"


def test_at_most_concurrency_calls_run_at_once_and_a_slow_one_does_not_end_the_session(working):
    assert ask(working, *[("wait", {"seconds": 0.3})] * 6) == ["done"] * 6
    assert say(working, "busiest") == "3"
    slow = environment_of(faulty(timeout_s=2.0))
    first = say(slow, "count").split()[2]
    late = "Error: the tool wait did not answer within 2 s."
    assert ask(slow, ("wait", {"seconds": 60}), ("echo", {"text": "x"})) == [late, "x"]
    assert say(slow, "count") == f"2 of {first}"
    assert sum(slow.take_metrics()["mcp/reconnects"]) == 0


def test_a_server_that_dies_restarts_once_and_its_running_calls_are_repeated(tmp_path):
    mark = tmp_path / "died"
    mortal = environment_of(faulty())
    assert say(mortal, "count").startswith("1 of")
    calls = [("wait", {"seconds": 0.5}), ("wait", {"seconds": 0.6}), ("die_once", {"mark": str(mark)})]
    assert ask(mortal, *calls) == ["done"] * 3 and mark.exists()
    assert say(mortal, "count").startswith("1 of") and sum(mortal.take_metrics()["mcp/reconnects"]) >= 1


@pytest.mark.slow(seconds=3)
def test_a_server_that_hangs_counts_as_dead():
    hanging = environment_of(faulty(timeout_s=0.7))
    with pytest.raises(ToolCrash, match="did not answer within 0.7 s"):
        say(hanging, "block", seconds=60)


def test_a_trajectorys_own_session_has_its_own_state_and_ends_with_it(tokenizer):
    make = maker_of(faulty(session="trajectory"))
    trajectories = roll_out(tokenizer, make, call("count"), call("count"), ANSWER, attempts=2)
    counts = [[text.split() for text in results_of(trajectory)] for trajectory in trajectories]
    assert [[count for count, *_ in words] for words in counts] == [["1", "2"], ["1", "2"]]
    processes = {int(process) for words in counts for _, _, process in words}
    assert len(processes) == 2 and not any(psutil.pid_exists(process) for process in processes)


def test_a_session_with_a_state_does_not_reconnect_within_a_trajectory(tokenizer, tmp_path, capfd):
    make = maker_of(faulty(session="trajectory"))
    (again,) = roll_out(tokenizer, make, call("count"), call("die_once", mark=str(tmp_path / "died")), ANSWER)
    assert again.valid and "out of fuel" in again.meta["begun_again"]  # from the start, in another session
    assert [text.split()[0] for text in results_of(again)] == ["1", "done"]


def test_a_call_is_stored_and_made_once_for_all_runs(tmp_path):
    store = tmp_path / "replies.sqlite"
    first = environment_of(faulty(), store=store)
    answer = say(first, "count")
    assert ask(first, ("count", {}), ("echo", {"text": "a"}), ("echo", {"text": "a"})) == [answer, "a", "a"]
    assert first.take_metrics()["mcp/hit_rate"] == [0.0, 1.0, 0.0, 1.0]
    again = environment_of(faulty(max_chars=3), store=store)  # max_chars does not change the call
    assert say(again, "count").startswith(answer[:3]) and "mcp/call_s" not in again.take_metrics()
    # errors are not stored
    assert say(again, "fail").startswith("Error: no ") and say(again, "fail").startswith("Error: no ")
    assert len(again.take_metrics()["mcp/call_s"]) == 2
    alone = environment_of(faulty(), store=store, store_only=True)
    assert say(alone, "count") == answer
    with pytest.raises(UserError, match="the store lacks a call of echo"):
        say(alone, "echo", text="new")


def test_stored_calls_depend_on_the_database_but_not_on_the_key(tmp_path, monkeypatch):
    server, store = faulty(variables=["DATABASE_URL", "SERVICE_TOKEN"]), tmp_path / "replies.sqlite"
    for database, key, calls in (("train", "first", 1), ("test", "first", 1), ("train", "second", 0)):
        monkeypatch.setenv("DATABASE_URL", f"postgres://{database}")
        monkeypatch.setenv("SERVICE_TOKEN", key)
        environment = environment_of(server, store=store)
        say(environment, "count")
        assert len(environment.take_metrics().get("mcp/call_s", [])) == calls


@pytest.mark.parametrize("server", [{"cache": False}, {"session": "trajectory"}])
def test_calls_are_not_stored_without_cache_or_with_a_state(tmp_path, server):
    environment = environment_of(faulty(**server), store=tmp_path / "replies.sqlite")
    assert [say(environment, "count").split()[0] for _ in range(2)] == ["1", "2"]
    asyncio.run(environment.close())


def test_over_http_the_key_is_sent_and_masked_in_results(monkeypatch):
    monkeypatch.setenv("KEY_OF_THE_SERVER", "secret-enough")
    with serving_http(FAULTY) as (url, process):
        config = MCPServerConfig(url=url, api_key_variable="KEY_OF_THE_SERVER")
        bearer, parameter = environment_of(config), environment_of(replace(config, api_key_parameter="key"))
        assert say(bearer, "headers") == "/mcp Bearer ***" and say(parameter, "headers") == "/mcp?key=***"
        assert say(bearer, "huge", characters=3_000_000).endswith("… [2,992,000 more characters]")
        process.kill()
        process.wait()
        with pytest.raises(ToolCrash, match="ServerGone"):
            say(bearer, "echo", text="x")
    monkeypatch.delenv("KEY_OF_THE_SERVER")
    assert "set the environment variable KEY_OF_THE_SERVER" in refused(config)


def test_a_packed_response_is_unpacked_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(mcp_session, "_MAX_BYTES", 2 * 2**20)
    with serving_http(FAULTY) as (url, _):
        environment = environment_of(MCPServerConfig(url=url, max_chars=10))

        def packed(coding, megabytes=1, events=""):
            return say(environment, "packed", coding=coding, megabytes=megabytes, events=events)

        for coding, events in product(("gzip", "deflate", "identity"), ("", "yes")):
            assert packed(coding, 1, events).startswith("xxxxxxxxxx… [1,0")
            assert packed(coding, 3, events).startswith("Error: ")
        assert packed("br").startswith("Error: ") and packed("gzip, gzip").startswith("Error: ")
        assert say(environment, "echo", text="still here") == "still here"


def test_what_a_server_writes_is_shown_on_one_line_with_its_control_characters_quoted():
    line = refused(faulty("--refuse", env={"REASON": "9" * 5000 + "\x1b[2J\x1b]0;x\x07\u202e"}))
    assert line.isprintable() and len(line) < 1500 and r"\x1b[2J" in line


def test_a_restarted_server_over_http_is_reconnected():
    with serving_http(FAULTY) as (url, process):
        environment = environment_of(MCPServerConfig(url=url))
        assert say(environment, "count").startswith("1 of")
        port = int(re.search(r":(\d+)/", url)[1])
        process.kill()
        process.wait()
        with serving_http(FAULTY, port=port) as (_, second):
            assert say(environment, "count") == f"1 of {second.pid}"


def test_a_list_of_tools_can_have_pages_and_a_server_only_the_new_handshake():
    environment = environment_of(faulty("--pages", allow=["echo", "headers"]))
    assert [tool["function"]["name"] for tool in environment.tools] == ["echo", "headers"]
    assert len(environment_of(faulty("--endless")).tools) == len(environment_of(faulty()).tools)
    assert say(environment_of(faulty("--modern")), "echo", text="x") == "x"


def test_tools_and_arguments_can_be_renamed():
    find = RenamedToolConfig(tool="echo", arguments={"query": "text"})
    environment = environment_of(faulty(allow=["count"], rename={"find": find}))
    assert [tool["function"]["name"] for tool in environment.tools] == ["count", "find"]
    # a chat template writes the keys in this order
    assert [list(tool["function"]) for tool in environment.tools] == 2 * [["name", "description", "parameters"]]
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    assert environment.tools[1]["function"]["parameters"] == parameters
    assert say(environment, "find", query="a park") == "a park"
    assert say(environment, "find", text="a park") == 'Error: find has no argument "text". Arguments: query.'
    assert say(environment, "echo", text="x").startswith("Error: unknown tool")


TWO_CALLS = '''
async def describe(call, place: str, times: int = 1) -> str:
    """Says a place so often.

    Args:
        place: its name
        times: how often
    """
    return " and ".join([await call("echo", text=place) for _ in range(times)])


async def fails(call) -> str:
    """Makes a call that fails."""
    return await call("fail")


async def lost(call) -> str:
    """Calls what is not there."""
    return await call("nowhere")


def bare(call, place):
    return place
'''


def test_a_function_can_be_a_tool_that_calls_several_tools(tmp_path, monkeypatch):
    (tmp_path / "own_calls.py").write_text(TWO_CALLS)
    monkeypatch.syspath_prepend(tmp_path)
    rename = {name: RenamedToolConfig(function=f"own_calls:{name}") for name in ("describe", "fails", "lost")}
    environment = environment_of(faulty(allow=[], rename=rename))
    described = environment.tools[0]["function"]
    assert (described["name"], described["description"]) == ("describe", "Says a place so often.")
    assert described["parameters"]["required"] == ["place"]
    assert say(environment, "describe", place="Lotus Park", times="2") == "Lotus Park and Lotus Park"
    assert say(environment, "fails") == "Error: no such place"
    with pytest.raises(UserError, match=r"faulty_mcp_server.py has no tool nowhere"):
        say(environment, "lost")
    bare = refused(faulty(rename={"bare": RenamedToolConfig(function="own_calls:bare")}))
    assert bare.startswith("environment.mcp.0.rename.bare.function cannot be a tool")


def test_built_in_environments_are_sources_of_tools_too():
    guide = RenamedToolConfig(tool="universal_search", arguments={"topic": "query"})
    find = RenamedToolConfig(tool="search_poi", like="travel")
    renames = ({"guide": guide}, {"search_poi": find})
    environment = environment_of(*(MCPServerConfig(world="travel", allow=[], rename=rename) for rename in renames))
    assert "cafe" in say(environment, "guide", topic="quiet cafe in Chengdu").lower()
    assert say(environment, "search_poi", query="宽窄巷子") and environment.shared
    assert "keeps a state" in refused(MCPServerConfig(world="textcraft"))


@pytest.mark.parametrize("server, message", [
    (faulty(allow=["ecko"]),
     r'environment.mcp.0.allow: .*faulty_mcp_server.py has no tool ecko. Did you mean "echo"\? It has: echo, wait'),
    (faulty("--twice"), "has two tools called echo; rename a tool, or leave it out of allow"),
    (faulty("--refuse"),
     "environment.mcp.0: no MCP server at .*: Connection closed; it last wrote: FATAL: no licence for this machine"),
    (MCPServerConfig(url=f"http://127.0.0.1:{SILENT.getsockname()[1]}/mcp", start_timeout_s=0.5),
     "no MCP server at .*: not ready within 0.5 s"),
    (MCPServerConfig(command=["no-such-server-here"]), "no MCP server at no-such-server-here: .*No such file"),
    (MCPServerConfig(url="http://127.0.0.1:9/mcp"),
     "no MCP server at http://127.0.0.1:9/mcp: All connection attempts failed"),
    (faulty(allow=[]), "no server has a tool for the policy; change allow or rename"),
    (faulty(variables=["NOT_SET_AT_ALL"]),
     "set the environment variable NOT_SET_AT_ALL, which a server of environment.mcp needs"),
    (faulty(rename={"find": RenamedToolConfig(tool="search")}),
     "environment.mcp.0.rename.find.tool: .* has no tool search"),
    (faulty(rename={"find": RenamedToolConfig(tool="echo", arguments={"query": "test"})}),
     r'has no argument test. Did you mean "text"\?'),
    (faulty(rename={"search_poi": RenamedToolConfig(tool="die_once", like="travel")}),
     "rename.search_poi.arguments: die_once has no argument query"),
    (faulty(rename={"find": RenamedToolConfig(tool="echo", like="travel")}),
     "rename.find.like: the environment travel has no tool find"),
    (faulty(rename={"echo": RenamedToolConfig(tool="count"), "wait": RenamedToolConfig(tool="echo")}),
     "has two tools called wait"),
    (faulty(rename={"x": RenamedToolConfig(function="nowhere:x")}),
     "environment.mcp.0.rename.x.function: nowhere:x cannot be imported"),
])  # fmt: skip
def test_a_server_or_a_tool_that_cannot_work_is_refused_at_the_start(server, message):
    assert re.search(message, refused(server)), refused(server)


@pytest.mark.parametrize(("servers", "message"), [
    ("", "environment.mcp and environment.name=mcp go together; name a server"),
    ("{}", "environment.mcp.0: name one of command, url and world, not none"),
    ("{url: 'http://a/mcp', command: [x]}", "not command and url"),
    ("{url: 'ftp://a/mcp'}", "environment.mcp.0.url must be an http"),
    ("{url: 'http://a/mcp?key=1'}", "without a key in it"),
    ("{url: 'http://a/mcp', env: {A: b}}", "environment.mcp.0.env needs command, but this server has url"),
    ("{command: [x], api_key_variable: A}", "api_key_variable needs url, but this server has command"),
    ("{url: 'http://a/mcp', api_key_parameter: key}",
     "api_key_parameter carries the key of environment.mcp.0.api_key_variable; set that too"),
    ("{command: [x], rename: {a: {}}}", "rename.a: name the server's tool, or a function that makes its calls"),
    ("{world: mcp}", "world and like name an environment of this project"),
    ("{command: [x], alow: [a]}", "unknown key environment.mcp.0.alow; did you mean environment.mcp.0.allow"),
    ("{command: [x], timeout_s: 0}", "must be above 0"),
    ("{url: 'http://a/mcp'}", "leave environment.mcp out"),
])  # fmt: skip
def test_a_contradictory_config_is_refused(tmp_path, servers, message):
    name = "travel" if message == "leave environment.mcp out" else "mcp"
    (tmp_path / "run.yaml").write_text(f"environment: {{name: {name}, mcp: [{servers}]}}")
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "run.yaml")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow(seconds=4)
def test_the_yaml_of_the_documentation_works(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")
    part = page.split("## Tools of MCP servers")[1].split("## A first run")[0]
    (yaml,) = re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
    (tmp_path / "run.yaml").write_text(yaml.replace("[python,", f"[{sys.executable},"), encoding="utf-8")
    config = load_config(tmp_path / "run.yaml")
    environment = environment_of(*config.environment.mcp)
    names = " ".join(tool["function"]["name"] for tool in environment.tools)
    assert names == "search_poi around_search find_place search browse"
    assert "cafe" in say(environment, "find_place", wish="quiet cafe in Chengdu").lower()
    assert say(environment, "search", query="a river").startswith('[{"url": ')
    asyncio.run(environment.close())


@pytest.mark.slow(seconds=3)
def test_a_process_with_open_sessions_ends_at_once_together_with_its_servers():
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from mcp_servers import *
shared, own = environment_of(faulty()), environment_of(faulty(session="trajectory"))
print(say(shared, "count").split()[2], say(own, "count").split()[2])
"""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 600, "check": True}
    done = subprocess.run([sys.executable, "-c", script], **options)
    assert done.stderr == ""
    for process in map(int, done.stdout.split()):
        assert not psutil.pid_exists(process) or psutil.Process(process).wait(60) is None
