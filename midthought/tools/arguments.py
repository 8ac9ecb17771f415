"""Checks arguments against a tool's JSON Schema, with one short error message that a model can act on.

`jsonschema` finds the mistakes; only the sentences are written here, because its own show the whole value and schema.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import referencing
import referencing.exceptions
from jsonschema import validators
from jsonschema.exceptions import ValidationError
from referencing.jsonschema import specification_with

from midthought.errors import SettingsError

TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
"""JSON Schema types, and their names in errors for the model."""
_MAX_SHOWN = 60
"""Characters of a wrong value in an error message."""
_MAX_CHOICES_SHOWN = 12
_MAX_DEPTH = 64
"""Levels of lists and objects. The validator fails at Python's recursion limit, and readers of MCP servers at about 200."""


class ArgumentsError(ValueError):
    """Arguments that do not fit a tool's schema; the message is written for the model."""


class ArgumentsChecker:
    """Checks arguments against one JSON Schema, in the dialect of its `$schema` (default: draft 2020-12).

    Raises `SettingsError` if the schema is invalid or has a `$ref` to a location outside of it: nothing is ever fetched.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if not isinstance(name := schema.get("$schema", ""), str):
            raise SettingsError(f"invalid JSON Schema: $schema is {shown(name)}; give its address, or leave it out")
        dialect = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            with _within_recursion(SettingsError("invalid JSON Schema: it is nested too deeply")):
                _require_schema(schema, dialect)
                resolver = _inner_references(schema, dialect)
        except jsonschema.SchemaError as error:
            raise SettingsError(f"invalid JSON Schema: {_cut(error.message)}") from None
        keywords = {name: _with_null(keyword) for name, keyword in dialect.VALIDATORS.items()}
        keywords |= dict.fromkeys(("pattern", "patternProperties"), lambda *_: ())
        self._validator = validators.extend(dialect, keywords)(
            schema, registry=referencing.Registry(), _resolver=resolver
        )

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raises `ArgumentsError` for the first mistake; a missing argument comes before all others.

        `nullable: true` in a schema accepts null, as in OpenAPI and in transformers' schemas. Regular expressions are left to the
        tool: pydantic (of a function's parameters) and MCP servers check them, and `re` may take days for one.
        """
        _require_shallow(arguments)
        with _within_recursion(ArgumentsError("the arguments are nested too deeply")):
            error = self._first_error(arguments)
            if error is not None:
                raise ArgumentsError(_explain(error))

    def _first_error(self, arguments: Mapping[str, Any]) -> ValidationError | None:
        first = None
        for error in self._validator.iter_errors(arguments):
            if error.validator == "required" and not error.absolute_path:
                return error
            first = first or error
        return first


@contextlib.contextmanager
def _within_recursion(refusal: Exception) -> Iterator[None]:
    """Raises `refusal` at the recursion limit. In the Rust code of `referencing` this is a panic: no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, RecursionError) or type(error).__name__ == "PanicException":
            raise refusal from None
        raise


def _require_shallow(arguments: Mapping[str, Any]) -> None:
    level, depth = list(arguments.values()), 0
    while level := [part for part in level if isinstance(part, list | dict)]:
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
        depth += 1
        if depth > _MAX_DEPTH:
            raise ArgumentsError(f"the arguments are nested too deeply, at most {_MAX_DEPTH} levels")


def shown(value: Any) -> str:
    """Returns a value for an error message, cut to 60 characters."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _inner_references(schema: Mapping[str, Any], dialect: Any) -> Any:
    """Returns the resolver of the schema's references. Its anchors and ids are collected once: without that, each reference to
    one of them searches the whole schema."""
    specification = specification_with(dialect.ID_OF(dialect.META_SCHEMA))
    resource = specification.create_resource(schema)
    address = resource.id() or ""
    try:
        urlsplit(address)
        resolver = referencing.Registry().with_resource("", resource).crawl().resolver(address)
        _require_resolvable(schema, resolver, dialect, specification)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"invalid JSON Schema: an $id is no address ({_cut(str(error))})") from None
    return resolver


def _require_resolvable(schema: Any, resolver: Any, dialect: Any, specification: Any) -> None:
    """Raises `SettingsError` for a reference that leads nowhere, or to no schema. Follows the validator through the schema and
    what its references lead to: an inner `$id` changes what a reference is relative to."""
    unread, read = [(schema, resolver)], set[int]()
    while unread:
        part, resolver = unread.pop()
        if not isinstance(part, Mapping):
            continue
        for reference in (part[key] for key in ("$ref", "$dynamicRef") if isinstance(part.get(key), str)):
            try:
                target = resolver.lookup(reference)
            except (referencing.exceptions.Unresolvable, ValueError):
                remedy = "use a reference inside the schema, like '#/$defs/name'"
                raise SettingsError(f"JSON Schema: $ref {shown(reference)} cannot be resolved; {remedy}") from None
            if id(target.contents) not in read:
                read.add(id(target.contents))
                _require_schema(target.contents, dialect)
                unread.append((target.contents, target.resolver))
        inner = specification.create_resource(part).subresources()
        unread += [(each.contents, resolver.in_subresource(each)) for each in inner]


