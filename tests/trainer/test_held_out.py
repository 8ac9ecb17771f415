"""Evaluations that show whether a result depends on the tools, and the report that has them."""

import copy
import itertools

import pytest
from small_environments import QUESTIONS, OnStep, power_cut, settings, twice

from midthought import SettingsError, Trainer, tool
from midthought.data.tasks import load_tasks
from midthought.report.run_record import RunState, read_run, state_of
from midthought.trainer.validation import evaluated
from midthought.types import ToolOutcome

TASKS = [{"question": row["question"], "answer": f"red {number}"} for number, row in enumerate(QUESTIONS)]
GIVEN = {"dataset": TASKS, "validation": TASKS, "progress": False}


@pytest.fixture
def trainer(callers, tokenizer, tmp_path):
    numbers = itertools.count()

    @tool
    def twice(word: str) -> str:
        """Says the word and how often it was asked before.

        Args:
            word: what to say
        """
        return f"{word} {next(numbers) % len(TASKS)}"

    config = settings("grpo", num_train_iters=1, max_tokens=60)
    given = {"model": copy.deepcopy(callers["in_thought"]), "tokenizer": tokenizer, "tools": [twice], **GIVEN}
    with Trainer(config, run_path=tmp_path / "run", **given) as trainer:
        yield trainer


def test_shuffled_results_are_those_of_other_episodes_without_the_answer(trainer):
    tasks = load_tasks(TASKS)
    on, shuffled = (evaluated(trainer.source, tasks, how, sampled=False) for how in ("on", "shuffled"))
    own = {f"red {number}" for number in range(3)}
    assert {each.tool_events[0].call.result for each in on} == own
    for each in shuffled:
        assert each.tool_events[0].outcome is ToolOutcome.OK
        assert each.tool_events[0].call.result in own - {each.task.answer}


def test_a_tool_that_is_off_answers_every_call_with_an_error(trainer):
    metrics = trainer.evaluate(tools="off")
    assert metrics["tool/twice/raised"] == metrics["tool/twice/calls"] == 1


def test_the_report_has_the_last_evaluations_before_and_after_training(trainer, tmp_path):
    before = [trainer.evaluate(), trainer.evaluate(sampled=True)]
    trainer.fit()
    after = [trainer.evaluate(), trainer.evaluate(sampled=True), trainer.evaluate(tools="off")]
    summary = read_run(tmp_path / "run").summary
    measured = [row["exact_match"] for row in (*before, *after)]
    names = ("before.exact_match", "before.sampled.exact_match", "after.exact_match", "after.sampled.exact_match")
    assert [summary[name] for name in (*names, "after.tool_off.exact_match")] == measured
    assert "before.tool_off.exact_match" not in summary and summary["num_questions"] == 3


def test_a_finished_run_that_goes_on_is_unfinished_until_its_end(talker, tmp_path):
    given = {**GIVEN, **talker, "run_path": tmp_path / "run"}
    with Trainer(settings("grpo", num_train_iters=1), **given) as trainer:
        trainer.fit()
    assert state_of(tmp_path / "run") is RunState.FINISHED
    again = {"resume": True, "callbacks": [OnStep(power_cut, 2)]}
    with Trainer(settings("grpo", num_train_iters=3), **given, **again) as trainer, pytest.raises(RuntimeError):
        trainer.fit()
    assert state_of(tmp_path / "run") is RunState.ENDED
    with Trainer(settings("grpo", num_train_iters=3), **given, resume=True) as trainer:
        trainer.fit()
    assert state_of(tmp_path / "run") is RunState.FINISHED
    assert read_run(tmp_path / "run").summary["iteration"] == 3


def test_what_cannot_be_evaluated_is_refused_with_the_reason(trainer, talker):
    with pytest.raises(SettingsError, match="tools='none': give one of 'on', 'off', 'shuffled'"):
        trainer.evaluate(tools="none")
    for tools, how, message in (
        ([], "off", "tools='off': the trainer has no tools"),
        ([twice], "shuffled", "none of 3 episodes had a result of a call"),
    ):
        with Trainer(settings(), tools=tools, **GIVEN, **talker) as other, pytest.raises(SettingsError, match=message):
            other.evaluate(tools=how)
