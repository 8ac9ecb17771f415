"""Validates against JSON Schemas in bounded time: schemas come from servers, arguments from models.

Regular expressions have a time limit; a check has a limit of evaluated keywords, which nested references multiply. Does not
depend on tools and writes no messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import regex
from jsonschema import validators
from jsonschema.exceptions import ValidationError

MAX_STEPS = 20_000
"""Keywords and patterns that one check evaluates at most, about 0.2 s. The count does not depend on the machine's speed."""
MAX_SCHEMA_CHARS = 100_000
"""Size of a schema of others, as JSON."""
MAX_PATTERN_CHARS = 1000
MAX_PATTERN_SECONDS = 0.05
"""Time of one search, after which the pattern is not decided. Patterns without nested repetition take microseconds."""
_STEPS_OF_SLOW_PATTERN = MAX_STEPS // 4

_num_left: ContextVar[list[int]] = ContextVar("_num_left")

Keyword = Callable[[Any, Any, Any, Any], Any]


class TooManyStepsError(Exception):
    """A check that needs more than `MAX_STEPS` steps."""


def matches(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text. None if that is not known: the pattern is JavaScript's and means nothing here, is
    longer than `MAX_PATTERN_CHARS`, or takes longer than `MAX_PATTERN_SECONDS`. Counts as a step of `new_check`."""
    _take_steps(1)
    compiled = _compiled(pattern)
    try:
        return None if compiled is None else compiled.search(text, timeout=MAX_PATTERN_SECONDS) is not None
    except (TimeoutError, MemoryError):
        _take_steps(_STEPS_OF_SLOW_PATTERN)
        return None


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN_CHARS:
        return None
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError):
        return None


def bounded(dialect: Any, schema: Mapping[str, Any]) -> Any:
    """Returns the validator class of a dialect for this schema, with limits. Use it within `new_check`. `nullable: true` in a
    schema accepts null, as in OpenAPI and in transformers' schemas.

    What a pattern does not decide is accepted: the tool has to check it. So are `unevaluatedProperties` in schemas with
    `patternProperties`.
    """
    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    if "patternProperties" in str(schema):
        own["unevaluatedProperties"] = lambda *_: ()
    keywords = {name: own.get(name, keyword) for name, keyword in dialect.VALIDATORS.items()}
    return validators.extend(dialect, {name: _counted(keyword) for name, keyword in keywords.items()})


def new_check() -> None:
    """Starts the count of steps of one check, which raises `TooManyStepsError` after `MAX_STEPS`."""
    _num_left.set([MAX_STEPS])


def unknown_keys(instance: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Returns the keys that neither `properties` nor a pattern of `patternProperties` names."""
    known, patterns = schema.get("properties", {}), list(schema.get("patternProperties", {}))
    return [key for key in instance if key not in known and all(matches(pattern, key) is False for pattern in patterns)]


def _take_steps(number: int) -> None:
    left = _num_left.get()
    left[0] -= number
    if left[0] < 0:
        raise TooManyStepsError


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _take_steps(1)
        if instance is not None or schema.get("nullable") is not True:
            yield from keyword(validator, value, instance, schema) or ()

    return counted


def _pattern(validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    if isinstance(instance, str) and matches(pattern, instance) is False:
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, Mapping):
        for pattern, inner in patterns.items():
            for key, value in instance.items():
                if matches(pattern, key):
                    yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, Mapping):
        return
    unknown = unknown_keys(instance, schema)
    if isinstance(allowed, Mapping):
        for key in unknown:
            yield from validator.descend(instance[key], allowed, path=key)
    elif not allowed and unknown:
        yield ValidationError("has an unknown key")
