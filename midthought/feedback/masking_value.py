"""What an expression of numbers, roots and π comes to, so that its decimals can be told (`\\sqrt{51}` is about 7.14).

Knows no variables: with one, there is no value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from midthought.feedback.masking_tokens import Token

MAX_TOKENS = 60
MAX_POWER = 30

_ENDS = frozenset({"+", "-", ")", "}", "]"})


def value_of(tokens: Sequence[Token]) -> float | None:
    """The value, a degree's sign left out; None where it has none."""
    keys = [token.text if token.value is not None else token.key for token in tokens]
    keys = [key for key in keys if key not in ("$", "\\left", "\\right", "\\!", "\\,", "\\;", "\\ ")]
    if not 0 < len(keys) <= MAX_TOKENS:
        return None
    reading = _Reading(keys)
    try:
        value = reading.sum()
    except (ValueError, ArithmeticError):
        return None
    return value if reading.is_at_end and math.isfinite(value) else None


class _Reading:
    """Reads keys from left to right; ValueError where they are no arithmetic."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = keys

    @property
    def is_at_end(self) -> bool:
        return not self._keys

    def sum(self) -> float:
        total = self._product()
        while self._next in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            total += sign * self._product()
        return total

    def _product(self) -> float:
        if self._next == "-":
            self._take()
            return -self._product()
        value = self._power()
        while self._keys and self._next not in _ENDS:
            if self._next == "/":
                self._take()
                value /= self._power()
                continue
            if self._next == "\\times":
                self._take()
            value *= self._power()
        return value

    def _power(self) -> float:
        value = self._factor()
        if self._next == "^":
            self._take()
            power = self._factor()
            if abs(power) > MAX_POWER or (value < 0 and power != int(power)):
                raise ValueError("out of range")
            value = float(value**power)
        return value

    def _factor(self) -> float:
        key = self._take()
        if key in ("(", "{", "["):
            value = self.sum()
            if self._take() != {"(": ")", "{": "}", "[": "]"}[key]:
                raise ValueError("a bracket is not closed")
            return value
        if key == "\\pi":
            return math.pi
        if key == "\\sqrt":
            return math.sqrt(self._argument())
        if key == "\\frac":
            above = self._argument()
            return above / self._argument()
        return float(key.replace(",", ""))

    def _argument(self) -> float:
        """What a command is applied to: a group, or the next digit."""
        if self._next.isdigit() and len(self._next) > 1:
            first, rest = self._next[0], self._next[1:]
            self._keys[0] = rest
            return float(first)
        return self._factor()

    @property
    def _next(self) -> str:
        return self._keys[0] if self._keys else ""

    def _take(self) -> str:
        if not self._keys:
            raise ValueError("it ends too soon")
        return self._keys.pop(0)
