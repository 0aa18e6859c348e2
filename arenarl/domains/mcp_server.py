"""Serve one of our environments as an MCP server, with the tools, arguments and results that a policy gets.

    python -m arenarl.domains.travel.mcp_server [--config configs/quickstart.yaml] [--set key=value ...] [--port 8000]

The config's `environment` and `data.language` set the form and the language of the tools; without a config, all keys
have their defaults. With --port it serves HTTP at http://127.0.0.1:<port>/mcp, otherwise stdin and stdout.
"""

import argparse

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import config_of_keys, configure
from arenarl.domains.environments import make_environment
from arenarl.llm.client import open_client
from arenarl.system.errors import run_cli


def main(name: str) -> None:
    """Run the command for the environment of this name, which replaces `environment.name`."""
    run_cli(lambda: _serve(name), goes_on=False)


def _serve(name: str) -> None:
    parser = argparse.ArgumentParser(description=f"Serve the {name} environment as an MCP server.")
    parser.add_argument("--config", help="the YAML of a run, for the form and the language of the tools")
    port_help = "port of streamable HTTP, 0 for a free one (default: stdin and stdout)"
    parser.add_argument("--port", type=int, help=port_help)
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    if arguments.config:
        own = [f"environment.name={name}", "environment.mcp=[]"]  # the run itself may use this server
        config = configure(arguments.config, [*arguments.overrides, *own])
    else:
        config = config_of_keys({"environment": {"name": name}}, "")
    from arenarl.rollout.mcp_server import serve, server_of  # only here: it needs the package mcp

    client = open_client(config.environment.llms.values(), config.judge, f"{config.run_name}/mcp")
    serve(server_of(make_environment(config.environment, config.data.language, client), name), arguments.port)
