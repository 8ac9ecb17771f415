"""Train language models to use tools while they reason."""
