import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from episodes import episode, lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lancedb.index import FTS

from midthought.errors import MemoryStoreError, SettingsError, StorageError
from midthought.memory.build import embed_chunks
from midthought.memory.indices import WORD_INDEX
from midthought.memory.rows import COLUMNS, read_rows, rows_of
from midthought.memory.store import MemoryStore

MODES = ["full_text", "vector", "hybrid"]


def table_of(store):
    return lancedb.connect(store.uri).open_table("transcripts")


def test_the_table_has_the_columns_of_the_original_and_any_client_can_search_it(store, chunks):
    table = table_of(store)
    assert tuple(table.schema.names) == COLUMNS
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 64)
    row = table.to_arrow().to_pylist()[2]
    del row["vector"]
    assert row == {
        "id": "tide_2", "episode": "The Tide Clock", "speaker": "Ann", "transcript": chunks[2].transcript,
        "time": "00:00:02", "chunk_id": 2, "embedding_model": "words", "embedding_dimension": 64,
    }  # fmt: skip
    assert table.search("a boy's mitten", query_type="fts").limit(1).to_list()[0]["id"] == "tide_2"
    stored = np.asarray(table.to_arrow()["vector"].to_pylist(), np.float32)
    np.testing.assert_array_equal(stored, store.embedder.embed([chunk.transcript for chunk in chunks]))
    assert store.get(["tide_3", "none", "tide_0", "x' OR 1=1"]) == {"tide_0": chunks[0], "tide_3": chunks[3]}
    assert store.get([]) == {}


def test_a_query_is_plain_words_whatever_signs_it_holds_and_needs_no_embedding_model(store, monkeypatch):
    monkeypatch.setattr("midthought.memory.store.load_embedder", lambda: pytest.fail("loaded"))
    fresh = MemoryStore.open(store.uri)
    for query in ("“I don’t wind it”", "+i -dont OR wind:it*", "I DONT (wind AND [it", 'wind "every third" \\ ^day~2'):
        assert fresh.search(query, k=1, mode="full_text")[0].chunk_id == "tide_1", query
    assert fresh.search("café", k=1, mode="full_text")[0].chunk_id == "tide_3"
    assert fresh.search("xylophone", mode="full_text") == fresh.search("?!", mode="full_text") == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=30))
def test_any_text_can_be_asked_for(store, query):
    assert len(store.search(query, mode="full_text")) <= 3
    assert len(store.search(query, mode="hybrid")) == 3


def test_the_score_is_the_cosine_or_the_sum_of_weighted_reciprocal_ranks_and_equal_ones_come_by_id(
    store, chunks, embedder
):
    query = "a single copper hand"
    first, second = embedder.embed([query, chunks[0].transcript])
    assert store.search(query, k=1, mode="vector")[0].score == pytest.approx(float(first @ second), abs=1e-5)
    assert store.search(query, k=1, mode="hybrid")[0].score == pytest.approx(1 / 21)
    best, second = store.search("yes a boy's mitten", k=2, mode="hybrid")
    assert best.chunk_id == "tide_2" and second.score < best.score == pytest.approx(1 / 21)
    for mode in MODES:
        assert [hit.chunk_id for hit in store.search("yes.", k=2, mode=mode)] == ["tide_4", "tide_5"], "equal scores"


def test_building_again_adds_nothing_and_embeds_nothing(store, chunks, embedder):
    assert len(embedder.embedded) == 5  # "Yes." once
    embedder.embedded.clear()
    again, version = MemoryStore.open(store.uri, embedder=embedder), table_of(store).version
    report = again.build(chunks)
    assert (report.num_added, report.num_kept, report.num_removed, report.num_embedded) == (0, 6, 0, 0)
    assert not again.add(chunks).changes and embedder.embedded == [] and len(again) == 6
    assert table_of(store).version == version


