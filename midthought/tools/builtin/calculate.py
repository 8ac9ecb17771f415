"""Arithmetic with its own grammar: numbers, operators, brackets, a few functions. Text is never run as code.

Exact (integers and fractions) until a function such as a root, logarithm or sine gives a float.
"""

from __future__ import annotations

import decimal
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from midthought.errors import near_names
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter

Number = Fraction | float

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_BITS = 10_000
"""Limit for numerators and denominators (about 3,000 digits). Powers above it are refused before they are computed."""
_MAX_LITERAL_EXPONENT = 3000
_MAX_ROUND_DIGITS = 1000
_NUM_DIGITS = 15
"""Digits shown of a number without a short exact decimal form."""
_MAX_DECIMALS = 30

_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?)|(?P<name>[A-Za-z_]\w*)|\*\*|//|\S"
)
_OTHER_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"}
_OPERATIONS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}


class CalculationError(ValueError):
    """An expression without a value, or with too large a value; the message is written for the model."""


class CalculateTool(Tool):
    """`calculate(expression)`: the value of an arithmetic expression, exact if possible.

    Examples:
        >>> CalculateTool().execute(expression="2**64 - 1"), CalculateTool().execute(expression="0.1 + 0.2")
        ('18446744073709551615', '0.3')
    """

    definition = ToolDefinition(
        "calculate",
        "Calculates an arithmetic expression. It knows + - * / // % ** and brackets, the constants pi and e, and: "
        "abs, acos, asin, atan, ceil, cos, exp, factorial, floor, gcd, lcm, ln, log(x, base), log10, log2, max, min, "
        "round(x, digits), sin, sqrt, tan. Angles are in radians.",
        [ToolParameter("expression", "string", "What to calculate, for example (17.5 - 3) * 12 / 7.")],
    )
    pure = True

    def execute(self, *, expression: str) -> str:
        """Returns the value in decimal notation. Raises `CalculationError`, which the model reads, if there is none."""
        return written(calculate(expression))


def calculate(expression: str) -> Number:
    """Returns the value of an expression: a Fraction if it is exact, otherwise a finite float. Takes well under 1 s.

    Raises `CalculationError` if the text is not an expression, has no value, or its value exceeds `MAX_BITS`.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression is too long: {len(expression)} characters, at most {MAX_CHARACTERS}")
    for other, sign in _OTHER_SIGNS.items():
        expression = expression.replace(other, sign)
    return _Reader(expression).read()


def written(value: Number) -> str:
    """Returns a number as text for the model: all digits of an integer or a short decimal, otherwise 15 digits.

    >>> written(Fraction(1, 3)), written(Fraction(5, 4)), written(2.0)
    ('0.333333333333333', '1.25', '2')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.{_NUM_DIGITS}g}"
    if value.denominator == 1:
        return str(value.numerator)
    scaled = value * 10**_MAX_DECIMALS
    if scaled.denominator == 1:
        digits = str(abs(scaled.numerator)).rjust(_MAX_DECIMALS + 1, "0")
        sign = "-" if value < 0 else ""
        return f"{sign}{digits[:-_MAX_DECIMALS]}.{digits[-_MAX_DECIMALS:].rstrip('0')}"
    with decimal.localcontext(prec=_NUM_DIGITS):
        return f"{decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator):.{_NUM_DIGITS}g}"


class _Token(NamedTuple):
    kind: str
    """number, name, sign or end"""
    text: str
    place: int


class _Reader:
    """Recursive-descent parser for one expression:

    sum = product {("+" | "-") product}         product = signed {("*" | "/" | "//" | "%") signed}
    signed = {"+" | "-"} power                  power = atom ["**" signed]
    atom = number | constant | name "(" sum {"," sum} ")" | "(" sum ")"
    """

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def read(self) -> Number:
        if self._tokens[0].kind == "end":
            raise CalculationError("the expression is empty")
        value = self._sum()
        self._require("")
        return value

    def _sum(self) -> Number:
        value = self._product()
        while sign := self._take("+", "-"):
            value = _operated(sign, value, self._product())
        return value

    def _product(self) -> Number:
        value = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            value = _operated(sign, value, self._signed())
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"the expression is nested too deeply, at most {MAX_DEPTH} levels")
        sign = self._take("+", "-")
        value = self._signed() if sign else self._power()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        return _powered(base, self._signed()) if self._take("**") else base

    def _atom(self) -> Number:
        token = self._tokens[self._at]
        if token.kind == "number":
            self._at += 1
            return _bounded(Fraction(token.text))
        if token.kind == "name":
            self._at += 1
            return self._named(token.text)
        self._require("(")
        value = self._sum()
        self._require(")")
        return value

    def _named(self, name: str) -> Number:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name not in _FUNCTIONS:
            raise CalculationError(f"unknown name {name!r}. {near_names(name, [*_FUNCTIONS, *_CONSTANTS])}")
        self._require("(")
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
        self._require(")")
        return _called(name, arguments)

    def _take(self, *signs: str) -> str | None:
        text = self._tokens[self._at].text
        if text not in signs:
            return None
        self._at += 1
        return text

    def _require(self, sign: str) -> None:
        """Consumes this sign; the empty string means the end."""
        token = self._tokens[self._at]
        if token.text != sign:
            found = f"{token.text!r} at character {token.place}" if token.kind != "end" else "the end"
            expected = {"": "an operator", "(": "a number"}.get(sign, repr(sign))
            raise CalculationError(f"expected {expected}, found {found}")
        self._at += 1


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if len(match["exponent"] or "") > 5 or abs(int(match["exponent"] or 0)) > _MAX_LITERAL_EXPONENT:
            raise CalculationError(f"the number {match[0]} is too large or too small")
        yield _Token(match.lastgroup or "sign", match[0], match.start() + 1)
    yield _Token("end", "", len(text) + 1)


