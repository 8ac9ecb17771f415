import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import SettingsError, TranscriptError
from midthought.memory.chunks import Chunk, chunk_transcript, read_chunks, write_chunks
from midthought.memory.splitting import Chunking, cut_positions, ends_sentence, num_tokens, sentence_ends, windows_of
from midthought.memory.transcripts import Transcript, Turn

WORDS = st.lists(st.sampled_from(["well", "yes.", "so,", "I", "Now", "it's", "--", "Dr.", "no?", "end..."]), min_size=1)


def transcript_of(*turns: Turn) -> Transcript:
    return Transcript("The Bell", "bell-1", turns, Path("bell-1.md"))


@given(st.lists(st.tuples(st.sampled_from("AB"), WORDS), min_size=1, max_size=5), st.integers(1, 20))
def test_chunks_keep_every_word_in_order_and_never_mix_turns_or_grow_too_long(spoken, max_words):
    turns = [Turn(speaker, " ".join(words)) for speaker, words in spoken]
    chunks = chunk_transcript(transcript_of(*turns), max_words)
    assert [chunk.chunk_id for chunk in chunks] == [f"bell-1_{number}" for number in range(len(chunks))]
    assert all(1 <= len(chunk.transcript.split()) <= max_words for chunk in chunks)
    remaining = iter(chunks)
    for turn in turns:
        said: list[str] = []
        while len(said) < len(turn.text.split()):
            chunk = next(remaining)
            assert chunk.speaker == turn.speaker
            said += chunk.transcript.split()
        assert said == turn.text.split()
    assert next(remaining, None) is None


@given(WORDS, st.integers(5, 20))
def test_a_turn_is_never_left_with_a_crumb_of_one_or_two_words(words, max_words):
    ends = cut_positions(words, max_words)
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert len(sizes) == 1 or min(sizes) >= 3


def test_turns_are_cut_at_sentences_then_at_commas_then_into_pieces_of_like_length():
    for max_words, *expected in (
        (7, "One two three four. Five six seven.", "Eight nine ten eleven."),
        (8, "a b c d e f,", "g h i j"),
        (18, "a b c d e f g h i j", "k l m n o p q r s t"),
        (18, "Yes."),
    ):
        chunks = chunk_transcript(transcript_of(Turn("Ann", " ".join(expected)), Turn("Bob", "No.")), max_words)
        assert [chunk.transcript for chunk in chunks] == [*expected, "No."]


def test_a_sentence_ends_by_its_signs_and_by_what_follows_in_every_script():
    for word, following in (("done.", "So"), ('done."', "“So"), ("what?!", "Élan")):
        assert ends_sentence(word, following), word
    for word, following in (("done...", "so"), ("Dr.", "Who"), ("B.", "Reece"), ("done,", "So")):
        assert not ends_sentence(word, following), word
    for text in ("שלום לכולם. נכון מאוד.", "ما رأيك؟ نعم هذا.", "कैसे हो। ठीक हूँ।", "Где он? Там он."):
        assert sentence_ends(text.split()) == [2, 4]
    assert sentence_ends(["word"] * 150) == [50, 100, 150], "one without an end counts as several"


def test_a_chunk_has_the_last_time_at_or_before_its_first_word():
    bob = Turn("Bob", "A b c d. E f g h.", "00:00:10", ((4, "00:00:20"), (7, "00:00:30")))
    turns = transcript_of(Turn("Ann", "a b c d."), bob, Turn("Ann", "Yes."))
    times = [chunk.time for chunk in chunk_transcript(turns, 4)]
    assert times == ["00:00:00", "00:00:10", "00:00:20", "00:00:30"]


@pytest.mark.parametrize(
    ("chunking", "message"),
    [
        (("turns", 0), "size must be at least 1, not 0"),
        (("turns", 18, 2), "do not overlap"),
        (("windows", 3, 3), "less than the size, 3"),
        (("window",), "Did you mean 'windows'"),
    ],
)
def test_values_that_cannot_work_are_settings_errors(chunking, message):
    with pytest.raises(SettingsError, match=message):
        chunk_transcript(transcript_of(Turn("Ann", "Yes.")), Chunking(*chunking))


@given(st.lists(st.integers(1, 4)), st.integers(2, 12), st.integers(0, 6))
def test_windows_hold_every_item_and_overlap_by_at_most_so_much(weights, size, overlap):
    windows = windows_of(weights, size, min(overlap, size - 1))
    assert sorted({place for start, end in windows for place in range(start, end)}) == list(range(len(weights)))
    for start, end in windows:
        assert sum(weights[start:end]) <= size or end - start == 1
    for (start, end), (following, following_end) in itertools.pairwise(windows):
        assert start < following <= end < following_end and sum(weights[following:end]) <= overlap


def test_tokens_are_those_of_minilm():
    assert num_tokens(["The", "tide-clock,", "\u200b"]) == [1, 4, 1]


def test_chunks_come_back_from_their_file_as_they_were_and_no_file_is_begun_if_one_fails(tmp_path):
    chunk = Chunk("é_0", "The “Bell”", "é", "Ann", "Line\u2028two\u0085.", "00:00:01", 0)
    write_chunks([chunk], tmp_path / "new" / "chunks.jsonl")
    assert read_chunks(tmp_path / "new" / "chunks.jsonl") == [chunk]
    with pytest.raises(ZeroDivisionError):
        write_chunks((replace(chunk, number=1 // n) for n in (1, 0)), tmp_path / "chunks.jsonl")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "chunks.jsonl"]


def test_a_line_that_is_no_chunk_is_named(tmp_path):
    path = tmp_path / "chunks.jsonl"
    whole = asdict(Chunk("e_0", "E", "e", "Ann", "Yes.", "00:00:01", 0))
    wrong = {"transcript": 5}, {"speaker": None}, {"number": "1"}, {"turn": []}
    for line in ({"chunk_id": "e_0"}, *(whole | each for each in wrong)):
        path.write_text(f"\n{json.dumps(line)}\n")
        with pytest.raises(TranscriptError, match=r"chunks\.jsonl, line 2: not a chunk; write it again with"):
            read_chunks(path)
    with pytest.raises(TranscriptError, match="there is no such file"):
        read_chunks(tmp_path / "none")


def test_scripts_without_blanks_are_split_at_their_sentence_ends_and_join_to_the_text():
    sentence = "大家好，欢迎收听GPT模型节目。今天（我们）聊聊钟！好吗？"
    turn = Turn("主持人", f"{sentence * 3} 是的 hello there.", "00:00:01", ((1, "00:00:09"),))
    chunks = chunk_transcript(transcript_of(turn))
    assert "".join(chunk.transcript for chunk in chunks).replace(" ", "") == turn.text.replace(" ", "")
    assert len(chunks) > 2 and all(len(chunk.transcript) <= 50 for chunk in chunks)
    assert all(chunk.transcript[-1] in "。！？." for chunk in chunks)
    assert chunks[0].time == "00:00:01" and chunks[-1].time in ("00:00:01", "00:00:09")
