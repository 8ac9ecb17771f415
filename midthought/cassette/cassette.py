"""A cassette: the folder of a recorded run, with the calls of its episodes by part. Also gives calls injected faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from midthought.cassette.calls import Part
from midthought.cassette.faults import Faults
from midthought.cassette.files import SUFFIX
from midthought.config import CassetteConfig
from midthought.errors import CassetteError, OutputPathError
from midthought.output_folder import kind_of, mark, require_ours

KIND = "cassette"
"""Kind of the folder (`midthought.output_folder`)."""


class Cassette:
    """Calls of the episodes of a run, by `CassetteConfig`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> cassette = Cassette(CassetteConfig(record=folder))
    >>> with cassette.part("train-000000") as part:
    ...     pass
    >>> [path.name for path in Path(folder).iterdir() if path.suffix == ".jsonl"]
    ['train-000000.jsonl']
    """

    def __init__(self, config: CassetteConfig, *, within: str = "") -> None:
        """`within`: a folder in the cassette, for a stage of a larger run.

        Raises `CassetteError` if there is no cassette to replay, `OutputPathError` if the folder to record in holds something
        else.
        """
        self.config = config
        self.faults = Faults(config.faults, config.fault_seed)
        root = Path(config.record or config.replay)
        self.folder = root / within
        if config.replay and kind_of(root) != KIND:
            raise CassetteError(
                f"cassette.replay={config.replay!r} is no cassette; name a folder that cassette.record wrote"
            )
        if config.record:
            require_ours(root, KIND)
            root.mkdir(parents=True, exist_ok=True)
            mark(root, KIND)

    @classmethod
    def from_config(cls, config: CassetteConfig, *, within: str = "") -> Self | None:
        """Returns the cassette of these settings; None if calls are only made."""
        return cls(config, within=within) if config.is_used else None

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[Part]:
        """Opens a part. If the block raises, a recorded part stays incomplete; when it is opened again, it is replaced."""
        part = Part(self.config, self.folder, name, self.faults)
        try:
            yield part
            if part.writer is not None:
                part.writer.end()
        finally:
            if part.writer is not None:
                part.writer.close()


def require_new(config: CassetteConfig, *, resume: bool) -> None:
    """Raises `OutputPathError` if a new run would overwrite a recorded one, and as `Cassette`."""
    cassette = Cassette.from_config(config)
    if cassette is None or not config.record or resume:
        return
    if any(cassette.folder.rglob(f"*{SUFFIX}")):
        raise OutputPathError(
            f"cassette.record={config.record!r} holds a recorded run; replay it (cassette.replay), name another folder, or "
            "remove it"
        )
