"""Expressions and words as sequences of keys, so that `\\dfrac{1}{2}x`, `\\frac12 x` and `1/2 x` are one; and where one
sequence stands in another. Knows no context.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from midthought.feedback.masking_tokens import Kind, Token

_BETWEEN = "\x1f"
_DROPPED = frozenset({"\\times", "\\circ", "\\{", "\\}", "\\dots", "\\ldots"})
_ENVIRONMENT = re.compile(r"[a-zA-Z]*(?:matrix|array|cases|aligned?)\*?")
_AS_COMMA = frozenset({";", "&", "\\\\"})


class Keys:
    """A sequence of keys and, for each of them, its token."""

    def __init__(self, keys: Sequence[tuple[str, int]]) -> None:
        self._keys = [key for key, _ in keys]
        self._tokens = [token for _, token in keys]
        self._joined = _BETWEEN + "".join(key + _BETWEEN for key in self._keys)
        self._starts = [0, *accumulate(len(key) + 1 for key in self._keys)]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def places(self, keys: Sequence[str]) -> Iterator[tuple[int, int]]:
        """First and last token of every place where these keys stand side by side, none within another."""
        sought = _BETWEEN + "".join(key + _BETWEEN for key in keys)
        at = self._joined.find(sought) if keys else -1
        while at >= 0:
            first = bisect_right(self._starts, at) - 1
            yield self._tokens[first], self._tokens[first + len(keys) - 1]
            at = self._joined.find(sought, at + len(sought) - 1)


def word_keys(tokens: Sequence[Token]) -> Keys:
    """Words and numbers alone, case aside: punctuation between words does not matter."""
    return Keys(
        [
            (token.key.casefold().removesuffix("'s"), at)
            for at, token in enumerate(tokens)
            if token.kind in (Kind.WORD, Kind.NUMBER)
        ]
    )


def expression_keys(tokens: Sequence[Token]) -> Keys:
    """Mathematics without what only groups or multiplies: braces, marks, `\\left`, `·`, brackets around one thing.

    A fraction is written out (`\\frac{a}{b}` as `a / b`); columns and rows are parted by commas, as in a tuple.
    """
    return Keys(list(_expression_keys(tokens)))


def _expression_keys(tokens: Sequence[Token]) -> Iterator[tuple[str, int]]:
    grouping = _grouping_brackets(tokens)
    numerators: list[bool] = []
    """Of every open brace, whether a fraction's denominator follows it."""
    awaits_numerator = False
    skip_to = 0
    for at, token in enumerate(tokens):
        if at < skip_to:
            continue
        key = token.key
        if key == "{":
            numerators.append(awaits_numerator)
            awaits_numerator = False
        elif key == "}":
            if numerators and numerators.pop():
                yield "/", at
        elif key == "\\frac":
            awaits_numerator = True
        elif key in ("\\begin", "\\end"):
            skip_to = _after_environment(tokens, at)
        elif (
            token.kind is Kind.NEWLINE
            or key in _DROPPED
            or (token.is_soft and key != "$$")
            or at in grouping
            or (key == "^" and at + 1 < len(tokens) and _is_degree(tokens, at + 1))
        ):
            continue
        elif awaits_numerator and token.kind is Kind.NUMBER and token.text.isdigit():
            awaits_numerator = False
            yield from ((token.text[0], at), ("/", at))
            if len(token.text) > 1:
                yield token.text[1:], at
        elif awaits_numerator:
            awaits_numerator = False
            yield from ((key, at), ("/", at))
        else:
            yield ("," if key in _AS_COMMA else key), at


def _is_degree(tokens: Sequence[Token], at: int) -> bool:
    if tokens[at].key == "{" and at + 1 < len(tokens):
        at += 1
    return tokens[at].key == "\\circ"


def _after_environment(tokens: Sequence[Token], at: int) -> int:
    """The place after `\\begin{pmatrix}`."""
    if at + 3 < len(tokens) and tokens[at + 1].key == "{" and _ENVIRONMENT.fullmatch(tokens[at + 2].text):
        return at + 4
    return at + 1


def _grouping_brackets(tokens: Sequence[Token]) -> set[int]:
    """Round brackets with no comma of their own: they only group. Those of tuples and intervals say something."""
    open_at: list[tuple[int, bool]] = []
    grouping: set[int] = set()
    for at, token in enumerate(tokens):
        if token.key in ("(", "["):
            open_at.append((at, False))
        elif token.key == "," and open_at:
            open_at[-1] = (open_at[-1][0], True)
        elif token.key in (")", "]") and open_at:
            start, has_comma = open_at.pop()
            if not has_comma and token.key == ")" and tokens[start].key == "(":
                grouping |= {start, at}
    return grouping
