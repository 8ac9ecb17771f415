"""Implements `midthought engine serve`: runs a model server with the flags that our engines need, in the foreground."""

from __future__ import annotations

import dataclasses
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from midthought.engines.servers.launch import plan_launch, private_socket, write_key_file
from midthought.engines.servers.process import run_in_foreground
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.training import SERVER_ENGINES
from midthought.errors import ModelPathError, SettingsError, near_names
from midthought.files.output_folder import replaced
from midthought.http.network import read_key
from midthought.models.gguf import model_folder

_PROTECTION = {"vllm": "--uds SOCKET", "sglang": "--api-key-env NAME"}


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
    """Prints the command, runs it until it ends, and returns its exit code. `dry_run`: only prints it and returns 0.

    If the server accepts weights and the model's embeddings are tied, the server starts on an untied copy of the model, because
    some servers reload tied embeddings incompletely. The copy is written if it does not exist yet.

    `api_key_env`: environment variable with the key that requests must have, for servers whose key protects all routes.

    Raises `SettingsError` for an unknown backend or a server that would accept weights from the network, `ModelPathError` if
    the model does not exist, `NoServerPackageError` (see `plan_launch`), `EngineError` if `python` cannot be run.
    """
    if backend not in SERVER_ENGINES:
        raise SettingsError(f"no servers of {backend!r}. {near_names(backend, SERVER_ENGINES)}")
    options = dataclasses.replace(options, served_model_name=options.served_model_name or model)
    model = str(model_folder(model))
    path = _untied_copy(model, untie_into, tell, only_named=dry_run) if options.accepts_weights else model
    if options.uds:
        uds = Path(options.uds).absolute() if dry_run else private_socket(Path(options.uds))
        options = dataclasses.replace(options, uds=str(uds))
    elif options.accepts_updates and not api_key_env:
        tell(f"# every user of this machine can replace the model; to prevent that, add {_PROTECTION[backend]}")
    with tempfile.TemporaryDirectory(prefix="midthought-server-") as folder:  # with mode 0700
        if api_key_env:
            key_file = write_key_file(Path(folder), read_key(api_key_env))
            options = dataclasses.replace(options, key_file=str(key_file))
        launch = plan_launch(SERVER_ENGINES[backend].server_class, path, options, python=python)
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
    if not (target / "config.json").is_file() and not only_named:
        from midthought.engines.weight_sync.weight_folder import write_model
        from midthought.models.pretrained import load_model, load_tokenizer

        tell(f"# {model} has tied embeddings: writing an untied copy to {target}")
        with replaced(target, "model") as new:
            write_model(load_model(model, "auto"), new, load_tokenizer(model))
    return str(target)
