"""Every example runs with its tiny model and reports a finite reward for each iteration."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path

import pytest

from midthought.errors import EpisodeError

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"gymnasium_environment": "gymnasium", "mcp_tools": "mcp", "search_documents": "lancedb"}
NEEDS |= {"train_an_agent": "openai"}
SCRIPTS = ["gsm8k_calculator", "search_documents", "gymnasium_environment", "mcp_tools", "ppo_critic", "train_an_agent"]


@pytest.fixture(autouse=True)
def examples_folder(monkeypatch, tmp_path) -> None:
    """As for `python examples/NAME.py`: the script's folder is on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    for name in ("options", *SCRIPTS, "verifiers_environment", "openenv_server"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_trains_with_its_tiny_model(name, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    history = importlib.import_module(name).main(["--iterations", "1"])
    assert len(history) == 1
    assert all(math.isfinite(metrics["reward/mean"]) for metrics in history)
    assert "iteration 1: mean reward" in capsys.readouterr().out


def test_the_openenv_example_needs_an_address(capsys):
    main = importlib.import_module("openenv_server").main
    with pytest.raises(SystemExit):
        main([])
    assert "--url" in capsys.readouterr().err
    pytest.importorskip("websockets")
    with pytest.raises(EpisodeError, match="no connection to the OpenEnv server"):
        main(["--url", "http://127.0.0.1:1", "--field", "code"])


def test_the_verifiers_example_runs_or_names_the_missing_package(capsys):
    main = importlib.import_module("verifiers_environment").main
    if importlib.util.find_spec("verifiers") is None:
        with pytest.raises(SystemExit, match="pip install verifiers"):
            main([])
    else:
        assert math.isfinite(main(["--iterations", "1"])[0]["reward/mean"])


def test_the_calculator_example_reads_a_file_of_problems(tmp_path):
    (tmp_path / "problems.jsonl").write_text('{"question": "1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n' * 1, "utf-8")
    history = importlib.import_module("gsm8k_calculator").main(
        ["--data", "problems.jsonl", "--iterations", "1", "--run", "run"]
    )
    assert len(history) == 1 and (tmp_path / "run" / "metrics.jsonl").is_file()


def test_the_examples_page_lists_every_example():
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"({path.name})" in page for path in EXAMPLES.glob("*.py"))
