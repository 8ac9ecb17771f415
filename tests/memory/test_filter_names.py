"""`midthought memory search` names an unknown episode or speaker with similar ones; the tool's reply stays short."""

import contextlib

import pytest

lancedb = pytest.importorskip("lancedb", reason="the memory extra is not installed")
from serving import served  # noqa: E402

from midthought.errors import SettingsError  # noqa: E402
from midthought.memory.chunks import Chunk  # noqa: E402
from midthought.memory.filter_names import require_known  # noqa: E402
from midthought.memory.remote import RemoteMemory  # noqa: E402
from midthought.memory.store import MemoryStore  # noqa: E402
from midthought.memory.tool import NOTHING_WITH_FILTERS  # noqa: E402


@pytest.fixture(params=["folder", "service"])
def search(request, store, monkeypatch, command, embedder):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    with served(store.uri, embedder) if request.param == "service" else contextlib.nullcontext() as service:
        path = service.url if service else store.uri

        def run(*words):
            if service:
                service.state.follow()
            return command("memory", "search", "copper hand", "--path", path, *words)

        yield run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--speaker", "Nobody"), "no speaker has the name 'Nobody'. The memory has 3 names: 'Ann', 'Bob', 'Zoë'"),
        (("--speaker", "ann"), "no speaker has the name 'ann'. Did you mean 'Ann'?"),
        (("--speaker", "Bob", "--speaker", "Zoe"), "no speaker has the name 'Zoe'. Did you mean 'Zoë'?"),
        (("--episode", "tide"), "no episode has the title 'tide'. Did you mean 'The Tide Clock'?"),
        (("--episode", "Tied Clock"), "no episode has the title 'Tied Clock'. Did you mean 'The Tide Clock'?"),
        (("--episode", "x"), "no episode has the title 'x'. The memory has 1 titles: 'The Tide Clock'"),
    ],
)
def test_an_unknown_name_is_named_with_similar_ones(search, words, expected):
    code, said = search(*words)
    assert code == 2 and expected in said.err and said.out == ""


def test_known_names_without_a_result_are_no_error(search):
    code, said = search("--speaker", "Ann", "--after", "01:00:00")
    assert code == 0 and said.out.strip() == NOTHING_WITH_FILTERS
    assert "copper hand" in search("--speaker", "Ann", "--episode", "The Tide Clock")[1].out


def test_many_names_of_a_service_are_known(tmp_path, embedder):
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder)
    store.build([Chunk(f"e{n}_0", f"Talk {n}", f"e{n}", f"Voice {n}", "Yes.", "00:00:00", 0) for n in range(2_005)])
    with served(store.uri, embedder) as service:
        assert RemoteMemory(service.url).names() == store.names()


@pytest.mark.parametrize("name", ["Nobody\0", "\udcff", "x" * 3_000])
def test_a_name_that_a_service_would_refuse_is_unknown(store, embedder, name):
    with served(store.uri, embedder) as service:
        memory = RemoteMemory(service.url)
        with pytest.raises(SettingsError, match="no speaker has the name"):
            require_known(memory, [], [name])
        with pytest.raises(SettingsError, match="no episode has the title"):
            require_known(memory, [name], [])
