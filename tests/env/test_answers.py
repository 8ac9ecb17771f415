"""Answers found and compared: worked by hand, then what must hold of any answer, then texts that were made to hurt."""

import importlib.util
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.data.final_answers import normalised_entity
from midthought.data.problem_readers import ASKED
from midthought.data.problem_sets import load_problems
from midthought.env.answers import CHECKS, extract, is_right, task_is_right
from midthought.errors import DataError
from midthought.types import Task

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")

EVERY_DATASET = pytest.mark.parametrize("dataset", sorted(CHECKS))
EVERY_CHECK = pytest.mark.parametrize("dataset", sorted({check: dataset for dataset, check in CHECKS.items()}.values()))
"""One data set of each kind of answer."""
HOSTILE = [
    "{", "}", "\\", "9", "1,", ".1", "1.1.", "a.", "A.", "1/", "-", "$", "(", "I ", "\n", " ", "²", "٣", "\ud800", "\\boxed{",
    "\\boxed", "answer is ", "answer", "answer: ", "answer \n", "####", "#### 1\n", "\\text{", "\\text{a}", "_{", "base 16",
    "base ", "_{\\text{", "0x", "in base", "F", "\\,", "1~", "1 000", "a^", "^{1", "\\frac{1", "\\(", "ﷺ",
]  # fmt: skip


EXTRACTED = {
    "math": [
        ("5 <answer>\n\\(\\frac{1}{2}\\)\n</answer> 6", "\\frac{1}{2}"),
        ("so \\boxed{5}, no: \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{−3}", "-3"),
        ("\\boxed{1\\,000}", "1000"),
        ("\\boxed{$5$.}", "5"),
        ("\\boxed{\\(5\\)}", "5"),
        ("Long thoughts.\nThe answer is $\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("**Answer:** 12", "12"),
        ("345", "345"),
        ("many\nlines, 5", None),
        ("\\boxed{}", None),
        ("", None),
    ],
    "gsm8k": [
        ("<answer>4</answer>, no: <answer>5</answer> or 6", "5"),
        ("<answer>5", "5"),
        ("A: 1,234 dollars", "1234"),
        ("He owes -$5.50", "-11/2"),
        ("18 m^2", "18"),
        ("it is −３ degrees", "-3"),
        ("\\boxed{18 \\text{ cm}^{2}}", "18"),
        ("\\boxed{1\\,000}", "1000"),
        ("#### 8, so \\boxed{9}", "9"),
        ("\\boxed{7}\n#### 8", "8"),
        ("\\boxed{18} dollars in 7 days", "18"),
        ("\\boxed{}, well, 5", "5"),
        ("9" * 400, None),
        ("many", None),
        ("", None),
    ],
    "trivia_qa": [
        ("It was \\boxed{\\text{The Who}}", "The Who"),
        ("\\boxed{AT\\&T}", "AT&T"),
        ("I think.\nThe answer is: Paris", "Paris"),
        ("I think.\n\n**Paris**\n", "Paris"),
        ("x" * 400, None),
        ("", None),
    ],
}
EXTRACTED["multiplication"] = EXTRACTED["gsm8k"]
"""Data set -> texts with the answer that is found in them."""


@pytest.mark.parametrize("dataset", EXTRACTED)
def test_an_answer_is_the_last_box_or_the_plainest_statement_of_its_kind(dataset):
    for text, answer in EXTRACTED[dataset]:
        assert extract(dataset, text) == answer, text


def test_names_are_normalised_as_for_trivia_qa():
    names = ["The Beatles", "Rock 'n' Roll", "snow_white", "An   Apple, a day!", "The The", "?", "ＡＢＢＡ", ""]
    normalised = ["beatles", "rock n roll", "snow white", "apple day", "the the", "?", "abba", ""]
    assert list(map(normalised_entity, names)) == normalised


def test_every_alias_is_right_and_a_part_of_one_is_not():
    aliases = ("George H. W. Bush", "Bush, George")
    for said in ("George Bush", "the george h w bush.", "bush george"):
        assert is_right("trivia_qa", f"\\boxed{{{said}}}", "George Bush", aliases)
    assert not is_right("trivia_qa", "\\boxed{Bush}", "George Bush", aliases)
    assert not is_right("trivia_qa", "\\boxed{George Bush or Jimmy Carter}", "George Bush", aliases)


VERDICTS = [
    ("gsm8k", "She earns $1,234.00 in 3 weeks: \\boxed{\\$1{,}234 \\text{ per year}}", "1234", True),
    ("gsm8k", "first 5, then 6", "5", False),
    ("gsm8k", "1 1/2 cups", "1.5", True),
    ("multiplication", "12345 * 67890 = 838,102,050", "838102050", True),
    ("math", "\\boxed{2, -6}", "-6,2", True),
    ("math", "\\boxed{3, 4}", "3", False),
    ("math", "\\boxed{3}", "so \\boxed{3}", True),
    ("math", "\\boxed{100 cm^2}", "100", True),
    ("math", "\\boxed{108\\ \\text{m}}", "108", True),
    ("math", "\\boxed{\\{\\frac{1}{2}\\}^2}", "0.5", False),
    ("math", "\\boxed{Evelyn}", "\\text{Evelyn}", True),
    ("math", "\\boxed{June 20}", "\\text{June 20}", True),
    ("math", "\\boxed{11/2}", "1 1/2", False),
    ("math", "\\boxed{18°}", "18", True),
    ("math", "\\boxed{" + "(" * 5000 + "}", "3", False),
    ("aime_2024", "Thus the answer is 073.", "73", True),
    ("gpqa", "A dog", "A", False),
    ("trivia_qa", "I think.\n\n**Paris**", "Paris", True),
    ("", "It is $1,250", "1250", True),
    ("", "It was Ada Lovelace.", "Ada Lovelace", False),
    ("", "?", "?", False),
    ("my_own_set", "It is 42", "42", True),
    ("", "The answer is B. Paris", "B", True),
    ("", "The answer is C++ of course.", "C", False),
    ("", "A dog", "A", False),
    ("", "東京。", "東京", True),
    ("", "H₂O", "H2O", True),
    ("", "1011₂", "10112", False),
    ("math", "\\boxed{1011₂}", "10112", False),
    ("math", "\\boxed{1011₂}", "1011_2", True),
    ("math", "\\boxed{xⁿ}", "xn", False),
    ("math", "\\boxed{Zoe\u0308}", "\\text{Zoë}", True),
    ("gsm8k", "\\boxed{34\\text{ or }35}", "34", False),
    ("gsm8k", "It takes 3½ hours", "3", False),
    ("math", "\\boxed{[3½, ∞)}", "[\\frac{7}{2}, \\infty)", True),
    ("", "9" * 400, "9" * 400, True),
    ("", "9" * 100_000, "9", False),
    ("", "1," * 50_000 + " so 9", "9", True),
    ("math", "\\boxed{" * 20_000 + "9", "9", False),
]
"""(data set, text, truth, verdict)"""


@needs_math_verify
def test_a_task_is_judged_by_its_data_set_or_by_its_truth():
    for dataset, text, truth, right in VERDICTS:
        task = Task(task_id="t", prompt="?", answer=truth, labels={"dataset": dataset} if dataset else {})
        assert task_is_right(task, text) is right, (dataset, text[:60])
        if dataset in CHECKS:
            assert is_right(dataset, text, truth) is task_is_right(task, text, "trivia_qa") is right


def test_without_a_data_set_each_alias_is_judged_by_its_own_kind():
    task = Task(task_id="t", prompt="?", answer="12", aliases=("a dozen",))
    assert task_is_right(task, "There are 12.") and task_is_right(task, "A dozen.")
    assert not task_is_right(task, "There are a dozen.")


@EVERY_DATASET
def test_without_an_answer_or_a_truth_nothing_is_right(dataset):
    for text in ("", " \n", "\\boxed{}", "\\boxed{"):
        assert not is_right(dataset, text, "5")
    assert not is_right(dataset, "\\boxed{5}", "")


def test_every_data_set_that_is_asked_for_is_checked_and_an_unknown_one_named_with_what_was_probably_meant():
    assert CHECKS.keys() == ASKED.keys()
    with pytest.raises(DataError, match=r"'mmlu-pro'.*mmlu_pro"):
        extract("mmlu-pro", "B")


def test_a_task_says_of_which_data_set_it_is():
    answer = {"value": "Bush", "aliases": ["George Bush"]}
    (task,) = load_problems("trivia_qa", [{"question": "Who?", "answer": answer}])
    assert task_is_right(task, "the george bush", dataset="gsm8k") and not task_is_right(task, "5")
    assert task_is_right(Task(task_id="t", prompt="?", answer="5"), "so 5", "gsm8k")


WORKING = st.text(st.sampled_from("abc 12.,-=+\n"), max_size=60)
ANSWERS = {
    "math": st.builds("\\frac{{{}}}{{{}}}".format, st.integers(-999, 999), st.integers(1, 999)),
    "aime_2024": st.integers(0, 999).map(str),
    "gsm8k": st.integers(-(10**9), 10**9).map(str) | st.decimals(-1000, 1000, places=2).map(str),
    "multiplication": st.integers(0, 10**10).map(str),
    "mmlu": st.sampled_from("ABCD"),
    "mmlu_pro": st.sampled_from("ABCDEFGHIJ"),
    "gpqa": st.sampled_from("ABCD"),
    "trivia_qa": st.text(
        st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="{}\\"), min_size=1, max_size=40
    ),
}


