"""Transcript formats by name. `@transcript_format` registers a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from midthought.errors import SettingsError
from midthought.memory.formats.reading import Reading

Read = Callable[[str], Reading]
ReadBytes = Callable[[bytes], Reading]
_OURS = "midthought.memory.formats."


@dataclass(frozen=True, slots=True)
class Format:
    """A transcript format."""

    name: str
    read: Read
    """Reads cleaned text with `\\n` line ends. Raises ValueError with the reason."""
    remedy: str
    """How to write a file of this format."""
    suffixes: tuple[str, ...]
    """Suffixes of its files, in lower case. Files with these suffixes are read in a folder."""
    shown_by: Callable[[str, str], bool]
    """Whether a text, with the suffix of its file, shows this format."""
    read_bytes: ReadBytes | None = None
    """Reads the bytes of a file that is no text. Raises ValueError with the reason."""
    shown_by_bytes: Callable[[bytes], bool] = lambda content: False
    """Whether a file's bytes show this format."""


FORMATS: dict[str, Format] = {}
"""Formats by name, in the order of their registration. A later one is asked first."""


def transcript_format(
    name: str,
    *,
    suffixes: tuple[str, ...] = (),
    remedy: str,
    shown_by: Callable[[str, str], bool] | None = None,
) -> Callable[[Read], Read]:
    """Registers the decorated function `(text) -> Reading` as a format. A second registration of a name replaces the first.

    `shown_by(text, suffix)` recognizes the content; None: the format is that of its suffixes. `remedy` completes the error of
    a file that cannot be read. Raises `SettingsError` if the name is that of a built-in format or a suffix has no dot.
    """
    if name in FORMATS and FORMATS[name].read.__module__.startswith(_OURS):
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


def binary_format(
    name: str, *, suffixes: tuple[str, ...], remedy: str, shown_by: Callable[[bytes], bool]
) -> Callable[[ReadBytes], ReadBytes]:
    """Registers the decorated function `(bytes) -> Reading` as a format of files that are no text."""

    def register(read: ReadBytes) -> ReadBytes:
        transcript_format(name, suffixes=suffixes, remedy=remedy, shown_by=lambda text, suffix: False)(_no_text)
        FORMATS[name] = replace(FORMATS[name], read_bytes=read, shown_by_bytes=shown_by)
        return read

    return register


def _no_text(text: str) -> Reading:
    raise ValueError("it is a text file with the suffix of another format")
