"""MCP server of the research tools: `python -m arenarl.domains.research.mcp_server`; see domains/mcp_server.py."""

from arenarl.domains.mcp_server import main

if __name__ == "__main__":
    main("research")
