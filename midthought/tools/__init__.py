"""Tools: definitions, call formats, executor, built-in tools, MCP. The public names can be imported from here, too."""

from midthought.argument_names import public_name as __getattr__  # noqa: F401
