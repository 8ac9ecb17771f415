"""An MCP server over stdio for `benchmarks.short_form`: the stock of a product."""

import hashlib

from mcp.server.mcpserver import MCPServer

server = MCPServer("stock")


@server.tool()
def stock(product: str) -> str:
    """Returns the number of a product that is left."""
    return str(10 + int(hashlib.sha256(product.strip().encode()).hexdigest(), 16) % 90)


if __name__ == "__main__":
    server.run("stdio")
