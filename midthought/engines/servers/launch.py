"""Starts model servers on this machine with the flags that our engines need.

Only this user reaches them. Weight and control routes of vLLM ask for no key, so it listens on a Unix socket in a private folder;
SGLang has no sockets, but its key protects every route except `/health`, `/ready` and `/metrics`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midthought.config.references import require_installed
from midthought.engines.servers.process import ServerProcess, free_port, run_in_foreground
from midthought.engines.servers.server import Server, ServerOptions
from midthought.engines.servers.sglang import SGLangServer
from midthought.engines.servers.vllm import VLLMServer
from midthought.errors import MissingExtraError, ModelPathError, SettingsError, near_names
from midthought.files.output_folder import replaced
from midthought.http.network import is_loopback, read_key
from midthought.models.gguf import model_folder

_log = logging.getLogger(__name__)
SERVERS: dict[str, type[Server]] = {"vllm": VLLMServer, "sglang": SGLangServer}
"""Kinds of model servers by backend."""
READY_SECONDS = 900.0
"""Time for a server to start."""
_MAX_PATH = 100
"""Bytes of a socket's path; Linux permits 107, macOS 103."""
_OURS = {
    "--host": "the server's address; `midthought engine serve --host` starts one without weight updates for other machines",
    "--port": "the server's address; `midthought engine serve --port`",
    "--uds": "the server's address; `midthought engine serve --uds`",
    "--api-key": "a key on the command line is visible to all users; `midthought engine serve --api-key-env` for SGLang",
    "--admin-api-key": "a key on the command line is visible to all users",
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
    url: str


def plan_launch(
    kind: type[Server], model_path: str | Path, options: ServerOptions, *, python: str | None = None
) -> Launch:
    """Returns the start command. `python`: the interpreter that has the server's package; this one by default.

    Raises `MissingExtraError` if the package is not installed, `SettingsError` if the server would accept weights from the
    network, if it has no sockets or its key does not protect them, or if `options.flags` would change its address, its key or
    whose code it runs.
    """
    _require_harmless(options.flags)
    if options.uds and not kind.has_socket:
        raise SettingsError(f"{kind.name} does not listen on Unix sockets; protect it with a key (--api-key-env)")
    if options.key_file and kind.has_socket:
        raise SettingsError(
            f"the key of {kind.name} does not protect the routes that change its weights; use a Unix socket (--uds)"
        )
    if options.accepts_updates and not is_loopback(options.host):
        raise SettingsError(
            f"host={options.host!r}: anyone who reaches a server that accepts weights or adapters can replace its model; bind "
            "it to 127.0.0.1 and use a tunnel from other machines (ssh -L), or start it with --no-weights"
        )
    if not options.uds:
        options = dataclasses.replace(options, port=options.port or free_port())
    words, environment = kind.command(str(folder := model_folder(model_path)), options)
    if Path(folder).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    url = f"unix:{options.uds}" if options.uds else f"http://127.0.0.1:{options.port}"
    if python is None and importlib.util.find_spec(kind.name) is None:
        remedy = (
            "a server that is started here needs it. Set base_url='http://HOST:PORT' of a running server (that needs only "
            f"pip install 'midthought[{kind.name}]'), install {kind.name}, or set server_python to an interpreter that has it"
        )
        raise MissingExtraError(kind.name, kind.name, remedy)
    return Launch([python or sys.executable, *words, *options.flags], environment, url)


def require_own_server(flags: Sequence[str], base_url: str | Sequence[str] | None, section: str = "") -> None:
    """Raises `SettingsError` if there are flags for a server that is started here, and a running server is used instead."""
    if flags and base_url:
        raise SettingsError(
            f"{section}server_flags={list(flags)!r} with {section}base_url={base_url!r}: the flags are for a server that is "
            f"started here; start the running one with them and leave {section}server_flags empty, or leave base_url empty"
        )


def start_server(
    kind: type[Server], model_path: str | Path, options: ServerOptions, *, python: str | None = None
) -> ServerProcess:
    """Starts a server on this machine that only this user can reach, and waits until it is ready.

    It listens on a Unix socket in a folder with mode 0700, or, if it has no sockets, on a free port and with a random key. With
    `options.port` it listens on that port and without a key.

    Raises what `plan_launch` raises, and `EngineError` with the end of the server's log if it does not become ready.
    """
    require_installed(kind.name, "httpx")
    key = ""
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="midthought-server-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        if not options.port and kind.has_socket:
            options = dataclasses.replace(options, uds=str(private_socket(folder / "http.sock")))
        elif not options.port:
            key = secrets.token_hex(32)  # it does not begin with `-`, which SGLang would take for a flag
            options = dataclasses.replace(options, key_file=str(write_key_file(folder, key)))
        launch = plan_launch(kind, model_path, options, python=python)
        server = ServerProcess(launch.words, launch.url, environment=launch.environment, key=key, folder=folder)
        undo.pop_all()
    _log.warning("%s starts, which can take minutes; its log: %s", kind.name, server.log_path)
    server.wait_until_ready(READY_SECONDS)
    return server


def _require_harmless(flags: Sequence[str]) -> None:
    """Both servers accept `_` for `-`, and the beginning of a name for the name."""
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-").lower()
        for ours, effect in _OURS.items():
            if len(name) > len("--") and name.startswith("--") and ours.startswith(name):
                raise SettingsError(f"server_flags: {flag!r} is not allowed ({ours}: {effect})")


def private_socket(path: Path) -> Path:
    """Returns the absolute path for a new socket that only this user reaches. Makes its folder with mode 0700 if there is none.

    Removes a socket at this path on which nobody listens. Raises `SettingsError` if a server listens there, if others may enter
    the folder, or if the path is too long for a socket.
    """
    path = path.absolute()
    if len(os.fsencode(path)) > _MAX_PATH:
        raise SettingsError(
            f"{path} is too long for a Unix socket: at most {_MAX_PATH} bytes; set TMPDIR, or the path, to a shorter one"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & 0o077:  # the group and all other users
        raise SettingsError(
            f"other users may enter {path.parent}, the folder of the server's socket: chmod 700 it, or name another folder"
        )
    if path.is_socket():
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            if connection.connect_ex(str(path)) == 0:
                raise SettingsError(f"a server listens at {path} already; stop it, or name another path")
        path.unlink()
    elif path.exists():
        raise SettingsError(f"{path} exists and is no socket; name another path")
    return path


def write_key_file(folder: Path, key: str) -> Path:
    """Writes the configuration file that gives SGLang its key; others cannot read it, unlike a command line."""
    path = folder / "key.yaml"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"api-key": key}, file)  # YAML contains JSON
    return path


