"""A small byte-level tokenizer for the tests of engines, and the runners that their engines make."""

from __future__ import annotations

from typing import Any

import pytest
from small_tokenizer import small_tokenizer

from midthought.engines.local import kv_cache_manager
from midthought.engines.local.runner import Runner
from midthought.engines.local.runner_selection import make_runner
from midthought.tokenization import Renderer


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(small_tokenizer())


@pytest.fixture
def made_runners(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """The runners of the test's local engines; an engine makes one when it first samples."""
    made: list[Runner] = []

    def make(*args: Any, **options: Any) -> Runner:
        made.append(make_runner(*args, **options))
        return made[-1]

    monkeypatch.setattr(kv_cache_manager, "make_runner", make)
    return made
