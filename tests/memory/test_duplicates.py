"""Files with the same words are detected in any format, and taken once with `each_once`."""

import json
import random

import pytest

from midthought.memory.chunks import chunk_transcript
from midthought.memory.inspection import inspection_json, notices
from midthought.memory.transcripts import read_transcripts

NUM_WORDS = 400


def spoken(seed: int) -> list[str]:
    """Lines of ten words."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("bdfgklmnprstvaeiou", k=rng.randint(3, 8))) for _ in range(NUM_WORDS)]
    return [" ".join(words[start : start + 10]) for start in range(0, NUM_WORDS, 10)]


def whisper_files(folder, name: str, lines: list[str]) -> None:
    """What Whisper writes of one recording, but for its table."""
    cues = [
        f"00:00:{number:02d}.000 --> 00:00:{number + 1:02d}.000\n{line.capitalize()}.\n"
        for number, line in enumerate(lines)
    ]
    (folder / f"{name}.vtt").write_text("WEBVTT\n\n" + "\n".join(cues))
    numbered = (f"{number}\n{cue.replace('.000', ',000')}" for number, cue in enumerate(cues, 1))
    (folder / f"{name}.srt").write_text("\n".join(numbered))
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    segments = [{"start": float(number), "text": f" {line}"} for number, line in enumerate(lines)]
    (folder / f"{name}.json").write_text(json.dumps({"segments": segments}))


@pytest.fixture
def folder(tmp_path):
    whisper_files(tmp_path, "tide", spoken(1))
    whisper_files(tmp_path, "bell", spoken(2))
    (tmp_path / "quay.md").write_text("**Ann:** " + "\n\n**Bob:** ".join(spoken(3)))
    return tmp_path


def names(groups):
    return [[path.name for path in group] for group in groups]


def test_what_whisper_writes_of_one_recording_is_told_as_one(folder):
    found = read_transcripts(folder)
    assert len(found.transcripts) == 9
    assert [sorted(group) for group in names(found.copies)] == [
        [f"{name}.{suffix}" for suffix in ("json", "srt", "txt", "vtt")] for name in ("bell", "tide")
    ]
    assert [group[-1] for group in names(found.copies)] == ["bell.txt", "tide.txt"]  # has no timestamps
    assert sum("the same words are all taken (--each-once: the first)" in line for line in notices(found)) == 2
    assert inspection_json(found, [])["copies"] == names(found.copies)


def test_each_is_taken_once_and_has_the_plain_stem(folder):
    found = read_transcripts(folder, each_once=True)
    assert [transcript.stem for transcript in found.transcripts] == ["bell", "quay", "tide"]
    assert all(transcript.has_times for transcript in found.transcripts if transcript.stem != "quay")
    assert len({chunk.chunk_id for each in found.transcripts for chunk in chunk_transcript(each)}) == sum(
        len(chunk_transcript(each)) for each in found.transcripts
    )
    assert names(found.copies) == names(read_transcripts(folder).copies)
    assert sum("the same words are taken once, from the first" in line for line in notices(found)) == 2


def test_the_one_that_names_speakers_comes_first(folder):
    (folder / "by-hand.md").write_text("**Ann:** " + "\n\n**Bob:** ".join(spoken(1)))
    (group,) = [group for group in names(read_transcripts(folder).copies) if "tide.vtt" in group]
    assert group[0] == "by-hand.md" and len(group) == 5


@pytest.mark.parametrize(("share", "is_copy"), [(0.02, True), (0.3, False)])
def test_a_few_other_words_make_no_other_episode(tmp_path, share, is_copy):
    rng, lines = random.Random(0), spoken(1)
    (tmp_path / "a.txt").write_text("\n".join(lines))
    words = [word if rng.random() > share else "other" for line in lines for word in line.split()]
    (tmp_path / "b.txt").write_text("\n".join(" ".join(words[start : start + 10]) for start in range(0, NUM_WORDS, 10)))
    assert bool(read_transcripts(tmp_path).copies) == is_copy


def test_episodes_of_one_show_with_the_same_opening_are_no_copies(tmp_path):
    opening = spoken(0)[:8]
    for seed in range(1, 6):
        (tmp_path / f"{seed}.txt").write_text("\n".join(opening + spoken(seed)))
    assert read_transcripts(tmp_path).copies == ()
