"""Tasks from rows of all common formats; errors name the position and the argument that solves the problem."""

import copy
import decimal
import json
import logging
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought import load_tasks
from midthought.env.answers import task_is_right
from midthought.errors import DataError
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


SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Q"}
VERL = {
    "data_source": "x/y", "prompt": [USER], "ability": "math", "reward_model": {"style": "rule", "ground_truth": "A"},
    "extra_info": {"index": 0},
}  # fmt: skip
ANSWER_COLUMNS = ("gold", "reference", "correct_answer", "answerkey", "Correct Answer", "gold_answer", "expected")
FORMS = [
    ({"prompt": "Q", "answer": "A", "solution": "b"}, "Q", "A", (), "solution"),
    ({"Problem": "Q", "Answer": 204}, "Q", "204", (), ""),
    ({"problem": "Q", "level": 3, "solution": "so \\boxed{4}"}, "Q", "4", (), "level"),
    ({"instruction": "Q", "target": 0.5}, "Q", "0.5", (), ""),
    ({"query": "Q", "ground_truth": True}, "Q", "True", ("yes",), ""),
    ({"question": "Q", "answer": ["a", "b", 3]}, "Q", "a", ("b", "3"), ""),
    ({"question": "Q", "answer": {"value": "a", "aliases": ["b"], "type": "x"}}, "Q", "a", ("b",), ""),
    ({"question": "Q", "answer": "a", "aliases": ["b"]}, "Q", "a", ("b",), ""),
    ({"question": "Q", "answer": array("i", [7, 8])}, "Q", "7", ("8",), ""),
    ({"question": "Q", "golden_answers": ["a", "b"]}, "Q", "a", ("b",), ""),
    *(({"question": "Q", column: decimal.Decimal("1.50")}, "Q", "1.50", (), "") for column in ANSWER_COLUMNS),
    ({"instruction": "Q", "input": "I", "output": "A", "text": "x"}, "Q\n\nI", "A", (), "text"),  # alpaca
    ({"instruction": "Q", "input": "", "output": "A"}, "Q", "A", (), ""),
    ({"instruction": "Q", "input": None, "output": "A"}, "Q", "A", (), ""),
    ({"instruction": "Q", "context": "C", "answer": "A", "category": "x"}, "C\n\nQ", "A", (), "category"),  # dolly
    ({"title": "T", "context": "C", "question": "Q", "answers": {"text": ["A", "B"]}}, "C\n\nQ", "A", ("B",), "title"),
    ({"Question": "Q", "Context": "C", "Answer": "A"}, "C\n\nQ", "A", (), ""),
    ({"question": "Q", "context": {"a": []}, "answer": "A"}, "Q", "A", (), "context"),
    ({"question": "Q", "input": "I", "answer": "A"}, "Q", "A", (), "input"),
    (VERL, "Q", "A", (), "ability, extra_info"),
    ({"messages": [USER], "answer": "A", "tools": []}, "Q", "A", (), "tools"),
    ({"question": "Q", "answer": "A", "labels": 1}, "Q", "A", (), "labels"),
    ({"question": "Q", "answer": "So 16 - 3 = <<16-3=13>>13 eggs.\n#### 13", "level": 3}, "Q", "13", (), "level"),
    ({"question": "Q", "answer": "#### -1,250.5"}, "Q", "-1250.5", ("-1,250.5",), ""),
    ({"question": "Q", "answer": "5 of 20 is 25%.\n#### 25%\n"}, "Q", "25%", (), ""),
    ({"question": "Q", "answer": "As a price.\n####$18"}, "Q", "$18", (), ""),
    ({"question": "Q", "answer": "#### 3\nNo, wait.\n#### 4"}, "Q", "4", (), ""),
    *(
        ({"question": "Q", "answer": said}, "Q", said, (), "")
        for said in ("#### 42\nThis line follows it.", "The channel is named #### 5", "A title\n#### Summary of 2020")
    ),
]


def unused(caplog):
    (said,) = [record.args[0] for record in caplog.records] or [""]
    return said


@pytest.mark.parametrize(("row", "prompt", "answer", "aliases", "left_out"), FORMS, ids=range(len(FORMS)))
def test_every_column_of_a_usual_form_is_used_or_named_once(row, prompt, answer, aliases, left_out, caplog):
    with caplog.at_level(logging.WARNING):
        tasks = load_tasks([row] * 3)
    for task in tasks:
        assert (task.prompt, task.answer, task.aliases) == (prompt, answer, aliases)
    assert unused(caplog) == left_out


def test_the_number_at_the_end_of_a_worked_solution_is_right_with_and_without_separators():
    (task,) = load_tasks([{"question": "q", "answer": "It costs this.\n#### 2,125"}])
    assert task.answer == "2125" and all(task_is_right(task, each) for each in ("2125", "2,125"))


