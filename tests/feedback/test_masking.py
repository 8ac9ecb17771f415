"""What a critic could write of an answer, in every usual form, is masked; everything else stays as it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.data.problems.problem_sets import load_problems
from midthought.env.answers import is_right
from midthought.feedback.masking import MASK, choices_of, is_multiple_choice, mask, mask_answer
from midthought.types import Task

TELLING = [
    "The answer is {}.",
    "The correct answer should be {}",
    "The correct final answer is **{}**.",
    "You should get {} instead.",
    "so the result is {}",
    "which gives {}.",
    "It equals {}, not what you wrote.",
    "Then \\boxed{{{}}} follows.",
    "$\\boxed{{{}}}$",
    "Therefore the final answer is $\\boxed{{{}}}$.",
    "{} is the right answer.",
    "{} is correct",
    "Answer: {}",
    "Answer: ${}$",
    "{}",
    "Final answer:\n\n{}\n",
    "(the right value being {})",
    "x = {}",
    "We have $x={}$, as you can check.",
    "\\[ x = {} \\]",
    "I expect {} here",
    "it must come to {}!",
    '"{}" would have been right',
    "the answer, {}, is easy to find",
    "**Answer:** {}",
    "- The answer is `{}`",
    "\\text{{The answer is }} {}",
    "Are you sure that it is not {}?",
]
"""Sentences in which a critic tells the answer."""

HARMLESS = [
    "There is a mistake in step 3: a sign is lost when you move a term to the other side.",
    "Step 1: Read the problem. Step 2: Set up an equation. Step 3: Solve it.",
    "1. Read the problem.\n2. Set it up.\n3. Solve it.\n4. Check it.",
    "Check your second calculation, I think a carry is missing; as a hint, look at the units.",
    "You made 2 mistakes. One of them is in the 2nd line, and the other one in part 2.",
    "A common error is to add where one has to multiply.",
    "Your reasoning is good up to here, but not in what follows. At least the idea is right.",
    "Let $a$ be the first term; $x^2 + 3x$ is not $4x^3$, and $\\sqrt{2}$ stays.",
]
"""Sentences of critiques that tell no answer, whatever it is."""


WEAK = {"You should get {} instead.", "I expect {} here", "it must come to {}!", "Are you sure that it is not {}?"}
"""In these, `us`, `i` and `one` may be words like any others."""


FUNCTION_WORDS = frozenset({"one", "us", "i", "b", "none"})


def leaks(forms: list[str], task: Task, *, every: int = 1, is_exact: bool) -> list[str]:
    """What became of sentences that tell the answer, where it is not the sentence with the mask in the form's place.

    Marks beside the mask count where `is_exact`. Of the sentences each `every`-th is taken, other ones for each form.
    """
    wrong = []
    for number, form in enumerate(forms):
        for sentence in TELLING[number % every :: every]:
            if form.casefold() in FUNCTION_WORDS and sentence in WEAK:
                continue
            found, expected = mask_answer(sentence.format(form), task), sentence.format(MASK)
            if found != expected and (is_exact or _words(found) != _words(expected)):
                wrong.append(f"{form!r} in {sentence!r}: {found!r}")
    return wrong


def _words(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text).strip()


# -- the usual forms, written here without the code that is tested -----------------------------------------------

SMALL_WORDS = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS_WORDS = str.split("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


def in_words(number: int, between: str = "-", joint: str = " and ") -> str:
    if number < 0:
        return f"minus {in_words(-number, between, joint)}"
    if number < 20:
        return SMALL_WORDS[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS_WORDS[tens] + (between + SMALL_WORDS[ones] if ones else "")
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            count, rest = divmod(number, size)
            link = joint if name == "hundred" or rest < 100 else " "
            words = f"{in_words(count, between, joint)} {name}"
            return words + (link + in_words(rest, between, joint) if rest else "")
    raise AssertionError(number)


def test_numbers_are_written_in_words_as_people_write_them():
    assert in_words(42) == "forty-two"
    assert in_words(1_000_305) == "one million three hundred and five"


def integer_forms(number: int) -> list[str]:
    sign, digits = ("-" if number < 0 else ""), str(abs(number))
    grouped = f"{abs(number):,}"
    forms = [f"{sign}{digits}", f"{sign}{digits}.0", f"{sign}{digits}.00", f"{sign}{grouped}", f"{sign}{grouped}.00"]
    forms += [
        sign + grouped.replace(",", "{,}"),
        sign + grouped.replace(",", "\\,"),
        sign + grouped.replace(",", ",\\!"),
    ]
    forms += [
        sign + grouped.replace(",", " "),
        sign + grouped.replace(",", "\u202f"),
        sign + grouped.replace(",", "\u00a0"),
    ]
    forms += [f"−{digits}"] if sign else [digits.translate({ord("0") + each: 0xFF10 + each for each in range(10)})]
    if number not in (1, -1):  # "one" is a pronoun, too: see below
        forms += [
            in_words(number),
            in_words(number, between=" "),
            in_words(number, joint=" "),
            in_words(number).capitalize(),
        ]
        forms += [in_words(number).replace("minus", "negative")]
    return list(dict.fromkeys(forms))


def fraction_forms(value: Fraction) -> list[str]:
    sign, above, below = ("-" if value < 0 else ""), abs(value.numerator), value.denominator
    forms = [f"{sign}\\{name}{{{above}}}{{{below}}}" for name in ("frac", "dfrac", "tfrac")]
    forms += [f"{sign}{above}/{below}", f"{sign}{above} / {below}", f"{sign}\\frac{{ {above} }}{{ {below} }}"]
    if above < 10 and below < 10:
        forms += [f"{sign}\\frac{above}{below}", f"{sign}\\frac {above} {below}"]
    as_float = float(abs(value))
    if (10**6 * value).denominator == 1:
        exact = f"{as_float:.6f}".rstrip("0")
        forms += [f"{sign}{exact}", f"{sign}{exact}0"]
        forms += [f"{sign}{exact.removeprefix('0')}"] if as_float < 1 else []
        percent = f"{100 * as_float:.4f}".rstrip("0").rstrip(".")
        forms += [f"{sign}{percent}%", f"{sign}{percent}\\%", f"{sign}{percent} percent"]
    else:
        forms += [f"{sign}{as_float:.{places}f}" for places in (2, 3, 4, 6) if round(as_float, places)]
    return forms


def latex_forms(answer: str) -> list[str]:
    """The same expression as others would type it."""
    answer = re.sub(r"\\text\{ degrees\}", "", answer)
    forms = [answer, re.sub(r"(?<![A-Za-z]) | (?![A-Za-z])", "", answer)]
    forms += [re.sub(r"([-+=,])", r" \1 ", answer)] if "\\!" not in answer else []
    forms += [re.sub(r"\\[dt]?frac", rf"\\{name}", answer) for name in ("frac", "dfrac", "tfrac")]
    plain = answer.replace("\\left", "").replace("\\right", "")
    forms += [plain, plain.replace("\\pi", "π").replace("\\infty", "∞").replace("\\cup", "∪").replace("^\\circ", "°")]
    forms += [re.sub(r"(?<!\d)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", plain), plain.replace("-", "−")]
    forms += [re.sub(r"\\sqrt\{([^{}]*)\}", r"√\1", plain), re.sub(r"\\sqrt\{([^{}]*)\}", r" sqrt(\1)", plain)]
    forms += [answer.replace("pmatrix", "bmatrix")] if "pmatrix" in answer else []
    return list(dict.fromkeys(form.strip() for form in forms))


def named_forms(names: list[str]) -> list[str]:
    """Names as they are, in capitals and in small letters, without the marks at their ends."""
    plain = [name.rstrip(" .,$'\"").lstrip(" ,$'\"") for name in names if "%" not in name]
    plain = [name for name in plain if name and (name[0].isalnum() or name[0] == ".") and name[-1].isalnum()]
    return list(dict.fromkeys(each for name in plain for each in (name, name.upper(), name.lower())))


def forms_of(task: Task) -> list[str]:
    """The usual forms of a task's answer, without marks around them."""
    if is_multiple_choice(task):
        text = choices_of(task)[task.answer]
        return [
            task.answer,
            *([text.rstrip(" .$").strip("$ ")] if re.search(r"[\\^=|+]", text) else named_forms([text])),
        ]
    plain = re.sub(r",(?=\d{3})|[$\\!]|,\\!|\\text\{.*\}", "", task.answer).strip()
    if letter := re.fullmatch(r"\\text\{\((\w)\)\}", task.answer):
        return [letter[1]]
    if re.fullmatch(r"-?\d+", plain):
        return integer_forms(int(plain))
    if found := re.fullmatch(r"(-?)\\d?frac\{?(\d+)\}?\s?\{?(\d+)\}?", task.answer):
        return fraction_forms((-1 if found[1] else 1) * Fraction(int(found[2]), int(found[3])))
    if task.labels["dataset"] == "math":
        return latex_forms(task.answer.removeprefix("\\$"))
    return named_forms([task.answer, *task.aliases])


