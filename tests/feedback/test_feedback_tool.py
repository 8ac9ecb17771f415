"""The tool: what it answers and whose call it is, and the YAML files that it is made of."""

from __future__ import annotations

import asyncio
import pickle
import re
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

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        self.asked.append((task.task_id, answer, reasoning))
        return f"Not {answer}; the answer is {task.answer}."


def execute(tool: FeedbackTool, answer: str, reasoning: str = "", task: Task = TASK) -> ToolOutput:
    return asyncio.run(tool.for_task(task).execute(current_answer=answer, reasoning=reasoning))


def test_a_right_answer_costs_no_critic_and_a_wrong_one_gets_its_words_masked_and_the_request_to_solve_it_again() -> (
    None
):
    critic = Counting()
    tool = FeedbackTool(critic, name="counting")
    right = execute(tool, "So it is \\boxed{5,535}.")
    assert right == ToolOutput(RIGHT_ANSWER, {"is_right": True, "critic": "counting"}) and critic.asked == []
    wrong = execute(tool, "5525", "a carry")
    assert wrong.text == f"Not 5525; the answer is {MASK}.\n\n{SOLVE_AGAIN}"
    assert wrong.metadata == {"is_right": False, "critic": "counting"} and critic.asked == [("p", "5525", "a carry")]


def test_each_task_of_a_tool_is_judged_by_its_answer_and_the_settings_data_set_counts_where_it_names_none() -> None:
    tool = FeedbackTool(Counting())
    other = Task(task_id="q", prompt="What is 2 * 3?", answer="6", labels=TASK.labels)
    assert execute(tool, "6", task=other).metadata["is_right"] is True
    assert execute(tool, "6").metadata["is_right"] is False
    bare = Task(task_id="b", prompt="Which?\n(A) red\n(B) blue", answer="B")
    for dataset, answer in (("mmlu", "The answer is (B)"), ("", "b.")):  # without a data set by its truth
        tool = FeedbackTool.from_settings(FeedbackSettings(critic="none", dataset=dataset))
        assert execute(tool, answer, task=bare).text == RIGHT_ANSWER
    with pytest.raises(SettingsError, match=r"unknown data set 'mmul'.*mmlu"):
        FeedbackTool.from_settings(FeedbackSettings(critic="none", dataset="mmul"))


def test_without_a_task_or_an_answer_it_says_what_is_missing() -> None:
    tool = FeedbackTool(Counting())
    with pytest.raises(EpisodeError, match=r"for_task\(task\)"):
        asyncio.run(tool.execute(current_answer="1"))
    with pytest.raises(ValueError, match="current_answer is empty"):
        execute(tool, " \n")


# -- in the tool executor ----------------------------------------------------------------------------------------------


def call(tool: FeedbackTool, **parameters: Any) -> ToolEvent:
    action = ParsedAction(tool_name=TOOL_NAME, parameters=parameters, raw_text="", success=True)
    return asyncio.run(ToolExecutor(ToolRegistry([tool]), timeout_seconds=5).run([action], TASK))[0]


def test_a_call_is_an_event_that_rewards_can_read_and_an_error_of_the_critic_one_that_the_policy_reads() -> None:
    event = call(FeedbackTool(Counting(), name="counting"), current_answer="1")
    assert event.outcome is ToolOutcome.OK and event.metadata == {"is_right": False, "critic": "counting"}
    assert call(FeedbackTool(Counting())).outcome is ToolOutcome.BAD_ARGUMENTS
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

SEED_LAYOUT = Path(__file__).with_name("feedback_tool_config.yaml").read_text()


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
        ("tools: [{tool_schema: {function: {name: get_feedback}}}]", "has no `config` of keys and values"),
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


def test_a_tool_made_of_a_file_asks_the_server_in_it_also_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "feedback.yaml"
    with ChatServer() as server:
        path.write_text(re.sub("http://h0.:1233/v1", server.url, SEED_LAYOUT))
        tool = FeedbackTool.from_file(path)
        for each in (tool, tool, pickle.loads(pickle.dumps(tool))):  # noqa: S301
            assert execute(each, "1").text.startswith(FEEDBACK)
    assert [body["max_tokens"] for body in server.requests] == [8192] * 3
