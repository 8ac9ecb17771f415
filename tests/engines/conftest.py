"""A small byte-level tokenizer for the tests of engines."""

import pytest
from small_tokenizer import small_tokenizer

from midthought.tokenization import Renderer


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(small_tokenizer())
