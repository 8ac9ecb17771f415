"""Built-in tools: arithmetic, queries to a source, environment steps, Python code."""