def is_number(task: Task) -> bool:
    return re.fullmatch(r"-?[\d,]+|-?\\d?frac\{\d+\}\{\d+\}", task.answer) is not None


REAL = {
    "math": ("math", "math/math500_test.jsonl"),
    "aime": ("aime_2024", "math/aime24_test.jsonl"),
    "gsm8k": ("gsm8k", "gsm8k/test.jsonl"),
    "gsm8k train": ("gsm8k", "gsm8k/train_first1000.jsonl"),
    "trivia": ("trivia_qa", "trivia_qa/trivia_qa_nocontext_hf_format.jsonl"),
    "mmlu stem": ("mmlu", "mmlu/mmlu_stem_every6th.jsonl"),
    **{
        name: ("mmlu", f"mmlu/{name}_test.csv")
        for name in str.split(
            "abstract_algebra college_biology elementary_mathematics global_facts high_school_us_history "
            "machine_learning us_foreign_policy world_religions"
        )
    },
}
SOME = [pytest.param(100, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


def real_tasks(name: str, folder: Path) -> list[Task]:
    dataset, path = REAL[name]
    return list(load_problems(dataset, str(folder / path), strict=False))


@pytest.mark.parametrize("every", SOME)
@pytest.mark.parametrize("name", REAL)
def test_no_usual_form_of_a_real_answer_is_left_in_what_a_critic_says(name: str, every: int, real_data: Path) -> None:
    wrong = [
        f"{task.answer!r}: {leak}"
        for task in real_tasks(name, real_data)
        for leak in leaks(forms_of(task), task, every=every, is_exact=is_number(task))
    ]
    assert wrong == []


@pytest.mark.parametrize("every", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL)
def test_the_problem_itself_and_harmless_words_stay_as_they_are(name: str, every: int, real_data: Path) -> None:
    tasks = real_tasks(name, real_data)[::every]
    touched = [task.task_id for task in tasks if mask_answer(task.labels["question"], task) != task.labels["question"]]
    assert len(touched) <= 2 + len(tasks) // 100, touched
    for number, task in enumerate(tasks):
        words = HARMLESS[number % len(HARMLESS)]
        if not set(re.findall(r"\w+", words.casefold())) & truth_words(task):
            assert mask_answer(words, task) == words, task.answer


def truth_words(task: Task) -> set[str]:
    """The words and numbers that the truth and its other names consist of."""
    names = [task.answer, *task.aliases]
    names += [choices_of(task)[task.answer]] if is_multiple_choice(task) else []
    found = {word for name in names for word in re.findall(r"\w+", name.casefold())}
    return found - ({task.answer.casefold()} if is_multiple_choice(task) else set())


# -- form by form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("42", "42"),
        ("42", "42.0"),
        ("42", "forty-two"),
        ("42", "Forty two"),
        ("42", "4 2"),
        ("42", "x=42"),
        ("42", "４２"),
        ("42", "4\u200b2"),
        ("42", "𝟒𝟐"),
        ("42", "4.2 \\times 10^1"),
        ("42", "4.2e1"),
        ("1450000", "1.45 million"),
        ("1450000", "one million, four hundred and fifty thousand"),
        ("12", "a dozen"),
        ("-3", "−3"),
        ("-3", "negative three"),
        ("-3", "$-3$"),
        ("\\frac{1}{2}", "one half"),
        ("\\frac{1}{2}", "½"),
        ("\\frac{2}{3}", "two-thirds"),
        ("\\frac{1}{3}", "0.333"),
        ("3.5", "three and a half"),
        ("3.5", "three point five"),
        ("3.5", "3\\frac{1}{2}"),
        ("3.5", "3 1/2"),
        ("\\sqrt{51}", "7.14"),
        ("\\frac{\\pi}{2}", "1.5708"),
        ("3 + 2\\sqrt{2}", "5.828"),
        ("\\frac{3\\sqrt{3}}{4}", "1.299"),
        ("12\\pi", "37.70"),
        ("50\\%", "0.5"),
        ("50\\%", "50 per cent"),
        ("90^\\circ", "90 degrees"),
        ("\\text{Evelyn}", "evelyn's"),
        ("9A3BDDD63", "0x9a3bddd63"),
        ("9A3BDDD63", "9A3B DDD63"),
        ("4210_{5}", "4210"),
        ("x=5", "5"),
        ("x \\in [-2,7]", "[-2, 7]"),
        ("3, 5, 7", "3, 5 and 7"),
        ("y = 2x + 3", "2x+3"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, π/2)"),
        ("\\begin{pmatrix} 1 & 0 \\\\ 0 & 4 \\end{pmatrix}", "[[1, 0], [0, 4]]"),
        ("\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}", "(-1/3, 2/3)"),
    ],
)
def test_a_form_is_masked_where_it_is_told(answer: str, told: str) -> None:
    masked = mask(f"I think that the answer is {told}.", answer)
    assert masked in (f"I think that the answer is {MASK}.", f"I think that the answer is ({MASK}).") or (
        MASK in masked and not re.search(r"[0-9０-９]|evelyn|three|half", masked.casefold().replace("[masked]", ""))
    ), masked


