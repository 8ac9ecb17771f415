"""The chat APIs that the endpoint speaks: OpenAI's Chat Completions and Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Container

from midthought.serve.dialects.anthropic import ANTHROPIC
from midthought.serve.dialects.chat import CHAT
from midthought.serve.dialects.dialect import Dialect


def dialect_of(path: str, headers: Container[str] = ()) -> Dialect:
    """Returns the dialect of a request. Both have `/v1/models`, where `headers` (names in lower case) tell it."""
    if path.startswith("/v1/models"):
        return ANTHROPIC if "anthropic-version" in headers else CHAT
    return ANTHROPIC if path.startswith("/v1/messages") else CHAT
