"""`midthought engine serve`: the command that it would run, what it refuses, and signals handed on."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from server_engines import interpreter, planned, until
from test_weight_sync import make_model
from transformers import Qwen3Config
from typer.testing import CliRunner

from midthought.cli import app
from midthought.engines.servers.launch import SERVERS, plan_launch
from midthought.engines.servers.process import run_in_foreground
from midthought.engines.servers.server import ServerOptions
from midthought.errors import EngineError, ModelPathError, OutputPathError, SettingsError
from midthought.models.pretrained import load_model, save_model

pytest.importorskip("httpx")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    Qwen3Config(tie_word_embeddings=False).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def words_for(*words: Any) -> list[str]:
    """The words of the planned command."""
    return shlex.split(planned(*words))


def test_vllm_is_started_with_what_our_engine_needs(model):
    options = {"--port": 8123, "--dtype": "float32", "--max-seq-len": 512, "--tensor-parallel": 2}
    words = words_for(model, *(word for option in options.items() for word in option), "--", "--seed", "3")
    command = f" {' '.join(words)} "
    for part in (
        *("VLLM_SERVER_DEV_MODE=1", "HF_HUB_OFFLINE=1", "py -m vllm.entrypoints.openai.api_server"),
        *(f"--model {model}", f"--served-model-name {model}", "--host 127.0.0.1", "--port 8123", "--dtype float32"),
        *("--max-model-len 512", "--tensor-parallel-size 2", "--logprobs-mode processed_logprobs", "--seed 3"),
    ):
        assert f" {part} " in command
    assert "--enable-lora" not in command


def test_a_server_for_adapters_keeps_its_weights(model):
    words = words_for(model, "--lora-rank", 12)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in words and "VLLM_SERVER_DEV_MODE=1" not in words
    assert words[words.index("--max-lora-rank") + 1] == "16"  # vLLM knows certain ranks only
    words = words_for(model, "--backend", "sglang", "--lora-rank", 12)
    assert words[words.index("py") :][:3] == ["py", "-m", "sglang.launch_server"]
    assert words[words.index("--max-lora-rank") + 1] == "12"


def test_a_server_that_shares_a_gpu_gets_its_share():
    for backend, flag in (("vllm", "--gpu-memory-utilization"), ("sglang", "--mem-fraction-static")):
        words = SERVERS[backend].command("m", ServerOptions(port=1, gpu_memory_share=0.4))[0]
        assert words[words.index(flag) + 1] == "0.4"


def test_who_takes_weights_listens_on_this_machine_only(model):
    for more in ([], ["--lora-rank", 8]):
        with pytest.raises(SettingsError, match=r"host='0.0.0.0'.*--no-weights"):
            words_for(model, "--host", "0.0.0.0", *more)
    words = words_for(model, "--host", "0.0.0.0", "--no-weights")
    assert "VLLM_SERVER_DEV_MODE=1" not in words


FORBIDDEN_FLAGS = (
    "--host 0.0.0.0", "--host=0.0.0.0", "--HOST=::", "--hos 0.0.0.0", "--seed 1 --port 80", "--uds /tmp/socket",
    "--api-key secret", "--api_key=secret", "--config mine.yaml", "--trust-remote-code", "--trust_remote_code",
    "--middleware evil.module",
)  # fmt: skip


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_flags_cannot_change_the_address_the_key_or_whose_code_runs(backend):
    kind = SERVERS[backend]
    for flags in FORBIDDEN_FLAGS:
        with pytest.raises(SettingsError, match=r"server_flags: '--.* is not allowed"):
            plan_launch(kind, "some/model", ServerOptions(flags=flags.split()), python=sys.executable)
    launch = plan_launch(kind, "some/model", ServerOptions(flags=["--seed", "1", "-tp=2"]), python=sys.executable)
    assert launch.words[-3:] == ["--seed", "1", "-tp=2"]
    assert launch.words[launch.words.index("--host") + 1] == "127.0.0.1"


def test_a_tied_model_is_started_from_a_copy_without_the_tie(renderer, tmp_path):
    save_model(make_model(tied=True), renderer.tokenizer, tmp_path / "model")
    copy = tmp_path / "model-untied"
    words = words_for(tmp_path / "model")
    assert words[words.index("--model") + 1] == str(copy)
    assert words[words.index("--served-model-name") + 1] == str(tmp_path / "model")
    assert not copy.exists()  # a dry run writes nothing
    words = ["engine", "serve", str(tmp_path / "model"), "--python", interpreter(tmp_path, "exit 7")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 7
    assert json.loads((copy / "config.json").read_text())["tie_word_embeddings"] is False
    load_model(copy)
    save_model(trained := make_model(tied=True, seed=2), renderer.tokenizer, tmp_path / "model")
    CliRunner().invoke(app, words)
    assert torch.equal(load_model(copy).lm_head.weight, trained.lm_head.weight), "of a model that was trained on"
    (tmp_path / "model/lock").symlink_to("gone")
    for target in (copy, tmp_path / "model/inside"):
        into = [*words, "--untie-into", str(target)]
        CliRunner().invoke(app, into)
        written_at = (target / "config.json").stat().st_mtime_ns
        assert CliRunner().invoke(app, into).exit_code == 7
        assert (target / "config.json").stat().st_mtime_ns == written_at, "once"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years")
    mine = CliRunner().invoke(app, [*words[:3], "--untie-into", str(tmp_path / "mine"), *words[3:]])
    assert isinstance(mine.exception, OutputPathError)
    words = words_for(tmp_path / "model", "--no-weights")
    assert words[words.index("--model") + 1] == str(tmp_path / "model")


def test_what_is_not_there_is_named():
    with pytest.raises(ModelPathError, match="/nowhere/model"):
        words_for("/nowhere/model")
    with pytest.raises(EngineError, match="no-such-program"):
        run_in_foreground(["no-such-program"], {})
    with pytest.raises(SettingsError, match=r"no servers of 'vlm'.*'vllm'"):
        words_for("model", "--backend", "vlm")


def test_signals_are_handed_on_and_the_exit_code_is_the_servers(tmp_path):
    server = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "time.sleep(600)\n"
    )
    ours = (
        "import os, sys; from midthought.engines.servers.process import run_in_foreground; "
        f"sys.exit(run_in_foreground([sys.executable, '-c', {server!r}], dict(os.environ)))"
    )
    process = subprocess.Popen([sys.executable, "-c", ours])
    asyncio.run(until((tmp_path / "ready").exists))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5
    assert run_in_foreground(["sh", "-c", "kill -9 $$"], dict(os.environ)) == 137