@pytest.mark.parametrize(
    ("answer", "problem", "words"),
    [
        ("3", "Ann eats 3 eggs. How many are left?", "Ann eats three eggs, as step 3 says."),
        ("3", "", "Look at $x^3 + 3x$ and at 13, 3.5 and the 3rd line."),
        ("3", "", "so 16 - 3 - 4 is not 8"),
        ("42", "", "142, 4.2, 421, 42.5 and x_{421}"),
        ("42", "", "-42"),
        ("-42", "", "42"),
        ("2", "", "There are two mistakes; 2 steps are missing."),
        ("1", "", "One of them is wrong, and no one can see this one."),
        ("\\frac{1}{2}", "", "on 1/2/2020"),
        ("\\frac{1}{2}", "", "on 1/25/2020"),
        ("1", "", "It is $\\frac{1}{3}$ of it and $\\frac{5}{1}$."),
        ("1,-2", "", "1 + 2 is not 3"),
        ("A", "(A) red\n(B) blue", "A mistake is a mistake, and the answer is a colour."),
        ("B", "(A) red\n(B) blue", "Think of vitamin C and of option A."),
        ("It", "", "It is true that it rains."),
        ("\\sqrt{51}", "", "Take the root of 51, not of 52."),
        ("42k", "", "42 is even, and so is 42x."),
        ("12\\pi", "", "The diameter is not 12."),
        ("3\\sqrt{13}", "", "117 is 9 * 13, and 13 has no square in it."),
    ],
)
def test_what_only_looks_like_the_answer_stays(answer: str, problem: str, words: str) -> None:
    assert mask_answer(words, Task(task_id="t", prompt=problem or "?", answer=answer)) == words


