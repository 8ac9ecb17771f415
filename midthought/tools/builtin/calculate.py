"""Arithmetic: a whitelist over Python's syntax trees, of numbers, operators, brackets and a few functions. Text is never run.

Exact (integers and fractions) until a function such as a root, logarithm or sine gives a float.
"""

from __future__ import annotations

import ast
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
MAX_DEPTH = 50
MAX_BITS = 10_000
"""Limit for numerators and denominators (about 3,000 digits). Powers above it are refused before they are computed."""
_TOO_DEEP = f"the expression is nested too deeply, at most {MAX_DEPTH} levels"
_MAX_LITERAL_EXPONENT = 3000
_MAX_ROUND_DIGITS = 1000
_NUM_DIGITS = 15
"""Digits shown of a number without a short exact decimal form."""
_MAX_DECIMALS = 30

_TOKEN = re.compile(
    r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<other>[^-+*/%(), ])"
)
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=[0-9])")
_OTHER_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"}
_OPERATIONS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
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
    expression = re.sub(r"\s", " ", _LEADING_ZEROS.sub("", expression)).strip()
    if not expression:
        raise CalculationError("the expression is empty")
    return _value(_tree(expression), expression, MAX_DEPTH)


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


def _tree(text: str) -> ast.expr:
    """Returns the syntax tree of a text of numbers, signs and known names; nothing else reaches Python's parser."""
    for token in _TOKEN.finditer(text):
        if token["other"]:
            raise CalculationError(f"unexpected {token[0]!r} at character {token.start() + 1}")
        if token["name"] and token["name"] not in (known := [*_FUNCTIONS, *_CONSTANTS]):
            raise CalculationError(f"unknown name {token['name']!r}. {near_names(token['name'], known)}")
        exponent = token["exponent"] or "0"
        if len(exponent) > 5 or abs(int(exponent)) > _MAX_LITERAL_EXPONENT:
            raise CalculationError(f"the number {token[0]} is too large or too small")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise CalculationError(
            f"{error.msg} {f'at character {error.offset}' if error.offset else 'at the end'}"
        ) from None
    except (RecursionError, MemoryError):
        raise CalculationError(_TOO_DEEP) from None


def _value(node: ast.expr, text: str, depth: int) -> Number:
    """Returns the value of a part of the text's tree, at most `depth` levels deep. A long sum is not deep."""
    if not depth:
        raise CalculationError(_TOO_DEEP)
    later: list[tuple[type[ast.operator], ast.expr]] = []
    while isinstance(node, ast.BinOp):
        later.append((type(node.op), node.right))
        node = node.left
    value = _operand(node, text, depth)
    for kind, right in reversed(later):
        value = _operated(kind, value, _value(right, text, depth - 1))
    return value


def _operand(node: ast.expr, text: str, depth: int) -> Number:
    match node:
        case ast.Constant():
            return _bounded(Fraction(text[node.col_offset : node.end_col_offset]))  # exact, unlike its value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, text, depth - 1)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, text, depth - 1)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _called(name, [_value(argument, text, depth - 1) for argument in node.args])
    part = text[node.col_offset : node.end_col_offset]
    raise CalculationError(f"{part!r} is not a number, an operation or a function with its arguments in brackets")


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


def _operated(kind: type[ast.operator], left: Number, right: Number) -> Number:
    if kind is ast.Pow:
        return _powered(left, right)
    if kind in (ast.Div, ast.FloorDiv, ast.Mod) and right == 0:
        raise CalculationError("division by zero")
    if isinstance(left, float) or isinstance(right, float):
        left, right = _float(left), _float(right)
    return _bounded(_OPERATIONS[kind](left, right))


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


def _called(name: str, arguments: list[Number]) -> Number:
    function, most = _FUNCTIONS[name]
    if not 1 <= len(arguments) <= most:
        wanted = {1: "1 argument", 2: "1 or 2 arguments"}.get(most, "1 or more arguments")
        raise CalculationError(f"{name} takes {wanted}, got {len(arguments)}")
    try:
        return _bounded(function(*arguments))
    except CalculationError:
        raise
    except OverflowError:
        raise CalculationError("the number is too large") from None
    except (ValueError, ZeroDivisionError):
        shown = ", ".join(written(argument) for argument in arguments)
        raise CalculationError(f"{name}({shown}) has no real value") from None


def _on_float(function: Callable[[float], float]) -> Callable[[Number], float]:
    return lambda value: function(_float(value))


def _on_integers(function: Callable[..., int]) -> Callable[..., Number]:
    def checked(*values: Number) -> Number:
        if any(value != math.floor(value) for value in values):
            raise CalculationError("only integers are allowed here")
        return Fraction(function(*map(int, values)))

    return checked


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
_FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int]] = {
    "abs": (abs, 1),
    "ceil": (math.ceil, 1),
    "factorial": (_on_integers(_factorial), 1),
    "floor": (math.floor, 1),
    "gcd": (_on_integers(math.gcd), _MANY),
    "lcm": (_on_integers(math.lcm), _MANY),
    "ln": (_natural, 1),
    "log": (_logarithm, 2),
    "log10": (lambda value: _logarithm(value, Fraction(10)), 1),
    "log2": (lambda value: _logarithm(value, Fraction(2)), 1),
    "max": (lambda *values: max(values), _MANY),
    "min": (lambda *values: min(values), _MANY),
    "round": (_rounded, 2),
    "sqrt": (_root, 1),
    **{
        each.__name__: (_on_float(each), 1)
        for each in (math.acos, math.asin, math.atan, math.cos, math.exp, math.sin, math.tan)
    },
}
"""Functions by name, with their largest number of arguments."""
