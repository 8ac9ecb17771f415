"""What vLLM needs before it runs in this process: that it is installed, arguments that it knows, variables for its processes."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

from midthought.errors import EngineError, MissingExtraError, SettingsError

SETTLED = {
    **dict.fromkeys(("model", "tokenizer", "dtype", "max_num_seqs"), "it is an argument of the engine itself"),
    "max_model_len": "max_seq_len of the engine is it",
    "logprobs_mode": "what is recorded is the distribution that was sampled from",
    "load_format": "models are loaded from safetensors only",
    "trust_remote_code": "code that comes with a model is never run",
    "skip_tokenizer_init": "the engine is given token ids",
    "generation_config": "every request says how it is sampled",
}
"""Arguments of vLLM that the engine gives itself, and why."""


class VLLMNotInstalledError(MissingExtraError):
    """The package that would run in this process is not installed in its environment."""

    def __init__(self) -> None:
        super(MissingExtraError, self).__init__(
            "vllm is not installed in this environment, so it cannot run in_process. Install it here (pip install vllm), "
            "or leave in_process out: then server_python may name the interpreter of an environment that has it, or base_url "
            "a server that runs"
        )


def import_vllm() -> tuple[Any, Any]:
    """vLLM's `AsyncEngineArgs` and `AsyncLLM`."""
    if importlib.util.find_spec("vllm") is None:
        raise VLLMNotInstalledError
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise EngineError(f"the vllm that is installed here cannot be used: {error}; 0.32 is known to work") from error
    return AsyncEngineArgs, AsyncLLM


def checked_arguments(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, where vLLM knows them and none of them is settled here."""
    known = {field.name for field in dataclasses.fields(import_vllm()[0])} - SETTLED.keys()
    for name in engine_args:
        if name in SETTLED:
            raise SettingsError(f"engine_args: {name!r} is not for you to set: {SETTLED[name]}")
        if name not in known:
            nearest = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0))
            raise SettingsError(f"engine_args: vLLM's AsyncEngineArgs have no {name!r}; nearest: {nearest}")
    return dict(engine_args)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables where they are not set already. Afterwards all is as it was: vLLM sets some itself, for its processes."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