def test_of_an_expression_with_a_variable_no_decimals_are_masked() -> None:
    assert mask("3.14 is not 7.14", "2x + \\pi") == "3.14 is not 7.14"
    assert mask("7.15, 7.1 and 17.14", "\\sqrt{51}") == "7.15, 7.1 and 17.14"


OPTIONS = {"A": "Plasma membrane", "B": "Lysosome", "C": "Cytosol", "D": "Chloroplast"}


@pytest.mark.parametrize(
    "words",
    [
        "The answer is {}.",
        "({}) is right",
        "option {}",
        "choice {}",
        "Choose {}, not A",
        "**{}**",
        "\\boxed{{{}}}",
        "\\text{{{}}}",
        "{}) fits",
        "the letter {}",
        "Answer: {}",
        '"{}"',
    ],
)
def test_an_options_letter_is_masked_in_both_cases(words: str) -> None:
    for letter in "Dd":
        assert mask(words.format(letter), "D", (), "Which?", OPTIONS) == words.format(MASK)
    for letter in "Aa":
        assert mask(words.format(letter).replace("not A", "not C"), "A", (), "Which?", OPTIONS) == words.format(
            MASK
        ).replace("not A", "not C")


def test_an_options_words_and_place_are_masked_too() -> None:
    masked = mask("It is the second option, option 2, the lysosome; Lysosomes digest.", "B", (), "Which?", OPTIONS)
    assert masked == f"It is the {MASK} option, option {MASK}, the {MASK}; {MASK} digest."


def test_other_names_of_a_person_are_masked_whole_and_whatever_the_case() -> None:
    words = "It was George W. Bush (GEORGE BUSH'S son), that is, Dubya."
    masked = mask(words, "George Bush", ("George W. Bush", "Dubya"), "Who was president?")
    assert masked == f"It was {MASK} ({MASK} son), that is, {MASK}."


