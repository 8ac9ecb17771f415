"""The model of `check_runs.py`, shared by all tests of the checks."""

from __future__ import annotations

from typing import Any

import pytest
from check_runs import teach, teach_calls
from one_thread import one_thread  # noqa: F401


@pytest.fixture(scope="session")
def taught() -> dict[str, Any]:
    return teach()


@pytest.fixture(scope="session")
def caller(taught: dict[str, Any]) -> dict[str, Any]:
    return teach_calls(taught)
