"""The tool: what it answers and whose call it is, and the YAML files that it is made of."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from chat_server import FEEDBACK, ChatServer

from midthought.errors import EpisodeError, SettingsError
from midthought.feedback.masking import MASK
from midthought.feedback.settings import (
    RIGHT_ANSWER,
    SOLVE_AGAIN,
    TOOL_NAME,
    FeedbackSettings,
    feedback_settings,
    read_feedback_settings,
)
from midthought.feedback.tool import FeedbackTool
from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome

TASK = Task(task_id="p", prompt="What is 123 * 45?", answer="5535", labels={"dataset": "multiplication"})


class Counting:
    """A critic that keeps what it was asked."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.seconds, self.error = seconds, error

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        self.asked.append((task.task_id, answer, reasoning))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return f"Not {answer}; the answer is {task.answer}."


def execute(tool: FeedbackTool, answer: str, reasoning: str = "", task: Task = TASK) -> ToolOutput:
    return asyncio.run(tool.for_task(task).execute(current_answer=answer, reasoning=reasoning))


def test_a_right_answer_is_told_so_and_costs_no_critic() -> None:
    critic = Counting()
    output = execute(FeedbackTool(critic, name="counting"), "So it is \\boxed{5,535}.")
    assert output == ToolOutput(RIGHT_ANSWER, {"is_right": True, "critic": "counting"})
    assert critic.asked == []


def test_a_wrong_answer_gets_the_critics_words_masked_and_the_request_to_solve_it_again() -> None:
    output = execute(FeedbackTool(Counting(), name="counting"), "5525", "a carry")
    assert output.text == f"Not 5525; the answer is {MASK}.\n\n{SOLVE_AGAIN}"
    assert output.metadata == {"is_right": False, "critic": "counting"}


def test_two_tasks_of_one_tool_are_judged_by_their_own_answers() -> None:
    tool = FeedbackTool(Counting())
    other = Task(task_id="q", prompt="What is 2 * 3?", answer="6", labels=TASK.labels)
    assert execute(tool, "6", task=other).metadata["is_right"] is True
    assert execute(tool, "6").metadata["is_right"] is False


def test_the_settings_data_set_counts_where_the_task_names_none() -> None:
    bare = Task(task_id="b", prompt="Which?\n(A) red\n(B) blue", answer="B")
    tool = FeedbackTool.from_settings(FeedbackSettings(critic="none", dataset="mmlu"))
    assert execute(tool, "The answer is (B)", task=bare).text == RIGHT_ANSWER
    judged_by_its_truth = FeedbackTool.from_settings(FeedbackSettings(critic="none"))
    assert execute(judged_by_its_truth, "b.", task=bare).text == RIGHT_ANSWER
    with pytest.raises(SettingsError, match=r"unknown data set 'mmul'.*mmlu"):
        FeedbackTool.from_settings(FeedbackSettings(critic="none", dataset="mmul"))


def test_a_tool_that_travels_to_another_process_answers_there() -> None:
    with ChatServer() as server:
        tool = FeedbackTool.from_settings(FeedbackSettings(servers=[server.url], model="critic"))
        execute(tool, "5525")
        travelled = pickle.loads(pickle.dumps(tool))  # noqa: S301
        assert execute(travelled, "5525").text.startswith(FEEDBACK) and len(server.requests) == 2


def test_without_a_task_or_an_answer_it_says_what_is_missing() -> None:
    tool = FeedbackTool(Counting())
    with pytest.raises(EpisodeError, match=r"for_task\(task\)"):
        asyncio.run(tool.execute(current_answer="1"))
    with pytest.raises(ValueError, match="current_answer is empty"):
        execute(tool, " \n")


# -- in the tool executor ----------------------------------------------------------------------------------------------


def asking(**parameters: Any) -> ParsedAction:
    return ParsedAction(tool_name=TOOL_NAME, parameters=parameters, raw_text="", success=True)


def call(tool: FeedbackTool, **parameters: Any) -> ToolEvent:
    executor = ToolExecutor(ToolRegistry([tool]), timeout_seconds=5)
    return asyncio.run(executor.run([asking(**parameters)], TASK))[0]


