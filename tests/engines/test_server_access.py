"""Servers that we start answer this user only: through a Unix socket in a private folder, or with a random key."""

import gc
import json
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_server import FakeServer
from server_engines import PROMPT, engine_for, interpreter, planned, sample, sample_together, written

from midthought.engines.servers.launch import SERVERS, private_socket, start_server
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.server import ServerOptions
from midthought.errors import EngineError, SettingsError
from midthought.http.network import is_local, socket_path

httpx = pytest.importorskip("httpx")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose paths are short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


MODEL = ("some/model", "--lora-rank", 8)


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


def test_engine_serve_protects_a_server_by_a_socket_or_a_key(monkeypatch, tmp_path):
    monkeypatch.setenv("OUR_KEY", "open-sesame-0123456789")
    assert f"--uds {tmp_path}/s.sock" in planned(*MODEL, "--uds", tmp_path / "s.sock")
    output = planned(*MODEL, "--backend", "sglang", "--api-key-env", "OUR_KEY")
    assert "--config" in output and "open-sesame" not in output
    assert "every user of this machine can replace the model; to prevent that, add --uds SOCKET" in planned(*MODEL)
    assert "add --api-key-env NAME" in planned(*MODEL, "--backend", "sglang")
    with pytest.raises(SettingsError, match=r"sglang does not listen on Unix sockets.*--api-key-env"):
        planned(*MODEL, "--backend", "sglang", "--uds", "s.sock")
    with pytest.raises(SettingsError, match=r"the key of vllm does not protect the routes.*--uds"):
        planned(*MODEL, "--api-key-env", "OUR_KEY")
