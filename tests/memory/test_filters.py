from dataclasses import replace

import pytest
from episodes import episode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import served

from midthought.errors import SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

MODES = ["full_text", "vector", "hybrid"]
HOSTILE = [
    "O'Brien", "O''Brien", "x' OR '1'='1", "x'; DROP TABLE transcripts; --", "a\\' OR true --", "back\\slash", "\\", "'",
    '"double"', "`tick`", "%", "_", "line\nbreak", "Zoë", "Zoe\u0308", "李", "\u2028", "\x00", "NULL", "", " ", "(x)", "--",
]  # fmt: skip
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12), st.text("'\\\"-; x", max_size=6))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, new_embedder):
    """A memory in which every hostile name is once an episode and once a speaker."""
    store = MemoryStore.open(tmp_path_factory.mktemp("hostile") / "memory", embedder=new_embedder())
    chunks = [
        Chunk(f"{kind}_{number}", episode, kind, speaker, f"The same words {number}.", "00:00:00", number)
        for number, name in enumerate(HOSTILE)
        for kind, episode, speaker in (("e", name, "Ann"), ("s", "The Bell", name))
    ]
    store.build(chunks)
    return store


def passing(store, episodes, speakers):
    return {
        chunk.chunk_id
        for chunk in store.chunks()
        if (not episodes or chunk.episode in episodes) and (not speakers or chunk.speaker in speakers)
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_filter_lets_pass_what_bears_the_name_and_nothing_else(hostile, mode):
    for number, name in enumerate(HOSTILE):
        by_episode = hostile.search("the same words", 100, mode, episodes=[name])
        by_speaker = hostile.search("the same words", 100, mode, speakers=[name])
        assert [hit.chunk_id for hit in by_episode] == [f"e_{number}"]
        assert [hit.chunk_id for hit in by_speaker] == [f"s_{number}"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4), st.sampled_from(MODES))
def test_any_names_can_be_asked_for_together(hostile, episodes, speakers, mode):
    found = hostile.search("the same words", 100, mode, episodes=episodes, speakers=speakers)
    assert {hit.chunk_id for hit in found} == passing(hostile, episodes, speakers)


@pytest.fixture
def store_of_two(tmp_path, embedder, chunks):
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder)
    bell = [replace(chunk, chunk_id=f"bell_{chunk.number}", stem="bell", episode="The Bell") for chunk in chunks]
    store.build([*chunks, *bell])
    return store


@pytest.mark.parametrize("mode", MODES)
def test_the_best_among_those_that_pass_are_found_however_many_better_ones_do_not(store_of_two, chunks, mode):
    store_of_two.add(episode("x", [chunks[2].transcript] * 60))
    (hit,) = store_of_two.search(chunks[2].transcript, 1, mode, episodes=["The Bell"])
    assert hit.chunk_id == "bell_2"


def test_a_text_in_place_of_a_list_is_refused_and_half_a_letter_matches_nothing(store_of_two):
    with pytest.raises(SettingsError, match=r"episodes='The Bell' is a string; give a list of names, such as \['The"):
        store_of_two.search("yes", episodes="The Bell")
    for mode in MODES:
        assert store_of_two.search("yes \ud800", mode=mode, speakers=["\ud800"]) == []
        found = store_of_two.search("yes \ud800", mode=mode, speakers=["\udc00", "Bob"])
        assert {hit.speaker for hit in found} == {"Bob"}


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_finds_what_its_queries_find_one_by_one(store_of_two, embedder, mode):
    queries = ["copper hand", "a boy's mitten", "", "xylophone", "herring"]
    embedder.embedded.clear()
    found = store_of_two.search_batch(queries, 4, mode, speakers=["Ann", "Zoë"])
    assert embedder.embedded == ([] if mode == "full_text" else queries)
    assert found == [store_of_two.search(query, 4, mode, speakers=["Ann", "Zoë"]) for query in queries]
    assert store_of_two.search_batch([], 4, mode) == []
    assert len(store_of_two.search("yes the of and in it a no", 10**6, mode)) == 12


@pytest.mark.parametrize("is_served", [False, True])
def test_the_command_says_if_no_chunk_passes_a_filter(store, monkeypatch, call, embedder, is_served):
    monkeypatch.setattr("midthought.memory.remote.load_embedder", lambda *_, **__: embedder)
    with served(store.uri, embedder) as service:
        words = ["memory", "search", "copper hand", "--path", service.url if is_served else store.uri, "--speaker"]
        code, said, _ = call(*words, "Nobody")
        assert (code, said.strip()) == (0, "Nothing found; the names of episodes and speakers must be exact.")
        code, said, _ = call(*words, "Ann")
        assert code == 0 and "copper hand" in said