def test_a_build_removes_what_is_gone_and_embeds_only_new_words(store, chunks, embedder):
    embedder.embedded.clear()
    changed = [replace(chunks[1], transcript="Changed words."), replace(chunks[2], speaker="Ann Lee")]
    report = store.build([chunks[0], *changed, *episode("bell", ["New words."])])
    assert (report.num_added, report.num_kept, report.num_removed) == (3, 1, 5)
    assert sorted(embedder.embedded) == ["Changed words.", "New words."]
    assert [chunk.chunk_id for chunk in store.chunks()] == ["bell_0", "tide_0", "tide_1", "tide_2"]
    assert store.search("mitten", k=1, mode="full_text")[0].speaker == "Ann Lee"


def test_adding_a_transcript_keeps_the_others_and_replaces_one_of_its_name(
    store, chunks, is_large, embedder, monkeypatch
):
    many = episode("x", lines(50))
    store.build([*chunks, *many, *episode("tide_x", ["Another name."])])
    if is_large:
        monkeypatch.setattr("midthought.memory.table.TableLocation.write", lambda *_: pytest.fail("written anew"))
    embedder.embedded.clear()
    report = store.add([chunks[0], replace(chunks[1], transcript="Changed words."), *episode("y", ["New words."])])
    assert (report.num_added, report.num_kept, report.num_removed, report.num_embedded) == (2, 1, 5, 2)
    assert sorted(embedder.embedded) == ["Changed words.", "New words."]
    wanted = ["tide_0", "tide_1", "tide_x_0", *(chunk.chunk_id for chunk in many), "y_0"]
    assert [chunk.chunk_id for chunk in store.chunks()] == wanted
    for mode in MODES:
        assert store.search("New words.", 1, mode)[0].chunk_id == "y_0"
        assert store.search("Changed words.", 1, mode)[0].chunk_id == "tide_1"
        assert all(hit.chunk_id != "tide_2" for hit in store.search("a boy's mitten", 60, mode))


@pytest.mark.usefixtures("is_large")
def test_a_transcript_does_not_take_the_place_of_another_one_of_its_name(store, chunks):
    store.add(episode("x", lines(50)))
    other = replace(chunks[0], transcript="A clock of another episode.")
    refusal = r"the memory has other contents of the transcript 'tide'; if it was corrected, replace it: --replace"
    with pytest.raises(MemoryStoreError, match=refusal):
        store.add([other], replace=False)
    assert not store.add(chunks, replace=False).changes
    assert store.add([other]).num_removed == 6 and len(store) == 51


def test_vectors_are_indexed_from_a_number_of_rows_on(store, chunks, monkeypatch):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7)
    (expected,) = store.search(chunks[2].transcript, 1, "vector")
    store.add(episode("x", ["Something else."]))
    indexed = {column for index in table_of(store).list_indices() for column in index.columns}
    assert indexed == {"episode", "id", "speaker", "transcript", "vector"}
    found = store.search(chunks[2].transcript, k=1, mode="vector")
    assert found == [replace(expected, score=pytest.approx(expected.score, abs=1e-5))]


def test_many_threads_search_a_fresh_store_at_once_and_find_the_same(new_embedder, store, chunks):
    fresh = MemoryStore.open(store.uri, embedder=new_embedder())
    queries = [(chunk.transcript, mode) for chunk in chunks[:5] for mode in MODES] * 8
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda query: fresh.search(query[0], 3, query[1]), queries))
    assert found == [store.search(text, 3, mode) for text, mode in queries]


def test_another_embedding_model_is_refused_with_both_names(new_embedder, store, chunks, monkeypatch):
    with pytest.raises(MemoryStoreError, match=r"words \(64 dimensions\), not with words \(32 dimensions\)"):
        MemoryStore.open(store.uri, embedder=new_embedder(32))
    late = MemoryStore.open(store.uri)
    monkeypatch.setattr("midthought.memory.store.load_embedder", lambda: new_embedder(32))
    for act in (lambda: late.search("x", mode="vector"), lambda: late.build(chunks)):
        with pytest.raises(MemoryStoreError, match="give the same embedding model"):
            act()
    with pytest.raises(MemoryStoreError, match=r"not with other \(32"):
        late.ingest(rows_of(chunks, new_embedder(32).embed(["x"] * 6), "other"))


