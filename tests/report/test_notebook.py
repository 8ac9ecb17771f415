"""What a run shows in a notebook: a real Jupyter kernel runs the cells, with the messages that a front-end receives."""

from __future__ import annotations

from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs a Jupyter kernel: make test-all")
nbclient = pytest.importorskip("nbclient", reason="needs a Jupyter kernel: make test-all")
pytest.importorskip("ipykernel", reason="needs a Jupyter kernel: make test-all")

STAGE = """
import contextlib, io, itertools
from midthought.report.console import Console
with Console(clock=itertools.count().__next__).stage("Training", total=3, unit="iterations") as progress:
    for reward in (0.0, 0.5, 1.0):
        progress.advance(reward=reward)
"""
STOPPED = """
with contextlib.suppress(KeyboardInterrupt), Console().stage("Training", total=3) as progress:
    progress.advance(2)
    raise KeyboardInterrupt
"""
REDIRECTED = """
with contextlib.redirect_stdout(io.StringIO()) as out, Console().stage("Training"):
    pass
print(out.getvalue())
"""
RESULT = """
from midthought.trainer.result import TrainingResult
TrainingResult([{"iteration": 1, "reward/mean": 0.5, "time/seconds": 1.0}])
"""


@pytest.fixture(scope="module")
def run() -> Any:
    """The notebook after its cells ran, and every text that was shown in each cell, in order."""
    seen: list[list[str]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                seen[cell_index].append(msg["content"]["data"]["text/plain"])
            return super().process_message(msg, cell, cell_index)

    cells = [nbformat.v4.new_code_cell(code) for code in (STAGE, STOPPED, REDIRECTED, RESULT)]
    seen += [[] for _ in cells]
    notebook = nbformat.v4.new_notebook(cells=cells)
    Client(notebook, timeout=120, kernel_name="python3").execute()
    return notebook, seen


def test_the_progress_of_a_stage_is_one_line_that_is_replaced(run: Any) -> None:
    notebook, seen = run
    assert [text.partition(" · ")[0].strip() for text in seen[0]] == [
        "[1] Training (3 iterations)",
        *(f"[1] Training  {done}/3 iterations" for done in (1, 2, 3)),
        "✓ [1] Training  3 iterations",
    ]
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == seen[0][-1]
    assert seen[0][-1].startswith("✓ [1] Training  3 iterations · ") and seen[0][-1].endswith("reward 1 ▁▅█")


def test_a_stage_that_was_interrupted_says_how_far_it_came(run: Any) -> None:
    (output,) = run[0].cells[1].outputs
    assert output.data["text/plain"].startswith("– [1] Training  2/3 steps")


def test_redirected_output_is_text(run: Any) -> None:
    (output,) = run[0].cells[2].outputs
    assert output.output_type == "stream" and "✓ [1] Training" in output.text


def test_a_result_is_a_table_in_every_form(run: Any) -> None:
    (output,) = run[0].cells[3].outputs
    assert output.data["text/plain"].splitlines()[0].split() == ["iteration", "reward/mean"]
    assert output.data["text/html"].startswith("<pre>iteration")
