"""Our verdicts beside those that others recorded, on solutions that models wrote. docs/data.md explains the differences."""

import importlib.util
import json
from pathlib import Path

import pytest

from midthought.data.problem_sets import load_problems
from midthought.env.answers import is_right, task_is_right
from midthought.types import Task

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
FILES = [
    ("math", "math/math500_test.jsonl", 500),
    ("aime_2024", "math/aime24_test.jsonl", 30),
    ("gsm8k", "gsm8k/test.jsonl", 1319),
    ("gsm8k", "gsm8k/train_first1000.jsonl", 1000),
    ("mmlu", "mmlu/mmlu_stem_every6th.jsonl", 503),
    ("trivia_qa", "trivia_qa/trivia_qa_nocontext_hf_format.jsonl", 277),
    ("multiplication", "feedback/multiplication/multiplication_questions_5d.every15th.jsonl", 300),
]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("dataset", "file", "num_problems"), FILES)
def test_every_problem_is_read_and_its_own_answer_is_right(real_data, dataset, file, num_problems):
    problems = load_problems(dataset, real_data / file)
    assert len(problems) == num_problems
    for problem in problems:
        assert is_right(dataset, f"Thus \\boxed{{{problem.answer}}}.", problem.answer), problem


@needs_math_verify
def test_without_a_data_set_the_published_answers_and_their_solutions_are_right(real_data):
    rows = lines(real_data / "math/math500_test.jsonl")
    tasks = [Task(task_id=row["unique_id"], prompt=row["problem"], answer=row["answer"]) for row in rows]
    assert all(task_is_right(task, task.answer) for task in tasks)
    assert all(task_is_right(task, row["solution"]) for task, row in zip(tasks, rows, strict=True))


@pytest.mark.parametrize(("dataset", "file"), [("math", "math/math500_test.jsonl"), ("gsm8k", "gsm8k/test.jsonl")])
@needs_math_verify
def test_the_worked_solutions_are_right(real_data, dataset, file):
    """A worked solution ends in its answer: boxed in MATH; the last number in GSM8K, or one that its `####` line rewords."""
    wrong = [
        problem
        for problem, row in zip(load_problems(dataset, real_data / file), lines(real_data / file), strict=True)
        if not is_right(dataset, row["solution" if dataset == "math" else "answer"], problem.answer)
    ]
    assert wrong == []


def test_all_judgements_of_the_600_grade_school_solutions_are_ours(real_data):
    verdicts = [
        (is_right("gsm8k", model["solution"], row["ground_truth"].rpartition("A:")[2]), model["is_correct"])
        for row in lines(real_data / "gsm8k/example_model_solutions_first150.jsonl")
        for model in row.values()
        if isinstance(model, dict)
    ]
    assert len(verdicts) == 600
    assert [ours for ours, _ in verdicts] == [recorded for _, recorded in verdicts]
