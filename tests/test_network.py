"""Keys go to this machine, over https, or to hosts that the user has named."""

import contextlib
import os

import pytest

from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.vllm import VLLMServer
from midthought.env.judge import Judge
from midthought.errors import McpServerError, SettingsError
from midthought.feedback.commands import check_feedback
from midthought.feedback.settings import FeedbackSettings
from midthought.http.network import PLAIN_HTTP_HOSTS, read_key
from midthought.memory.remote import RemoteMemory
from midthought.tools.mcp import mcp_tools

PLAIN = "http://node7.example:8000"
USERS = {
    "engine": lambda: ServerEngine(VLLMServer, PLAIN, "tiny", eos_token_ids=[], api_key_env="OUR_KEY"),
    "memory": lambda: RemoteMemory(PLAIN, token_env="OUR_KEY"),
    "judge": lambda: Judge(model="m", base_url=f"{PLAIN}/v1", api_key_env="OUR_KEY"),
    "mcp": lambda: mcp_tools(
        url=f"{PLAIN}/mcp", headers={"Authorization": f"Bearer {os.environ['OUR_KEY']}"}, start_seconds=0.1
    ),
    "feedback": lambda: check_feedback(FeedbackSettings(servers=[PLAIN], model="m", api_key_env="OUR_KEY")),
}
"""What sends a key, each made with a server on another machine."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OUR_KEY", "open-sesame-0123456789")
    monkeypatch.delenv(PLAIN_HTTP_HOSTS, raising=False)
    return os.environ["OUR_KEY"]


@pytest.mark.parametrize(
    "url", ["https://node7.example", "http://localhost:8000", "http://127.0.0.1:1", "http://[::1]:8000/v1"]
)
def test_a_key_is_read_for_this_machine_and_for_https(url: str, key: str) -> None:
    assert read_key("OUR_KEY", url) == key
    assert read_key(None, PLAIN) == read_key("", PLAIN) == ""


def test_a_key_does_not_go_unencrypted_to_another_machine(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with pytest.raises(SettingsError, match=f"unencrypted to node7.example.*{PLAIN_HTTP_HOSTS}=node7.example") as error:
        read_key("OUR_KEY", "http://localhost", PLAIN)
    assert key not in str(error.value)
    monkeypatch.setenv(PLAIN_HTTP_HOSTS, "node6.example, Node7.example")
    assert read_key("OUR_KEY", PLAIN) == key
    with pytest.raises(SettingsError, match=r"node8\.example"):
        read_key("OUR_KEY", PLAIN, "http://node8.example")


@pytest.mark.parametrize("name", USERS)
def test_everything_that_sends_a_key_keeps_to_this(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="unencrypted to node7"):
        USERS[name]()
    monkeypatch.setenv(PLAIN_HTTP_HOSTS, "node7.example")
    with contextlib.suppress(McpServerError):  # the name does not exist: what asks at once reports that
        USERS[name]()
