"""A gateway whose engine waits where a test wants it to."""

from collections.abc import Iterator

import pytest
from held_engine import Place, place


@pytest.fixture
def one() -> Iterator[Place]:
    with place() as found:
        yield found
