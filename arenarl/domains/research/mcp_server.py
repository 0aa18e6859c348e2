"""The research world as an MCP server: `python -m arenarl.domains.research.mcp_server`;
arenarl/domains/mcp_server.py says how it is started."""

from arenarl.domains.mcp_server import main

if __name__ == "__main__":
    main("research")
