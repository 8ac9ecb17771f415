"""Data sets' rows as tasks: every family by hand, files of every format, made products, and what cannot be read."""

import json
import sys
from collections import Counter

import numpy as np
import pytest

from midthought.data.problem_readers import ASKED
from midthought.data.problem_sets import PROBLEM_SETS, load_problems
from midthought.errors import DataError, MissingExtraError
from midthought.types import Task

MMLU = {"question": "Which?", "choices": ["one", "two", "three", "four"], "answer": 1, "subject": "law"}
ARC = {"question": "Which?", "choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "answerKey": "B"}
MMLU_PRO = {"question_id": 70, "question": "Which?", "options": list("qwertzuiop"), "answer": "J", "answer_index": 9}
GPQA = {"Question": "Which?", "Correct Answer": "right", "Explanation": "Because.", "Record ID": "rec1"}
GPQA |= {f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)}
TRIVIA = {
    "question": "Who?",
    "question_id": "tc_1",
    "answer": {
        "value": "Sunset Boulevard",
        "aliases": ["Sunset Blvd", "Sunset Blvd.", "West Sunset Boulevard"],
        "normalized_aliases": ["sunset blvd", "sunset bulevard"],
        "normalized_value": "sunset boulevard",
        "matched_wiki_entity_name": "Sunset Boulevard (street)",
    },
}
MATH = {"problem": " 1 + 1? ", "answer": "2", "solution": "So \\boxed{2}.", "subject": "Algebra", "level": 3}


def only(dataset: str, row: object, **options: object) -> Task:
    (task,) = load_problems(dataset, [row], **options)
    return task


def test_a_problem_of_mathematics():
    labels = {"dataset": "math", "question": "1 + 1?", "solution": MATH["solution"], "subject": "Algebra", "level": "3"}
    prompt = "1 + 1?\n\nReason step by step, and put your final answer within \\boxed{}."
    assert only("math", MATH | {"unique_id": "u"}) == Task(task_id="u", prompt=prompt, answer="2", labels=labels)


@pytest.mark.parametrize(
    ("dataset", "row", "answer", "labels"),
    [
        ("math", {"problem": "?", "solution": "\\boxed{1}, \\boxed{\\frac12}", "level": 5}, "\\frac12", {"level": "5"}),
        ("math", {"problem": "Which?", "answer": "{1, 2}"}, "{1, 2}", {}),
        ("aime_2024", {"ID": "2024-I-1", "Problem": "?", "Solution": "…", "Answer": 204}, "204", {"question": "?"}),
        ("gsm8k", {"question": "?", "answer": "So <<1+1=2>>2\nor\n#### 1,300"}, "1,300", {"solution": "So 2\nor"}),
        ("gsm8k", {"question": "How much?", "answer": 18.0}, "18", {}),
        ("multiplication", {"question": "Calculate the following question: 12 * 34.", "answer": 408}, "408", {}),
        ("multiplication", {"question": "2 * 3", "answer": 6, "Explanation": "See."}, "6", {"solution": "See."}),
    ],
)
def test_the_answer_of_a_problem_is_in_a_column_in_its_solution_or_at_its_end(dataset, row, answer, labels):
    task = only(dataset, row)
    assert task.answer == answer and task.labels.items() >= labels.items()
    assert task.task_id == row.get("ID", task.task_id)


