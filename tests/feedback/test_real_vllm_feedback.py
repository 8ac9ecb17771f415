"""A really started vLLM gives feedback through the tool; its own log says which parameters it received. Takes a minute."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from vllm_python import needs_vllm, served_small_model

from midthought.engines.servers.process import ServerProcess
from midthought.feedback.commands import SAMPLE, check_feedback, run_check
from midthought.feedback.settings import SOLVE_AGAIN, TOOL_NAME, FeedbackSettings
from midthought.feedback.tool import FeedbackTool
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolOutcome

pytestmark = needs_vllm

CORPUS = ["Look at the second step again: a carry is missing, so the product of the digits is wrong."] * 4


@dataclass(frozen=True)
class Served:
    """A running server, and what its tokenizer holds."""

    server: ServerProcess
    turn_end: int

    def settings(self, **changes: object) -> FeedbackSettings:
        given = {"servers": [self.server.url], "model": "critic", "stop_token_ids": [self.turn_end], "max_tokens": 200}
        return FeedbackSettings(**{**given, **changes})

    def received(self) -> list[str]:
        """The sampling parameters of every request, as the server logged them."""
        return re.findall(r"SamplingParams\((.*?)\)", self.server.log_path.read_text("utf-8", errors="replace"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with served_small_model(folder, "critic", CORPUS, ["--enable-log-requests"]) as server:
        yield Served(server, AutoTokenizer.from_pretrained(folder / "model").eos_token_id)


def test_a_wrong_answer_gets_feedback_and_the_server_received_the_parameters(served: Served) -> None:
    task = Task(task_id="p", prompt=SAMPLE.prompt, answer=SAMPLE.answer, labels={"dataset": "multiplication"})
    tool = FeedbackTool.from_settings(served.settings(max_tokens=123, seed=14))
    executor = ToolExecutor(ToolRegistry([tool.for_task(task)]))
    action = ParsedAction(tool_name=TOOL_NAME, parameters={"current_answer": "398"}, raw_text="", success=True)

    num_before = len(served.received())
    (event,) = asyncio.run(executor.run([action], task))
    assert event.outcome is ToolOutcome.OK, event
    said = event.call.result or ""
    assert said.endswith(SOLVE_AGAIN) and len(said) > len(SOLVE_AGAIN) + 10
    (received,) = served.received()[num_before:]
    for parameter in ("temperature=0.0", "seed=14", "max_tokens=123", f"stop_token_ids=[{served.turn_end}]"):
        assert parameter in received, received


def test_the_check_passes(served: Served, tmp_path: Path) -> None:
    findings = check_feedback(served.settings())
    assert [finding.what for finding in findings if finding.remedy] == [], findings
    path = tmp_path / "feedback.yaml"
    path.write_text(served.settings().model_dump_json())
    assert run_check(path, lambda line: None) == 0
