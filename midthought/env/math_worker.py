"""Worker program: reads pairs of mathematical texts, one JSON line each, and replies whether they are equal.

Started and stopped by `answer_matching`. math-verify's own time limits are signals, which work only in a main thread and
cannot interrupt the computation of an integer power. A process can be killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
from typing import Any

MAX_MEMORY_BYTES = 4 << 30


def serve() -> None:
    """Writes the line `"ready"`, then replies to each `[answer, truth, seconds, as_wholes]` with `true` or `false`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # output of libraries must not be read as a reply
    _limit_memory()
    from math_verify import LatexExtractionConfig, parse, verify

    units_kept = dataclasses.replace(LatexExtractionConfig().normalization_config, units=False)
    whole = LatexExtractionConfig(boxed_match_priority=0, normalization_config=units_kept)
    options: tuple[dict[str, Any], ...] = ({}, {"extraction_config": [whole], "fallback_mode": "no_fallback"})
    replies.write('"ready"\n')
    replies.flush()
    for line in sys.stdin:
        *texts, seconds, as_wholes = json.loads(line)
        _set_alarm(math.ceil(seconds) + 1)
        answer, truth = (parse(text, parsing_timeout=None, **options[as_wholes]) for text in texts)
        verdict = verify(truth, answer, timeout_seconds=None, allow_set_relation_comp=as_wholes)
        _set_alarm(0)
        replies.write(f"{json.dumps(bool(verdict))}\n")
        replies.flush()


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def _set_alarm(seconds: int) -> None:
    """Sets an alarm that ends this process if the parent has died. The parent's own time limit expires first."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


if __name__ == "__main__":
    serve()
