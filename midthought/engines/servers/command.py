"""What `midthought engine serve` does: a model server with the flags that our engines need, in the foreground.

Knows commands, signals and model folders; nothing of the command line's words.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from midthought.engines.servers.dialect import ServerOptions
from midthought.engines.servers.launch import plan_launch
from midthought.engines.servers.process import start_guarded
from midthought.engines.servers.training import SERVER_ENGINES
from midthought.errors import ModelPathError, SettingsError, near_names


def serve(
    model: str,
    backend: str,
    options: ServerOptions,
    *,
    untie_into: Path | None = None,
    python: str | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = print,
) -> int:
    """Tell the command, run it until it ends, and give its exit code; with `dry_run` tell it only, and 0.

    A server that takes weights is started on a copy of a model whose embeddings are tied, without the tie: not every
    server reloads tied ones whole. The copy is made where it is not there yet.

    Raises SettingsError for an unknown backend, or a server that would take weights from the network; ModelPathError for
    a model that is not there; NoServerPackageError (see `plan_launch`); EngineError where `python` cannot be run.
    """
    if backend not in SERVER_ENGINES:
        raise SettingsError(f"no servers of {backend!r}. {near_names(backend, SERVER_ENGINES)}")
    options = dataclasses.replace(options, served_model_name=options.served_model_name or model)
    path = _untied(model, untie_into, tell, only_named=dry_run) if options.takes_weights else model
    launch = plan_launch(SERVER_ENGINES[backend].dialect, path, options, python=python)
    set_here = {name: value for name, value in launch.environment.items() if name not in os.environ}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in set_here.items()]
    tell(" ".join([*assignments, shlex.join(launch.words)]))
    return 0 if dry_run else run_in_foreground(launch.words, {**os.environ, **set_here})


def run_in_foreground(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command until it ends and hand SIGINT, SIGTERM and SIGHUP on to it, once each; its exit code."""
    process = start_guarded(words, env=dict(environment))

    def hand_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, hand_on) for number in numbers]
    try:
        code = process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _untied(model: str, untie_into: Path | None, tell: Callable[[str], None], *, only_named: bool) -> str:
    """The folder to start on: the model itself, or its copy without the tie."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelPathError(f"model {model!r} is not there or does not load: {str(error)[:200]}") from None
    if not config.get_text_config().tie_word_embeddings:
        return model
    folder = Path(model)
    beside = folder.with_name(f"{folder.name}-untied") if folder.is_dir() else Path(f"{folder.name}-untied")
    target = untie_into or beside
    if not (target / "config.json").is_file() and not only_named:
        from midthought.engines.servers.weight_folder import write_model
        from midthought.pretrained import load_model, load_tokenizer

        tell(f"# {model} has tied embeddings: writing a copy without the tie to {target}")
        write_model(load_model(model, "auto"), target, load_tokenizer(model))
    return str(target)
