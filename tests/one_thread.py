"""A fixture for folders of small models: with more threads each step is slower. A `conftest.py` that imports it uses it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def in_one_thread() -> Iterator[None]:
    """For fixtures of a wider scope, which run before `one_thread`: another number of threads gives other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with in_one_thread():
        yield
