"""Arithmetic: a whitelist over Python's syntax trees, of numbers, operators, brackets and a few functions. Text is never run.

Exact (integers and fractions) until a root or logarithm that is no ratio of integers, a sine or the like gives a float.
"""

from __future__ import annotations

import ast
import contextlib
import decimal
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from midthought.errors import near_names
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter

Number = Fraction | float

MAX_CHARACTERS = 1000
MAX_BITS = 10_000
"""Limit for numerators and denominators (about 3,000 digits). Powers above it are refused before they are computed."""
_MAX_EXPONENT = 3000
"""Of a literal such as 1e3000, and most digits of `round`."""
_NUM_DIGITS = 15
"""Digits shown of a number without a short exact decimal form."""
_MAX_DECIMALS = 30

_TOKEN = re.compile(
    r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<other>[^-+*/%(), ])"
)
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=[0-9])")
_OTHER_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


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
        "abs, acos, asin, atan, ceil, cos, exp, factorial, floor, ln, log(x, base), log10, log2, max, min, "
        "round(x, digits), sin, sqrt, tan. Angles are in radians.",
        [ToolParameter("expression", "string", "What to calculate, for example (17.5 - 3) * 12 / 7.")],
    )

    def execute(self, *, expression: str) -> str:
        """Returns the value in decimal notation. Raises `CalculationError`, which the model reads, if there is none."""
        return written(calculate(expression))


def calculate(expression: str) -> Number:
    """Returns the value of an expression: a Fraction if it is exact, otherwise a finite float. Takes well under 1 s.

    Raises `CalculationError` if the text is not an expression, has no value, or its value exceeds `MAX_BITS`.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression is too long: {len(expression)} characters, at most {MAX_CHARACTERS}")
    text = re.sub(r"\s", " ", _LEADING_ZEROS.sub("", expression.translate(_OTHER_SIGNS))).strip()
    try:
        return _value(_tree(text), text)
    except OverflowError:
        raise CalculationError("the number is too large") from None
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except (RecursionError, MemoryError):
        raise CalculationError("the expression is nested too deeply") from None


def written(value: Number) -> str:
    """Returns a number as text for the model: all digits of an integer or a short decimal, otherwise 15 digits.

    >>> written(Fraction(1, 3)), written(Fraction(5, 4)), written(2.0)
    ('0.333333333333333', '1.25', '2')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.{_NUM_DIGITS}g}"
    scaled = value * 10**_MAX_DECIMALS
    if scaled.denominator == 1:
        with decimal.localcontext(prec=2 * _MAX_EXPONENT):  # exact
            return f"{decimal.Decimal(scaled.numerator).scaleb(-_MAX_DECIMALS).normalize():f}"
    with decimal.localcontext(prec=_NUM_DIGITS):
        return f"{decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator):.{_NUM_DIGITS}g}"


def _tree(text: str) -> ast.expr:
    """Returns the syntax tree of a text of numbers, signs and known names; nothing else reaches Python's parser."""
    if not text:
        raise CalculationError("the expression is empty")
    for token in _TOKEN.finditer(text):
        if token["other"]:
            raise CalculationError(f"unexpected {token[0]!r} at character {token.start() + 1}")
        if token["name"] and token["name"] not in (known := [*_FUNCTIONS, *_CONSTANTS]):
            raise CalculationError(f"unknown name {token['name']!r}. {near_names(token['name'], known)}")
        exponent = token["exponent"] or "0"
        if len(exponent) > 5 or abs(int(exponent)) > _MAX_EXPONENT:
            raise CalculationError(f"the number {token[0]} is too large or too small")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        place = f"at character {error.offset}" if error.offset else "at the end"
        raise CalculationError(f"{error.msg} {place}") from None


def _value(node: ast.expr, text: str) -> Number:
    part = text[node.col_offset : node.end_col_offset]
    match node:
        case ast.Constant():
            return _bounded(Fraction(part))  # exact, unlike its value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign):
            value = _value(node.operand, text)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(op=kind) if type(kind) in _OPERATIONS:
            function, values = _OPERATIONS[type(kind)], [_value(node.left, text), _value(node.right, text)]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            function, values = _FUNCTIONS[name], [_value(argument, text) for argument in node.args]
        case _:
            raise CalculationError(f"{part!r} is not a number, an operation or a function with arguments in brackets")
    try:
        return _bounded(function(*values))
    except CalculationError:
        raise
    except TypeError:
        raise CalculationError(f"{part} has {len(values)} arguments; give another number of them") from None
    except ValueError:
        raise CalculationError(f"{part} has no real value") from None


