"""One recorded call as a line of JSON, without keys; and how to find it again. Recorded text is data: nothing is evaluated."""

from __future__ import annotations

import hashlib
import json
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from midthought.errors import CassetteError
from midthought.network import MIN_KEY_CHARS, is_key_name, keys_read

T = TypeVar("T")

HIDDEN = "…"
"""Replaces a key in a recorded text."""


def _same(value: Any) -> Any:
    return value


def _not_garbled(value: Any, garble: Callable[[str], str]) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How results of one kind of call are recorded; by default as the JSON values that they are."""

    encode: Callable[[T], Any] = _same
    """Returns the result as JSON values."""
    decode: Callable[[Any], T] = _same
    """Returns the result again; equal results while recording and replaying, because both come from here."""
    error: Callable[[str], Exception] = ConnectionError
    """Creates the exception of a failed call from its message."""
    garbled: Callable[[T, Callable[[str], str]], T] = _not_garbled
    """Returns the result with a function applied to its texts."""


JSON_VALUES: Codec[Any] = Codec()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """What identifies a call: its episode, and what was asked; not when it was asked."""

    episode: int
    """Number of the episode in its part."""
    task: str
    """Id of the episode's task."""
    seed: int
    """Seed of the episode's sampling."""
    kind: str
    name: str
    arguments: Any
    """JSON values."""
    repeat: int = 0
    """Number of equal calls before this one in the episode."""

    @property
    def key(self) -> bytes:
        """Equal for equal calls."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __str__(self) -> str:
        arguments = json.dumps(self.arguments, ensure_ascii=False).encode(errors="replace").decode()
        shown = arguments if len(arguments) <= 200 else f"{arguments[:200]}…"
        times = f", call {self.repeat + 1} of this kind" if self.repeat else ""
        return f"{self.kind} {self.name!r} with {shown} in episode {self.episode} (task {self.task!r}{times})"

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> RecordedCall:
        """Returns the call of an entry. Raises KeyError if a field is missing."""
        return cls(**{name: entry[name] for name in cls.__slots__})


def as_json(value: Any, what: str) -> Any:
    """Returns the value as JSON gives it back: tuples as lists, numpy's numbers as Python's. Raises `CassetteError`."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise CassetteError(f"{what} cannot be recorded: {error}; let it hold JSON values only") from None


def _plain(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if callable(getattr(value, "item", None)):  # a scalar of torch, or a bool of numpy
        return value.item()
    raise TypeError(f"{value!r:.80} ({type(value).__name__}) is no JSON value")


def to_line(entry: Mapping[str, Any]) -> bytes:
    """Returns an entry as a line. A lone surrogate is written as its JSON escape, so that it is read back."""
    text = json.dumps(entry, ensure_ascii=False)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(entry)}\n".encode()


def without_keys(value: Any) -> Any:
    """Returns JSON values in which every key of this process is replaced by `HIDDEN`: values of environment variables that
    are named like keys, and `network.keys_read`."""
    secrets = _secrets()
    text = json.dumps(value) if secrets else ""
    found = [secret for secret in secrets if json.dumps(secret)[1:-1] in text]
    return _hidden(value, found) if found else value


def _secrets() -> Iterable[str]:
    named = (value for name, value in os.environ.items() if is_key_name(name))
    by_name = {value for value in named if len(value) >= MIN_KEY_CHARS}
    return sorted(by_name | keys_read(), key=len, reverse=True)


def _hidden(value: Any, secrets: Iterable[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, list):
        return [_hidden(item, secrets) for item in value]
    if isinstance(value, dict):
        return {_hidden(key, secrets): _hidden(item, secrets) for key, item in value.items()}
    return value
