"""Conditions on a memory's rows in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def is_among(column: str, values: Sequence[str]) -> str:
    """Returns `column IN ('…', …)`. Values cannot inject SQL: within a string only the quote is special, and it is doubled."""
    return f"{column} IN ({listed})" if (listed := _listed(values)) else "false"


def has_any(column: str, values: Sequence[str]) -> str:
    """Returns the condition that a list column has one of the values."""
    return f"array_has_any({column}, make_array({listed}))" if (listed := _listed(values)) else "false"


def may_be_of(stems: Iterable[str]) -> str:
    """Returns the condition that a chunk's id starts with one of the stems and `_`. The index of ids answers it.

    It also holds for longer stems: for `a_b_0` if `a` is asked for.
    """
    ranges = (f"(id >= {quoted(f'{stem}_')} AND id < {quoted(f'{stem}`')})" for stem in stems)
    return " OR ".join(ranges) or "false"


def quoted(value: str) -> str:
    """Returns an SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def _listed(values: Sequence[str]) -> str:
    """Leaves out lone surrogates: no column has them, and the query could not be encoded."""
    return ", ".join(quoted(value) for value in values if not any("\ud800" <= letter <= "\udfff" for letter in value))