# -- real critics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("gsm8k", "output_gsm8k_process_8B_openai_10_step"),
        ("gsm8k", "output_gsm8k_process_70B_openai_10_step"),
        ("math", "output_math_process_70B_openai_10_step.first20"),
        ("trivia_qa", "output_trivia_qa_process_70B_openai_10_step.first15"),
    ],
)
def test_real_feedback_that_tells_the_answer_tells_it_no_more(dataset: str, name: str, real_data: Path) -> None:
    num_telling = 0
    for line in (real_data / f"feedback/raw_history_logs/{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        dialogue = row.pop("problem" if dataset == "math" else "question")
        problem = dialogue.partition("\n\nPrevious Answer:")[0]
        row["problem" if dataset == "math" else "question"] = problem
        task = load_problems(dataset, [row])[0]
        for words in re.findall(r"Here is some feedback: (.+?)\nAnswer the question again", dialogue, re.DOTALL):
            num_telling += is_right(dataset, words, task.answer, task.aliases)
            masked = mask_answer(words, task)
            assert not is_right(dataset, masked, task.answer, task.aliases), masked
    assert num_telling > 0 or dataset == "trivia_qa"


# -- anything at all ---------------------------------------------------------------------------------------------

PIECES = [
    "\\frac",
    "one",
    "and",
    " ",
    "a",
    "12",
    "3",
    ".",
    ",",
    "-",
    "/",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "$",
    "*",
    "^",
    "=",
    "%",
]
ANYTHING = st.lists(
    st.sampled_from([*PIECES, "\\", "\n", "\\left", "answer is ", "half", "x"]) | st.characters(), max_size=30
).map("".join)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_any_text_any_answer_and_any_problem_can_be_masked(text: str, answer: str, problem: str) -> None:
    masked = mask(text, answer, (), problem)
    pieces = masked.split(MASK)
    place = 0
    for piece in pieces:  # nothing but masks is new
        place = text.find(piece, place)
        assert place >= 0
        place += len(piece)


@given(st.integers(-(10**12), 10**12), st.text(st.characters(codec="ascii", categories=["Lu", "Ll"]), max_size=8))
def test_any_number_is_masked_where_it_is_said_to_be_the_answer(number: int, name: str) -> None:
    for form in {str(number), f"{number:,}", f"{number}.0", f"\\boxed{{{number}}}", f"${number}$"}:
        masked = mask(f"{name} The answer is {form}.", str(number))
        assert str(abs(number)) not in masked.replace(",", "") and MASK in masked


@pytest.mark.parametrize(
    "make",
    [
        lambda k: "1," * (2_500 * k),
        lambda k: "1 2 " * (1_500 * k),
        lambda k: "12 " * (2_000 * k),
        lambda k: "one " * (1_500 * k),
        lambda k: "twenty-" * (1_000 * k),
        lambda k: "one hundred and " * (500 * k),
        lambda k: "(" * (5_000 * k),
        lambda k: "{" * (2_500 * k) + "}" * (2_500 * k),
        lambda k: "\\frac{" * (1_000 * k),
        lambda k: "\\left(" * (1_000 * k),
        lambda k: "answer is " * (600 * k),
        lambda k: "answer " + " " * (5_000 * k),
        lambda k: "option " + " " * (5_000 * k) + "B",
        lambda k: "first " * (1_000 * k),
        lambda k: "*" * (5_000 * k),
        lambda k: "$" * (5_000 * k),
        lambda k: "1" * (5_000 * k),
        lambda k: "x = 12, " * (750 * k),
        lambda k: "a/b/1/2/" * (600 * k),
        lambda k: "٣" * (2_500 * k),
        lambda k: "A " * (2_500 * k),
    ],
    ids=lambda make: repr(make(1)[:12]),
)
@pytest.mark.parametrize(("k", "seconds"), [(2, 3), pytest.param(5, 5, marks=pytest.mark.slow)])
def test_time_grows_with_the_text_and_not_faster(make: Callable[[int], str], k: int, seconds: float) -> None:
    hostile = make(k)
    for answer, options in (("12", None), ("\\frac{1}{2}", None), ("George Bush", None), ("A", OPTIONS)):
        mask("", answer, (), "Which number?", options)
        began = time.process_time()
        mask(hostile, answer, (), "Which number?", options)
        assert time.process_time() - began < seconds  # tenths of a second; a quadratic search takes ten, or a minute
