"""A small MCP server over stdio with one tool. `mcp_tools.py` starts it; any other MCP client can, too."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("opening-hours")

HOURS = {"library": "9 to 18", "museum": "10 to 17", "pool": "7 to 21", "market": "6 to 13"}


@server.tool()
def opening_hours(place: str) -> str:
    """Returns the opening hours of a place in town."""
    if place.lower() not in HOURS:
        raise ValueError(f"unknown place {place!r}; known: {', '.join(HOURS)}")
    return HOURS[place.lower()]


if __name__ == "__main__":
    server.run("stdio")
