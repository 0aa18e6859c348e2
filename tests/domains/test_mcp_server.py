"""Our worlds as MCP servers: called by the SDK's client, and in RL whose tools come from a server."""

import asyncio
import socket
import sys
from dataclasses import replace

import pytest

pytest.importorskip("mcp", reason="the SDK mcp is not installed: pip install mcp==2.3.0")

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp_servers import maker_of, serving_http  # noqa: E402
from parts import KeptSteps, arena_of, trainer_judge_of  # noqa: E402
from policies import call, think  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from scripts import ROOT  # noqa: E402

from arenarl.config.load import load_config  # noqa: E402
from arenarl.config.schema import Config, MCPServerConfig  # noqa: E402
from arenarl.domains.environments import make_environment  # noqa: E402
from arenarl.rollout.engine import RolloutEngine  # noqa: E402
from arenarl.rollout.environment import NoTools, observe  # noqa: E402
from arenarl.rollout.generation import GeneratedTurn  # noqa: E402
from arenarl.rollout.mcp_server import serve, server_of  # noqa: E402
from arenarl.system.errors import UserError  # noqa: E402
from arenarl.training.trl_adapter import make_trainer  # noqa: E402

CALLS = {
    "travel": [
        ("search_poi", {"query": "Lotus Park"}),
        ("search_flights", {"date": "2026-05-01", "from_city": "Beijing", "to_city": "Xian"}),
        ("search_flights", {"date": "soon", "from_city": "Beijing", "to_city": "Xian"}), ("search_pois", {}),
        ("around_search", {"radius": "5"}),
    ],
    "research": [("search", {"query": "a river in the north"}), ("browse", {"url": "nothing"}), ("browse", {})],
}  # fmt: skip


def options(name):
    """Return the command line of a world's server with its quickstart config, and this config."""
    file = {"travel": "configs/quickstart.yaml", "research": "configs/research/quickstart.yaml"}[name]
    sets = ["environment.search.corpus_size=200"]
    command = ["-m", f"arenarl.domains.{name}.mcp_server", "--config", file, "--set", *sets]
    return command, load_config(ROOT / file, sets)


async def use(server, calls):
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        return tools, [await client.call_tool(name, arguments) for name, arguments in calls]


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    "name, is_http, has_config", [("travel", False, True), ("travel", False, False), ("research", True, True)]
)
def test_a_client_gets_a_worlds_tools_and_results(name, is_http, has_config, monkeypatch):
    """Without a config, all keys have their defaults: the paper's tools in full form, in Chinese."""
    monkeypatch.chdir(ROOT)
    command, config = options(name) if has_config else (["-m", f"arenarl.domains.{name}.mcp_server"], Config())
    local = make_environment(config.environment, config.data.language)
    if is_http:
        with serving_http(*command) as (url, _):
            tools, results = asyncio.run(use(url, CALLS[name]))
    else:
        pipe = StdioServerParameters(command=sys.executable, args=command, cwd=ROOT)
        tools, results = asyncio.run(use(pipe, CALLS[name]))
    keys = ("name", "description", "parameters")
    expected = [tuple(tool["function"][key] for key in keys) for tool in local.tools]
    assert [(tool.name, tool.description, tool.input_schema) for tool in tools] == expected
    assert all(tool.annotations.read_only_hint for tool in tools)
    for (tool, arguments), result in zip(CALLS[name], results, strict=True):
        (content,) = result.content
        assert content.text == asyncio.run(observe(local, tool, arguments))
        assert result.is_error == content.text.startswith("Error")
    assert {result.is_error for result in results} == {True, False}


def test_a_port_that_cannot_be_used_is_refused_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port in (taken.getsockname()[1], -1, 2**16):
            with pytest.raises(UserError, match=f"^port {port} cannot be used: .*; choose another --port$"):
                serve(server_of(NoTools(), "none"), port)


class Playback:
    """A policy that searches a place and a flight, then answers; the request's seed decides its text."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request):
        flight = {"date": f"2026-05-0{1 + request.seed % 3}", "from_city": "Beijing", "to_city": "Xian"}
        turns = [
            call("universal_search", query="quiet cafe in Chengdu"), call("search_flights", **flight),
            think(f"<answer>\nBamboo Cafe ¥{request.seed % 50}\n</answer>"),
        ]  # fmt: skip
        text = turns[self.tokenizer.decode(request.token_ids).count("<|im_start|>assistant") - 1]
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


@pytest.mark.slow(seconds=10)
def test_rl_with_a_servers_tools_equals_rl_with_local_tools(policy_path, tokenizer, taught, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, config = options("travel")
    config.policy.dtype, config.wandb.mode = "float32", "disabled"
    sizes = {"group_size": 4, "max_tokens": 500, "max_turns": 3, "anchor": False}
    config.rollout = replace(config.rollout, **sizes)
    steps = {"steps": 3, "groups": 2, "micro_batch_size": 8, "learning_rate": 1e-3, "deepspeed": None}
    config.rl = replace(config.rl, **steps)
    queries = [one.query for one in taught[:6]]

    def train(make, folder):
        """Take three steps with environments of `make`; return (messages of all trajectories, weights, logs)."""
        engine = RolloutEngine(Playback(tokenizer), tokenizer, make, config.rollout, schemas_in_prompt=False)
        steps = KeptSteps(config, queries, engine, arena_of(config, trainer_judge_of(config)), None, folder)
        trainer = make_trainer(config, policy_path, queries, steps)
        trainer.train()
        trainer.save_model(str(folder / "policy"))
        kept = [trajectory for step in steps.all_groups for group in step for trajectory in group.trajectories]
        assert trainer.state.global_step == 3 and len(kept) == 24
        assert all(trajectory.valid and trajectory.meta["tool_calls"] == 2 for trajectory in kept)
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        weights = load_file(folder / "policy" / "model.safetensors")
        return [trajectory.messages for trajectory in kept], weights, logged

    environment = make_environment(config.environment, config.data.language)
    expected, expected_weights, _ = train(lambda: environment, tmp_path / "local")
    entry = MCPServerConfig(command=[sys.executable, *command])
    messages, weights, logged = train(maker_of(entry, store=tmp_path / "replies.sqlite"), tmp_path / "served")
    assert messages == expected
    assert all(weight.equal(expected_weights[name]) for name, weight in weights.items())
    assert logged[-1]["mcp/hit_rate"] > 0.5 and logged[0]["mcp/call_s"] > 0
