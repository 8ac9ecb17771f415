"""Demonstrations say what the tool says, stop when told right, and hold out what they must."""

import json

import pytest
from published_templates import PUBLISHED

from midthought.errors import DataError
from midthought.feedback.settings import RIGHT_ANSWER, SYSTEM_PROMPT, FeedbackSettings, wrong_answer_result
from midthought.feedback.tool import FeedbackTool
from midthought.models.small_model import make_tokenizer
from midthought.recipes.feedback.demonstrations import (
    Demonstrator,
    corpus,
    mended,
    read_conversations,
    without_held_out,
)
from midthought.recipes.feedback.reward import CALL_FORMAT
from midthought.recipes.feedback.settings import SftSection
from midthought.recipes.feedback.tasks import Columns
from midthought.tokenization import Renderer
from midthought.tools.registry import ToolRegistry
from midthought.trainer.demonstrations import DemonstrationReader
from midthought.trainer.sources import PromptBuilder
from midthought.types import SpanKind, Task


def written(renderer, *, step=0, held_out=(), **settings):
    """The demonstrations of a step, by default without practice."""
    section = SftSection(**{"practice_share": 0.0, **settings})
    made = Demonstrator(renderer=renderer, system=(), settings=section, hard_share=0.5, held_out=held_out, max_asks=2)
    return made.of_step(step)


def spans(renderer, trajectory):
    return [(span.kind, renderer.decode(trajectory.token_ids[span.start : span.end])) for span in trajectory.spans]


def test_whoever_is_told_right_says_it_again_and_asks_no_more(renderer):
    asking = written(renderer, ask_hard=1.0, ask_easy=1.0, ask_again=1.0, batch_tokens=8000)
    told = [each for each in asking if any(event.call.result == RIGHT_ANSWER for event in each.tool_events)]
    assert told
    for each in told:
        *_, (_, result), (_, last) = spans(renderer, each)
        assert RIGHT_ANSWER in result and "tool_call" not in last


def test_a_result_begins_as_in_an_episode_if_answers_end_where_a_question_begins():
    glm = Renderer(next(each for each in PUBLISHED if each.name == "glm_4_5").tokenizer())
    asking = written(glm, ask_hard=1.0, ask_easy=1.0, batch_tokens=3000)
    results = [text for each in asking for kind, text in spans(glm, each) if kind is SpanKind.RESULT]
    assert results and all(text.startswith("<|observation|>") for text in results)


def test_practice_teaches_what_follows_the_feedback_and_not_to_ask_for_it(renderer):
    for each in written(renderer, practice_share=1.0, ask_again=0.0):
        shown = [(kind, "tool_call" in text) for kind, text in spans(renderer, each)]
        assert [shown[1], shown[3]] == [(SpanKind.REPLY, True), (SpanKind.SAMPLED, False)]


def test_hints_are_followed_and_mend_most_hard_problems(renderer):
    asking = written(renderer, ask_hard=1.0, ask_again=1.0, retry_share=0.0, batch_tokens=20_000)
    hard = [each for each in asking if each.task.labels["difficulty"] == "hard"]
    answers = [renderer.decode(each.token_ids[each.spans[-1].start : -1]) for each in hard]
    right = [answer == each.task.answer for answer, each in zip(answers, hard, strict=True)]
    assert len(hard) > 20 and sum(right) / len(right) > 0.6


def test_the_same_step_gives_the_same_demonstrations_without_held_out_problems_and_another_step_others(renderer):
    (first, *_), again, other = (written(renderer, step=step) for step in (5, 5, 6))
    assert first.token_ids == again[0].token_ids != other[0].token_ids
    held_out = {first.task.prompt}
    assert held_out.isdisjoint(each.task.prompt for each in written(renderer, step=5, held_out=held_out))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("The digit at the thousands place is wrong; the 3 digits to its right are right.", [True]),
        ("The digit at place 4 from the right is wrong; the 3 digits to its right are right.", [True]),
        ("The digit at the ones place is wrong.", None),
        ("The digit at the moon place is wrong.", None),
        ("Your answer was incorrect.", None),
    ],
)
def test_the_place_that_feedback_names_is_mended(words, expected):
    columns = Columns.of(Task(task_id="t", prompt="Calculate 1360 * 3.", answer="4080"))
    assert mended(columns, [False], words) == expected


FUNCTION = {"name": "get_feedback", "arguments": {"current_answer": "5", "reasoning": ""}}
CONVERSATION = [
    {"role": "system", "content": SYSTEM_PROMPT},
    {"role": "user", "content": "2 * 2?"},
    {"role": "assistant", "content": "5", "tool_calls": [{"type": "function", "function": FUNCTION}]},
    {"role": "tool", "content": wrong_answer_result("Too much.")},
    {"role": "assistant", "content": "4"},
]


def test_converted_conversations_are_played_as_episodes_are(renderer, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "sft.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": CONVERSATION}]), path)
    registry = ToolRegistry([FeedbackTool.from_settings(FeedbackSettings(critic="outcome"))])
    prompts = PromptBuilder("", registry, CALL_FORMAT, False)
    (played,) = DemonstrationReader(prompts, renderer, 1000).read(read_conversations(path), None)
    played.check()
    assert "".join(text for _, text in spans(renderer, played)) == (
        "<|im_start|>user\n2 * 2?<|im_end|>\n<|im_start|>assistant\n"
        '5\n<tool_call>\n{"name": "get_feedback", "arguments": {"current_answer": "5"}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>tool\n{wrong_answer_result('Too much.')}<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"
    )


def test_conversations_about_held_out_questions_are_left_out():
    asked = "What is  2 * 2?\n\nReason step by step."
    conversations = [[{"role": "user", "content": text}] for text in (asked, "What is 2 * 3?", "2 + 13", "1 23")]
    questions = ("what is 2 * 2?", "2 + 1", "12 3")
    held_out = [Task(task_id=each, prompt="", answer="4", labels={"question": each}) for each in questions]
    assert without_held_out(conversations, held_out) == conversations[1:]


OTHERS = ({"question": "2 * 2?"}, "KeyError"), ({"messages": [{"role": "user", "content": [2]}]}, "of message 0")


@pytest.mark.parametrize(("row", "reason"), OTHERS)
def test_a_file_of_something_else_is_named(row, reason, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"line 1: no conversation as `midthought feedback convert` writes.*{reason}"):
        read_conversations(path)


def test_the_made_tokenizer_gives_every_digit_and_every_fixed_phrase_a_token_of_its_own():
    tokenizer = make_tokenizer(corpus(), 768, joins_words=True)
    call = '\n<tool_call>\n{"name": "get_feedback", "arguments": {"current_answer": "'
    result = wrong_answer_result("Your answer was incorrect. The digit at the hundreds place is wrong.")
    for text, num_tokens in ((call, 1), ("24143499", 8), (RIGHT_ANSWER, 1), (f"1{call}23", 4)):
        assert len(tokenizer.encode(text)) == num_tokens, text
    for text in (f"Calculate 12 + 34.\n{call}46", result, "words that no episode has: 2/3 of é"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
