"""Our worlds as MCP servers. The tools, their arguments and results are those that a policy has in this process.

    python -m arenarl.domains.travel.mcp_server [--config configs/quickstart.yaml] [--set key=value ...] [--port 8000]

`environment` says which world and in which form, `data.language` in which language; without a config, the defaults of
all keys. With a port over HTTP at http://127.0.0.1:<port>/mcp, else over stdin and stdout.
"""

import argparse

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import config_of_keys, load_config
from arenarl.domains.environments import make_environment
from arenarl.llm.client import open_client
from arenarl.system.errors import UserError, guarded


def main(name: str) -> None:
    """Serve the environment of this name, whatever `environment.name` says."""
    guarded(lambda: _serve(name), goes_on=False)


def _serve(name: str) -> None:
    parser = argparse.ArgumentParser(description=f"The world {name} as an MCP server.")
    parser.add_argument("--config", help="a run's YAML, for the form and the language of its tools")
    port_help = "serve streamable HTTP there, 0 for a free one; without it over stdin and stdout"
    parser.add_argument("--port", type=int, help=port_help)
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    if not 0 <= (arguments.port or 0) < 2**16:
        parser.error(f"--port {arguments.port}: a port is a number from 0 to 65535")
    if arguments.config:
        this = [f"environment.name={name}", "environment.mcp=[]"]  # the run may be one that is served from here
        config = load_config(arguments.config, [*arguments.overrides, *this])
    else:
        config = config_of_keys({"environment": {"name": name}}, "")
    try:
        from arenarl.rollout.mcp_server import serve, server_of
    except ImportError as error:
        needed = f"an MCP server needs a package that is not installed ({error})"
        raise UserError(f"{needed}: pip install mcp==2.3.0") from error
    client = open_client(config.environment.llms.values(), config.judge, f"{config.run_name}/mcp")
    serve(server_of(make_environment(config.environment, config.data.language, client), name), arguments.port)
