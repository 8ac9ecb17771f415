"""The chat APIs that the endpoint speaks: OpenAI's Chat Completions and Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Container

from midthought.serve.dialects.anthropic import ANTHROPIC
from midthought.serve.dialects.chat import CHAT
from midthought.serve.dialects.dialect import Dialect


def dialect_of(path: str) -> Dialect:
    """Returns the dialect of a request to this path."""
    return ANTHROPIC if path.startswith("/v1/messages") else CHAT


def dialect_of_models(headers: Container[str]) -> Dialect:
    """Returns the dialect of a request to `/v1/models`, which both have. `headers`: names in lower case."""
    return ANTHROPIC if "anthropic-version" in headers else CHAT