def test_a_failing_build_leaves_its_vectors_only_and_an_old_memory_as_it_was(
    tmp_path, new_embedder, store, chunks, monkeypatch
):
    class Failing(new_embedder):
        def embed(self, texts):
            raise RuntimeError("no")

    for name, wanted in (("new", chunks), ("memory", [replace(chunks[0], transcript="New.")])):
        with pytest.raises(RuntimeError, match=r"^no$"):
            MemoryStore.open(tmp_path / name, embedder=Failing()).build(wanted)
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr("lancedb.table.LanceTable.create_index", lambda *_, **__: 1 / 0)
    for name in ("new", "memory"):
        with pytest.raises(ZeroDivisionError):
            MemoryStore.open(tmp_path / name, embedder=new_embedder()).build(chunks[:3])
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "new"]
    with pytest.raises(MemoryStoreError, match="are not indexed; build it with"):
        MemoryStore.open(tmp_path / "new").search("herring", mode="full_text")
    assert MemoryStore.open(tmp_path / "new", embedder=new_embedder()).build(chunks[:3]).num_embedded == 0
    memory = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    assert memory.chunks() == chunks and len(memory) == 6
    for mode in MODES:
        assert memory.search("herring scales", 1, mode)[0].chunk_id == "tide_3"
    report = memory.build(chunks[:3])
    assert (report.num_added, report.num_kept, report.num_embedded) == (0, 3, 0)
    assert memory.search("herring", mode="full_text") == [] and len(memory) == 3


