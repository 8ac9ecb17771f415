"""Small models that were taught what the tests need; nothing is downloaded."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import Runs, left
from one_thread import one_thread  # noqa: F401
from small_environments import COLOURS, QUESTIONS, make_caller, make_talker, twice

from midthought.models.small_model import make_policy, make_tokenizer
from midthought.tokenization import Renderer
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.trainer import overlapping


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling and learning overlap also if the tests may use one core only."""
    num_cores = max(2, overlapping.num_cores())
    monkeypatch.setattr(overlapping, "num_cores", lambda: num_cores)


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
def _untaught(tokenizer: Any) -> Any:
    return make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=0)


@pytest.fixture
def untaught(_untaught: Any, tokenizer: Any) -> dict[str, Any]:
    """A model that was made and taught nothing, so that its episodes are of random length, and its tokenizer."""
    return {"model": copy.deepcopy(_untaught), "tokenizer": tokenizer}


@pytest.fixture(scope="session")
def callers(renderer: Renderer) -> dict[str, Any]:
    """By call format: a model that calls `twice` in it and then answers. Copy it before training."""
    return {name: make_caller(renderer, name) for name in ("in_thought", "hermes")}


@pytest.fixture(scope="session")
def runs(_talker: Any, tokenizer: Any) -> Runs:
    return Runs(_talker, tokenizer)


@pytest.fixture(scope="session")
def stopped(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its last iteration. Copy it."""
    return runs.stopped(tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture(scope="session")
def other(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed."""
    return runs.stopped(tmp_path_factory.mktemp("other") / "run", seed=1)


@pytest.fixture(scope="session")
def result(runs: Runs, stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves if nothing is damaged."""
    run = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(stopped, run)
    runs.train(run)
    return left(run)
