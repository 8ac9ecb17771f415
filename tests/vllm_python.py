"""The interpreter of an environment that has vLLM, which tests with a real vLLM need, and a server of it with a small model."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess, free_port
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import VLLMServer
from midthought.models.pretrained import save_model
from midthought.models.small_model import make_policy, make_tokenizer

PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON", "")
WHY_NOT = "MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment that has vLLM"
needs_vllm = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason=WHY_NOT)]


@contextlib.contextmanager
def served_small_model(
    folder: Path, name: str, corpus: list[str], flags: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """A server on the CPU of a random model, whose tokenizer is made of the corpus and is in `folder/model`."""
    tokenizer = make_tokenizer(corpus, 400)
    policy = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=8192, seed=0)
    save_model(policy, tokenizer, folder / "model")
    options = ServerOptions(
        served_model_name=name, port=free_port(), dtype="float32", max_seq_len=8192, max_num_seqs=8, flags=list(flags)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
        server = start_server(VLLMServer, folder / "model", options, python=PYTHON)
    try:
        yield server
    finally:
        server.stop()