@pytest.mark.parametrize(
    ("dataset", "row", "letter", "options"),
    [
        ("mmlu", MMLU, "B", ["one", "two", "three", "four"]),
        ("mmlu", {"question": "Which?", "A": "0", "B": 1, "C": 2, "D": 3, "answer": "(d)"}, "D", ["0", "1", "2", "3"]),
        ("mmlu", {**MMLU, "choices": np.array(["x", "y"]), "answer": np.int64(1)}, "B", ["x", "y"]),
        ("mmlu_pro", MMLU_PRO, "J", list("qwertzuiop")),
        ("mmlu", {**MMLU, "choices": {"text": ["x", "y"], "label": ["A", "B"]}}, "B", ["x", "y"]),
        ("mmlu", {**MMLU, "choices": None, "options": {"A": "x", "B": "y"}}, "B", ["x", "y"]),
        ("mmlu", {**MMLU, "choices": None, "options": {"B": "y", "A": "x"}, "answer": "B"}, "A", ["y", "x"]),
        ("mmlu", {**MMLU, "choices": None, "options": {"1": "x", "2": "y"}}, "A", ["x", "y"]),
        ("mmlu", ARC, "B", ["x", "y", "z"]),
        (
            "mmlu",
            {**ARC, "choices": {"text": np.array(["x", "y"]), "label": np.array(["1", "2"])}, "answerKey": "1"},
            "A",
            ["x", "y"],
        ),
        ("mmlu", {**MMLU, "choices": {"(A)": "x", "(B)": "y"}, "answer": "(B)"}, "B", ["x", "y"]),
        ("mmlu", {**MMLU, "choices": {"a.": "x", "b.": "y"}, "answer": "b."}, "B", ["x", "y"]),
        ("mmlu", {**MMLU, "answer": ["x"], "answerKey": "1"}, "B", MMLU["choices"]),
        ("mmlu", {**ARC, "choices": {"text": ["x", "y"], "label": 5}}, "B", ["x", "y"]),
        ("gpqa", {"Question": "Which?", "options": ["x", "y", "z", "w"], "answer": 2}, "C", ["x", "y", "z", "w"]),
    ],
)
def test_a_multiple_choice_problem_lists_its_options(dataset, row, letter, options):
    task = only(dataset, row)
    assert (task.answer, task.labels["options"]) == (letter, options)
    listed = "\n".join(f"({name}) {option}" for name, option in zip("ABCDEFGHIJ", options, strict=False))
    assert task.prompt == f"Which?\n\n{listed}\n\n{ASKED[dataset]}"


def test_columns_of_own_rows_that_are_not_read_are_named_once(caplog):
    load_problems("mmlu", [{**MMLU, "id": number, "Article": "A text.", None: 1} for number in (1, 2)])
    (warning,) = caplog.messages
    assert warning.startswith("columns of the data set that are not used: Article, None; ")


@pytest.mark.parametrize("answer", ["18 dollars", "\\boxed{18}", "18.", "1/2", "1e3", "½", "The answer is 18"])
def test_the_answer_of_gsm8k_may_say_more_than_its_number(answer):
    assert only("gsm8k", {"question": "?", "answer": answer}).answer == answer


def test_a_context_is_part_of_the_question():
    assert only("mmlu", {**MMLU, "context": "A text."}).prompt.startswith("A text.\n\nWhich?\n\n(A) one")


def test_the_options_of_gpqa_are_shuffled_by_the_seed_and_the_question_alone():
    rows = [{**GPQA, "Question": f"Which {number}?", "Record ID": f"rec{number}"} for number in range(200)]
    tasks = load_problems("gpqa", rows, seed=1)
    for task in tasks:
        assert task.labels["options"]["ABCD".index(task.answer)] == "right"
        assert sorted(task.labels["options"]) == ["right", "wrong 1", "wrong 2", "wrong 3"]
    assert min(Counter(task.answer for task in tasks).values()) > 25
    assert load_problems("gpqa", rows[::-1], seed=1)[::-1] == tasks
    assert [task.answer for task in load_problems("gpqa", rows, seed=2)] != [task.answer for task in tasks]


def test_a_trivia_question_keeps_every_name_that_differs_once():
    task = only("trivia_qa", TRIVIA)
    assert task.answer == "Sunset Boulevard"
    assert task.aliases == ("Sunset Blvd", "West Sunset Boulevard", "sunset bulevard", "Sunset Boulevard (street)")
    assert only("trivia_qa", {"question": "Who?", "answer": "Ada", "aliases": ["Lovelace"]}).aliases == ("Lovelace",)