def serve(
    model: str,
    backend: str,
    options: ServerOptions,
    *,
    api_key_env: str | None = None,
    untie_into: Path | None = None,
    python: str | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = print,
) -> int:
    """Implements `midthought engine serve`: prints the command, runs it in the foreground, and returns its exit code.

    `dry_run`: only prints it and returns 0.

    If the server accepts weights and the model's embeddings are tied, the server starts on an untied copy of the model, because
    some servers reload tied embeddings incompletely. The copy is written if there is none, or if a file of the model is newer.

    `api_key_env`: environment variable with the key that requests must have, for servers whose key protects all routes.

    Raises `SettingsError` for an unknown backend or a server that would accept weights from the network, `ModelPathError` if
    the model does not exist, `MissingExtraError` (see `plan_launch`), `EngineError` if `python` cannot be run.
    """
    if backend not in SERVERS:
        raise SettingsError(f"no servers of {backend!r}. {near_names(backend, SERVERS)}")
    kind = SERVERS[backend]
    options = dataclasses.replace(options, served_model_name=options.served_model_name or model)
    model = str(model_folder(model))
    path = _untied_copy(model, untie_into, tell, only_named=dry_run) if options.accepts_weights else model
    if options.uds:
        uds = Path(options.uds).absolute() if dry_run else private_socket(Path(options.uds))
        options = dataclasses.replace(options, uds=str(uds))
    elif options.accepts_updates and not api_key_env:
        protection = "--uds SOCKET" if kind.has_socket else "--api-key-env NAME"
        tell(f"# every user of this machine can replace the model; to prevent that, add {protection}")
    with tempfile.TemporaryDirectory(prefix="midthought-server-") as folder:  # with mode 0700
        if api_key_env:
            key_file = write_key_file(Path(folder), read_key(api_key_env))
            options = dataclasses.replace(options, key_file=str(key_file))
        launch = plan_launch(kind, path, options, python=python)
        set_here = {name: value for name, value in launch.environment.items() if name not in os.environ}
        assignments = [f"{name}={shlex.quote(value)}" for name, value in set_here.items()]
        tell(" ".join([*assignments, shlex.join(launch.words)]))
        return 0 if dry_run else run_in_foreground(launch.words, {**os.environ, **set_here})


def _untied_copy(model: str, untie_into: Path | None, tell: Callable[[str], None], *, only_named: bool) -> str:
    """Returns the folder to start on: the model itself, or its untied copy."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        from midthought.models.pretrained import why_not_loaded

        raise ModelPathError(f"model {model!r} does not exist or does not load: {why_not_loaded(error)}") from None
    if not config.get_text_config().tie_word_embeddings:
        return model
    folder = Path(model)
    beside = folder.with_name(f"{folder.name}-untied") if folder.is_dir() else Path(f"{folder.name}-untied")
    target = untie_into or beside
    if not only_named and not _is_current(target / "config.json", folder):
        from midthought.engines.weight_publication import write_model
        from midthought.models.pretrained import load_model, load_tokenizer

        tell(f"# {model} has tied embeddings: writing an untied copy to {target}")
        with replaced(target, "model") as new:
            write_model(load_model(model, "auto"), new, load_tokenizer(model))
    return str(target)


def _is_current(copied: Path, model: Path) -> bool:
    """Whether the untied copy with this file is there, and no file in the model's folder is newer."""
    entries = model.iterdir() if model.is_dir() else ()  # what the hub has under one name rarely changes
    files = [entry for entry in entries if entry.is_file()]  # no folders: the copy may be one of them
    return copied.is_file() and all(file.stat().st_mtime_ns <= copied.stat().st_mtime_ns for file in files)
