"""Families of tests of which a few, one for each branch, run in `make test`, and all in `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def representatives(family: Iterable[Any], *fast: Any) -> list[Any]:
    """The parameters of a family; those that are not among `fast` are slow. A tuple holds several parameters."""
    members = [*family]
    assert all(each in members for each in fast), "every representative is one of the family"
    values = [each if isinstance(each, tuple) else (each,) for each in members]
    marks = [() if each in fast else pytest.mark.slow for each in members]
    return [pytest.param(*value, marks=mark) for value, mark in zip(values, marks, strict=True)]