def _bounded(value: Number) -> Number:
    """Returns the value if it is within the limits. Larger fractions become floats. Raises OverflowError for others."""
    if isinstance(value, int):
        value = Fraction(value)
    if isinstance(value, Fraction) and max(map(int.bit_length, value.as_integer_ratio())) > MAX_BITS:
        value = math.inf if value.denominator == 1 else _not_lost(value, float(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        root = _exact_root(base, exponent.denominator)
        if root is not None and _is_bounded(root, exponent.numerator):
            return root**exponent.numerator
        if base < 0 and exponent.denominator == 1:
            return (-1) ** (exponent.numerator % 2) * _power(-base, exponent)
        if base > 0:  # a float's error would be multiplied by the exponent
            precise = decimal.Context(prec=3 * _NUM_DIGITS, traps=[])
            values = (base, exponent, exponent * (base - 1))
            *operands, product = (precise.divide(*each.as_integer_ratio()) for each in values)
            is_lost = abs(base - 1) < 1e-20  # among these digits; but then the logarithm of the base is the difference
            return _not_lost(base, float(precise.exp(product) if is_lost else precise.power(*operands)))
    return _not_lost(base, math.pow(base, exponent))


def _is_bounded(base: Fraction, exponent: int) -> bool:
    """Whether the power is computed: it has at most `MAX_BITS`."""
    return (max(map(int.bit_length, base.as_integer_ratio())) - 1) * abs(exponent) <= MAX_BITS


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Returns the root if it is a ratio of integers that floats can hold; None otherwise."""
    if degree == 1 or value < 0:
        return value if degree == 1 else None
    with contextlib.suppress(OverflowError):
        root = Fraction(*(round(math.pow(number, 1 / degree)) for number in value.as_integer_ratio()))
        return root if _is_bounded(root, degree) and root**degree == value else None
    return None


def _not_lost(exact: Number, value: float) -> float:
    if value == 0 != exact:
        raise CalculationError("the number is too close to zero")
    return value


def _root(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return math.sqrt(value)


def _logarithm(value: Number, base: Number = math.e) -> Number:
    if base != math.e:
        power = _logarithm(value) / _logarithm(base)
        is_exact = isinstance(base, Fraction) and _is_bounded(base, round(power)) and base ** round(power) == value
        return Fraction(round(power)) if is_exact else power
    if isinstance(value, Fraction) and 0.5 < value < 2:
        return math.log1p(value - 1)  # float(value) would lose the difference from 1
    if isinstance(value, Fraction) and value > 0 and not 1e-300 < value < 1e300:
        return math.log(value.numerator) - math.log(value.denominator)
    return math.log(value)


def _rounded(value: Number, digits: Number = Fraction(0)) -> Number:
    if digits != math.floor(digits) or not -_MAX_EXPONENT <= digits <= _MAX_EXPONENT:
        raise CalculationError(f"round: the number of digits must be an integer, at most {_MAX_EXPONENT}")
    return value.__round__(int(digits))


def _factorial(value: Number) -> int:
    if value != math.floor(value) or not 0 <= value <= MAX_BITS // 10:  # 1000! has 8,530 bits
        raise CalculationError(f"factorial: the number must be an integer from 0 to {MAX_BITS // 10}")
    return math.factorial(int(value))


_OPERATIONS: Mapping[type[ast.operator], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    **{each.__name__: each for each in (math.acos, math.asin, math.atan, math.cos, math.exp, math.sin, math.tan)},
    **{each.__name__: each for each in (abs, math.ceil, math.floor)},
    "factorial": _factorial,
    "ln": _logarithm,
    "log": _logarithm,
    "log10": lambda value: _logarithm(value, Fraction(10)),
    "log2": lambda value: _logarithm(value, Fraction(2)),
    "max": lambda first, *others: max(first, *others, first),
    "min": lambda first, *others: min(first, *others, first),
    "round": _rounded,
    "sqrt": _root,
}
