"""Prepares vLLM in this process: import, checks of its arguments, environment variables."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from midthought.errors import EngineError, MissingExtraError, SettingsError

FIXED_ARGUMENTS = {
    **dict.fromkeys(("model", "tokenizer", "dtype", "max_num_seqs"), "it is an argument of the engine"),
    "max_model_len": "use the engine's max_seq_len",
    "logprobs_mode": "log-probabilities always refer to the sampling distribution",
    "load_format": "models are loaded from safetensors only",
    "trust_remote_code": "code from model folders is never run",
    "worker_extension_cls": "it receives the weights of a policy in training",
    "skip_tokenizer_init": "the engine uses token ids only",
    "generation_config": "each request sets its own sampling options",
}
"""Arguments of vLLM that the engine sets itself, with the reason."""


def import_vllm() -> tuple[Any, Any]:
    """Returns vLLM's `AsyncEngineArgs` and `AsyncLLM`."""
    if importlib.util.find_spec("vllm") is None:
        remedy = (
            "in_process needs it in this environment. Install it here (pip install vllm), or use a server instead of "
            "in_process: set server_python to an interpreter that has it, or base_url to a running server"
        )
        raise MissingExtraError("vllm", "vllm", remedy)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise EngineError(f"the installed vllm cannot be used: {error}; version 0.32 is known to work") from error
    return AsyncEngineArgs, AsyncLLM


def checked_arguments(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments. Raises `SettingsError` if one is unknown to vLLM or fixed by the engine."""
    known = {field.name for field in dataclasses.fields(import_vllm()[0])} - FIXED_ARGUMENTS.keys()
    for name in engine_args:
        if name in FIXED_ARGUMENTS:
            raise SettingsError(f"engine_args: {name!r} cannot be set: {FIXED_ARGUMENTS[name]}")
        if name not in known:
            nearest = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0))
            raise SettingsError(f"engine_args: vLLM's AsyncEngineArgs have no {name!r}; nearest: {nearest}")
    return dict(engine_args)


@contextlib.contextmanager
def hidden_script() -> Iterator[None]:
    """Context in which spawned processes do not import this process's script, as after a start in a notebook.

    vLLM's processes do not need it. So a script may create an engine without `if __name__ == "__main__":`.
    """
    script = sys.modules["__main__"]
    kept = {name: getattr(script, name) for name in ("__file__", "__spec__") if hasattr(script, name)}
    script.__spec__ = None
    if "__file__" in kept:
        del script.__file__
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(script, name, value)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that are not set already. Restores the environment afterwards, because vLLM sets some itself."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
