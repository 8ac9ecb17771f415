"""Windows of several turns: how an episode is split, what is stored, what searches and filters find."""

import itertools
from pathlib import Path

import pytest

from midthought.memory.chunks import Chunk, chunk_transcript
from midthought.memory.service.searcher import ServiceState
from midthought.memory.splitting import Chunking, num_tokens
from midthought.memory.store import MemoryStore
from midthought.memory.tool import format_chunk
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn


def said(first: int, last: int) -> str:
    return " ".join(f"On day {n} the keeper wound the slow clock before boat {n} came in." for n in range(first, last))


@pytest.fixture(scope="module")
def transcript():
    lines = [
        ("Ann", said(1, 13)),
        ("Bob", f"The herring was packed in ice. {said(13, 27)}"),
        ("Ann", f"Nobody asked about the copper hand. {said(27, 37)}"),
    ]
    return talk(*(Turn(speaker, text) for speaker, text in lines))


def talk(*turns: Turn) -> Transcript:
    return Transcript("The Tide Clock", "tide", turns, Path("tide.txt"), "text", "utf-8")


@pytest.fixture(scope="module")
def windows(transcript):
    return chunk_transcript(transcript, Chunking("windows"))


@pytest.fixture(scope="module")
def window_store(tmp_path_factory, new_embedder, windows):
    store = MemoryStore.open(tmp_path_factory.mktemp("windows") / "memory", embedder=new_embedder())
    store.build(windows)
    return store


def test_windows_are_whole_sentences_within_the_limit_and_together_the_whole_episode(transcript, windows):
    said = " ".join(turn.text for turn in transcript.turns)
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


def test_consecutive_windows_share_their_last_and_first_sentences(windows):
    for before, after in itertools.pairwise(each.embedded.partition("\n")[2] for each in windows):
        assert f"{after.partition('.')[0]}." in before


def test_a_window_lists_its_speakers_and_shows_who_said_what(windows):
    mixed = next(window for window in windows if "herring" in window.transcript)
    assert mixed.speakers == ("Ann", "Bob")
    assert "Bob: The herring was packed in ice." in format_chunk(mixed)
    assert format_chunk(mixed).startswith("episode: The Tide Clock; 00:00:00: Ann: On day 1 the keeper")


def test_a_speaker_filter_matches_any_speaker_of_a_window(window_store, windows):
    for name in ("Ann", "Bob"):
        found = window_store.search("slow clock", 100, "vector", speakers=[name])
        assert found and all(name in {speaker for _, speaker in hit.turns} for hit in found)
    by_id = {window.chunk_id: window for window in windows}
    assert any(len(by_id[hit.chunk_id].speakers) == 2 for hit in found)
    assert window_store.search("slow clock", 100, speakers=["Ann, Bob"]) == []
    assert ServiceState(window_store, window_store.embedder).speakers == {
        name: sum(name in window.speakers for window in windows) for name in ("Ann", "Bob")
    }


@pytest.mark.parametrize("min_rows", [20, 20_000], ids=["large", "small"])
def test_windows_and_turns_are_added_to_each_other_and_nothing_is_lost(
    tmp_path, monkeypatch, new_embedder, windows, min_rows
):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", min_rows)
    store = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    bells = [Chunk(f"bell_{n}", "Bells", "bell", "Carl", f"Bell {n} rings.", "00:00:00", n) for n in range(80)]
    store.build(bells)
    assert not store.has_windows
    store.add(windows)
    assert store.has_windows and store.chunks() == [*bells, *windows]
    gull = Chunk("gull_0", "Gulls", "gull", "Dora", "A gull took it.", "00:00:00", 0)
    store.add([gull])
    assert store.has_windows and store.chunks() == [*bells, gull, *windows]
    assert [hit.chunk_id for hit in store.search("gull", 1, "full_text", speakers=["Dora"])] == ["gull_0"]
    assert all(hit.chunk_id.startswith("tide_") for hit in store.search("slow clock", 3, speakers=["Bob"]))


def test_a_script_without_blanks_has_windows_of_the_usual_size_and_quotes_are_found(tmp_path, new_embedder):
    line, once = "{}日目に、時計職人は{}番の船が入る前に古い時計を巻いた。", "強い風が灯台の扉を開けた。"
    lines = [line.format(number, number + 1) for number in range(60)]
    lines[31] = once
    spoken = talk(*(Turn(("Ann", "Bob")[n % 2], said.strip(), f"00:{n:02}:00") for n, said in enumerate(lines)))
    windows = chunk_transcript(spoken, Chunking("windows"))
    letters = [len(window.transcript) for window in windows]
    assert len(windows) >= 5 and max(letters) < sum(map(len, lines)) / 3 and len({w.time for w in windows}) > 4
    store = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    store.build(windows)
    for mode in ("full_text", "hybrid"):
        assert once in store.search("灯台の扉", k=1, mode=mode)[0].transcript


@pytest.fixture
def timed_windows():
    """Every turn and every third sentence of the second turn has a time."""
    marks = tuple((number * 15, f"00:{number + 1:02}:30") for number in range(3, 14, 3))
    return chunk_transcript(
        talk(
            Turn("Ann", "The tide clock has one copper hand.", "00:00:05"),
            Turn("Bob", said(1, 15), "00:01:20", marks),
            Turn("Ann", "Nobody asked about the mitten.", "00:20:00"),
        ),
        Chunking("windows"),
    )


def test_a_window_displays_the_times_of_its_turns(timed_windows):
    first, last = timed_windows[0], timed_windows[-1]
    assert first.time == "00:00:05" and first.times[0] == (7, "00:01:20") and first.times[1][1] == "00:04:30"
    assert "; 00:00:05: Ann: The tide clock has one copper hand. Bob (00:01:20): On day 1" in format_chunk(first)
    assert "Ann (00:20:00): Nobody asked" in format_chunk(last)


def test_an_ad_that_several_episodes_repeat_is_found_once(tmp_path, new_embedder):
    ad = "This show is brought to you by the harbour bakery, whose bread is baked at four every morning of the year."
    texts = [ad, f"Well. {ad}", "The bread in the story was stale.", ad.replace("four", "five")]
    turns = ((0, "Ann"),)
    chunks = [Chunk(f"e{n}_0", f"E{n}", f"e{n}", "Ann", text, "00:00:00", 0, turns) for n, text in enumerate(texts)]
    store = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    store.build(chunks)
    for mode in ("full_text", "vector", "hybrid"):
        found = [hit.transcript for hit in store.search("harbour bakery bread", 4, mode)]
        assert sum("harbour" in text for text in found) == 1
        assert texts[2] in found


def test_a_short_quote_within_a_question_is_found_among_many_words(tmp_path, new_embedder):
    quote = "the granite sill was cold"
    others = "which speaker said it the sill was old and the speaker said which granite it was " * 5
    turns = ((0, "Ann"),)
    texts = [f"{others} number {n}" for n in range(30)] + [f"{said(1, 8)} {quote} {said(8, 16)}"]
    chunks = [Chunk(f"e{n}_0", f"E{n}", f"e{n}", "Ann", text, "00:00:00", 0, turns) for n, text in enumerate(texts)]
    store = MemoryStore.open(tmp_path / "memory", embedder=new_embedder())
    store.build(chunks)
    for mode in ("full_text", "hybrid"):
        assert store.search(f'Which speaker said: "{quote}"?', 1, mode)[0].chunk_id == "e30_0"
