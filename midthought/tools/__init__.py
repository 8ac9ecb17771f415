"""Tools: definitions, call formats, executor, built-in tools, MCP.

The public names of `midthought` can be imported from here, too, as in the setup package.
"""

from midthought.inference import __getattr__  # noqa: F401
