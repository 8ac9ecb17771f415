"""Matches of two texts: worked by hand, then what must hold of any two texts, then texts that were made to hurt."""

import contextlib
import functools
import importlib.util
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.env import answer_matching
from midthought.env.answer_matching import (
    exact_match,
    fuzzy_match,
    last_boxed,
    last_number,
    mathematical_match,
    normalised,
    numeric_match,
    option_letter,
    option_match,
)
from midthought.env.rewards import matched
from midthought.errors import MissingExtraError

SYMMETRIC = [exact_match, fuzzy_match, numeric_match, option_match]
TEXTS = st.text(st.sampled_from("abAB 12,./-−$()\\{}\n²٣é") | st.characters(), max_size=30)

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
calculated = functools.partial(mathematical_match, timeout_seconds=120)  # a busy machine is no reason to fail


BY_HAND = {
    exact_match: [
        ("Ada", "ada", True),
        (" ADA  Lovelace. ", "Ada Lovelace", True),
        ("the “tide” clock!", "The Tide Clock", True),
        ("Zoe\u0308", "Zoë", True),
        ("Ada Lovelace", "Ada", False),
        ("", "Ada", False),
        ("-5", "5", False),
        ("−5", "-5.", True),
        ("9-5", "9 5", True),
    ],
    fuzzy_match: [
        ("Ada Lovelace", "ada lovelace.", 1.0),
        ("the Ada", "an Ada", 1.0),
        ("Ada", "Ada Lovelace", 2 / 3),
        ("it was Ada Lovelace", "Ada Lovelace", 2 * (2 / 4) * 1.0 / (2 / 4 + 1.0)),
        ("", "Ada", 0.0),
    ],
    last_number: [
        ("−7", -7),
        ("1 1/2 cups", Fraction(3, 2)),
        ("-2\\dfrac{1}{2}", Fraction(-5, 2)),
        ("2.5e-3", Fraction(1, 400)),
        ("5-3", 3),
        ("2023-24", 24),
        ("(3,4)", 4),
        ("12/25/2023", 2023),
        ("x2", None),
        ("5/0", None),
        ("", None),
    ],
    numeric_match: [
        ("so 0.5", "1/2", True),
        ("1,000.0", "1000", True),
        ("0.333", "1/3", False),
        ("242720911", "242720910", False),
        ("many", "10", False),
        ("10", "many", False),
    ],
    last_boxed: [
        ("so \\boxed{5}.", "5"),
        ("\\boxed{\\frac{1}{2}} or \\boxed {\\sqrt{2}} x", "\\sqrt{2}"),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("", None),
    ],
    option_letter: [
        ("The answer is (B).", "B"),
        ("Answer: **C**", "C"),
        ("\\boxed{\\textbf{(D)}\\ 12}", "D"),
        ("the answer is A. No: the answer is B", "B"),
        ("long thoughts\n\n(d)", "D"),
        ("B. Paris", "B"),
        ("The answer is a dog", None),
        ("", None),
    ],
    option_match: [("(B)", "The answer is B", True), ("C", "B", False), ("a dog", "B", False), ("", "", False)],
}


@pytest.mark.parametrize("function", BY_HAND)
def test_words_numbers_boxes_and_letters_are_found_and_compared(function):
    for *texts, expected in BY_HAND[function]:
        assert function(*texts) == expected, texts


def test_a_normalised_text_stays_as_it_is():
    for text in ("Ada_Lovelace — 1815!", "ΑΣ ς", "ŉ", "A\u00a0b", "_-5 --3"):
        assert normalised(normalised(text)) == normalised(text)


@pytest.mark.parametrize("match", SYMMETRIC)
@given(TEXTS, TEXTS)
def test_a_match_is_symmetric_and_between_0_and_1(match, first, second):
    value = match(first, second)
    assert 0.0 <= value <= 1.0
    assert value == match(second, first)


@given(st.integers(-(10**12), 10**12), st.integers(0, 999))
def test_every_number_is_found_however_it_is_written(whole, thousandths):
    number = Fraction(abs(whole) * 1000 + thousandths, 1000) * (-1 if whole < 0 else 1)
    sign = "-" if whole < 0 else ""
    assert last_number(f"7 or {sign}{abs(whole):,}.{thousandths:03d} m") == number
    assert last_number(f"7 or {sign}{abs(whole) * 1000 + thousandths}/1000.") == number


@given(
    st.recursive(
        st.text("ab\\", max_size=3).map(lambda text: text.replace("\\", "\\{")),
        lambda inner: inner.map("{{{}}}".format),
    )
)
def test_a_boxed_expression_is_found_whole(inside):
    assert last_boxed(f"\\boxed{{1}} so \\boxed{{{inside}}} }}") == inside


def test_an_answer_of_100000_characters_is_compared_at_once():
    for match in SYMMETRIC:
        began = time.process_time()
        assert 0.0 <= match("the 9 " * 17_000, "a short truth, 7") <= 1.0
        assert time.process_time() - began < 20


EQUAL = [
    ("so \\boxed{0.5}", "\\frac{1}{2}", True),
    ("\\boxed{x+1}", "1+x", True),
    ("\\boxed{\\{2,1\\}}", "\\{1,2\\}", True),
    ("the answer is $\\frac{2}{4}$", "Thus \\boxed{\\frac12}.", True),
    ("\\boxed{5}", "", False),
    ("\\boxed{" + "(" * 60 + "}", "5", False),
]


@needs_math_verify
def test_mathematical_equality_by_hand():
    for answer, truth, equal in EQUAL:
        assert calculated(answer, truth) is equal


@needs_math_verify
def test_a_comparison_that_never_ends_is_given_up_and_the_next_one_works():
    assert not mathematical_match("\\boxed{9^{9^{9^{9}}}}", "1", timeout_seconds=1)
    assert calculated("\\boxed{2/4}", "1/2")


@needs_math_verify
def test_threads_may_compare_at_once_and_each_gets_its_own_verdict():
    numbers = range(8)
    said, truths = (
        [f"\\boxed{{{number} + 1}}" for number in numbers],
        [str(number + 1 + number % 2) for number in numbers],
    )
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(calculated, said, truths)) == [True, False] * 4


def child_processes(program: str) -> list[int]:
    """Running processes that this one started with a command that names the program."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and program.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


@needs_math_verify
def test_a_worker_that_was_killed_while_idle_is_replaced():
    assert calculated("\\boxed{2/4}", "1/2")
    workers = child_processes("math_worker")
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert calculated("\\boxed{3/6}", "1/2")


@needs_math_verify
def test_the_workers_see_no_key_of_this_process(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "sesame")
    pool = answer_matching.MathWorkerPool()
    before = set(child_processes("math_worker"))
    assert pool.are_equal("1/2", "0.5", timeout_seconds=120)
    (worker,) = set(child_processes("math_worker")) - before
    names = {line.split(b"=")[0] for line in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")}
    assert b"OUR_KEY" not in names and b"PYTHONHASHSEED" in names


def test_without_math_verify_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"math-verify.*midthought\[math\]"):
        matched(mathematical_match)
