"""Arithmetic: exact if possible, an error message if there is no value, and no expression that takes long."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.tools.builtin.calculate import CalculateTool, CalculationError, calculate, written
from midthought.tools.registry import ToolRegistry

VALUES = """
2 + 3 * 4 = 14; (2 + 3) * 4 = 20; 7 - 4 - 2 = 1; 100 / 10 / 5 = 2; 2 ** 3 ** 2 = 512; -2 ** 2 = -4; 2 ** -1 = 0.5;
--3 + +4 = 7; 7 // 2 = 3; -7 // 2 = -4; -7 % 3 = 2; 5.5 % 2 = 1.5; 0.1 + 0.2 = 0.3; 1e3 + .5 = 1000.5;
1 / 3 = 0.333333333333333; 2 / 3 * 3 = 2; -1 / 8 = -0.125; 10 ** 20 + 1 = 100000000000000000001;
2 ** 64 - 1 = 18446744073709551615; 10 ** 3000 / 7 = 1.42857142857143e+2999; 1 ** 10 ** 900 = 1;
(-1) ** (10 ** 900 + 1) = -1; 1.0000001 ** 1000000 = 1.10517091254979; (1 + 0.05 / 12) ** 360 = 4.46774431400613;
(-1.0000001) ** (10 ** 9 + 1) = -2.68810397007529e+43; (-1.0000001) ** 10 ** 9 = 2.68810370126492e+43;
0 ** 0 = 1; 6 × 7 ÷ 2 − 1 = 20; 2^10 = 1024; sqrt(16) + sqrt(9 / 4) = 5.5; sqrt(10 ** 400) / 10 ** 200 = 1;
sqrt(2) ** 2 = 2; 27 ** (1 / 3) = 3; (-2) ** 3 = -8; pi = 3.14159265358979; 2 * e = 5.43656365691809;
sin(pi / 2) + cos(0) + tan(0) = 2; asin(1) * 2 - pi = 0; acos(1) + atan(0) = 0; exp(1) - e = 0; ln(e) + log(1) = 1;
log(8, 2) + log2(4) + log10(1000) = 8; log10(10 ** 2000) = 2000; log10(1e-2000) = -2000; ln(1 + 1e-12) = 9.999999999995e-13;
ln(0.1) = -2.30258509299405; abs(-3 / 4) = 0.75; floor(-7 / 2) = -4; ceil(7 / 2) = 4; round(5 / 2) = 2;
round(2.675, 2) = 2.68; round(1234, -2) = 1200; round(pi, 2) = 3.14; max(1, 2.5, -3) + min(4, 2) = 4.5;
floor(log10(1000)) + ceil(log(125, 5)) + ceil(log10(1 / 1000)) = 3; log(1 / 8, 2) = -3; floor(64 ** (1 / 3)) = 4;
floor((27 / 8) ** (-2 / 3) * 9) = 4; (10 ** 400 / (10 ** 399 + 1)) ** 0.5 = 3.16227766016838;
(1 + 1e-60) ** 1e60 = 2.71828182845905; (1 - 1e-2900) ** (1e2900 / 3) = 0.716531310573789;
(-1 - 1e-60) ** 1e60 = 2.71828182845905; 007 + 1 = 8; factorial(20) = 2432902008176640000; ( ( 1 ) ) = 1
"""


def test_an_expression_has_its_value_which_the_model_reads() -> None:
    registry = ToolRegistry([CalculateTool()])
    for line in filter(str.strip, VALUES.replace("\n", ";").split(";")):
        expression, _, value = line.partition("=")
        assert registry.execute_tool("calculate", expression=expression) == (True, value.strip()), expression


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "the expression is empty"),
        ("2 +", "invalid syntax at the end"),
        ("2 3", "invalid syntax at character 3"),
        ("1, 2", "'1, 2' is not a number, an operation or a function with arguments in brackets"),
        ("2(3)", "'2(3)' is not a number"),
        ("pi.e", "unexpected '.' at character 3"),
        ("sqroot(4)", "unknown name 'sqroot'. Did you mean 'sqrt'? Known: abs, acos, "),
        ("log(1, 2, 3)", "log(1, 2, 3) has 3 arguments; give another number of them"),
        ("max(1, **2)", "'max(1, **2)' is not a number"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(-4)", "sqrt(-4) has no real value"),
        ("(-8) ** (1 / 3)", "(-8) ** (1 / 3) has no real value"),
        ("factorial(10 ** 9)", "factorial: the number must be an integer from 0 to 1000"),
        ("2.5 ** -1e9", "the number is too close to zero"),
        ("1e-3000 ** 3 / 7", "the number is too close to zero"),
        ("(1 - 1e-60) ** 1e64", "the number is too close to zero"),
        ("1e400000000", "the number 1e400000000 is too large or too small"),
        ("round(1.5, 10 ** 9)", "the number of digits must be an integer, at most 3000"),
        ("(" * 300 + "1" + ")" * 300, "too many nested parentheses at character 201"),
        ("1 + " * 300 + "1", "the expression is too long: 1201 characters, at most 1000"),
        ("１ + 1", "unexpected '１' at character 1"),
        ("\ud800", "unexpected '\\ud800' at character 1"),
    ],
)
def test_what_has_no_value_gets_words_that_say_why(expression: str, words: str) -> None:
    with pytest.raises(CalculationError) as caught:
        calculate(expression)
    assert words in str(caught.value)


NUMBERS = st.integers(0, 10**6).map(lambda number: (str(number), Fraction(number)))
DECIMALS = st.tuples(st.integers(0, 999), st.integers(0, 999)).map(
    lambda parts: (f"{parts[0]}.{parts[1]:03}", parts[0] + Fraction(parts[1], 1000))
)


def _combined(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.sampled_from("+-*/"), inner, inner).map(_operated)


def _operated(parts: tuple) -> tuple[str, Fraction | None]:
    sign, (left, left_value), (right, right_value) = parts
    text = f"({left} {sign} {right})"
    if left_value is None or right_value is None or (sign == "/" and right_value == 0):
        return text, None
    values = {"+": left_value + right_value, "-": left_value - right_value, "*": left_value * right_value}
    return text, values[sign] if sign in values else left_value / right_value


@given(st.recursive(NUMBERS | DECIMALS, _combined, max_leaves=12))
def test_sums_and_products_are_exact(expression: tuple[str, Fraction | None]) -> None:
    text, value = expression
    if value is None:
        with pytest.raises(CalculationError, match="division by zero"):
            calculate(text)
    else:
        assert calculate(text) == value


@given(st.fractions() | st.floats(-1e300, 1e300))
def test_a_written_number_is_the_number_to_fifteen_digits(value: Fraction | float) -> None:
    assert float(written(value)) == pytest.approx(float(value), rel=1e-14, abs=0)
    if isinstance(value, Fraction) and value.denominator in (1, 2, 4, 5, 8, 10, 16, 20, 1000):
        assert Fraction(written(value)) == value


PIECES = [*"19+-*/%(),", "2.5", "1e9", "//", "**", "sqrt(", "factorial(", "log("]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=30))
def test_any_text_at_all_has_a_finite_value_or_a_calculation_error(text: str) -> None:
    try:
        value = calculate(text)
    except CalculationError as error:
        assert str(error)
    else:
        assert isinstance(value, Fraction) or math.isfinite(value)
        assert written(value)
