"""Pairs of answers without a data set, right and wrong, judged in both directions: either is the truth, bare and in a box."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.env.answers import is_right, require_judges, same_answer, task_is_right
from midthought.errors import MissingExtraError
from midthought.types import Task

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")

SAME_TEXTS = r"""
yes | Yes.
New York | new york
New York, NY | New York NY
The Tide | "The Tide"
O'Brien | O’Brien
Paris | **Paris**
St. John's | St. John's.
AT&T | AT\&T
R&B | r & b
C++ | c++
F# | f #
.NET | .net
B | b.
B | (B)
C | \text{(C)}
Evelyn | \text{Evelyn}
1990-05-01 | 1990-05-01.
5km | 5 km
(0,1] | (0, 1]
3, 5, 7 | 3,5,7
[3, 1, 2] | [3,1,2]
52_8 | 52_{8}
x!  | $x!$
Don’t know | don't know
"""

SAME_NUMBERS = r"""
42 | 42.0
007 | 7
1,234 | 1234
1,234 | 1{,}234
10,\!080 | 10080
1\,000 | 1000
.5 | 0.50
+5 | 5
−3 | -3
- 5 | -5
1/2 | 0.5
1/2 | \frac{1}{2}
1/2 | \frac12
\frac{3}{4} | \dfrac34
-\frac{1}{2} | -0.5
-\frac{1}{2} | \frac{-1}{2}
-1/2 | - \frac{1}{2}
-1/2 | \frac{1}{-2}
1 1/2 | 1.5
1½ | 1.5
1\frac{4}{5} | 9/5
-2\frac{1}{2} | -2.5
$1,234.00 | 1234
$5 | \$5.00
-$5 | $-5
€5 | 5.00
50% | 50\%
50% | 50
50% | 0.5
25 % | 25 percent
3e8 | 300,000,000
3 \times 10^8 | 3e8
1.5 × 10⁻³ | 0.0015
6.02 \cdot 10^{23} | 6.02e23
10^{-3} | 0.001
90^\circ | 90
x = 5 | 5
40 + 2 = 42 | 42
5 km | $5 \text{ km}$
9.8 m/s^2 | 9.80 m/s²
20 °C | 20
15\mbox{ cm}^2 | 15 cm^2
\frac{270}7\text{ degrees} | 270/7
"""

SAME_FORMULAS = r"""
x^{10} | x^10
x + 1 | x+1
f'(x) + 1 | \(f'(x)+1\)
x + 1 | 1 + x
6 - 5i | -5i+6
x^2 - 1 | (x-1)(x+1)
x^2 + 1 | x² + 1
x/2 | \frac{x}{2}
\frac{1}{2} x^2 | \frac{x^2}{2}
3\sqrt{13} | \sqrt{117}
11\sqrt2 | 11\sqrt{2}
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}}
-\frac{\pi}{6} | \frac{-\pi}{6}
\cot x | \frac{\cos x}{\sin x}
e^{2x} | (e^x)^2
y = 2x + 3 | y=3+2x
a > b | b < a
x \ge 3 | 3 \le x
x ≥ 3 + y | x \geq 3 + y
1 \pm \sqrt{19} | 1+\sqrt{19}, 1-\sqrt{19}
\{1, 2\} | \{2, 1\}
(2,\infty) | (2, \infty)
(-\infty, 2) \cup (3, \infty) | (3,\infty) \cup (-\infty,2)
(0.5, 3) | (1/2, 3)
\left( 3, \frac{\pi}{2} \right) | (3, \frac{1}{2}\pi)
(x+1, 2) | (1+x, 2)
\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} | \begin{pmatrix} \frac{1}{5} \\ -3.6 \end{pmatrix}
\binom{n}{2} | \frac{n(n-1)}{2}
2√5 | \sqrt{20}
(2, ∞) | (2,\infty)
"""

WRONG = r"""
x + 1 | x - 1
a > b | a < b
a > b | a \ge b
(0, 1] | [0, 1)
(0, 1] | (0, 1)
(1, 2) | (2, 1)
(1, 2) | \{1, 2\}
[3, 1, 2] | [1, 2, 3]
1, 2 | 12
C | C++
C | C#
F# | F
A+ | A-
x | x!
5 | 5!
5 | -5
5 | <5
5 | (5, 5)
> 5 | < 5
\le 5 | \ge 5
+ | -
.NET | NET
B | C
AT&T | ATT
no | \text{on}
yes | no
New York | York New
Ada Lovelace | Ada
1990-05-01 | 1984
05/01/1990 | 1/398
2:30 | 2/30
2:30 am | 2:30 pm
3:4 | 4:3
3.10.1 | 3.1.1
3-2 | 1
1/2 | 2
1/2 | -0.5
0.333 | 1/3
\frac{1}{2} | -\frac{1}{2}
\frac12 | \frac{1}{23}
1\frac{1}{2} | 1/2
1,234 | 1.234
50% | 0.5%
50 | 0.5
3e8 | 3e9
10^3 | 103
5 km | 5 m
1 km | 1000 m
9.8 m/s^2 | 9.8 m/s
$5 | €5
x = 5 | y = 5
52_8 | 52
90° | \frac{\pi}{2}
2x | 2
x2 | x^2
x_1 | x_2
x^2 | 2x
\sqrt{2} | 2
\sqrt{2} | 1.414214
12\pi | 37.699112
\frac{1}{2} x | \frac{1}{2}
n + 5m | n + 5
x^2 m | x^2
A^T + B | A + B
f'(x) = 2x | f(x) = 2x
-2 + 7i | 2 - 7i
1 \pm \sqrt{19} | 1 + \sqrt{19}
5x - 7y + 11z + 4 = 0 | 0
x \ge 3 | x > 3
x \ne 3 | x = 3
\sin x | \cos x
(-\infty, 0] | (-\infty, 0)
A \cup B | A \cap B
\{1, 2\} | \{1, 3\}
\begin{pmatrix} 1 \\ 5 \end{pmatrix} | \begin{pmatrix} 5 \\ 1 \end{pmatrix}
\begin{pmatrix} 1 \\ 5 \end{pmatrix} | 5
\frac{a}{b} | \frac{b}{a}
H_2O | H_2O_2
v2.0 | v2
20 °C | 20 °F
$5 million | $5 billion
Mary loves John | John loves Mary
1990s | 1990
5th | 5
x = 2 | x = -2
n! | n
\log_2 x | \log_3 x
x \in A | x \notin A
|x| | x
F-16 | 16
50% | 50 km
N/A | A
"""

WITH_UNIT = r"""
5 km | 5
12 cm | 12
-1 cm | -1
9.8 m/s^2 | 9.8
300 K | 300
7 apples | 7
5 dollars | $5
"""


def pairs(table: str) -> list[tuple[str, str]]:
    found = [tuple(side.strip() for side in line.split(" | ")) for line in table.strip().splitlines()]
    assert all(len(pair) == 2 for pair in found)
    return found


def task(truth: str) -> Task:
    return Task(task_id="t", prompt="?", answer=truth)


@needs_math_verify
def test_each_pair_of_answers_is_judged_alike_in_both_directions_bare_boxed_and_in_a_sentence():
    tables = [(table, True) for table in (SAME_TEXTS, SAME_NUMBERS, SAME_FORMULAS)] + [(WRONG, False)]
    judged = [(pair, expected) for table, expected in tables for pair in pairs(table)]
    assert len(judged) >= 150
    misjudged = [
        f"{text!r} for the truth {truth!r}: {not expected}"
        for pair, expected in judged
        for said, truth in (pair, pair[::-1])
        for text in (said, f"So it is $\\boxed{{{said}}}$.", f"The answer is {said}.")
        if task_is_right(task(truth), text) is not expected
    ]
    assert not misjudged, "\n".join(misjudged)


@needs_math_verify
@given(*[st.lists(st.sampled_from([*"xy12.,%-+/=()<^ ", "\\frac{1}{2}", "\\pi", "km"]), max_size=6).map("".join)] * 2)
def test_which_of_two_answers_is_the_truth_makes_no_difference(first, second):
    assert same_answer(first, second) is same_answer(second, first)


def test_a_unit_counts_if_the_truth_states_it():
    for with_unit, number in pairs(WITH_UNIT):
        assert task_is_right(task(number), with_unit) and task_is_right(task(number), f"It is \\boxed{{{with_unit}}}.")
        assert not task_is_right(task(with_unit), number)


def test_a_sentence_is_right_if_its_last_number_is_the_truth():
    for text, truth, expected in [
        ("There are 12.", "12", True),
        ("The answer is 18 dollars.", "18", True),
        ("\\boxed{18 dollars}", "18", True),
        ("The answer is 18.", "18 dollars", False),
        ("it is 25 %", "25%", True),
        ("Each of the 3 pays 18 dollars.", "18", True),
        ("It is half of one, 1/2 in all.", "0.5", True),
        ("It rose by -\\frac{1}{2} in all", "-\\frac{1}{2}", True),
        ("40 + 2\n#### 42\nin 3 steps", "42", True),
        ("**Answer:** 42", "42", True),
        ("It is 5 m long", "5 km", False),
        ("The answer is 5 km.", "5 km", True),
        ("The answer is x + 1.", "1", False),
        ("So it is \\boxed{\\sqrt{2}} in all", "2", False),
        ("7 of 12", "7", False),
    ]:
        assert task_is_right(task(truth), text) is expected, (text, truth)


@pytest.mark.parametrize("dataset", ["", "mmlu", "trivia_qa"])
def test_the_answer_is_what_the_last_answer_tags_hold(dataset):
    task = Task(task_id="t", prompt="", answer="B", labels={"dataset": dataset} if dataset else {})
    assert task_is_right(task, "A, no. <answer>A</answer> So <answer> B\n</answer>\nDone, C.")
    assert not task_is_right(task, "<answer>A</answer> B") and not task_is_right(task, "B <answer></answer>")


def test_without_math_verify_only_a_formula_is_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    plain = [*pairs(SAME_TEXTS), *pairs(SAME_NUMBERS)]
    require_judges(task(truth) for pair in plain for truth in pair)
    assert all(task_is_right(task(truth), said) for pair in plain for said, truth in (pair, pair[::-1]))
    for truth in ("\\sqrt{2}", "x + 1", "a > b", "y = 2x", "(-\\infty, 0]", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"):
        with pytest.raises(MissingExtraError, match=r"the truth '.*' of task 't' .*midthought\[math\]"):
            require_judges([task("42"), task(truth)])


@needs_math_verify
def test_a_word_of_a_mathematical_data_set_is_no_product_of_letters():
    assert is_right("math", "\\boxed{Even}", "\\text{even}")
    assert not is_right("math", "\\boxed{neve}", "\\text{even}") and not is_right("math", "\\boxed{on}", "\\text{no}")
