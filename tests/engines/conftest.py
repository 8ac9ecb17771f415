"""A small byte-level tokenizer for the tests of engines. Tests may be coroutines."""

import asyncio
import inspect

import pytest
from small_tokenizer import small_tokenizer

from midthought.tokenization import Renderer


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(small_tokenizer())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