def test_a_call_through_the_executor_is_an_event_that_rewards_can_read() -> None:
    event = call(FeedbackTool(Counting(), name="counting"), current_answer="1")
    assert event.outcome is ToolOutcome.OK and event.metadata == {"is_right": False, "critic": "counting"}
    assert call(FeedbackTool(Counting())).outcome is ToolOutcome.BAD_ARGUMENTS


def test_a_model_that_cannot_be_reached_is_an_error_that_the_policy_reads() -> None:
    with ChatServer() as server:
        server.always = 500
        tool = FeedbackTool.from_settings(FeedbackSettings(servers=[server.url], model="critic", timeout_seconds=0.3))
        event = call(tool, current_answer="1")
    assert event.outcome is ToolOutcome.RAISED and "no server gave feedback" in (event.call.result or "")


def test_the_deadline_leaves_every_server_its_time() -> None:
    settings = FeedbackSettings(servers=["http://127.0.0.1:1/v1"] * 3, model="m", timeout_seconds=20)
    tool = FeedbackTool.from_settings(settings)
    assert tool.timeout_seconds is not None and tool.timeout_seconds > 60


# -- YAML --------------------------------------------------------------------------------------------------------

SEED_LAYOUT = """
tools:
  - class_name: "recipe.feedback_rl.feedback_tool.SelfInPerfectFeedbackTool"
    config:
      vllm_url:
        - "http://h03:1233/v1/chat/completions"
        - "http://h02:1233/v1/chat/completions"
      feedback_model: "meta-llama/Llama-4-Scout-17B-16E-Instruct"
      temperature: 0.0
      max_tokens: 8192
      timeout: 600
      n: 1
      type: native
      best_of: 1
      seed: 14
      dataset: "math"
      use_process_feedback: true
      shuffle: false
    tool_schema:
      type: "function"
      function:
        name: "get_feedback"
"""


def test_verls_tool_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "feedback_tool_config.yaml"
    path.write_text(SEED_LAYOUT + "  - tool_schema: {function: {name: search}}\n")  # another tool, without a config
    assert read_feedback_settings(path) == FeedbackSettings(
        critic="model",
        servers=["http://h03:1233/v1", "http://h02:1233/v1"],
        model="meta-llama/Llama-4-Scout-17B-16E-Instruct",
        temperature=0.0,
        max_tokens=8192,
        timeout_seconds=600,
        seed=14,
        stop_token_ids=[128001, 128009],
        dataset="math",
        process_feedback=True,
    )


@pytest.mark.parametrize("section", [True, False])
def test_plain_settings_stand_at_the_top_or_under_feedback(section: bool) -> None:
    plain = {"critic": "model", "servers": "http://h05:1233", "model": "m", "stop_token_ids": []}
    settings = feedback_settings({"feedback": plain} if section else plain)
    assert settings.servers == ["http://h05:1233/v1"] and settings.stop_token_ids == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("servers: [http://h:1/v1]\nmodle: x", "unknown key 'modle'.*Did you mean 'model'"),
        ("max_tokens: 0", "max_tokens=0"),
        ("feedback: 7", "feedback is a section"),
        ("{", "is not YAML"),
        ("tools: []", "names no tool 'get_feedback'"),
        ("tools: [{tool_schema: {function: {name: get_feedbck}}}]", "Did you mean 'get_feedbck'"),
        (
            "tools: [{tool_schema: {function: {name: get_feedback}}}]",
            "'get_feedback' has no `config` of keys and values",
        ),
        (SEED_LAYOUT.replace("n: 1", "n: 2"), "n=2: the only supported value is 1"),
        (SEED_LAYOUT.replace("feedback_model", "feedback_modle"), "unknown key 'feedback_modle'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_name(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "feedback.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message) as raised:
        read_feedback_settings(path)
    assert str(path) in str(raised.value)


def test_a_tool_made_of_a_file_asks_the_server_in_it(tmp_path: Path) -> None:
    with ChatServer() as server:
        path = tmp_path / "feedback.yaml"
        path.write_text(SEED_LAYOUT.replace("http://h03:1233/v1", server.url).replace("http://h02:1233/v1", server.url))
        output = execute(FeedbackTool.from_file(path), "1")
    assert output.text.startswith(FEEDBACK) and server.requests[0]["max_tokens"] == 8192
