import pytest

from midthought.errors import SettingsError
from midthought.memory.service.auth import AccessPolicy, is_same_origin
from midthought.network import is_loopback

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org", "192.168.1.1", "localhost.example.org"])
def test_beyond_loopback_nothing_is_served_without_a_token(host):
    with pytest.raises(SettingsError, match=r"needs a token.*--token-env"):
        AccessPolicy.of(host, None)
    assert AccessPolicy.of(host, "KEY", {"KEY": TOKEN}).token == TOKEN


@pytest.mark.parametrize("value", [None, "", "short", "with a blank in its middle", "ümläuts-in-the-token"])
def test_a_token_that_is_missing_or_unsound_is_refused_and_not_shown(value):
    with pytest.raises(SettingsError, match="KEY holds no token of 16") as raised:
        AccessPolicy.of("127.0.0.1", "KEY", {} if value is None else {"KEY": value})
    assert not value or value not in str(raised.value)


def test_the_token_is_not_in_the_words_of_the_record():
    assert TOKEN not in repr(AccessPolicy(token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LocalHost"])
def test_loopback_is_known_in_all_its_writings(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ("127.0.0.1:8100", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8100", True),
        ("evil.example", False),
        ("localhost.evil.example:8100", False),
        ("evil@localhost", False),
        ("localhost/evil", False),
        ("localhost:port", False),
        ("[", False),
        ("", False),
    ],
)
def test_the_host_of_a_request_must_be_this_machine(header, is_known):
    assert AccessPolicy().accepts_host(header) is is_known
    assert AccessPolicy(host="0.0.0.0", token=TOKEN).accepts_host(header)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer{TOKEN}"]
)
def test_only_the_bearer_of_the_token_is_let_in(given):
    access = AccessPolicy(token=TOKEN)
    assert not access.is_authorized("/search", given)
    assert access.is_authorized("/healthz", given) and access.is_authorized("/search", f"Bearer {TOKEN}")


def test_a_page_is_of_the_same_origin_by_name_and_port():
    assert is_same_origin("http://127.0.0.1:8100", "127.0.0.1:8100")
    assert not is_same_origin("http://127.0.0.1:8101", "127.0.0.1:8100")
    assert not is_same_origin("null", "") and not is_same_origin("http://[", "[")
