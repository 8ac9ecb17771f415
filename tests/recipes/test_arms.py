"""The arms: what the model reads when the tool is off, shuffled or an oracle."""

import asyncio

import pytest

from midthought.recipes.evaluation import Proofs, shuffled
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.registry import ToolRegistry
from midthought.trainer.held_out import ToolOff
from midthought.types import ParsedAction, Task, ToolOutcome


class Look(Tool):
    definition = ToolDefinition("look", "Looks.", [ToolParameter("query", "string", "What for.")])

    def execute(self, query: str) -> ToolOutput:
        raise AssertionError("an arm must not ask the tool")


SPEAKERS = ("Ann", "Bob", "Cara", "Joann")
TASKS = [
    Task(
        task_id=f"{speaker}:{number}",
        prompt="Who?",
        answer=speaker,
        aliases=("Annie",) if speaker == "Ann" else (),
        labels={"kind": "speaker" if number % 2 else "episode"},
        evidence=(f"{speaker}_{number}",),
    )
    for speaker in SPEAKERS
    for number in range(4)
]


def proof(task: Task) -> str:
    return f"[1] speaker: {task.answer}; words of {task.evidence[0]}"


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry([Look()])


def ask(executor, task, action=None):
    asked = action or ParsedAction(tool_name="look", parameters={"query": "tide"}, raw_text="", success=True)
    return asyncio.run(executor.run([asked], task))[0]


def test_a_tool_that_is_off_answers_with_an_error_that_the_model_reads(registry):
    event = ask(ToolOff(registry), TASKS[0])
    assert event.outcome is ToolOutcome.RAISED and event.call.success is False
    assert InThoughtFormat().render_results([event]) == "\n#look_error: the tool is switched off\n\n"


def test_the_oracle_gives_the_proof_whatever_was_asked(registry):
    event = ask(Proofs(registry, proof), TASKS[5])
    assert event.outcome is ToolOutcome.OK
    assert event.call.result == proof(TASKS[5]) and event.metadata == {"chunk_ids": ["Bob_1"]}


def test_a_call_that_is_not_sound_fails_in_an_arm_as_it_does_with_the_tool(registry):
    executor = Proofs(registry, proof)
    bad = ParsedAction(tool_name="look", parameters={}, raw_text="", success=True)
    assert ask(executor, TASKS[0], bad).outcome is ToolOutcome.BAD_ARGUMENTS
    unknown = ParsedAction(tool_name="find", parameters={"query": "x"}, raw_text="", success=True)
    assert ask(executor, TASKS[0], unknown).outcome is ToolOutcome.UNKNOWN_TOOL


def test_a_shuffled_result_never_holds_the_answer_and_is_another_questions_proof_of_the_same_kind(registry):
    proofs = {proof(task): task for task in TASKS}
    for seed in range(10):
        executor = Proofs(registry, proof, shuffled(TASKS, proof, seed))
        for task in TASKS:
            event = ask(executor, task)
            other = proofs[event.call.result]
            for truth in (task.answer, *task.aliases):
                assert truth.casefold() not in event.call.result.casefold()
            assert other.labels["kind"] == task.labels["kind"]
            assert event.metadata == {"chunk_ids": list(other.evidence)}


def test_shuffling_is_a_function_of_the_seed_and_the_task():
    assert shuffled(TASKS, proof, 0) == shuffled(TASKS, proof, 0) != shuffled(TASKS, proof, 1)


def test_tasks_of_one_answer_are_shuffled_with_further_tasks_or_not_at_all():
    few, more = TASKS[:4], TASKS[4:]
    with pytest.raises(ValueError, match="no other task has another answer than 'Ann'; give more tasks"):
        shuffled(few, proof, 0)
    for other in shuffled(few, proof, 0, more=more).values():
        assert "ann" not in proof(other).casefold() and other in more
