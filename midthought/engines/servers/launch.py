"""Starts model servers on this machine with the flags that our engines need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midthought.engines.servers.dialect import Dialect, ServerOptions
from midthought.engines.servers.process import ServerProcess, free_port, interpreter_with
from midthought.errors import SettingsError
from midthought.network import is_loopback


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts a server."""

    words: Sequence[str]
    environment: Mapping[str, str]
    """Environment variables, used if they are not set already."""
    port: int


def plan_launch(
    dialect: Dialect, model_path: str | Path, options: ServerOptions, *, python: str | None = None
) -> Launch:
    """Returns the start command. `python`: the interpreter that has the server's package; this one by default.

    Raises `NoServerPackageError` if the package is not installed, `SettingsError` if the server would accept weights from the
    network.
    """
    accepts_updates = options.accepts_weights or options.can_sleep or options.max_lora_rank > 0
    if accepts_updates and not is_loopback(options.host):
        raise SettingsError(
            f"host={options.host!r}: anyone who reaches a server that accepts weights or adapters can replace its model; bind "
            "it to 127.0.0.1 and use a tunnel from other machines (ssh -L), or start it with --no-weights"
        )
    options = dataclasses.replace(options, port=options.port or free_port())
    words, environment = dialect.command(str(model_path), options)
    if Path(model_path).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return Launch([interpreter_with(dialect.name, python), *words, *options.flags], environment, options.port)


def start_server(
    dialect: Dialect,
    model_path: str | Path,
    options: ServerOptions | None = None,
    *,
    python: str | None = None,
    log_path: str | Path | None = None,
    timeout_seconds: float = 900.0,
) -> ServerProcess:
    """Starts a server on this machine and waits until it is ready.

    Raises what `plan_launch` raises, and `EngineError` with the end of the server's log if it does not become ready.
    """
    launch = plan_launch(dialect, model_path, options or ServerOptions(), python=python)
    server = ServerProcess(launch.words, launch.port, environment=launch.environment, log_path=log_path)
    server.wait_until_ready(timeout_seconds)
    return server
