"""Servers that we start answer this user only: through a Unix socket in a private folder, or with a random key; they end with us.
The command `midthought engine serve`: what it would run, and what it refuses."""

import asyncio
import gc
import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_server import FakeServer
from server_engines import PROMPT, engine_for, interpreter, is_alive, sample, sample_together, until, written
from test_weight_sync import make_model
from transformers import Qwen3Config
from typer.testing import CliRunner

from midthought.cli import app
from midthought.engines.engine import Sampling
from midthought.engines.servers.launch import SERVERS, plan_launch, private_socket, start_server
from midthought.engines.servers.process import ServerProcess, free_port, run_in_foreground
from midthought.engines.servers.server import ServerOptions
from midthought.errors import EngineError, ModelPathError, OutputPathError, SettingsError
from midthought.http.network import is_local, socket_path
from midthought.models.pretrained import load_model, save_model

httpx = pytest.importorskip("httpx")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose paths are short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def started(kind: str, folder: Path, python: str = "") -> ServerProcess:
    options = ServerOptions(served_model_name="tiny", accepts_weights=True)
    return start_server(SERVERS[kind], "tiny", options, python=python or interpreter(folder))


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_vllm_that_we_start_listens_on_a_socket_in_a_private_folder_while_somebody_holds_it(is_stopped, tmp_path):
    server = started("vllm", tmp_path)
    path = socket_path(server.url)
    assert path is not None and path.is_socket() and permissions(path.parent) == 0o700
    words = server.log_path.read_text().split()
    assert words[words.index("--uds") + 1] == str(path)
    assert "--host" not in words and "--port" not in words
    assert is_local(server.url)
    assert list(sample(engine_for(server.url), 4).token_ids) == written(4)
    if is_stopped:
        server.stop()
    del server
    gc.collect()
    assert not path.parent.exists()


def test_an_sglang_that_we_start_answers_only_requests_with_its_random_key(tmp_path):
    server, other = started("sglang", tmp_path), started("sglang", tmp_path)
    try:
        assert len(server.key) >= 32 and server.key != other.key
        words = server.log_path.read_text().partition("its key is")[0].split()
        key_file = Path(words[words.index("--config") + 1])
        assert server.key not in " ".join(words)  # every user of the machine can read command lines
        assert permissions(key_file) == 0o600 and permissions(key_file.parent) == 0o700
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert permissions(server.log_path) == 0o600  # the server may print its settings
        refused = httpx.post(
            f"{server.url}/update_weights_from_disk", json={"model_path": "/tmp/evil"}, trust_env=False
        )
        assert refused.status_code == 401
        with pytest.raises(EngineError, match="401"):
            sample(engine_for(server.url, kind="sglang"))
        ours = engine_for(server.url, kind="sglang", limits={"process": server})
        assert list(sample(ours, 4).token_ids) == written(4)
    finally:
        server.stop()
        other.stop()
    assert not key_file.parent.exists()


def test_a_server_that_prints_its_key_and_ends_does_not_show_it_in_the_error(tmp_path):
    python = interpreter(tmp_path, 'while [ "$1" != --config ]; do shift; done\ncat "$2"\nexit 3')
    with pytest.raises(EngineError, match=r'ended with code 3.*"api-key": "…"') as error:
        started("sglang", tmp_path, python)
    log_path = Path(str(error.value).partition("its log ")[2].split()[0])
    key = json.loads(log_path.read_text())["api-key"]
    log_path.unlink()
    assert len(key) >= 32 and key not in str(error.value)


def test_a_socket_is_an_address_like_any_other(short_folder):
    with FakeServer(uds=str(short_folder / "a.sock")) as first, FakeServer() as second:
        assert first.url == f"unix:{short_folder}/a.sock"
        engine = engine_for(first, second)
        engine.check()
        completions = sample_together(engine, dict.fromkeys(range(4), PROMPT))
        assert [list(completion.token_ids) for completion in completions] == [written(4)] * 4
        assert first.requests and second.requests
    with pytest.raises(EngineError, match=r"gone\.sock: ConnectError"):
        engine_for(f"unix:{short_folder}/gone.sock").check()


def test_a_socket_where_others_could_reach_it_is_refused(short_folder):
    assert private_socket(short_folder / "new" / "s.sock") == short_folder / "new" / "s.sock"
    assert permissions(short_folder / "new") == 0o700
    (short_folder / "open").mkdir()
    (short_folder / "open").chmod(0o711)
    with pytest.raises(SettingsError, match=r"other users may enter .*open.*chmod 700"):
        private_socket(short_folder / "open" / "s.sock")
    with pytest.raises(SettingsError, match="too long for a Unix socket"):
        private_socket(short_folder / ("x" * 100))
    (short_folder / "file").write_text("precious")
    with pytest.raises(SettingsError, match="is no socket"):
        private_socket(short_folder / "file")


def test_a_socket_that_a_dead_server_left_is_replaced_and_that_of_a_living_one_is_not(short_folder):
    path = short_folder / "s.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(SettingsError, match="a server listens at"):
            private_socket(path)
    assert path.exists()
    private_socket(path)
    assert not path.exists()


# -- a server of our own -------------------------------------------------------------------------------------------


def own_server(folder: Path) -> ServerProcess:
    """A fake server whose log says the numbers of a child and of itself."""
    python = interpreter(folder, 'sleep 600 & echo "child $! server $$"; exec "{python}" "{server}" "$@"')
    port = free_port()
    words = [python, "-m", "vllm", "--port", str(port), "--served-model-name", "tiny"]
    server = ServerProcess(words, f"http://127.0.0.1:{port}")
    server.wait_until_ready(120)
    return server


