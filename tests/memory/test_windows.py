"""Windows of several turns: how an episode is split, what is stored, what searches and filters find."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from episodes import episode
from hypothesis import given
from hypothesis import strategies as st

from midthought.memory.build import embed_chunks
from midthought.memory.chunks import Chunk, chunk_transcript, read_chunks, write_chunks
from midthought.memory.embedding import packed
from midthought.memory.embedding import window_scores as scores
from midthought.memory.rows import read_rows, sentences_of_rows, write_rows
from midthought.memory.service.searcher import ServiceState
from midthought.memory.splitting import Chunking, num_tokens, sentences_of
from midthought.memory.store import MemoryStore
from midthought.memory.tool import format_chunk
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn

WINDOWS = Chunking("windows")


def said(first: int, last: int) -> str:
    return " ".join(f"On day {n} the keeper wound the slow clock before boat {n} came in." for n in range(first, last))


def talk(*turns: Turn, name: str = "tide") -> Transcript:
    return Transcript("The Tide Clock" if name == "tide" else name.title(), name, turns, Path(f"{name}.txt"), "text")


TALK = talk(
    Turn("Ann", said(1, 13)),
    Turn("Bob", f"The herring was packed in ice. {said(13, 27)}"),
    Turn("Ann", f"Nobody asked about the copper hand. {said(27, 37)}"),
)


@pytest.fixture(scope="module")
def windows():
    return chunk_transcript(TALK, WINDOWS)


def test_windows_are_whole_sentences_within_the_limit_that_overlap_and_are_together_the_whole_episode(windows):
    said = " ".join(turn.text for turn in TALK.turns)
    assert len(windows) > 2
    end = 0
    for window in windows:
        start = said.index(window.transcript)
        assert start <= end, "words between two windows are lost"
        assert window.transcript.endswith(".") and window.transcript[0].isupper()
        assert sum(num_tokens(window.embedded_text.split())) + 2 <= 128
        assert window.embedded_text.partition("\n")[2] in window.transcript
        assert len(window.transcript.split()) <= 200
        end = start + len(window.transcript)
    assert end == len(said)
    for before, after in itertools.pairwise(each.embedded.partition("\n")[2] for each in windows):
        assert f"{after.partition('.')[0]}." in before


def test_a_window_lists_its_speakers_and_shows_who_said_what(windows):
    mixed = next(window for window in windows if "herring" in window.transcript)
    assert mixed.speakers == ("Ann", "Bob")
    assert "Bob: The herring was packed in ice." in format_chunk(mixed)
    assert format_chunk(mixed).startswith("episode: The Tide Clock; 00:00:00: Ann: On day 1 the keeper")


def test_a_speaker_filter_matches_any_speaker_of_a_window(tmp_path, embedder, windows):
    store = MemoryStore.open(tmp_path, embedder=embedder)
    store.build(windows)
    by_id = {window.chunk_id: window for window in windows}
    for name in ("Ann", "Bob"):
        found = store.search("slow clock", 100, "vector", speakers=[name])
        assert found and all(name in {speaker for _, speaker in hit.turns} for hit in found)
        assert any(len(by_id[hit.chunk_id].speakers) == 2 for hit in found)
    assert store.search("slow clock", 100, speakers=["Ann, Bob"]) == []
    num_windows = {name: sum(name in window.speakers for window in windows) for name in ("Ann", "Bob")}
    assert ServiceState(store, embedder).speakers == num_windows


@pytest.mark.usefixtures("is_large")
def test_windows_and_turns_are_added_to_each_other_and_nothing_is_lost(tmp_path, embedder, windows):
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder)
    bells = episode("bell", (f"Bell {n} rings." for n in range(80)), speaker="Carl")
    store.build(bells)
    assert not store.has_windows
    store.add(windows)
    assert store.has_windows and store.chunks() == [*bells, *windows]
    (gull,) = episode("gull", ["A gull took it."], speaker="Dora")
    store.add([gull])
    assert store.has_windows and store.chunks() == [*bells, gull, *windows]
    assert [hit.chunk_id for hit in store.search("gull", 1, "full_text", speakers=["Dora"])] == ["gull_0"]
    assert all(hit.chunk_id.startswith("tide_") for hit in store.search("slow clock", 3, speakers=["Bob"]))


def test_a_script_without_blanks_has_windows_of_the_usual_size_and_quotes_are_found(tmp_path, new_embedder):
    line, once = "{}日目に、時計職人は{}番の船が入る前に古い時計を巻いた。", "強い風が灯台の扉を開けた。"
    lines = [line.format(number, number + 1) for number in range(60)]
    lines[31] = once
    spoken = talk(*(Turn(("Ann", "Bob")[n % 2], said.strip(), f"00:{n:02}:00") for n, said in enumerate(lines)))
    windows = chunk_transcript(spoken, WINDOWS)
    letters = [len(window.transcript) for window in windows]
    assert len(windows) >= 5 and max(letters) < sum(map(len, lines)) / 3 and len({w.time for w in windows}) > 4
    store = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    store.build(windows)
    for mode in ("full_text", "hybrid"):
        assert once in store.search("灯台の扉", k=1, mode=mode)[0].transcript


def test_a_window_displays_the_times_of_its_turns():
    """Every turn and every third sentence of the second turn has a time."""
    marks = tuple((number * 15, f"00:{number + 1:02}:30") for number in range(3, 14, 3))
    spoken = talk(
        Turn("Ann", "The tide clock has one copper hand.", "00:00:05"),
        Turn("Bob", said(1, 15), "00:01:20", marks),
        Turn("Ann", "Nobody asked about the mitten.", "00:20:00"),
    )
    first, *_, last = chunk_transcript(spoken, WINDOWS)
    assert first.time == "00:00:05" and first.times[0] == (7, "00:01:20") and first.times[1][1] == "00:04:30"
    assert "; 00:00:05: Ann: The tide clock has one copper hand. Bob (00:01:20): On day 1" in format_chunk(first)
    assert "Ann (00:20:00): Nobody asked" in format_chunk(last)


def built(folder: Path, embedder, texts: list[str]) -> MemoryStore:
    """A memory of one window for each text, of an episode each."""
    store = MemoryStore.open(folder, embedder=embedder)
    store.build([window for n, text in enumerate(texts) for window in episode(f"e{n}", [text], turns=((0, "Ann"),))])
    return store


def test_an_ad_that_several_episodes_repeat_is_found_once(tmp_path, embedder):
    ad = "This show is brought to you by the harbour bakery, whose bread is baked at four every morning of the year."
    texts = [ad, f"Well. {ad}", "The bread in the story was stale.", ad.replace("four", "five")]
    store = built(tmp_path, embedder, texts)
    for mode in ("full_text", "vector", "hybrid"):
        found = [hit.transcript for hit in store.search("harbour bakery bread", 4, mode)]
        assert sum("harbour" in text for text in found) == 1 and texts[2] in found


def test_a_short_quote_within_a_question_is_found_among_many_words(tmp_path, embedder):
    quote = "the granite sill was cold"
    others = "which speaker said it the sill was old and the speaker said which granite it was " * 5
    texts = [f"{others} number {n}" for n in range(30)] + [f"{said(1, 8)} {quote} {said(8, 16)}"]
    store = built(tmp_path, embedder, texts)
    for mode in ("full_text", "hybrid"):
        assert store.search(f'Which speaker said: "{quote}"?', 1, mode)[0].chunk_id == "e30_0"


# -- vectors of sentences --------------------------------------------------------------------------------------------


def windows_of(name: str, *sentences: str, chunking: Chunking | int = WINDOWS) -> list[Chunk]:
    turns = (Turn(("Ann", "Bob")[n % 2], text) for n, text in enumerate(sentences))
    return chunk_transcript(talk(*turns, name=name), chunking)


def filler(subject: str, num: int) -> str:
    return " ".join(f"The {subject} number {n} was painted green before winter came back." for n in range(num))


TIDE = windows_of("tide", filler("buoy", 12), f"The copper hand points at the drowned chapel. {filler('rope', 12)}")
KILN = windows_of("kiln", filler("brick", 25))


def stored_sentences(store: MemoryStore) -> dict[str, bytes]:
    import lancedb

    rows = lancedb.connect(store.uri).open_table(store.table).to_arrow()
    sentences = sentences_of_rows(rows)
    return {} if sentences is None else dict(zip(rows["id"].to_pylist(), sentences, strict=True))


def test_short_sentences_are_joined_to_the_next():
    text = "Yeah. Right? The kiln was far too hot for that glaze. We let it cool. And then the second firing began at noon."
    assert sentences_of(text) == [
        "Yeah. Right? The kiln was far too hot for that glaze.",
        "We let it cool. And then the second firing began at noon.",
    ]
    assert " ".join(sentences_of(text)) == text
    assert sentences_of("Good morning.") == ["Good morning."]


@given(st.integers(1, 5), st.integers(2, 48), st.integers(0, 2**32 - 1))
def test_packed_vectors_keep_their_cosines(num, dimension, seed):
    drawn = np.random.default_rng(seed).normal(size=(num, dimension)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    content = packed(vectors)
    assert len(content) == num * dimension
    one_each = [packed(vector[None]) for vector in vectors]
    assert content == b"".join(one_each)
    for query in vectors:
        cosines = np.array(scores([0.0] * num, query, one_each)) * 1.8 / 0.8
        assert np.abs(cosines - vectors @ query).max() < 0.01


def test_the_scores_by_hand():
    query = np.array([1, 0], dtype=np.float32)
    many, one = packed(np.array([[0, 1], [1, 0], [0.6, 0.8], [-1, 0]], dtype=np.float32)), packed(query[None])
    expected = [(0.5 + 0.8 * (1 + 0.6) / 2) / 1.8, (0.5 + 0.8) / 1.8]
    assert scores([0.5, 0.5], query, [many, one]) == pytest.approx(expected, abs=0.01)
    for without_whole_vectors in (b"", b"123"):
        assert scores([0.25, 0.0], query, [without_whole_vectors, one]) == pytest.approx([0.25, 0.8 / 1.8])
    assert scores([], query, []) == []


def test_a_window_with_the_sentence_that_was_asked_for_is_first(tmp_path, new_embedder):
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.build([*TIDE, *KILN])
    queries = ["The copper hand points at the drowned chapel.", "The brick number 7 was painted green."]
    hits, bricks = (store.search(query, 3, "vector") for query in queries)
    assert "drowned chapel" in hits[0].transcript and bricks[0].episode == "Kiln"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    together = [[hit.chunk_id for hit in found] for found in store.search_batch(queries, 3, "vector")]
    assert together == [[hit.chunk_id for hit in found] for found in (hits, bricks)]


def test_every_window_has_the_vectors_of_its_sentences_also_by_the_steps_one_by_one(tmp_path, new_embedder):
    together = MemoryStore.open(tmp_path / "together", embedder=new_embedder())
    together.build(TIDE)
    embed = new_embedder().embed
    assert stored_sentences(together) == {each.chunk_id: packed(embed(each.embedded_sentences)) for each in TIDE}
    write_chunks(TIDE, tmp_path / "chunks.jsonl")
    write_rows(embed_chunks(read_chunks(tmp_path / "chunks.jsonl"), new_embedder()), tmp_path / "rows.parquet")
    apart = MemoryStore.open(tmp_path / "apart", embedder=new_embedder())
    apart.ingest(read_rows(tmp_path / "rows.parquet"))
    assert stored_sentences(apart) == stored_sentences(together) and apart.chunks() == together.chunks() == TIDE
    assert not apart.build(TIDE).changes
    apart.build(windows_of("tide", "The gull took it.", chunking=18))
    assert stored_sentences(apart) == {}, "chunks by turns have none"


@pytest.mark.parametrize("first_is_window", [True, False])
def test_a_window_and_a_turn_with_the_same_words_do_not_share_the_vectors_of_sentences(
    tmp_path, new_embedder, first_is_window
):
    turn = windows_of("turn", "The gull took it.", chunking=18)
    window = windows_of("window", "The gull took it.")
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.build(TIDE)
    for chunks in (window, turn) if first_is_window else (turn, window):
        store.add(chunks)
    sentences = stored_sentences(store)
    assert sentences["turn_0"] == b"" and sentences["window_0"] == packed(new_embedder().embed(["The gull took it."]))


def test_a_large_memory_that_is_changed_in_place_keeps_its_columns(tmp_path, new_embedder, monkeypatch):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7)
    show = [window for n in range(8) for window in windows_of(f"boat{n}", filler(f"plank of boat {n}", 30))]
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.ingest(embed_chunks(show, new_embedder()))
    loom = windows_of("loom", filler("thread", 9))
    other = new_embedder()
    changed = MemoryStore.open(tmp_path, embedder=other)
    changed.add(loom)
    stored = stored_sentences(changed)
    assert all("thread" in text for text in other.embedded)
    assert stored[loom[0].chunk_id] == packed(other.embed(loom[0].embedded_sentences))
    assert changed.search("The thread number 3 was painted green before winter came back.", 1)[0].episode == "Loom"
    assert len(changed.chunks()) == len(show) + len(loom)
