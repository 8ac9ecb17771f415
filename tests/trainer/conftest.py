"""Small models that were taught what the tests need; nothing is downloaded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from one_thread import one_thread  # noqa: F401
from small_environments import COLOURS, QUESTIONS, make_caller, make_talker, twice

from midthought.learning.small_model import make_tokenizer
from midthought.tokenization import Renderer
from midthought.tools.call_formats.registry import find_call_format
from midthought.tools.registry import ToolRegistry


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    registry = ToolRegistry([twice])
    told = [find_call_format(name).instructions(registry.definitions()) for name in ("in_thought", "hermes")]
    words = ["user\nAgain.\nassistant\n#twice_result:\nred red\n", *COLOURS, *(row["question"] for row in QUESTIONS)]
    return make_tokenizer([*told, *words * 20], 400)


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="session")
def _talker(renderer: Renderer) -> Any:
    return make_talker(renderer)


@pytest.fixture
def talker(_talker: Any, tokenizer: Any) -> dict[str, Any]:
    """A model that says a colour in every turn, and its tokenizer: the trainer's arguments."""
    return {"model": copy.deepcopy(_talker), "tokenizer": tokenizer}


@pytest.fixture(scope="session")
def callers(renderer: Renderer) -> dict[str, Any]:
    """By call format: a model that calls `twice` in it and then answers. Copy it before training."""
    return {name: make_caller(renderer, name) for name in ("in_thought", "hermes")}