# -- values ----------------------------------------------------------------------------------------------------


def _bounded(value: Number) -> Number:
    """Returns the value if it is within the limits. Larger fractions become floats; larger integers are refused."""
    if isinstance(value, int):
        value = Fraction(value)
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        value = math.inf if value.denominator == 1 else _float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("the number is too large")
    return value


def _float(value: Number) -> float:
    try:
        result = float(value)
    except OverflowError:
        raise CalculationError("the number is too large") from None
    if result == 0 != value:
        raise CalculationError("the number is too close to zero")
    return result


def _operated(sign: str, left: Number, right: Number) -> Number:
    if sign in ("/", "//", "%") and right == 0:
        raise CalculationError("division by zero")
    if isinstance(left, float) or isinstance(right, float):
        left, right = _float(left), _float(right)
    return _bounded(_OPERATIONS[sign](left, right))


def _powered(base: Number, exponent: Number) -> Number:
    if base == 0 and exponent < 0:
        raise CalculationError("division by zero")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        num_bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if (num_bits - 1) * abs(exponent) <= MAX_BITS:
            return _bounded(base**exponent.numerator)
        if base.denominator == 1 and exponent > 0:
            raise CalculationError("the number is too large")
    elif base < 0 and exponent != math.floor(exponent):
        raise CalculationError("a negative number has no real power with a fractional exponent")
    try:
        value = math.pow(_float(base), _float(exponent))
    except OverflowError:
        raise CalculationError("the number is too large") from None
    if value == 0 != base:
        raise CalculationError("the number is too close to zero")
    return value


# -- functions -------------------------------------------------------------------------------------------------


class _Function(NamedTuple):
    value: Callable[..., Number]
    most: int = 1
    """Maximum number of arguments; the minimum is one."""


def _called(name: str, arguments: list[Number]) -> Number:
    function = _FUNCTIONS[name]
    if len(arguments) > function.most:
        wanted = {1: "1 argument", 2: "1 or 2 arguments"}.get(function.most, "1 or more arguments")
        raise CalculationError(f"{name} takes {wanted}, got {len(arguments)}")
    try:
        return _bounded(function.value(*arguments))
    except CalculationError:
        raise
    except OverflowError:
        raise CalculationError("the number is too large") from None
    except (ValueError, ZeroDivisionError):
        shown = ", ".join(written(argument) for argument in arguments)
        raise CalculationError(f"{name}({shown}) has no real value") from None


def _on_floats(function: Callable[[float], float]) -> _Function:
    return _Function(lambda value: function(_float(value)))


def _on_integers(function: Callable[..., int], most: int = 1) -> _Function:
    def checked(*values: Number) -> Number:
        if any(value != math.floor(value) for value in values):
            raise CalculationError("only integers are allowed here")
        return Fraction(function(*map(int, values)))

    return _Function(checked, most=most)


def _root(value: Number) -> Number:
    if isinstance(value, Fraction):
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return math.sqrt(_float(value))


def _logarithm(value: Number, base: Number = math.e) -> Number:
    return _natural(value) / (1.0 if base == math.e else _natural(base))


def _natural(value: Number) -> float:
    if isinstance(value, Fraction) and 0.5 < value < 2:
        return math.log1p(value - 1)  # float(value) would lose the difference from 1
    if isinstance(value, Fraction) and value > 0 and max(map(int.bit_length, value.as_integer_ratio())) > 1000:
        return math.log(value.numerator) - math.log(value.denominator)
    return math.log(value)


def _rounded(value: Number, digits: Number = Fraction(0)) -> Number:
    if digits != math.floor(digits) or not -_MAX_ROUND_DIGITS <= digits <= _MAX_ROUND_DIGITS:
        raise CalculationError(f"round: the number of digits must be an integer, at most {_MAX_ROUND_DIGITS}")
    return value.__round__(int(digits))


def _factorial(number: int) -> int:
    if number > MAX_BITS // 10:  # 1000! has 8,530 bits
        raise CalculationError("the number is too large")
    return math.factorial(number)


_MANY = MAX_CHARACTERS
_FUNCTIONS: Mapping[str, _Function] = {
    "abs": _Function(abs),
    "acos": _on_floats(math.acos),
    "asin": _on_floats(math.asin),
    "atan": _on_floats(math.atan),
    "ceil": _Function(math.ceil),
    "cos": _on_floats(math.cos),
    "exp": _on_floats(math.exp),
    "factorial": _on_integers(_factorial),
    "floor": _Function(math.floor),
    "gcd": _on_integers(math.gcd, _MANY),
    "lcm": _on_integers(math.lcm, _MANY),
    "ln": _Function(_natural),
    "log": _Function(_logarithm, most=2),
    "log10": _Function(lambda value: _logarithm(value, Fraction(10))),
    "log2": _Function(lambda value: _logarithm(value, Fraction(2))),
    "max": _Function(lambda *values: max(values), most=_MANY),
    "min": _Function(lambda *values: min(values), most=_MANY),
    "round": _Function(_rounded, most=2),
    "sin": _on_floats(math.sin),
    "sqrt": _Function(_root),
    "tan": _on_floats(math.tan),
}
