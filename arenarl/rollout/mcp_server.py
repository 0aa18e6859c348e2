"""An environment as an MCP server for any MCP client, over stdin and stdout or streamable HTTP on this machine."""

import asyncio
import socket
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

from arenarl.rollout.environment import Environment, step
from arenarl.system.errors import UserError, show


def server_of(environment: Environment, name: str) -> Server[Any]:
    """Return a server with the tools of a shared environment; their calls only read."""

    def offered(name: str, parameters: dict[str, Any], description: str = "", **_: Any) -> Tool:
        hints = ToolAnnotations(read_only_hint=True)
        return Tool(name=name, description=description, input_schema=parameters, annotations=hints)

    tools = [offered(**tool["function"]) for tool in environment.tools]

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, parameters: Any) -> CallToolResult:
        text = (await step(environment, parameters.name, parameters.arguments or {})).observation
        return CallToolResult(content=[TextContent(text=text)], is_error=text.startswith("Error"))

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


def serve(server: Server[Any], port: int | None) -> None:
    """Serve over stdin and stdout until the client exits, or over HTTP until the process ends; port 0 takes a free one.
    Messages go to stderr, because stdout belongs to the client. Raises UserError if the port cannot be used."""
    asyncio.run(_serve_pipe(server) if port is None else _serve_http(server, port))


async def _serve_pipe(server: Server[Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _serve_http(server: Server[Any], port: int) -> None:
    # asyncio sets TCP_NODELAY, which sends replies without delay, only if the socket names the protocol
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(1024)  # before the address is printed
        except (OSError, OverflowError) as error:  # OverflowError: a number that no port has
            problem = getattr(error, "strerror", error)
            raise UserError(f"port {port} cannot be used: {problem}; choose another --port") from error
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        show(f"{server.name}: http://127.0.0.1:{listening.getsockname()[1]}/mcp")
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])
