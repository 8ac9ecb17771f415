"""Comparison of an answer with the ground truth: functions of two texts, from 0 to 1.

Time is linear in the texts, except for `mathematical_match`: math-verify runs in worker processes (`math_worker`), which are
killed when they exceed the time limit.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import re
import selectors
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

from midthought.config.references import require_installed
from midthought.data.final_answers import last_boxed, last_number, option_letter
from midthought.errors import EngineError

START_SECONDS = 300.0
"""Time limit of a worker's start; a slow machine needs long to import a computer algebra system."""
NUM_WORKERS = 2
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
"""Environment variables that the workers get: what Python needs, and no key of this process."""

_PROGRAM = Path(__file__).with_name("math_worker.py")


class MathWorkerPool:
    """Up to `NUM_WORKERS` worker processes, started on first use and reused."""

    def __init__(self) -> None:
        self._begin()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):  # a fork must not talk to its parent's workers
            os.register_at_fork(after_in_child=self._begin)

    def are_equal(self, answer: str, truth: str, timeout_seconds: float, *, as_wholes: bool = False) -> bool:
        """Whether math-verify finds the last expression of `answer` equal to that of `truth`; False without a verdict.

        `as_wholes`: what it cannot read in whole has no expression; units are names.
        `timeout_seconds` counts from when a worker is free. Raises `MissingExtraError` without math-verify, `EngineError` if
        the worker cannot start.
        """
        worker = self._slots.get()
        try:
            if worker is None or worker.has_ended:
                worker = _Worker()
            verdict = worker.ask([answer, truth, timeout_seconds, as_wholes], timeout_seconds)
        except BaseException:
            if worker is not None:
                worker.end()
            raise
        finally:
            self._slots.put(worker)
        return bool(verdict)

    def _begin(self) -> None:
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(NUM_WORKERS):
            self._slots.put(None)

    def _end(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (worker := self._slots.get_nowait()) is not None:
                    worker.end()


class _Worker:
    def __init__(self) -> None:
        require_installed("math", "math_verify")
        # -P: the folder of the program must not hide packages; a fixed hash seed gives every worker the same verdicts
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"PYTHONHASHSEED": "0"},
            text=True,
            encoding="ascii",
        )
        if self._reply(START_SECONDS) != "ready":
            raise EngineError(f"math-verify does not start; to see why: {sys.executable} -P {_PROGRAM}")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: object, timeout_seconds: float) -> object:
        """Returns the reply; None, and the process has ended, if it exceeded the time limit or died."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: the reply is missing too
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._reply(timeout_seconds)

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):  # input that it never read
            self._process.communicate()

    def _reply(self, timeout_seconds: float) -> object:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(timeout_seconds) else ""
        if line.endswith("\n"):
            return json.loads(line)
        self.end()
        return None


MAX_EXPRESSION_CHARS = 2000
"""A longer mathematical expression equals only itself; of an answer without `\\boxed`, this many final characters are read."""

_ARTICLES = frozenset({"a", "an", "the"})

_process = MathWorkerPool()


def normalised(answer: str) -> str:
    """Returns the answer for comparison: NFKC, case-folded, without repeated whitespace, and of punctuation only minus signs."""
    text = unicodedata.normalize("NFKC", answer).casefold().replace("−", "-")
    return " ".join(re.sub(r"(?!(?<!\w)-\d)[^\w\s]|_", " ", text).split())


def exact_match(answer: str, truth: str) -> bool:
    """The same words after normalization of case, punctuation and whitespace (`normalised`)."""
    said = normalised(answer)
    return bool(said) and said == normalised(truth)


def fuzzy_match(answer: str, truth: str) -> float:
    """F1 of the words that the two have in common, each counted as often as it occurs (SQuAD, arXiv:1606.05250, 6.1).

    `2PR / (P + R)` with P the share of the answer's words that the truth has, R the share of the truth's. Articles do not
    count, as in SQuAD; other than there, punctuation parts words, and a text of articles alone keeps them.
    """
    said, meant = _content_words(answer), _content_words(truth)
    num_common = (Counter(said) & Counter(meant)).total()
    return 2 * num_common / (len(said) + len(meant)) if num_common else 0.0


def _content_words(text: str) -> list[str]:
    words = normalised(text).split()
    return [word for word in words if word not in _ARTICLES] or words


def numeric_match(answer: str, truth: str) -> bool:
    """The last numbers of the two texts are equal, as ratios of integers: `0.5` equals `1/2`, and a product that is off by one is
    wrong. For a tolerance, compare numbers of `data.final_answers.last_number` in a function of your own."""
    said = last_number(answer)
    return said is not None and said == last_number(truth)


def option_match(answer: str, truth: str) -> bool:
    """Both texts choose the same option."""
    said = option_letter(answer)
    return said is not None and said == option_letter(truth)


def mathematical_match(answer: str, truth: str, *, timeout_seconds: float = 5.0, as_wholes: bool = False) -> bool:
    """The answer is mathematically equal to the truth: `0.5` to `\\frac{1}{2}`, `x+1` to `1+x`, `\\{1,2\\}` to `\\{2,1\\}`.

    Compared are the last boxed expressions; a truth without a box is one expression as a whole, an answer without one is
    searched for its last. Not symmetric: `x = 5` and `5` are equal, and the truth decides how the answer is read. `as_wholes`:
    symmetric; no unit is dropped, and an expression that math-verify cannot read in whole equals only itself. False
    after the time limit. It blocks; in an event loop use it through `rewards.matched` or
    `rewards.in_thread`. Raises `MissingExtraError` if math-verify is not installed.
    """
    said, meant = last_boxed(answer), last_boxed(truth)
    meant = truth.strip() if meant is None else meant
    if not meant or not answer.strip():
        return False
    if meant == (answer.strip() if said is None else said):
        return True
    if len(meant) > MAX_EXPRESSION_CHARS or len(said or "") > MAX_EXPRESSION_CHARS:
        return False
    text = answer[-MAX_EXPRESSION_CHARS:] if said is None else f"\\boxed{{{said}}}"
    return _process.are_equal(text, f"\\boxed{{{meant}}}", timeout_seconds, as_wholes=as_wholes)