def _require_schema(part: Any, dialect: Any) -> None:
    dialect.check_schema(part, format_checker=jsonschema.FormatChecker(formats=()))


def _with_null(keyword: Any) -> Any:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if instance is not None or schema.get("nullable") is not True:
            with contextlib.suppress(re.error):  # `additionalProperties` reads `patternProperties`
                yield from keyword(validator, value, instance, schema) or ()

    return checked


# -- messages --------------------------------------------------------------------------------------------------


def _explain(error: ValidationError) -> str:
    if error.validator in ("anyOf", "oneOf") and error.context:
        return _explain_alternatives(error)
    if error.validator is None:  # the schema `false`; jsonschema does not report its path
        return f"{shown(error.instance)} is not allowed"
    where = _where(error)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{where} is missing {shown(missing)}" if error.absolute_path else f"missing argument {shown(missing)}"
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        return _explain_unknown(error, where)
    if expected := _expected(error):
        return _should_be(expected, error)
    rule = _RULES.get(error.validator, f"should fit {error.validator}")
    return f"{where} {rule} {shown(error.validator_value)}, got {shown(error.instance)}"


def _where(error: ValidationError) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    where = f"argument {shown(path.removeprefix('.'))}" if path else "the arguments object"
    return f"a key of {where}" if "propertyNames" in error.absolute_schema_path else where


def _expected(error: ValidationError) -> str | None:
    """Returns the expected value in a few words, if the rule is about a type or fixed values."""
    if error.validator == "type":
        types = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
        return _either(TYPES.get(name, name) for name in types)
    if error.validator == "enum":
        return f"one of {_listed(map(shown, error.validator_value))}"
    if error.validator == "const":
        return shown(error.validator_value)
    return None


def _should_be(expected: str, error: ValidationError) -> str:
    or_null = " or null" if error.schema.get("nullable") is True else ""
    return f"{_where(error)} should be {expected}{or_null}, got {shown(error.instance)}"


def _explain_unknown(error: ValidationError, where: str) -> str:
    known = list(error.schema.get("properties", {}))
    patterns = error.schema.get("patternProperties", {})
    unknown = (key for key in error.instance if key not in known and not any(re.search(each, key) for each in patterns))
    extra = next(unknown, None)
    wrong = f"{where} has an unknown key" if error.absolute_path else "unknown argument"
    return f"{wrong} {shown(extra)}; there is: {_listed(known) or 'none'}"


def _explain_alternatives(error: ValidationError) -> str:
    """Explains the alternative with the smallest difference; if the type fits none of them, names all expected types."""
    alternatives: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        alternatives.setdefault(inner.relative_schema_path[0], []).append(inner)
    nearest = min(alternatives.values(), key=_distance)
    if _is_other_kind(nearest):
        wanted = [_expected(inner) for errors in alternatives.values() for inner in errors if not inner.relative_path]
        return _should_be(_either(filter(None, wanted)), error)
    if all(inner.validator == "required" and not inner.absolute_path for inner in error.context):
        missing = (name for inner in error.context for name in inner.validator_value if name not in inner.instance)
        return f"missing argument {_either(map(shown, missing))}"
    return _explain(nearest[0])


def _distance(errors: Sequence[ValidationError]) -> tuple[bool, bool, int]:
    wrong_constant = any(inner.validator in ("const", "enum") for inner in errors)
    return _is_other_kind(errors), wrong_constant, len(errors)


def _is_other_kind(errors: Sequence[ValidationError]) -> bool:
    return any(not inner.relative_path and inner.validator in ("type", "enum", "const") for inner in errors)


def _listed(words: Iterable[str]) -> str:
    first = list(itertools.islice(words, _MAX_CHOICES_SHOWN + 1))
    return ", ".join([*first[:_MAX_CHOICES_SHOWN], *["…"] * (len(first) > _MAX_CHOICES_SHOWN)])


def _either(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


_RULES = {
    "minimum": "should be at least",
    "maximum": "should be at most",
    "exclusiveMinimum": "should be more than",
    "exclusiveMaximum": "should be less than",
    "multipleOf": "should be a multiple of",
    "minLength": "should have a length of at least",
    "maxLength": "should have a length of at most",
    "minItems": "should have a length of at least",
    "maxItems": "should have a length of at most",
}
"""Words between the place of the mistake and the value of the rule. Other rules are named."""
