"""Rows of a data set on the Hugging Face hub, or of a folder that the `datasets` library can load. Knows no problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from midthought.data.rows import Row
from midthought.errors import DataError, MissingExtraError


class HubSource(NamedTuple):
    """Where a data set lies on the hub, as `datasets.load_dataset(path, configuration, split=split)` takes it."""

    path: str
    configuration: str | None
    split: str


def hub_rows(source: HubSource) -> Iterator[Row]:
    """The rows of one split, in order.

    Raises MissingExtraError without the package `datasets`, DataError where it cannot load the split.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "data") from None
    try:
        loaded = datasets.load_dataset(source.path, source.configuration, split=source.split)
    except Exception as error:  # many libraries below it, each with errors of its own
        named = ":".join(filter(None, (source.path, source.configuration)))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(
            f"the data set {named}, split {source.split}, cannot be loaded: {reason}; see that the name and the split are "
            "right and that the hub can be reached (gated ones want `hf auth login`), or give a file"
        ) from None
    for number, value in enumerate(loaded, start=1):
        yield Row(source.path, f"row of {source.split}", number, value)
