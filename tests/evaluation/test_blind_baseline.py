"""Answers without the memory: leaks that were planted are found, questions without leaks show none."""

import random

import pytest

from midthought.evaluation.blind_baseline import MAX_ADVANTAGE, blind_scores
from midthought.evaluation.metrics import balanced_accuracy
from midthought.types import Task


def task(number: int, kind: str, prompt: str, answer: str) -> Task:
    return Task(task_id=str(number), prompt=prompt, answer=answer, labels={"kind": kind, "episode": f"e{number % 10}"})


def score_of(tasks: list[Task], kind: str):
    (score,) = (score for score in blind_scores(tasks) if score.kind == kind)
    return score


def test_answers_that_follow_from_nothing_give_no_advantage():
    draw = random.Random(1)
    words = ["tide", "bell", "copper", "rope", "winter", "lamp", "salt", "bread"]
    tasks = [
        task(
            n,
            "speaker",
            f"Who spoke of {' and '.join(draw.sample(words, 3))}?",
            draw.choice(["Ada", "Bob", "Cy", "Di"]),
        )
        for n in range(400)
    ]
    score = score_of(tasks, "speaker")
    assert score.constant < 0.35 and score.advantage <= MAX_ADVANTAGE


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Who said that {name} wound the clock, as {name} did?", "{name}"),
        ("Who mentions the tide first, {name} or {other}?", "{name}"),
        ("Did the {word} ring?", "{word_answer}"),
    ],
)
def test_an_answer_that_the_question_reveals_is_found(prompt, answer):
    draw = random.Random(2)
    tasks = []
    for n in range(200):
        name, other = (f"{draw.choice('BCDFGHKLMN')}{draw.choice('aeiou')}{draw.choice('nrlst')}{n}" for _ in range(2))
        word = draw.choice(["bell", "rope"])
        values = {"name": name, "other": other, "word": word, "word_answer": {"bell": "yes", "rope": "no"}[word]}
        tasks.append(task(n, "k", prompt.format(**values), answer.format(**values)))
    score = score_of(tasks, "k")
    assert max(score.best, score.constant) > 0.9


def test_a_form_that_only_unanswerable_questions_have_is_found_by_balanced_accuracy():
    plain = [task(n, "speaker", f"Who wound clock {n}?", f"N{n}") for n in range(90)]
    odd = [task(n, "unanswerable", f"Which bell rang at {n}?", "The memory does not say.") for n in range(30)]
    alike = [task(n, "unanswerable", f"Who wound clock {n + 500}?", "The memory does not say.") for n in range(30)]
    assert score_of([*plain, *odd], "unanswerable").best == 1.0
    assert score_of([*plain, *alike], "unanswerable").best == pytest.approx(0.5, abs=MAX_ADVANTAGE)


def test_balanced_accuracy_counts_both_classes_the_same():
    assert balanced_accuracy([1, 1, 1, 1, 0], [True] * 4 + [False]) == 0.5
