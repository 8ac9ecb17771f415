"""Errors of a client's request. Does not depend on HTTP or on a dialect."""

from __future__ import annotations

from midthought.errors import DataError


class RequestError(DataError):
    """A request that is refused, with the HTTP status and, if known, the parameter and the code that a program reads."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class ContextOverflowError(DataError):
    """A conversation that leaves no room for an answer. `num_tokens` None: not counted, but more than `max_tokens`."""

    def __init__(self, num_tokens: int | None, max_tokens: int) -> None:
        self.num_tokens, self.max_tokens = num_tokens, max_tokens
        num = f"more than {max_tokens}" if num_tokens is None else num_tokens
        super().__init__(
            f"the conversation and its tools have {num} tokens, and a sequence may have {max_tokens} in all; shorten them"
        )