def test_a_server_of_our_own_is_waited_for_and_ends_with_all_its_children(tmp_path):
    server = own_server(tmp_path)
    child = int(server.log_path.read_text().split()[1])
    assert server.is_running and is_alive(child) and server.exit_reason() is None
    server.stop()
    server.stop()
    asyncio.run(until(lambda: not is_alive(child)))
    assert not server.is_running and server.exit_reason() == "the server that was started here was stopped"
    assert not server.log_path.exists()


def test_a_server_that_ends_or_takes_too_long_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    cry = "import sys, time; print('no such\\nmodel: tiny', file=sys.stderr, flush=True); "
    early = ServerProcess([sys.executable, "-c", cry + "sys.exit(3)"], f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EngineError, match=r"code 3 before.*no such \| model: tiny"):
        early.wait_until_ready(120)
    late = ServerProcess([sys.executable, "-c", cry + "time.sleep(600)"], f"http://127.0.0.1:{free_port()}")
    asyncio.run(until(lambda: "tiny" in late.log_path.read_text()))
    with pytest.raises(EngineError, match=r"not ready after 0.2 s.*model: tiny"):
        late.wait_until_ready(0.2)
    assert not late.is_running
    for server in (early, late):
        server.log_path.unlink()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EngineError, match="no-such-program"):
        ServerProcess(["no-such-program"], f"http://127.0.0.1:{free_port()}")
    assert not list(tmp_path.iterdir()), "no log is left"


def test_samples_of_a_server_of_our_own_that_ended_fail_at_once_with_its_last_words(tmp_path):
    server = own_server(tmp_path)
    patience = {"pause_seconds": 60, "max_pause_seconds": 60, "max_attempts": 1000}
    engine = engine_for(server.url, limits={"process": server}, **patience)
    os.kill(int(server.log_path.read_text().split()[3]), signal.SIGTERM)
    asyncio.run(until(lambda: not server.is_running))
    with pytest.raises(EngineError, match=r"episode 1: the server that was started here ended with code.*child \d+"):
        asyncio.run(asyncio.wait_for(engine.sample(1, [5, 6], Sampling(max_tokens=4)), 30))
    server.stop()
    assert server.log_path.exists()


def test_a_server_that_does_not_heed_the_first_signal_is_killed(monkeypatch):
    monkeypatch.setattr("midthought.engines.servers.process.TERMINATE_SECONDS", 0.2)
    stubborn = 'trap "" TERM; echo deaf; sleep 600'
    server = ServerProcess(["sh", "-c", stubborn], "http://127.0.0.1:1")
    asyncio.run(until(lambda: "deaf" in server.log_path.read_text()))
    server.stop()
    assert not server.is_running
    assert not server.log_path.exists()


# -- a server that we start ends with us, also where we are killed and can end nothing ourselves -------------------

STARTERS = {
    "ServerProcess": (
        "import time; from midthought.engines.servers.process import ServerProcess\n"
        "server = ServerProcess(['sh', '-c', {server!r}], 'http://127.0.0.1:1')\n"
        "time.sleep(600)\n"
    ),
    "serve": (
        "import os, sys; from midthought.engines.servers.process import run_in_foreground\n"
        "sys.exit(run_in_foreground(['sh', '-c', {server!r}], dict(os.environ)))\n"
    ),
}


def started_by(starter: str, server: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that starts this shell script as a server."""
    return subprocess.Popen([sys.executable, "-c", STARTERS[starter].format(server=server)], cwd=folder)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("", id="heeds"),
        pytest.param('trap "" TERM; ', id="deaf", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("starter", STARTERS)
def test_a_server_and_its_workers_end_when_the_run_is_killed(starter, first, tmp_path):
    server = 'sleep 600 & echo "$$ $!" > pids.part; mv pids.part pids; wait'
    run = started_by(starter, first + server, tmp_path)
    try:
        asyncio.run(until((tmp_path / "pids").exists))
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(is_alive, pids))
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    asyncio.run(until(lambda: not any(map(is_alive, pids)), seconds=5.0 + (5.0 if first else 0.0)))


def test_signals_are_handed_on_and_the_exit_code_is_the_servers(tmp_path):
    process = started_by("serve", "trap 'kill $!; exit 5' TERM; sleep 600 & touch ready; wait", tmp_path)
    asyncio.run(until((tmp_path / "ready").exists))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5
    assert run_in_foreground(["sh", "-c", "kill -9 $$"], dict(os.environ)) == 137


# -- the command -------------------------------------------------------------------------------------------------------


def planned(*words: Any) -> str:
    """What `midthought engine serve --dry-run` prints. Raises what it raises."""
    result = CliRunner().invoke(app, ["engine", "serve", "--python", "py", "--dry-run", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


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


def test_engine_serve_protects_a_server_by_a_socket_or_a_key(monkeypatch, tmp_path):
    adapted = ("some/model", "--lora-rank", 8)
    monkeypatch.setenv("OUR_KEY", "open-sesame-0123456789")
    assert f"--uds {tmp_path}/s.sock" in planned(*adapted, "--uds", tmp_path / "s.sock")
    output = planned(*adapted, "--backend", "sglang", "--api-key-env", "OUR_KEY")
    assert "--config" in output and "open-sesame" not in output
    assert "every user of this machine can replace the model; to prevent that, add --uds SOCKET" in planned(*adapted)
    assert "add --api-key-env NAME" in planned(*adapted, "--backend", "sglang")
    with pytest.raises(SettingsError, match=r"sglang does not listen on Unix sockets.*--api-key-env"):
        planned(*adapted, "--backend", "sglang", "--uds", "s.sock")
    with pytest.raises(SettingsError, match=r"the key of vllm does not protect the routes.*--uds"):
        planned(*adapted, "--api-key-env", "OUR_KEY")
