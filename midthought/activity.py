"""What the rollouts of this process are doing now, as counts that another thread may read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OnFinished = Callable[[Any], None] | None


class Activity:
    """Counts of the present phase. Episodes on other machines count when they arrive, their tokens and tools do not."""

    def __init__(self) -> None:
        self.phase = ""
        """`sampling`, `update`, …; empty between phases."""
        self.reset()

    def reset(self) -> None:
        """Sets the counts to 0."""
        self.num_episodes = 0
        """Episodes that were started; 0 if they outlive an iteration (partial rollouts)."""
        self.num_done = 0
        self.num_tokens = 0
        """Tokens that the policy sampled."""
        self.num_tools_running = 0
        self.started = time.monotonic()

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Counts anew inside."""
        before, self.phase = self.phase, name
        self.reset()
        try:
            yield
        finally:
            self.phase = before
            self.reset()

    @contextmanager
    def episodes(self, num_episodes: int, on_finished: OnFinished) -> Iterator[Callable[[Any], None]]:
        """Yields a function to call when an episode ends; it calls `on_finished`, too."""
        if not self.phase and self.num_done == self.num_episodes:
            self.reset()
        self.num_episodes += num_episodes

        def finished(episode: Any) -> None:
            self.num_done += 1
            if on_finished is not None:
                on_finished(episode)

        yield finished

    @contextmanager
    def tools(self, num_calls: int) -> Iterator[None]:
        """Counts tool calls as running inside."""
        self.num_tools_running += num_calls
        try:
            yield
        finally:
            self.num_tools_running = max(0, self.num_tools_running - num_calls)

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts, with sampled tokens per second since the phase began."""
        seconds = time.monotonic() - self.started
        return {
            "phase": self.phase,
            "num_episodes": self.num_episodes,
            "num_done": self.num_done,
            "num_tokens": self.num_tokens,
            "tokens_per_second": self.num_tokens / seconds if seconds > 0 else 0.0,
            "num_tools_running": self.num_tools_running,
        }


ACTIVITY = Activity()
"""Of this process."""
