import pytest

from midthought.errors import SettingsError
from midthought.http.network import is_loopback
from midthought.memory.service.auth import AccessPolicy, is_same_origin

TOKEN = "0123456789abcdef"


def test_beyond_loopback_nothing_is_served_without_a_token(monkeypatch):
    monkeypatch.setenv("KEY", TOKEN)
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org", "192.168.1.1", "localhost.example.org"):
        with pytest.raises(SettingsError, match=r"needs a token.*--token-env"):
            AccessPolicy.of(host, None)
        assert AccessPolicy.of(host, "KEY").token == TOKEN and not is_loopback(host)
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LocalHost")))


def test_a_token_that_is_missing_or_unsound_is_refused_and_not_shown(monkeypatch):
    with pytest.raises(SettingsError, match="NO_KEY holds no token of 16"):
        AccessPolicy.of("127.0.0.1", "NO_KEY")
    for value in ("", "short", "with a blank in its middle", "ümläuts-in-the-token"):
        monkeypatch.setenv("KEY", value)
        with pytest.raises(SettingsError, match="KEY holds no token of 16") as raised:
            AccessPolicy.of("127.0.0.1", "KEY")
        assert not value or value not in str(raised.value)
    assert TOKEN not in repr(AccessPolicy(token=TOKEN))


def test_the_host_of_a_request_must_be_this_machine():
    known = ("127.0.0.1:8100", "localhost", "LOCALHOST:1", "[::1]:8100")
    unknown = (
        "evil.example",
        "localhost.evil.example:8100",
        "evil@localhost",
        "localhost/evil",
        "localhost:port",
        "[",
        "",
    )
    for header in (*known, *unknown):
        assert AccessPolicy().accepts_host(header) is (header in known), header
        assert AccessPolicy(host="0.0.0.0", token=TOKEN).accepts_host(header)


def test_a_page_is_of_the_same_origin_by_name_and_port():
    assert is_same_origin("http://127.0.0.1:8100", "127.0.0.1:8100")
    assert not is_same_origin("http://127.0.0.1:8101", "127.0.0.1:8100")
    assert not is_same_origin("null", "") and not is_same_origin("http://[", "[")
