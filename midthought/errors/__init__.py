"""One class per mistake; each message names the value that was wrong and the remedy.

MidthoughtError
├── UserError                 the user can correct it: the command line prints only the message and exits with code 2
│   ├── SettingsError         a wrong key or value in the settings            (also a ValueError)
│   ├── TranscriptError       a transcript that cannot be read, or none at all (also a ValueError)
│   ├── ModelPathError        a model that is missing or cannot be loaded      (also a FileNotFoundError)
│   ├── CheckpointError       a run or checkpoint that is missing or incomplete (also a FileNotFoundError)
│   ├── RunLockedError        a run folder in which another process works      (also a BlockingIOError)
│   ├── StorageError          a disk that is full, read-only or gone          (also an OSError)
│   ├── OutputPathError       a path whose existing content would be lost      (also a FileExistsError)
│   ├── MemoryStoreError      a memory that is not built, or has other settings (also a ValueError)
│   ├── DataError             a data set, or a row of it, that cannot be read  (also a ValueError)
│   ├── RewardError           a reward function that raises or returns no number (also a ValueError)
│   ├── EpisodeError          an environment that violates its interface       (also a RuntimeError)
│   ├── TrainingStoppedError  a run that cannot learn, or whose weights are not finite (also a RuntimeError)
│   ├── TrainerClosedError    a trainer that is used after its cleanup         (also a RuntimeError)
│   ├── LearnerLostError      the learner's process ended                      (also an EngineError)
│   ├── ServersUnreachableError  no model server answers                         (also an EngineError)
│   ├── McpServerError        an MCP server that cannot be reached             (also a ConnectionError)
│   └── MissingExtraError     an optional package is not installed             (also an ImportError)
├── RecordError               a Trajectory whose invariants do not hold        (also a ValueError)
├── ForeignTextError          foreign text that would have become a control token (also a ValueError)
├── EngineError               the engine cannot fulfil a request               (also a RuntimeError)
└── NoReplyError              an endpoint did not return a usable reply        (also a ConnectionError)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MidthoughtError(Exception):
    """Root of every error that this library raises on purpose."""


class UserError(MidthoughtError):
    """A mistake that the user can correct; shown without a traceback, exit code 2 (`TrainingStoppedError`: 3)."""


class SettingsError(UserError, ValueError):
    """A key or value in the settings that is not valid."""


class TranscriptError(UserError, ValueError):
    """A transcript that cannot be read, or a folder without any."""


class ModelPathError(UserError, FileNotFoundError):
    """A model path that does not exist or has no loadable model."""


class CheckpointError(UserError, FileNotFoundError):
    """A run folder or checkpoint that does not exist or is incomplete."""


class RunLockedError(UserError, BlockingIOError):
    """A run folder in which another process works."""


class StorageError(UserError, OSError):
    """A disk or file system that is full, read-only, damaged or gone."""


class OutputPathError(UserError, FileExistsError):
    """An output path with content that this library did not write."""


class MemoryStoreError(UserError, ValueError):
    """A memory that has not been built, or was built with other settings."""


class DataError(UserError, ValueError):
    """A data set, or a row of it, that cannot be read."""


class RewardError(UserError, ValueError):
    """A reward function that cannot be called, raises, or does not return finite numbers."""


class EpisodeError(UserError, RuntimeError):
    """An environment or reward function that violates its interface."""


class TrainingStoppedError(UserError, RuntimeError):
    """A run that was stopped because it cannot learn. The message has the cause, the value and the remedy."""


class TrainerClosedError(UserError, RuntimeError):
    """A trainer that is used after `cleanup`."""


class McpServerError(UserError, ConnectionError):
    """An MCP server that cannot be started or reached, or that does not speak the protocol."""


class MissingExtraError(UserError, ImportError):
    """An optional package is missing."""

    def __init__(self, package: str, extra: str, remedy: str = "") -> None:
        remedy = remedy or f"install it with: pip install 'midthought[{extra}]'"
        super().__init__(f"{package} is not installed; {remedy}")


class RecordError(MidthoughtError, ValueError):
    """A Trajectory whose invariants do not hold."""


class ForeignTextError(MidthoughtError, ValueError):
    """Foreign text whose encoding contains a control token."""


class EngineError(MidthoughtError, RuntimeError):
    """The engine cannot fulfil a request."""


class LearnerLostError(UserError, EngineError):
    """The learner's process ended."""


class ServersUnreachableError(UserError, EngineError):
    """No model server answers."""


class NoReplyError(MidthoughtError, ConnectionError):
    """The endpoint did not return a usable reply, after all retries."""

    def __init__(self, words: str, *, is_passing: bool, wait_seconds: float = 0.0) -> None:
        super().__init__(words)
        self.is_passing = is_passing
        """Whether a retry may succeed."""
        self.wait_seconds = wait_seconds
        """Wait that the endpoint requests before the next attempt."""


def near_names(wrong: str, known: Iterable[str]) -> str:
    """Returns a suggestion for a misspelled name: `Did you mean 'gae'? Known: gae, grpo.`"""
    known = sorted(known)
    plain = {name.lower(): name for name in known}
    close = [plain[each] for each in difflib.get_close_matches(wrong.lower().replace("-", "_"), plain, n=3, cutoff=0.5)]
    meant = f"Did you mean {' or '.join(repr(name) for name in close)}? " if close else ""
    return f"{meant}Known: {', '.join(known)}."
