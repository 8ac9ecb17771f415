"""Tasks from rows of all common formats; errors name the position and the argument that solves the problem."""

import decimal
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.data.rows import DataError
from midthought.data.tasks import load_tasks
from midthought.env.answers import task_is_right
from midthought.types import Task


def as_tuples(tasks):
    return [(task.task_id, task.prompt, task.answer) for task in tasks]


def test_a_list_may_hold_mappings_texts_and_tasks():
    task = Task(task_id="mine", prompt="Who?", answer="Ada")
    tasks = load_tasks([{"question": "1 + 1?", "answer": 2}, "Say something.", task])
    assert as_tuples(tasks) == [("row:1", "1 + 1?", "2"), ("row:2", "Say something.", ""), ("mine", "Who?", "Ada")]
    assert tasks[2] is task and tasks.skipped == ()
    judged_otherwise = Task(task_id="1", prompt="Who?", answer=None)  # by a reward function of the user
    assert load_tasks([judged_otherwise]) == [judged_otherwise]


USUAL = [
    ({"prompt": "q", "answer": "a", "solution": "b"}, "a", ()),
    ({"Problem": "q", "Answer": 204}, "204", ()),
    ({"problem": "q", "level": 3, "solution": "so \\boxed{4}"}, "4", ()),
    ({"instruction": "q", "target": 0.5}, "0.5", ()),
    ({"query": "q", "ground_truth": True}, "True", ()),
    ({"question": "q", "answer": ["a", "b", 3]}, "a", ("b", "3")),
    ({"question": "q", "answer": {"value": "a", "aliases": ["b"], "type": "x"}}, "a", ("b",)),
    ({"question": "q", "answer": "a", "aliases": ["b"]}, "a", ("b",)),
    ({"question": "q", "answer": array("i", [7, 8])}, "7", ("8",)),
    ({"question": "q", "answers": {"text": ["a", "b"], "answer_start": [0, 0]}}, "a", ("b",)),
    ({"question": "q", "golden_answers": ["a", "b"]}, "a", ("b",)),
    *(
        ({"question": "q", column: decimal.Decimal("1.50")}, "1.50", ())
        for column in ("gold", "reference", "correct_answer", "answerkey", "Correct Answer", "gold_answer", "expected")
    ),
]
WORKED = {
    "She sells 16 - 3 = <<16-3=13>>13 eggs.\n#### 13": "13",
    "#### -1,250.5": "-1250.5",
    "It costs this.\n#### 2,125": "2125",
    "5 of 20 is 25%.\n#### 25%\n": "25%",
    "As a price.\n####$18": "$18",
    "#### 3\nNo, wait.\n#### 4": "4",
    "#### 42\nThis line follows the number.": "#### 42\nThis line follows the number.",
    "The channel is named #### 5": "The channel is named #### 5",
    "A title\n#### Summary of 2020": "A title\n#### Summary of 2020",
}  # fmt: skip


def test_the_usual_names_of_columns_are_known_and_a_worked_solution_in_the_form_of_gsm8k_has_its_final_number():
    for row, answer, aliases in USUAL:
        (task,) = load_tasks([row])
        assert (task.prompt, task.answer, task.aliases) == ("q", answer, aliases)
    for said, answer in WORKED.items():
        (task,) = load_tasks([{"question": "q", "answer": said}])
        assert task.answer == answer and (
            answer != "2125" or all(task_is_right(task, each) for each in ("2125", "2,125"))
        )


def test_the_truth_of_a_worked_solution_is_its_last_box():
    row = {"problem": "1 + 1?", "solution": "Not \\boxed{3}, but $\\boxed{\\frac{4}{2}}$.", "level": "Level 1"}
    (task,) = load_tasks([row])
    assert task.answer == "\\frac{4}{2}" and task.labels == {"dataset": "math"}
    (task,) = load_tasks([{"problem": "500 + 750?", "solution": "So $\\boxed{1,250}$."}])
    assert (task.answer, task.labels) == ("1250", {}) and task_is_right(task, "It is 1250.")
    (task,) = load_tasks([{"question": "Where?", "answer": "Paris"}])
    assert task_is_right(task, "It is \\boxed{Paris}.") and not task_is_right(task, "Not Paris but \\boxed{Rome}.")