def test_made_products_follow_from_the_seed():
    tasks = load_problems("multiplication", limit=300, seed=5)
    assert len({task.prompt for task in tasks}) == 300
    assert load_problems("multiplication", limit=300, seed=5) == tasks
    other = load_problems("multiplication", limit=300, seed=6)
    assert {task.prompt for task in tasks}.isdisjoint(task.prompt for task in other)
    assert {task.task_id for task in tasks}.isdisjoint(task.task_id for task in other)
    for task in tasks:
        first, second = (factor.strip(" .") for factor in task.labels["question"].rpartition(":")[2].split("*"))
        assert len(first) == len(second) == 5 and int(first) * int(second) == int(task.answer)


@pytest.mark.parametrize(
    ("dataset", "row", "why"),
    [
        ("math", {"problem": "?", "solution": "no box"}, "neither an answer nor a solution"),
        ("math", {"answer": "2"}, "it has no 'problem' or 'question'; it has: answer"),
        ("math", {"problem": " ", "answer": "2"}, "it has no 'problem'"),
        ("math", "1 + 1?", "it is of type str"),
        ("gsm8k", {"question": "?", "answer": "#### many"}, "'many' is no number"),
        ("gsm8k", {"question": "?", "answer": "7 in 2 days"}, "'7 in 2 days' is no number; a worked solution ends in"),
        ("mmlu", {"question": "?", "answer": "A"}, "it has 0 options"),
        ("mmlu", {**MMLU, "answer": 4}, "'4' is none of its 4 options"),
        ("mmlu", {**MMLU, "answer": "AB"}, "'AB' is none"),
        ("mmlu", {**MMLU, "answer": " ( ) "}, "is none of its 4 options"),
        ("mmlu", {**MMLU, "answer": None}, "it has no 'answer'"),
        (
            "mmlu",
            {**MMLU, "choices": ["1", "2"], "answer": "1"},
            "names one and is the text of another; give one of A, B",
        ),
        ("mmlu", {**ARC, "choices": {"text": ["x", "y"], "label": ["A", "A"]}}, "its 2 options have the names A, A;"),
        ("mmlu", {**ARC, "choices": {"text": ["x", "y"], "label": ["A"]}}, "its 2 options have the names A;"),
        ("mmlu", {**MMLU, "choices": [*"abcdefghijklmnopqrstuvwxyz!?"]}, "it has 28 options of `choices`"),
        ("mmlu", {**MMLU, "choices": {"E": "x", "F": "y"}}, "'1' is none of its 2 options; give one of E, F"),
        ("mmlu", {**MMLU, "choices": ["1", "2"], "answer": None, "answerKey": "1"}, "is the text of another"),
        (
            "mmlu",
            {**ARC, "answerKey": "1"} | {"choices": {"text": ["x", "y"], "label": ["2", "3"]}},
            "'1' is none of its 2",
        ),
        ("gpqa", {**GPQA, "Incorrect Answer 2": ""}, "it has no 'Incorrect Answer 2'"),
        ("trivia_qa", {"question": "?", "answer": {"aliases": ["x"]}}, "it has no 'value'"),
        ("trivia_qa", {"question": "?", "answer": '{"value": "x"}'}, "JSON in a text; give a mapping or a list"),
        ("trivia_qa", {"question": "?", "answer": "x", "aliases": '["y"]'}, "JSON in a text; give a mapping or a list"),
        ("multiplication", {"question": "12 * 34", "answer": 407}, "its answer is '407', the product is 408"),
        ("multiplication", {"question": "12 + 34", "answer": 46}, "names no product"),
        ("multiplication", {"question": "8 * 8", "answer": "x"}, "its answer is 'x', the product is 64"),
    ],
)
def test_a_row_that_is_no_problem_is_told_with_its_place(dataset, row, why):
    with pytest.raises(DataError) as error:
        load_problems(dataset, [row])
    assert str(error.value).startswith("the data set, row 1: ") and why in str(error.value)
    with pytest.raises(DataError, match="no task was found in the data set; the data set, row 1"):
        load_problems(dataset, [row], strict=False)


