"""Command for the travel world as an MCP server; arenarl/domains/mcp_server.py has its options."""

from arenarl.domains.mcp_server import main

if __name__ == "__main__":
    main("travel")