def test_the_truth_of_a_worked_solution_is_its_last_box():
    row = {"problem": "1 + 1?", "solution": "Not \\boxed{3}, but $\\boxed{\\frac{4}{2}}$.", "level": "Level 1"}
    (task,) = load_tasks([row])
    assert task.answer == "\\frac{4}{2}" and task.labels == {"dataset": "math"}
    (task,) = load_tasks([{"problem": "500 + 750?", "solution": "So $\\boxed{1,250}$."}])
    assert (task.answer, task.labels) == ("1250", {}) and task_is_right(task, "It is 1250.")
    (task,) = load_tasks([{"problem": "Which primes?", "solution": "So $\\boxed{3,5,7}$."}])
    assert (task.answer, task.labels) == ("3,5,7", {"dataset": "math"})
    (task,) = load_tasks([{"question": "Where?", "answer": "Paris"}])
    assert task_is_right(task, "It is \\boxed{Paris}.") and not task_is_right(task, "Not Paris but \\boxed{Rome}.")


def test_a_messages_text_may_be_a_list_of_text_parts():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    tasks = load_tasks([{"messages": [{"role": "user", "content": parts}], "final_answer": "c"}])
    assert as_tuples(tasks) == [("row:1", "a b", "c")]


def test_our_own_records_come_back_as_they_were(tmp_path):
    known = Task(task_id="1", prompt="Who?", answer="Ada", aliases=("A",), labels={"x": True}, evidence=("c:1",))
    tasks = [known, Task(task_id="2", prompt="Where?", answer="London")]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(task.to_dict()) + "\n" for task in tasks))
    assert load_tasks(path) == tasks
    assert load_tasks(str(path), limit=1) == tasks[:1]


GOOD = {"question": "q", "answer": "a"}
WRONG = [
    ([{"text": "q"}], {}, "row 1: no column is known for the question; map one of text: a trainer takes the tasks of"),
    ([{"question": "q", "x": 1}], {}, "columns={'…': 'answer'}), or of needs_answer=False"),
    ([GOOD], {"columns": {"truth": "answer"}}, "row 1: it has no 'truth'. Known: answer, question"),
    ([GOOD], {"columns": {"anser": "question"}}, "row 1: it has no 'anser'. Did you mean 'answer'"),
    ([GOOD], {"columns": {"answer": "qestion"}}, "'qestion' is no name that is read. Did you mean 'question'"),
    ([GOOD], {"columns": {"question": "answer", "answer": "answer"}}, "only one column can be 'answer'"),
    ([GOOD | {"answer": None}], {}, "row 1: answer is None"),
    ([GOOD | {"answer": float("nan")}], {}, "row 1: answer is nan"),
    ([GOOD | {"answer": " "}], {}, "row 1: answer is empty"),
    ([GOOD | {"answer": []}], {}, "the list of answers is empty"),
    ([GOOD | {"answer": b"a"}], {}, "answer is b'a'; it must be a text or a number"),
    (
        [GOOD | {"answer": {"target": ["a"]}}],
        {},
        "or one key of it: load_tasks(…, columns={'COLUMN.target': 'answer'})",
    ),
    (
        [GOOD | {"answer": "so \\boxed 5"}],
        {},
        "'so \\\\boxed 5' has a \\boxed without an answer in a closed pair of braces",
    ),
    ([GOOD | {"answer": "so \\boxed{}"}], {}, "'so \\\\boxed{}' has a \\boxed without an answer"),
    ([GOOD | {"id": {"$oid": "1"}}], {}, "or one key of it: load_tasks(…, columns={'COLUMN.$oid': 'id'})"),
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
    ([GOOD, {"question": "q", "solution": "x"}], {}, "row 2: it has no 'answer'. Known: question, solution"),
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
    ([{"role": "user", "content": [{"type": "image"}]}], "a message's content is [{'type': 'image'}]"),
    (
        [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, USER],
        "user, assistant with tool_calls, user",
    ),
    ([{"role": "user"}], "a message's content is None"),
    ([{"role": "user", "content": " "}], "the prompt is empty"),
    ([{"content": "q"}], "a list of messages"),
    (str([USER]), "is a list written as a text; give it in JSON lines or Parquet"),
    (json.dumps([USER], indent=1) + "\n", "is a list written as a text"),
    (str([{"name": "x", **USER}]), "is a list written as a text"),
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
    for rows, answers in (
        ([{"question": "q"}, {"question": "r"}], ["", ""]),
        ([{"question": "q", "answer": "a"}, {"question": "r", "answer": None}], ["a", ""]),
    ):
        assert [task.answer for task in load_tasks(rows, needs_answer=False)] == answers


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


VALUES = st.none() | st.text() | st.integers() | st.lists(st.text())


@given(st.lists(st.dictionaries(st.sampled_from(["question", "answer", "id", "x"]), VALUES)))
def test_any_rows_give_tasks_or_a_clear_error(rows):
    try:
        tasks = load_tasks(rows, strict=False)
    except DataError:
        return
    assert len(tasks) + len(tasks.skipped) == len(rows)
    assert all(task.prompt.strip() and task.answer.strip() for task in tasks)


# -- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [{"system": "Be kind.", "messages": [USER]}, {"system": "Be kind.", "prompt": "Q"}, {"prompt": [SYSTEM, USER]}],
)
def test_a_system_column_is_the_first_message(row, caplog):
    (task,) = load_tasks([row | {"answer": "A"}])
    assert task.messages("Ours.") == [{**SYSTEM, "content": "Ours.\n\nBe kind."}, USER] and unused(caplog) == ""
    (again,) = load_tasks([{"system": "Be kind.", "prompt": [SYSTEM, USER], "answer": "A"}])
    assert again.before == (SYSTEM,) and load_tasks([row | {"system": " ", "answer": "A"}])
    with pytest.raises(DataError, match=r"row 1: the column system is 'Be rude.', and the messages begin with another"):
        load_tasks([{"system": "Be rude.", "prompt": [SYSTEM, USER], "answer": "A"}])