def test_problems_are_drawn_with_the_seed_in_their_order_and_bad_ones_left_out():
    rows = [{**MMLU, "question": f"Which {number}?"} for number in range(100)]
    drawn, again = (
        [int(task.labels["question"][6:-1]) for task in load_problems("mmlu", rows, limit=10)] for _ in range(2)
    )
    assert drawn == again == sorted(drawn) and len(set(drawn)) == 10 and max(drawn) > 20
    rows = [{**MMLU, "id": "a"}, {**MMLU, "answer": 7}, {**MMLU, "id": "a"}, {**MMLU, "id": "b"}]
    tasks = load_problems("mmlu", rows, strict=False)
    assert [task.task_id for task in tasks] == ["a", "b"] and len(tasks.skipped) == 2
    assert tasks.skipped[1].startswith("the data set, row 3: the id 'a' was already used at the data set, row 1")


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("gsm8", {}, r"unknown data set 'gsm8'.*gsm8k"),
        ("multiplication", {"limit": 0}, "limit=0"),
        ("multiplication", {"split": "test"}, "split='test'"),
        ("math", {"source": "none.jsonl"}, "no such file"),
    ],
)
def test_what_makes_no_sense_is_said(dataset, options, message):
    with pytest.raises(DataError, match=message):
        load_problems(dataset, **options)


# -- files -----------------------------------------------------------------------------------------------------


def test_json_lines_and_parquet_give_the_same_tasks(tmp_path):
    pa, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    (tmp_path / "b.csv").write_text('question,answer\nHow many?,"so\n#### 5"\n')
    assert load_problems("gsm8k", tmp_path / "b.csv")[0].answer == "5"
    for dataset, row in {"mmlu": MMLU, "mmlu_pro": MMLU_PRO, "trivia_qa": TRIVIA, "gpqa": GPQA}.items():
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
        parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
        assert load_problems(dataset, tmp_path / "rows.jsonl") == load_problems(dataset, tmp_path / "rows.parquet")


# -- the hub ---------------------------------------------------------------------------------------------------


def test_a_folder_is_loaded_as_the_hub_is(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    rows = (json.dumps({**MMLU, "answer": number}) + "\n" for number in range(3))
    (tmp_path / "set" / "test.jsonl").write_text("".join(rows))
    for source in (tmp_path / "set", str(tmp_path / "set")):
        tasks = load_problems("mmlu", source)
        assert [task.answer for task in tasks] == ["A", "B", "C"]
        assert tasks[2].task_id == f"{tmp_path / 'set'}:3"
    with pytest.raises(DataError, match="split train, cannot be loaded"):
        load_problems("mmlu", tmp_path / "set", split="train")


def test_a_name_on_the_hub_says_where_to_look_and_the_error_names_the_extra(monkeypatch):
    for source, split, place in (
        (None, None, ("cais/mmlu:all", "test")),
        (None, "validation", ("cais/mmlu:all", "validation")),
        ("someone/mmlu:law.v1", "dev", ("someone/mmlu:law.v1", "dev")),
    ):
        asked: list[tuple[str, str]] = []
        with monkeypatch.context() as patch, pytest.raises(DataError, match="it is empty"):
            patch.setattr("midthought.data.problem_sets.hub_rows", lambda *each, to=asked: to.append(each) or iter(()))
            load_problems("mmlu", source, split=split)
        assert asked == [place]
    monkeypatch.setitem(sys.modules, "datasets", None)
    for dataset, problem_set in PROBLEM_SETS.items():
        if problem_set.hub is not None:
            with pytest.raises(MissingExtraError, match=r"datasets.*midthought\[data\]"):
                load_problems(dataset)
