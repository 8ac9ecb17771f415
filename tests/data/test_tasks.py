"""Tasks from rows of all common formats; errors name the position and the argument that solves the problem."""

import copy
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


@pytest.mark.parametrize(
    ("row", "answer", "aliases"),
    [
        ({"prompt": "q", "answer": "a", "solution": "b"}, "a", ()),
        ({"Problem": "q", "Answer": 204}, "204", ()),
        ({"problem": "q", "level": 3, "solution": "so \\boxed{4}"}, "4", ()),
        ({"instruction": "q", "target": 0.5}, "0.5", ()),
        ({"query": "q", "ground_truth": True}, "True", ()),
        ({"question": "q", "answer": ["a", "b", 3]}, "a", ("b", "3")),
        ({"question": "q", "answer": {"value": "a", "aliases": ["b"], "type": "x"}}, "a", ("b",)),
        ({"question": "q", "answer": "a", "aliases": ["b"]}, "a", ("b",)),
        ({"question": "q", "answer": array("i", [7, 8])}, "7", ("8",)),
        (
            {
                "data_source": "x",
                "prompt": [{"role": "user", "content": "q"}],
                "reward_model": {"style": "rule", "ground_truth": "a"},
                "extra_info": {"index": 0},
            },
            "a",
            (),
        ),
    ],
)
def test_the_usual_names_of_columns_are_known(row, answer, aliases):
    (task,) = load_tasks([row])
    assert (task.prompt, task.answer, task.aliases) == ("q", answer, aliases)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("She sells 16 - 3 = <<16-3=13>>13 eggs.\n#### 13", "13"),
        ("#### -1,250.5", "-1250.5"),
        ("5 of 20 is 25%.\n#### 25%\n", "25%"),
        ("As a price.\n####$18", "$18"),
        ("#### 3\nNo, wait.\n#### 4", "4"),
        ("#### 42\nThis line follows the number.", "#### 42\nThis line follows the number."),
        ("The channel is named #### 5", "The channel is named #### 5"),
        ("A title\n#### Summary of 2020", "A title\n#### Summary of 2020"),
    ],
)
def test_a_worked_solution_in_the_form_of_gsm8k_has_its_final_number_as_the_answer(said, answer):
    assert load_tasks([{"question": "q", "answer": said}])[0].answer == answer


def test_a_final_number_with_separators_is_also_accepted_as_it_is_written():
    (task,) = load_tasks([{"question": "q", "answer": "It costs this.\n#### 2,125"}])
    assert (task.answer, task.aliases) == ("2125", ("2,125",))
    assert all(task_is_right(task, said) for said in ("2125", "2,125"))