def test_what_cannot_be_searched_or_built_is_refused_with_the_remedy(tmp_path, store, embedder, chunks):
    def at(name: str, **options) -> MemoryStore:
        return MemoryStore.open(tmp_path / name, embedder=embedder, **options)

    assert not at("none").is_built and len(at("none")) == 0
    (tmp_path / "file").write_text("x")
    for number in range(15):
        lancedb.connect(tmp_path / "db").create_table(f"t{number:02}", [{"id": "x"}])
    lancedb.connect(tmp_path / "db").create_table("transcripts", [{"id": "x", "text": "y"}])
    for kind, message, act in (
        (SettingsError, "Did you mean 'full_text'", lambda: store.search("x", mode="fulltext")),
        (SettingsError, "k must be at least 1, not 0", lambda: store.search("x", k=0)),
        (MemoryStoreError, "two different chunks have the id 'tide_0'",
         lambda: at("m").build([chunks[0], replace(chunks[0], speaker="X")])),
        (MemoryStoreError, r"none: there is no memory .*build it with 'midthought memory build'",
         lambda: at("none").search("x")),
        (MemoryStoreError, "it lacks episode, speaker", lambda: at("db")),
        (MemoryStoreError, "this path is a file", lambda: at("file").build(chunks)),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            act()
    assert not (tmp_path / "m").exists() and not (tmp_path / "none").exists(), "they are not begun"
    assert at("db", table="mine").add(chunks).num_added == 6


def test_a_file_that_holds_no_rows_or_rows_without_a_value_is_refused(tmp_path, chunks, embedder):
    rows = embed_chunks(chunks, embedder)
    for number, name in enumerate(rows.column_names):
        values = pa.array([None, *rows[name].to_pylist()[1:]], rows.schema.field(name).type)
        parquet.write_table(rows.set_column(number, name, values), tmp_path / "empty.parquet")
        with pytest.raises(MemoryStoreError, match=rf"empty\.parquet: its column '{name}' has rows without a value"):
            read_rows(tmp_path / "empty.parquet")
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(MemoryStoreError, match=r"x\.parquet: not a file of embedded chunks"):
        read_rows(tmp_path / "x.parquet")
    with pytest.raises(MemoryStoreError, match="there is no such file"):
        read_rows(tmp_path / "y.parquet")


def test_the_partitions_of_a_large_memory_keep_their_size_when_it_is_changed(tmp_path, monkeypatch):
    """LanceDB's `optimize` merges partitions below the configured size: of a thousand, 31 were left for a million rows."""
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7)
    monkeypatch.setattr("midthought.memory.indices.ROWS_PER_PARTITION", 50)
    many = episode("x", lines(1_050))
    vectors = np.random.default_rng(0).standard_normal((len(many), 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    store = MemoryStore.open(tmp_path / "large")

    def num_partitions() -> int:
        search = table_of(store).search(vectors[0], vector_column_name="vector").distance_type("cosine").nprobes(1)
        return int(re.search(r"partitions_ranked=(\d+)", search.analyze_plan())[1])

    for part in (slice(1_000), slice(1, None)):
        store.ingest(rows_of(many[part], vectors[part], "drawn"))
        assert num_partitions() >= 15


def test_a_build_that_failed_between_its_indices_is_finished_by_the_next_one(store, embedder, monkeypatch):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 300)

    def full_after_the_words(table):
        table.create_index("transcript", config=FTS(**WORD_INDEX))
        raise OSError(28, "No space left on device")

    loom = episode("x", lines(300, "loom"))
    store.build(episode("x", lines(300, "kiln")))
    with monkeypatch.context() as broken, pytest.raises(StorageError, match="no space"):
        broken.setattr("midthought.memory.table.index_table", full_after_the_words)
        store.build(loom)
    assert MemoryStore.open(store.uri, embedder=embedder).search("3", 1)[0].transcript == "kiln 3."
    MemoryStore.open(store.uri, embedder=embedder).build(loom)
    assert MemoryStore.open(store.uri, embedder=embedder).search("3", 1)[0].transcript == "loom 3."


@pytest.mark.usefixtures("is_large")
def test_a_quote_comes_before_the_same_words_elsewhere_in_small_and_large_memories(store):
    texts = ["hand copper single", "the single copper hand of it all", "copper single hand", *["hand hand"] * 90]
    store.build(episode("x", texts))
    most = store.search("single, hand, the tide clock", k=10)
    for k in range(1, 10):
        assert store.search("single, hand, the tide clock", k=k) == most[:k], "k changes no order"
    for mode in ("full_text", "hybrid"):
        assert store.search("Single copper hand!", 1, mode)[0].chunk_id == "x_1"


def test_versions_older_than_they_are_kept_are_dropped(store, chunks, monkeypatch):
    monkeypatch.setattr("midthought.memory.indices.VERSION_LIFETIME", timedelta(milliseconds=1))
    store.build(chunks[:3])
    versions = table_of(store).list_versions()
    assert {int(version["metadata"]["total_rows"]) for version in versions} == {3}


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_memory_may_lie_in_any_object_store_that_lancedb_takes(scheme, tmp_path, embedder, chunks, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = f"{scheme}://{tmp_path}/memory"
    store = MemoryStore.open(uri, embedder=embedder)
    assert not store.is_built and store.build(chunks).num_added == 6
    assert store.search("a boy's mitten", 1)[0].chunk_id == "tide_2"
    assert store.build(chunks[:3]).num_embedded == 0 and len(store) == 3
    assert not list((tmp_path / "cache").rglob("*.npy"))
    with pytest.raises(MemoryStoreError, match="No object store provider found for scheme: 'nix'"):
        MemoryStore.open("nix://bucket").search("x", mode="full_text")


def test_vectors_in_a_cache_of_ones_own_outlive_the_memory(tmp_path, chunks, new_embedder):
    cache = tmp_path / "cache"
    stores = [MemoryStore.open(tmp_path / name, embedder=new_embedder(), embedding_cache=cache) for name in "ab"]
    assert [store.build(chunks).num_embedded for store in stores] == [5, 0]
    rows = [table_of(store).to_arrow() for store in stores]
    assert rows[0].equals(rows[1]) and not (tmp_path / "a" / "embeddings").exists()
