"""Values, folders and mistakes, and real files if they are available. `golden/` has an example of each form."""

import csv
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from midthought.errors import TranscriptError
from midthought.memory.inspection import inspection_json, notices
from midthought.memory.transcripts import Transcript, read_transcript, read_transcripts, title_of


@pytest.fixture
def read(tmp_path):
    def read_text(name: str, text: str | bytes) -> Transcript:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_transcript(path)

    return read_text


def test_prose_is_read_from_fifty_words_on(read):
    words = "The tide rises slowly over the stones of the harbor. " * 3 + "\n\nIt falls again before the evening.\n"
    assert read("a.txt", words * 2).speakers == ()
    with pytest.raises(TranscriptError, match="no speaker turn"):
        read("b.txt", words)


def test_milliseconds_are_told_by_the_time_of_a_word(read):
    for factor, keys in ((1, {"end"}), (1000, {"end"}), (1, set()), (1000, set())):
        entries = [
            {"speaker": "AB"[n % 2], "text": "So it goes.", "start": n * 4 * factor}
            | dict.fromkeys(keys, (n * 4 + 3) * factor)
            for n in range(4)
        ]
        times = [turn.time for turn in read("a.json", json.dumps(entries)).turns]
        assert times == ["00:00:00", "00:00:04", "00:00:08", "00:00:12"], (factor, keys)


