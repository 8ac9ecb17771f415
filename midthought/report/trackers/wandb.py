"""Weights & Biases."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path
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
        if _is_offline() or _has_key():
            return None
        return "there is no login of Weights & Biases on this machine", (
            "run `wandb login`, set WANDB_API_KEY, keep the data here with WANDB_MODE=offline, or leave wandb out of "
            "checkpoint.trackers"
        )


def _is_offline() -> bool:
    """Whether the environment, or what `wandb offline` has written here or for this user, keeps the data on this machine."""
    if (mode := os.environ.get("WANDB_MODE", "")) or os.environ.get("WANDB_DISABLED"):
        return mode in _OFFLINE or os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true")
    parser = ConfigParser()
    with contextlib.suppress(ConfigError, UnicodeDecodeError):
        parser.read([Path.home() / ".config" / "wandb" / "settings", Path("wandb") / "settings"])
    settings: Mapping[str, str] = parser["default"] if parser.has_section("default") else {}
    return settings.get("mode", "") in _OFFLINE or settings.get("disabled") == "true"


def _has_key() -> bool:
    """Whether a key of W&B's server is in the environment or in the file that `wandb login` writes. The key is not read."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", _HOST)).hostname or ""
    given = os.environ.get("NETRC")
    for file in [Path(given)] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(str(file)).authenticators(host):
                return True
    return False
