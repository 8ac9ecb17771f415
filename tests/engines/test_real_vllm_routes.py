"""Messages and flags for vLLM's weight transfer, held against vLLM's own routes, classes and parser, without a model."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_weights import GlooGroup
from test_weight_sync import learn, make_model

from midthought.engines.servers.connection import Connection, RetryPolicy
from midthought.engines.servers.process import ServerProcess, free_port
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import VLLMServer
from midthought.engines.servers.vllm_weights import WeightSender
from midthought.models.peft_folders import merged_tensors

pytest.importorskip("httpx")
PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment that has vLLM"
    ),
]


def test_vllm_itself_receives_every_tensor_of_two_updates(monkeypatch):
    sender = WeightSender(GlooGroup)
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parents[1]}")
    policy = make_model(tied=True)
    options = ServerOptions(port=free_port(), accepts_weights=True, receives_tensors=True)
    _, environment = VLLMServer.command("m", options)
    command = [PYTHON, str(here / "vllm_routes.py"), "--port", str(options.port)]
    server = ServerProcess(
        command, f"http://127.0.0.1:{options.port}", environment={**environment, "OMP_NUM_THREADS": "1"}
    )

    async def update(*, is_new: bool) -> dict[str, Any]:
        routes = Connection(server.url, RetryPolicy())
        assert await sender.refusal(routes) is None
        await sender.send(routes, functools.partial(merged_tensors, policy), is_new=is_new)
        return await routes.get("/received") or {}

    try:
        server.wait_until_ready(120)
        for is_new in (True, False):
            learn(policy)
            received = asyncio.run(update(is_new=is_new))
            expected = {key: tensor.double().sum().item() for key, tensor in merged_tensors(policy)}
            assert received["sums"] == pytest.approx(expected)
            assert "lm_head.weight" in received["sums"]
        assert received["calls"] == ["shutdown", "init", *["start", "update", "finish"] * 2]
    finally:
        server.stop()


PARSE = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
said = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
found = AsyncEngineArgs.from_cli_args(said)
print("found", found.weight_transfer_config.backend, found.gpu_memory_utilization)
"""


def test_vllm_itself_takes_the_flags_of_a_server_that_receives_tensors():
    options = ServerOptions(port=1, accepts_weights=True, receives_tensors=True, gpu_memory_share=0.4)
    words, _ = VLLMServer.command("m", options)
    command = [PYTHON, "-c", PARSE, *words[words.index("--model") :]]
    parsed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "found nccl 0.4" in parsed.stdout, parsed.stderr[-2000:]
