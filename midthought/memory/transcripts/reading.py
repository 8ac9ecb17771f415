"""What a reader understood, and the formats by name. `@transcript_format` registers a reader of the user's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from midthought.errors import MissingExtraError, SettingsError
from midthought.memory.turns import Segment


class Skipped(NamedTuple):
    """Text that is neither speech nor a header field."""

    text: str
    reason: str


class Reading(NamedTuple):
    """How a reader understands a text."""

    title: str | None
    """None if the source has none."""
    segments: list[Segment]
    header: tuple[tuple[str, str], ...] = ()
    """Fields (key, value) before the first turn; the key is empty for other text there."""
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    """The words of the file, which are compared with those that were read. Empty: they are not compared."""
    style: str = ""
    """The text style, as in `text.STYLES`."""


Read = Callable[[str], Reading]


@dataclass(frozen=True, slots=True)
class Format:
    """A transcript format of the user."""

    name: str
    read: Read
    """Reads cleaned text with `\\n` line ends. Raises ValueError with the reason."""
    remedy: str
    """How to write a file of this format."""
    suffixes: tuple[str, ...]
    shown_by: Callable[[str, str], bool]
    """Whether a text, with the suffix of its file, shows this format."""


BUILT_IN = ("Markdown", "text", "HTML", "Word", "PDF", "JSON", "SRT", "VTT", "ASS", "CSV", "Parquet")
FORMATS: dict[str, Format] = {}
"""Registered formats, in the order of their registration. A later one is asked first, the library's formats after all."""


def transcript_format(
    name: str,
    *,
    suffixes: tuple[str, ...] = (),
    remedy: str = "correct the file, or remove it",
    shown_by: Callable[[str, str], bool] | None = None,
) -> Callable[[Read], Read]:
    """Registers the decorated function `(text) -> Reading` as a format. A second registration of a name replaces the first.

    `shown_by(text, suffix)` recognizes the content; None: the format is that of its suffixes. `remedy` completes the error of
    a file that cannot be read. Raises `SettingsError` if the name is that of a built-in format or a suffix has no dot.
    """
    if name in BUILT_IN:
        raise SettingsError(f"transcript format {name!r} is built in; register yours under another name")
    for suffix in suffixes:
        if not suffix.startswith(".") or suffix != suffix.lower():
            wanted = f".{suffix.lower().lstrip('.')}"
            raise SettingsError(
                f"transcript format {name!r}: write the suffix {suffix!r} in lower case with a dot, as {wanted!r}"
            )

    def register(read: Read) -> Read:
        FORMATS.pop(name, None)
        FORMATS[name] = Format(name, read, remedy, suffixes, shown_by or (lambda text, suffix: suffix in suffixes))
        return read

    return register


@contextmanager
def damage_refused(what: str) -> Iterator[None]:
    """While it is open, errors of a parser, which are of many kinds, are ValueErrors that say it is a damaged file."""
    try:
        yield
    except MissingExtraError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        if type(error) is ValueError:
            raise
        problem = " ".join(str(error).split())[:100]
        raise ValueError(f"it is a damaged {what} file ({type(error).__name__}: {problem})") from None