def test_a_column_that_becomes_a_label_counts_as_used_and_later_rows_count_too(caplog):
    row = {"question": "Q", "answer": "A", "meta": {"kind": "x"}, "source": "s", "a.b": "c", "id": 7}
    (task, _) = load_tasks([row, row | {"late": 1, "id": 8}], label_keys=["meta.kind", "source", "a.b"])
    assert task.labels == {"meta.kind": "x", "source": "s", "a.b": "c"} and unused(caplog) == "late"
    assert copy.deepcopy(task) == task and Task.from_dict(task.to_dict()) == task and task.task_id == "7"
    with pytest.raises(KeyError, match=r"no label 'late'.*load_tasks\(…, label_keys=\['late'\]\)"):
        copy.deepcopy(task).labels["late"]


MAPPED = [
    ({"problem_text": "Q", "gold_text": "A"}, {"problem_text": "question", "gold_text": "answer"}, "Q", ""),
    ({"passage": "C", "question": "Q", "answer": "A"}, {"passage": "context"}, "C\n\nQ", ""),
    ({"prompt": "x", "text": "Q", "answer": "A"}, {"text": "question"}, "Q", "prompt"),
    ({"Answer": "x", "question": "Q", "truth": "A"}, {"truth": "answer"}, "Q", "Answer"),
    ({"x": {"truth": "A"}, "question": "Q"}, {"x.truth": "answer"}, "Q", ""),
    ({"task": "Q", "data": "I", "output": "A"}, {"task": "instruction", "data": "input"}, "Q\n\nI", ""),
    ({"answer": "Q", "question": "A"}, {"answer": "question", "question": "answer"}, "Q", ""),
]


def test_a_user_maps_columns_to_ours(caplog):
    for row, columns, prompt, left_out in MAPPED:
        caplog.clear()
        (task,) = load_tasks([row], columns=columns)
        assert (task.prompt, task.answer, unused(caplog)) == (prompt, "A", left_out)


@pytest.mark.parametrize(
    "options",
    [["ice", "fire"], {"text": ["ice", "fire"], "label": ["A", "B"]}, {"A": "ice", "B": "fire", "C": None}],
    ids=["MMLU", "ARC", "MedQA"],
)
def test_a_question_that_does_not_show_its_options_is_refused(options):
    row = {"question": "Which is hot?", "choices": options, "answer": "B"}
    with pytest.raises(
        DataError, match=r"row 1: .* does not show the options in 'choices': .*load_problems\('mmlu', rows\)"
    ):
        load_tasks([row])
    (task,) = load_tasks([row | {"question": "Which is hot? (A) ice (B) fire"}])
    assert task.answer == "B" and load_tasks([row], label_keys=["choices"])


def test_an_answer_that_is_the_place_of_an_option_is_refused():
    row = {"query": "Which is hot? (A) ice (B) fire", "choices": ["ice", "fire"], "gold": [1]}
    with pytest.raises(
        DataError, match=r"its answer '1' is the place of an option in 'choices': give its letter or text"
    ):
        load_tasks([row])
    assert load_tasks([{"query": "2 - 1? 1 or 2", "choices": ["1", "2"], "gold": 1}])[0].answer == "1"


@pytest.mark.parametrize(
    "row",
    [
        {"question": "What is 0 + 0?", "choices": [], "answer": 0},
        {"question": "2 - 1? 1 or 2", "choices": [1.0, 2.0], "answer": 1},
        {"question": "Which is hot? 1. ice 2. fire", "choices": ["ice", "fire"], "answer": 2},
        {"question": "Which is hot? (0) ice (1) fire", "choices": ["(0) ice", "(1) fire"], "answer": 1},
        {"prompt": '[{"role": "admin", "pay": 5}]', "answer": 0},
    ],
)
def test_an_answer_that_the_question_can_ask_for_is_kept(row):
    assert load_tasks([row])[0].answer == str(row["answer"])


@pytest.mark.parametrize("last", ["1/2", "1,25", "12,34,567", "(1, 2)"])
def test_a_last_line_without_words_is_the_truth_as_it_is_written(last):
    assert load_tasks([{"question": "Q", "answer": f"So it is.\n#### {last}"}])[0].answer == last
