"""Weights & Biases."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from midthought.config.references import optional
from midthought.report.trackers import TrackedRun, Tracker

_HOST = "https://api.wandb.ai"
_OFFLINE = ("offline", "disabled", "dryrun")


class WandbTracker(Tracker):
    """One W&B run per run folder, started by the first metric; every stage has its own step (`ppo/step`).

    W&B's own settings decide whether and where data is sent (`WANDB_MODE=offline` keeps it in the run folder).
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._wandb = optional("wandb", "wandb")
        self._opened: Any = None

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if self._opened is None:
            self._opened = self._wandb.init(
                project=self.run.project,
                name=self.run.name,
                id=self.run.run_id,
                dir=str(self.run.path),
                config=self.run.settings,
                resume="allow",
            )
        self._opened.log({**{f"{stage}/{name}": value for name, value in metrics.items()}, f"{stage}/step": step})

    def close(self) -> None:
        if self._opened is not None:
            self._opened.finish()
            self._opened = None

    @classmethod
    def login_problem(cls) -> tuple[str, str] | None:
        if os.environ.get("WANDB_MODE") in _OFFLINE or _has_key():
            return None
        return "there is no login of Weights & Biases on this machine", (
            "run `wandb login`, set WANDB_API_KEY, keep the data here with WANDB_MODE=offline, or leave wandb out of "
            "checkpoint.trackers"
        )


def _has_key() -> bool:
    """Whether a key of W&B's server is in the environment or in the file that `wandb login` writes. The key is not read."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", _HOST)).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False