def test_a_messages_text_may_be_a_list_of_text_parts():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    (task,) = load_tasks([{"messages": [{"role": "user", "content": parts}], "final_answer": "c"}])
    assert as_tuples([task]) == [("row:1", "a b", "c")]
    with pytest.raises(DataError, match=r"a message's content is .*image"):
        load_tasks([{"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}], "answer": "c"}])


def test_our_own_records_come_back_as_they_were(tmp_path):
    tasks = [
        Task(
            task_id="1", prompt="Who?", answer="Ada", aliases=("A",), labels={"needs_memory": True}, evidence=("c:1",)
        ),
        Task(task_id="2", prompt="Where?", answer="London"),
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(task.to_dict()) + "\n" for task in tasks))
    assert load_tasks(path) == tasks
    assert load_tasks(str(path), limit=1) == tasks[:1]


GOOD = {"question": "q", "answer": "a"}
WRONG = [
    (
        [{"text": "q", "label": 1}],
        {},
        "row 1: no column is known for the question; map one of text, label: a trainer takes the tasks of",
    ),
    ([{"question": "q", "x": 1}], {}, "columns={'…': 'answer'}), or of needs_answer=False"),
    ([GOOD], {"columns": {"truth": "answer"}}, "row 1: it has no 'truth'. Known: answer, question"),
    ([GOOD | {"answer": None}], {}, "row 1: answer is None"),
    ([GOOD | {"answer": float("nan")}], {}, "row 1: answer is nan"),
    ([GOOD | {"answer": " "}], {}, "row 1: answer is empty"),
    ([GOOD | {"answer": []}], {}, "the list of answers is empty"),
    ([GOOD | {"aliases": "b"}], {}, "aliases is 'b'; it must be a list of texts"),
    ([GOOD | {"question": "\n"}], {}, "row 1: the prompt is empty"),
    ([""], {}, "row 1: the prompt is empty"),
    (["", ""], {"strict": False}, "no task was found in the data set; the data set, row 1: the prompt is empty"),
    ([GOOD | {"question": 5}], {}, "the prompt is 5; it must be a text or a list of messages"),
    ([GOOD | {"question": []}], {}, "a text or a list of messages"),
    ([["q", "a"]], {}, "row 1: it is of type list"),
    ([GOOD | {"id": 1}] * 2, {}, "row 2: the id '1' was already used at the data set, row 1"),
    ([GOOD | {"id": None}], {}, "row 1: id is None"),
    ([], {}, "no task was found in the data set: it is empty"),
    ([GOOD], {"limit": 0}, "limit=0"),
    (
        [GOOD, {"question": "q", "solution": "x"}],
        {},
        "row 2: it has no 'answer'. Known: question, solution",
    ),  # as in row 1
    ([{}], {}, "map one of none"),
    ([GOOD | {"before": "hello"}], {}, "before is 'hello'; it must be a list of messages"),
    ([GOOD | {"question": "a\ud800"}], {}, "row 1: the prompt is not Unicode text: a lone surrogate at character"),
    ([GOOD | {"answer": "\ud800"}], {}, "row 1: answer is not Unicode text: a lone surrogate at character"),
    ([Task(task_id="t", prompt="a\ud800", answer="b")], {}, "row 1: prompt is not Unicode text: a lone surrogate"),
    ([Task(task_id="t", prompt="a", answer="\ud800")], {}, "row 1: answer is not Unicode text: a lone surrogate"),
    (GOOD, {}, "or a list of rows"),
]
WRONG_MESSAGES = [
    ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "roles user, assistant; it may"),
    ([{"role": "user", "content": "q"}, {"role": "system", "content": "s"}], "roles user, system; it may"),
    ([{"role": "system", "content": "s"}], "roles system; it may"),
    ([{"role": "tool", "content": "s"}, {"role": "user", "content": "q"}], "roles tool, user; it may"),
    ([{"role": "user", "content": [{"type": "image"}]}], "a message's content is"),
    ([{"role": "user"}], "a message's content is None"),
    ([{"role": "user", "content": " "}], "the prompt is empty"),
    ([{"content": "q"}], "a list of messages"),
]


def test_what_is_wrong_is_said_with_its_place_and_the_remedy():
    messages = (([{"prompt": prompt, "answer": "a"}], {}, message) for prompt, message in WRONG_MESSAGES)
    for rows, settings, message in (*WRONG, *messages):
        with pytest.raises(DataError) as raised:
            load_tasks(rows, **settings)
        assert message in str(raised.value), rows


def test_a_prompt_of_several_messages_keeps_what_was_said_before():
    system, asked, said = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
    question = {"role": "user", "content": "q"}
    (task,) = load_tasks([{"prompt": [system, asked, said, question], "answer": "a"}])
    assert (task.prompt, task.before) == ("q", (system, asked, said))
    assert task.messages() == [system, asked, said, question]
    assert task.messages("", "Be short.")[0] == {"role": "system", "content": "Be short.\n\ns"}
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert load_tasks([json.loads(json.dumps(task.to_dict()))])[0] == task


def test_rows_without_a_ground_truth_are_tasks_where_none_is_needed():
    rows = [{"question": "q"}, {"question": "r"}]
    assert as_tuples(load_tasks(rows, needs_answer=False)) == [("row:1", "q", ""), ("row:2", "r", "")]
    rows = [{"question": "q", "answer": "a"}, {"question": "r", "answer": None}]
    assert [task.answer for task in load_tasks(rows, needs_answer=False)] == ["a", ""]


def test_bad_rows_may_be_left_out_and_are_counted(tmp_path, caplog):
    path = tmp_path / "quiz.jsonl"
    path.write_text('{\n{"other": 1}\n{"question": "q", "answer": "a"}\n[]\n{"question": "", "answer": "a"}\n')
    tasks = load_tasks(path, strict=False)
    assert as_tuples(tasks) == [("quiz:3", "q", "a")]
    assert [words.partition(":")[0] for words in tasks.skipped] == [f"quiz.jsonl, line {n}" for n in (1, 2, 4, 5)]
    assert "4 rows were skipped, 1 tasks remain; first: quiz.jsonl, line 1" in caplog.text
    with pytest.raises(DataError, match=r"quiz\.jsonl, line 1: it is not JSON"):
        load_tasks(path)


def test_the_limit_counts_tasks_and_nothing_behind_it_is_read():
    def rows():
        yield ""
        yield "first"
        yield "second"
        raise AssertionError("read too far")

    assert [task.prompt for task in load_tasks(rows(), limit=2, strict=False)] == ["first", "second"]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["question", "answer", "id", "x"]),
            st.none() | st.text() | st.integers() | st.lists(st.text()),
        )
    )
)
def test_any_rows_give_tasks_or_a_clear_error(rows):
    try:
        tasks = load_tasks(rows, strict=False)
    except DataError:
        return
    assert len(tasks) + len(tasks.skipped) == len(rows)
    assert all(task.prompt.strip() and task.answer.strip() for task in tasks)
