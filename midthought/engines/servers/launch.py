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

_OURS = {
    "--host": "the server's address; `midthought engine serve --host` starts one without weight updates for other machines",
    "--port": "the server's address; `midthought engine serve --port`",
    "--uds": "the server's address",
    "--api-key": "a key on the command line is visible to all users; set VLLM_API_KEY for vLLM, or use a proxy",
    "--admin-api-key": "a key on the command line is visible to all users; use a proxy",
    "--config": "a file that could change the address; give its lines as flags",
    "--middleware": "code that the server would import",
    "--trust-remote-code": "code from model folders, which is never run",
}
"""Flags of vLLM and SGLang that `options.flags` must not contain, and what they would change."""


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
    network, or if `options.flags` would change its address, its key or whose code it runs.
    """
    _require_harmless(options.flags)
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


def _require_harmless(flags: Sequence[str]) -> None:
    """Both servers accept `_` for `-`, and the beginning of a name for the name."""
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-").lower()
        for ours, effect in _OURS.items():
            if len(name) > len("--") and name.startswith("--") and ours.startswith(name):
                raise SettingsError(f"server_flags: {flag!r} is not allowed ({ours}: {effect})")