def test_a_cell_may_have_all_the_words_of_an_episode_and_threads_may_read_large_and_small_ones_at_once(read):
    texts = [f"speaker,text\nAnn,{'The tide rises. ' * number}\nBob,Yes.\n" for number in (1, 10_000)]
    limit, interval = csv.field_size_limit(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            read_at_once = list(pool.map(lambda number: read(f"{number}.csv", texts[number % 2]), range(100)))
        assert csv.field_size_limit() == limit
    finally:
        sys.setswitchinterval(interval)
        csv.field_size_limit(limit)
    num_words = [[len(turn.text.split()) for turn in transcript.turns] for transcript in read_at_once]
    assert num_words == [[3, 1], [30_000, 1]] * 50


# -- folders and mistakes ------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_paths_and_leaves_out_what_is_no_transcript(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    files = ["b/two.md", "a.md", "LICENSE", "README.md", "scraping_summary.json", "notes.xlsx", ".git/x.md"]
    for name in files:
        (tmp_path / name).write_text("**Ann:** Hello.")
    (tmp_path / "c.json").write_text("{")
    folder = read_transcripts(tmp_path)
    assert [transcript.stem for transcript in folder.transcripts] == ["a", "two"]
    ((path, reason),) = folder.failures
    assert path.name == "c.json" and "c.json: it is not valid JSON" in reason and "content" in reason
    with pytest.raises(TranscriptError, match=r"c\.json"):
        folder.require_all()


def test_files_of_one_name_get_stems_of_their_own(tmp_path):
    for name in ["one/1.md", "two/1.md", "two/2.md", "two/2.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("**Ann:** Hello." if name.endswith("md") else "Ann: Hello.")
    stems = [transcript.stem for transcript in read_transcripts(tmp_path).transcripts]
    assert stems == ["one-1", "two-1", "two-2.md", "two-2.txt"]


NO_LIST = "no list of objects with a text"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.md", b"Only prose.", "Only prose.; write each turn as '**Speaker:** text', or declare in notation.yaml"),
        ("a.md", "**Ann:** café, naïve".encode().replace(b"\xaf", b"?"), "not UTF-8 text (byte 18)"),
        ("a.md", b"\xff\xfe*\0*\0\xd8", "not whole UTF-16-LE text"),
        ("a.txt", b"Ann: \0\0\1\2\0", "NUL bytes, so it is not text; export its words"),
        ("a.json", b'{"episode": ', "not valid JSON"),
        ("a.json", b'{"segments": [{"text": "x", "start": 1' + b"0" * 5000 + b"}]}", "not valid JSON"),
        *(("a.json", content, NO_LIST) for content in (b"[1]", b'{"words": 1}', b'{"content": ["x"]}')),
        ("a.vtt", b"WEBVTT\n", "no speaker turn found"),
        ("a.csv", b"who,what\nAnn,Yes\n", "its columns are 'who, what'; name its columns speaker, text, start"),
        ("a.pdf", b"x", "no speaker turn found"),
        *(("a.txt", each, "it is empty; give a file with words") for each in (b"", b"\xef\xbb\xbf", b" \n\t\n", b"\xff\xfe")),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_with_reason_and_remedy(read, name, content, words):
    with pytest.raises(TranscriptError) as caught:
        read(name, content)
    assert name in str(caught.value) and words in str(caught.value)


def test_a_missing_path_and_a_folder_without_transcripts_are_told(tmp_path):
    with pytest.raises(TranscriptError, match="there is no such file or folder"):
        read_transcripts(tmp_path / "none")
    with pytest.raises(TranscriptError, match="no transcript in this folder"):
        read_transcripts(tmp_path)
    (tmp_path / "a.md").write_text("prose")
    with pytest.raises(TranscriptError, match=r"a\.md: no speaker turn"):
        read_transcripts(tmp_path)


def test_a_title_is_made_of_the_files_name():
    assert title_of("the-changelog--450_b.c") == "The Changelog 450 B C"
    assert title_of("practical-ai-110") == "Practical AI 110" and title_of("js-party") == "JS Party"


# -- real files ----------------------------------------------------------------------------------------------------


def test_every_real_markdown_episode_reads_sensibly(real_data):
    folder = read_transcripts(real_data / "podcast/changelog_md")
    assert len(folder.transcripts) == 30 and not folder.failures
    turns = [turn for transcript in folder.transcripts for turn in transcript.turns]
    assert not {"Break", "Jingle", "Outro"} & {turn.speaker for turn in turns}
    assert not [turn.text for turn in turns if "**" in turn.text or "](" in turn.text or "\\[" in turn.text]
    untimed = {each.stem for each in folder.transcripts if not any(turn.time for turn in each.turns)}
    assert untimed == {f"changelog-news-{number}" for number in (22, 50, 59)}


def test_one_real_episode_reads_alike_from_each_format(real_data):
    names = ["66-business-of-apps.json", "metamuse-66-business-of-apps.srt", "metamuse-66-business-of-apps.vtt"]
    read_ones = [read_transcript(real_data / "podcast/formats" / name) for name in names]
    speakers = [[turn.speaker for turn in transcript.turns] for transcript in read_ones]
    assert speakers[0] == speakers[1] == speakers[2] and len(speakers[0]) == 103
    words = [" ".join(turn.text for turn in transcript.turns).split() for transcript in read_ones]
    assert words[0] == words[1] == words[2]
    text = read_transcript(real_data / "podcast/formats/66-business-of-apps.txt")
    assert {turn.speaker for turn in text.turns} == set(speakers[0])


# -- files with the same words ---------------------------------------------------------------------------------------


def words_of(seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("bdfgklmnprstvaeiou", k=rng.randint(3, 8))) for _ in range(400)]


def lines_of(words: list[str]) -> list[str]:
    """Lines of ten words."""
    return [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]


def spoken(seed: int) -> list[str]:
    return lines_of(words_of(seed))


def whisper_files(folder, name: str, lines: list[str]) -> None:
    """What Whisper writes of one recording, but for its table."""
    cues = [f"00:00:{n:02d}.000 --> 00:00:{n + 1:02d}.000\n{line.capitalize()}.\n" for n, line in enumerate(lines)]
    (folder / f"{name}.vtt").write_text("WEBVTT\n\n" + "\n".join(cues))
    numbered = (f"{n}\n{cue.replace('.000', ',000')}" for n, cue in enumerate(cues, 1))
    (folder / f"{name}.srt").write_text("\n".join(numbered))
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    segments = [{"start": float(n), "text": f" {line}"} for n, line in enumerate(lines)]
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
    assert names(found.copies) == names(read_transcripts(folder).copies)
    assert sum("the same words are taken once, from the first" in line for line in notices(found)) == 2


def test_the_one_that_names_speakers_comes_first(folder):
    (folder / "by-hand.md").write_text("**Ann:** " + "\n\n**Bob:** ".join(spoken(1)))
    (group,) = [group for group in names(read_transcripts(folder).copies) if "tide.vtt" in group]
    assert group[0] == "by-hand.md" and len(group) == 5


@pytest.mark.parametrize(("share", "is_copy"), [(0.02, True), (0.3, False)])
def test_a_few_other_words_make_no_other_episode(tmp_path, share, is_copy):
    rng, words = random.Random(0), words_of(1)
    (tmp_path / "a.txt").write_text("\n".join(lines_of(words)))
    others = [word if rng.random() > share else "other" for word in words]
    (tmp_path / "b.txt").write_text("\n".join(lines_of(others)))
    assert bool(read_transcripts(tmp_path).copies) == is_copy


def test_episodes_of_one_show_with_the_same_opening_are_no_copies(tmp_path):
    opening = spoken(0)[:8]
    for seed in range(1, 6):
        (tmp_path / f"{seed}.txt").write_text("\n".join(opening + spoken(seed)))
    assert read_transcripts(tmp_path).copies == ()
