"""The travel world as an MCP server: `python -m arenarl.domains.travel.mcp_server`;
arenarl/domains/mcp_server.py says how it is started."""

from arenarl.domains.mcp_server import main

if __name__ == "__main__":
    main("travel")
