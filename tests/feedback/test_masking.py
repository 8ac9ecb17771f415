"""The documented forms of an answer are masked; everything else stays as it is."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.data.problem_sets import load_problems
from midthought.env.answers import is_right
from midthought.feedback.masking import MASK, choices_of, is_multiple_choice, mask, mask_answer
from midthought.types import Task

TELLING = (
    "The answer is {}.",
    "The correct final answer is **{}**.",
    "Therefore it is $\\boxed{{{}}}$.",
    "{} is right",
    'the answer, "{}", is easy to find',
    "Final answer:\n\n{}\n",
)
OPTIONS = {"A": "Plasma membrane", "B": "Lysosome", "C": "Cytosol", "D": "Chloroplast"}
TOLD = (
    ("1450000", ["1450000", "1,450,000", "1{,}450{,}000", "1\\,450\\,000", "1450000.0"]),
    ("0.5", [".5", "0.50", "1/2", "50%"]),
    ("\\frac{1}{2}", ["\\dfrac{1}{2}", "\\frac12", "\\frac 1 2", "1/2", "1 / 2", "2/4", "0.5", "50\\%"]),
    ("50\\%", ["50%", "50\\%", "50 %", "50", "0.5"]),
    ("10 \\text{ cm}", ["10", "10.0"]),
    ("\\text{Evelyn}", ["Evelyn", "EVELYN", "evelyn"]),
    ("東京", ["東京"]),
    ("New Jersey", ["New Jersey", "new\njersey", "NEW  JERSEY"]),
    ("Lysosome", ["lysosomes"]),
    ("9A3BDDD63", ["9a3bddd63", "0x9A3BDDD63"]),
    ("12 square meters", ["12", "12.0", "12 square meters"]),
    ("60 miles per hour", ["60", "60 miles per hour"]),
    ("60 km/h", ["60", "60 km/h"]),
    ("12 Angry men", ["12 angry men"]),
    ("1\\frac{1}{2}", ["1\\frac{1}{2}", "1\\dfrac12", "1 \\frac{1}{2}", "3/2", "1.5", "\\frac{3}{2}"]),
    ("3/2", ["1\\frac{1}{2}"]),
    ("x=5", ["x = 5", "5"]),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", ["(3,\\frac{\\pi}{2})", "\\left(3, \\dfrac{\\pi}{2}\\right)"]),
    ("x^2 + 3x - 7", ["x^2+3x-7", "x^2 + 3x − 7"]),
    ("3, 5, 7", ["3,5,7", "3, 5,  7"]),
)
"""Answer -> forms that are masked."""
WITHIN = (
    ("\\$18.90", "\\$‹18.9›, $42$, 10 cm, 90^\\circ"),
    ("東京", "それは‹東京›です"),
    ("42", "so $‹42›$ and \\(‹42›\\)"),
    ("10 \\text{ cm}", "‹10› cm or ‹10›cm"),
    ("42", "_‹42›_, __‹42›__ is the answer; it is _‹42›_. ‹42›m long, ‹42›s."),
    ("42", "$‹42›m$, ‹42›m/s, **‹42›m** \\[ x = ‹42›m \\]"),
    ("\\text{(C)}", "(‹c›)"),
    ("B", "It is ‹B›."),  # not an option
    ("3", "Step 3: look at $x^3 + 3x$, $x_3$ and $x^{3}$, at 13, 3.5 and the 3rd line (part 3), three times."),
    ("3", "1. Read it.\n2. Write it down.\n3. Solve it."),
    ("42", "42x, 42m + 1, 42s^2, 42m_1, x_42, x__42, )_42, }_42 and 42_5"),
    ("3", "3\\frac{1}{2} and 3x"),
    ("42", "142, 4.2, 421, 42.5, 4,2, x_{421}, -42 and 84/2"),
    ("\\frac{1}{2}", "on 1/2/2020, and 3\\frac{1}{2}"),
    ("1", "It is $\\frac{1}{3}$ of it, and one of them."),
    ("x", "X is not xy."),
    ("", "Nothing is masked."),
    ("x=" * 900 + "5", "5 is x=5."),
)
"""Answer -> a text, in which what is masked is between ‹ and ›."""
NOT_MASKED = (("42", "forty-two"), ("1450000", "1.45 million"), ("1/3", "0.333"), ("3, 5", "3 and 5"), ("x+1", "1+x"))
"""Answer -> a form that is documented as not masked."""


def check(text: str, answer: str, options: dict[str, str] | None = None) -> None:
    assert mask(re.sub("[‹›]", "", text), answer, (), options) == re.sub("‹[^›]*›", MASK, text), answer


def test_documented_forms_are_masked_whole_wherever_they_are_told() -> None:
    for answer, forms in TOLD:
        for form in forms:
            for sentence in TELLING:
                check(sentence.format(f"‹{form}›"), answer)


@pytest.mark.parametrize(("answer", "text"), (*WITHIN, *NOT_MASKED), ids=range(len(WITHIN + NOT_MASKED)))
def test_what_is_no_form_of_the_answer_and_units_and_signs_around_one_stay(answer: str, text: str) -> None:
    check(text, answer)


def test_every_alias_is_masked_the_longest_first() -> None:
    masked = mask("George W. Bush (GEORGE BUSH'S son), that is, Dubya.", "George Bush", ("George W. Bush", "Dubya"))
    assert masked == f"{MASK} ({MASK}'S son), that is, {MASK}."
    assert mask("It is tocopherol, vitamin E.", "E", ("Tocopherol",)) == f"It is {MASK}, vitamin {MASK}."


def test_an_option_is_masked_by_its_letter_and_its_words() -> None:
    task = Task(task_id="t", prompt="Which?\n(A) Plasma membrane\n(B) Lysosome\n(C) Cytosol", answer="B")
    assert choices_of(task) == {letter: OPTIONS[letter] for letter in "ABC"} and is_multiple_choice(task)
    assert mask_answer("B, the lysosome; not A", task) == f"{MASK}, the {MASK}; not A"
    for answer in ("b", "(b)"):
        assert (
            mask_answer("B, (b), the lysosome; not A", replace(task, answer=answer))
            == f"{MASK}, ({MASK}), the {MASK}; not A"
        )
    assert not is_multiple_choice(Task(task_id="t", prompt="Which letter?", answer="B"))
    for letter in "AD":
        for each in (letter, letter.lower()):
            for text in (
                "The answer is {}.",
                "({}) is right",
                "option {} fits",
                "Choice {}",
                "**{}**",
                "\\boxed{{{}}}",
                '"{}"',
            ):
                check(text.format(f"‹{each}›"), letter, OPTIONS)
        check(f"‹{letter}› is right, choose ‹{letter}›, not C", letter, OPTIONS)
    for letter in "AC":
        check("A mistake is a mistake, I think: f(a) and vitamin-C. The answer is a colour.", letter, OPTIONS)


def test_an_option_is_masked_in_quotes_in_emphasis_and_within_a_sentence() -> None:
    telling = (
        "The answer is '{}' because it digests.", "Option '{}' is right.", "'{}' is correct.", "‘{}’ or “{}”", "_{}_ is right",
        "__{}__ is right", "option-{}", "{}) is correct", "I think {}) is correct", "the answer is {} because",
    )  # fmt: skip
    for letter in "BDbd":
        for text in telling:
            check(text.replace("{}", f"‹{letter}›"), letter.upper(), OPTIONS)
    for text in telling[:-1]:
        check(text.replace("{}", "‹a›"), "A", OPTIONS)
    check(
        "Vitamin B-12, B', f(a, b), (a + b), x_b, it's b's. The answer is b + c, or b's, or b-flat; b is a side.",
        "B",
        OPTIONS,
    )
    check("The answer is a colour because a cell isn't a wall, and it's 'a cell' ; f(x, a) and x_a_1.", "A", OPTIONS)


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("gsm8k", "output_gsm8k_process_8B_openai_10_step"),
        ("math", "output_math_process_70B_openai_10_step.first20"),
        ("trivia_qa", "output_trivia_qa_process_70B_openai_10_step.first15"),
    ],
)
def test_real_feedback_that_tells_the_answer_tells_it_no_more(dataset: str, name: str, real_data: Path) -> None:
    column = "problem" if dataset == "math" else "question"
    for line in (real_data / f"feedback/raw_history_logs/{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        dialogue = row[column]
        row[column] = dialogue.partition("\n\nPrevious Answer:")[0]
        task = load_problems(dataset, [row])[0]
        for words in re.findall(r"Here is some feedback: (.+?)\nAnswer the question again", dialogue, re.DOTALL):
            masked = mask_answer(words, task)
            is_reordered = task.answer == "7(x+3) (x-3)"  # the critic writes (x-3)(x+3): not masked, as documented
            assert is_reordered or not is_right(dataset, masked, task.answer, task.aliases), masked


PIECES = str.split("\\frac one and 12 3 . , - / { } ( ) [ ] $ * ^ = % \\ \\left x A 1/0 \\text{ 0x")
ANYTHING = st.lists(st.sampled_from([*PIECES, " ", "\n", "answer is "]) | st.characters(), max_size=30).map("".join)


@given(ANYTHING, ANYTHING)
def test_any_text_and_any_answer_can_be_masked(text: str, answer: str) -> None:
    place = 0
    for piece in mask(text, answer).split(MASK):  # nothing but masks is new
        place = text.find(piece, place)
        assert place >= 0
        place += len(piece)


@given(st.integers(-(10**12), 10**12))
def test_any_number_is_masked(number: int) -> None:
    for form in (str(number), f"{number:,}", f"{number}.0"):
        assert mask(f"The answer is ${form}$.", str(number)) == f"The answer is ${MASK}$."


def test_time_grows_with_the_text_and_not_faster() -> None:
    pieces = "1, 1,111 ( { \\frac{ \\left( * $ 1 a/1/2/ ٣ **( 0x - \\, 1. 1{,}"
    hostile = [*pieces.split(), " ", "12 ", "answer is ", "A ", "George "]
    for piece in hostile:
        text = piece * (20_000 // len(piece))
        for answer, options in (("12", None), ("\\frac{1}{2}", None), ("George  Bush", None), ("A", OPTIONS)):
            began = time.process_time()
            mask(text, answer, (), options)
            assert time.process_time() - began < 3, (piece, answer)  # tenths of a second; a quadratic search takes ten