def test_a_messages_text_may_be_a_list_of_text_parts():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    (task,) = load_tasks([{"messages": [{"role": "user", "content": parts}], "final_answer": "c"}])
    assert as_tuples([task]) == [("row:1", "a b", "c")]
    with pytest.raises(DataError, match=r"a message's content is .*image"):
        load_tasks([{"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}], "answer": "c"}])


def test_other_columns_are_named_by_arguments_and_a_dot_leads_into_nested_ones():
    row = {"text": "q", "meta": {"truth": {"short": "a"}, "kind": "hard"}, "uid": 7, "a.b": "c"}
    (task,) = load_tasks(
        [row], prompt_key="text", answer_key="meta.truth.short", id_key="uid", label_keys=["meta.kind", "a.b"]
    )
    assert as_tuples([task]) == [("7", "q", "a")]
    assert task.labels == {"meta.kind": "hard", "a.b": "c"}
    assert copy.deepcopy(task) == task and Task.from_dict(task.to_dict()) == task
    with pytest.raises(KeyError, match=r"no label 'uid'.*load_tasks\(…, label_keys=\['uid'\]\)"):
        task.labels["uid"]


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


def test_rows_without_an_id_are_named_after_their_file_and_line(tmp_path):
    path = tmp_path / "quiz.v2.csv"
    path.write_text("question,answer\nq1,a1\nq2,a2\n")
    assert as_tuples(load_tasks(path)) == [("quiz.v2:2", "q1", "a1"), ("quiz.v2:3", "q2", "a2")]


def test_the_columns_of_the_first_row_hold_for_all():
    rows = [{"question": "q", "answer": "a"}, {"question": "q", "solution": "long"}]
    with pytest.raises(DataError, match=r"row 2: it has no 'answer'\. Known: question, solution"):
        load_tasks(rows)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            [{"text": "q", "label": 1}],
            {},
            "row 1: no column is known for the question; set prompt_key to one of: text, label",
        ),
        ([{"question": "q", "x": 1}], {}, "ground truth; set answer_key to one of: question, x; or needs_answer=False"),
        (
            [{"question": "q", "answer": "a"}],
            {"answer_key": "truth"},
            "row 1: it has no 'truth'. Known: answer, question",
        ),
        ([{"question": "q", "answer": None}], {}, "row 1: answer is None"),
        ([{"question": "q", "answer": float("nan")}], {}, "row 1: answer is nan"),
        ([{"question": "q", "answer": " "}], {}, "row 1: answer is empty"),
        ([{"question": "q", "answer": []}], {}, "the list of answers is empty"),
        ([{"question": "q", "answer": "a", "aliases": "b"}], {}, "aliases is 'b'; it must be a list of texts"),
        ([{"question": "\n", "answer": "a"}], {}, "row 1: the prompt is empty"),
        ([""], {}, "row 1: the prompt is empty"),
        ([{"question": 5, "answer": "a"}], {}, "the prompt is 5; it must be a text or a list of messages"),
        ([{"question": [], "answer": "a"}], {}, "a text or a list of messages"),
        ([["q", "a"]], {}, "row 1: it is of type list"),
        (
            [{"id": 1, "question": "q", "answer": "a"}] * 2,
            {},
            "row 2: the id '1' was already used at the data set, row 1",
        ),
        ([{"id": None, "question": "q", "answer": "a"}], {}, "row 1: id is None"),
        ([], {}, "no task was found in the data set: it is empty"),
        ([{"question": "q", "answer": "a"}], {"limit": 0}, "limit=0"),
        ([{}], {}, "set prompt_key to one of: none"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_the_remedy(rows, settings, message):
    with pytest.raises(DataError) as raised:
        load_tasks(rows, **settings)
    assert message in str(raised.value)


def test_a_prompt_of_several_messages_keeps_what_was_said_before():
    system, asked, said = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
    question = {"role": "user", "content": "q"}
    (task,) = load_tasks([{"prompt": [system, asked, said, question], "answer": "a"}])
    assert (task.prompt, task.before) == ("q", (system, asked, said))
    assert task.messages() == [system, asked, said, question]
    assert task.messages("", "Be short.")[0] == {"role": "system", "content": "Be short.\n\ns"}
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert load_tasks([json.loads(json.dumps(task.to_dict()))])[0] == task


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "roles user, assistant; it may"),
        ([{"role": "user", "content": "q"}, {"role": "system", "content": "s"}], "roles user, system; it may"),
        ([{"role": "system", "content": "s"}], "roles system; it may"),
        ([{"role": "tool", "content": "s"}, {"role": "user", "content": "q"}], "roles tool, user; it may"),
        ([{"role": "user", "content": [{"type": "image"}]}], "a message's content is"),
        ([{"role": "user"}], "a message's content is None"),
        ([{"role": "user", "content": " "}], "the prompt is empty"),
        ([{"content": "q"}], "a list of messages"),
    ],
)
def test_messages_that_no_policy_could_answer_are_refused(messages, message):
    with pytest.raises(DataError, match=message):
        load_tasks([{"prompt": messages, "answer": "a"}])


def test_a_column_before_that_holds_no_messages_is_refused():
    with pytest.raises(DataError, match="before is 'hello'; it must be a list of messages"):
        load_tasks([{"prompt": "q", "answer": "a", "before": "hello"}])


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


def test_a_data_set_of_bad_rows_alone_is_an_error_even_so():
    with pytest.raises(DataError, match="no task was found in the data set; the data set, row 1: the prompt is empty"):
        load_tasks(["", ""], strict=False)


def test_the_limit_counts_tasks_and_nothing_behind_it_is_read():
    def rows():
        yield ""
        yield "first"
        yield "second"
        raise AssertionError("read too far")

    assert [task.prompt for task in load_tasks(rows(), limit=2, strict=False)] == ["first", "second"]


def test_an_object_of_the_datasets_library_is_a_source():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(
        [{"question": f"q{n}", "answer": {"value": "a", "aliases": ["b"]}} for n in range(3)]
    )
    assert [(task.prompt, task.aliases) for task in load_tasks(dataset)] == [(f"q{n}", ("b",)) for n in range(3)]
    with pytest.raises(DataError, match="a mapping of train"):
        load_tasks(datasets.DatasetDict(train=dataset))


def test_a_parquet_file_in_verls_form_is_a_source(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{n} + 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {"split": "train", "index": n},
        }
        for n in range(3)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    tasks = load_tasks(tmp_path / "train.parquet", label_keys=["extra_info.index"])
    assert as_tuples(tasks) == [(f"train:{n + 1}", f"{n} + 1?", str(n + 1)) for n in range(3)]
    assert [task.labels for task in tasks] == [{"extra_info.index": n} for n in range(3)]


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


@pytest.mark.parametrize(
    ("name", "num_tasks"),
    [
        ("gsm8k/test.jsonl", 1319),
        ("math/math500_test.jsonl", 500),
        ("math/aime24_test.jsonl", 30),
        ("trivia_qa/trivia_qa_nocontext_hf_format.jsonl", 277),
    ],
)
def test_public_data_sets_are_read_as_they_are(real_data, name, num_tasks):
    assert len(load_tasks(real_data / name)) == num_tasks
