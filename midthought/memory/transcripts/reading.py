"""What a reader understood of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from midthought.errors import MissingExtraError
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