@EVERY_DATASET
@given(data=st.data())
def test_an_answer_in_the_form_that_is_asked_for_is_found_and_right(dataset, data):
    assert "\\boxed{}" in ASKED[dataset]
    answer = data.draw(ANSWERS[dataset].filter(str.strip))
    before, after = data.draw(WORKING), data.draw(WORKING)
    assert is_right(dataset, f"{before}\\boxed{{7}}{after}\nSo \\boxed{{{answer}}}.{after}", answer)


@pytest.mark.parametrize("dataset", sorted(CHECKS.keys() - {"math", "aime_2024"}))
@given(data=st.data())
def test_another_answer_is_wrong(dataset, data):
    said, truth = (data.draw(ANSWERS[dataset]) for _ in range(2))
    same = {"trivia_qa": normalised_entity, "gsm8k": Fraction, "multiplication": int}.get(dataset, str)
    if said.strip() and truth.strip():
        assert is_right(dataset, f"\\boxed{{{said}}}", truth) is (same(said) == same(truth))


@EVERY_CHECK
@given(text=st.text(st.sampled_from("abAB 12./-−$()\\{}\n²٣#_^&,") | st.characters(), max_size=60))
def test_no_text_breaks_the_search(dataset, text):
    for each in (text, f"\\boxed{{{text}}}", f"The answer is {text}", f"#### {text}"):
        found = extract(dataset, each)
        assert found is None or found.strip()


@EVERY_CHECK
@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize(("length", "seconds"), [(20_000, 4), pytest.param(100_000, 20, marks=pytest.mark.slow)])
def test_a_long_text_is_searched_at_once(dataset, piece, length, seconds):
    many = piece * (length // len(piece))
    began = time.process_time()
    for text in (many, f"the answer is 1{many}1x", f"\\boxed{{{many}}}"):
        extract(dataset, text)
    assert time.process_time() - began < seconds  # a fraction of a second; a quadratic search takes far longer
