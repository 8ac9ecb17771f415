"""Each format with a small example written by hand, and with real files if they are available."""

import csv
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midthought.errors import TranscriptError
from midthought.memory.transcripts import Transcript, Turn, read_transcript, read_transcripts, title_of

REAL = Path(__file__).parents[2].parent / "shared/data/podcast"


@pytest.fixture
def read(tmp_path):
    def read_text(name: str, text: str | bytes) -> Transcript:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_transcript(path)

    return read_text


def said(transcript: Transcript) -> list[tuple[str, str, str | None]]:
    return [(turn.speaker, turn.text, turn.time) for turn in transcript.turns]


# -- Markdown ------------------------------------------------------------------------------------------------------


MARKDOWN = {
    "**Ann:** One.\n\nTwo\nthree.\n\n**Bob B. Reece, Psy.D:**\n\nFour.\n": "Ann: One. Two three. / Bob B. Reece, Psy.D: Four.",
    "# The *Tide* Clock\n\nRecorded in May.\n\n**Ann:** One.\n\n## Part two\n\nTwo.\n": "Ann: One. Two.",
    "**Ann:** One. \\[00:10\\]\n\n**Bob:** Two.\n\n**Break**: \\[37:58\\]\n\n**Ann:** Three.\n\n**Bob:** Four.": (
        "Ann: One. / Bob 00:00:10: Two. / Ann 00:37:58: Three. / Bob: Four."  # a time is that of the next turn
    ),
    "**Ann:** One.\n\n**Break:** \\[19:02\\] to \\[20:00\\]\n\n**Bob:** Two.": "Ann: One. / Bob 00:20:00: Two.",
    "**Jingle:**\n\n**Ann:** One.\n\n\\* \\* \\*\n\n**Clip from Elsewhere :**\n\n**Break:**\n": "Ann: One.",
    "**Ann:** I read:\n\n> A line\n> goes on.\n\n- one\n- two\n": "Ann: I read: A line goes on. one two",
    "**Ann:** We \\[unintelligible 00:04:48.27\\] go.": "Ann: We [unintelligible] go.",
    "**Ann:** See [the *docs*](https://x.org/a_(b) 'T') and **bold _words_**, `snake_case *x*`, snake_case_name, "
    "\\*literal\\*, 5 * 3 * 2, ~~gone~~ &amp; ![pic](a.png)<https://y.org> <b>b</b> x<y \\[laughter\\].": (
        "Ann: See the docs and bold words, snake_case *x*, snake_case_name, "
        "*literal*, 5 * 3 * 2, gone & https://y.org b x<y [laughter]."
    ),
}


def test_markdown_gives_its_words_with_speakers_and_times(read):
    for text, expected in MARKDOWN.items():
        transcript = read("the-show-7.md", text)
        turns = [f"{speaker}{f' {time}' if time else ''}: {words}" for speaker, words, time in said(transcript)]
        assert " / ".join(turns) == expected
        assert transcript.episode == ("The Tide Clock" if text.startswith("# The") else "The Show 7")


def test_inline_times_are_taken_out_and_kept_with_the_word_that_follows(read):
    turn, second = read("a.md", "**Ann:** \\[04:01.06\\] One two [1:05:09] three.\n\n**Bob:** \\[75:10\\] Yes.").turns
    assert turn == Turn("Ann", "One two three.", "00:04:01", ((2, "01:05:09"),))
    assert second.time == "01:15:10"


# -- plain text ----------------------------------------------------------------------------------------------------


def test_a_label_within_a_paragraph_counts_only_if_it_starts_another(read):
    text = "Ann: I say this: one thing, and\nRemember: it holds.\n\nBob: Two.\nAnn: Three.\n\nDr. van Os Jr.: Four.\n"
    assert said(read("a.txt", text)) == [
        ("Ann", "I say this: one thing, and Remember: it holds.", None),
        ("Bob", "Two.", None),
        ("Ann", "Three.", None),
        ("Dr. van Os Jr.", "Four.", None),
    ]


def test_a_line_in_another_style_is_a_turn_if_it_has_the_name_of_a_speaker(read):
    text = "Ann (00:01): One.\n\nBob (00:02): Two.\n\nAnn: Three.\n\nRemember: it holds.\n"
    assert said(read("a.txt", text)) == [
        ("Ann", "One.", "00:00:01"),
        ("Bob", "Two.", "00:00:02"),
        ("Ann", "Three. Remember: it holds.", None),
    ]


def test_prose_is_read_from_fifty_words_on_and_lines_with_times_always(read):
    words = (
        "The tide rises slowly over the stones of the harbor. " * 3 + "\n\nIt falls again before the evening comes.\n"
    )
    assert read("a.txt", words * 2).speakers == ()
    with pytest.raises(TranscriptError, match="no speaker turn"):
        read("b.txt", words)
    timed = "[00:00:01.000 --> 00:00:04.000]   One two.\n[00:04] Three.\n[00:05] Yes\n"
    marks = ((2, "00:00:04"), (3, "00:00:05"))
    assert read("c.txt", timed).turns == (Turn("Unknown Speaker", "One two. Three. Yes", "00:00:01", marks),)


# -- odd values ----------------------------------------------------------------------------------------------------


def test_whisper_words_give_the_speakers_that_segments_lack(read):
    words = [{"word": " One", "start": 1.0, "speaker": "A"}, {"word": " two.", "start": 2.0, "speaker": "A"}]
    words += [{"word": " Three.", "start": 3.0, "speaker": "B"}, {"word": " Four."}]
    document = {"segments": [{"start": 1.0, "text": " One two. Three. Four.", "words": words}]}
    assert said(read("a.json", json.dumps(document))) == [
        ("A", "One two.", "00:00:01"),
        ("B", "Three. Four.", "00:00:03"),
    ]
    without_text = {"segments": [{"start": 1.0, "words": [{"word": "One"}, {"word": "two."}]}]}
    assert said(read("b.json", json.dumps(without_text))) == [("Unknown Speaker", "One two.", "00:00:01")]


def test_milliseconds_are_told_by_the_time_of_a_word(read):
    for factor, keys in ((1, {"end"}), (1000, {"end"}), (1, set()), (1000, set())):
        entries = [
            {"speaker": "AB"[n % 2], "text": "So it goes.", "start": n * 4 * factor}
            | dict.fromkeys(keys, (n * 4 + 3) * factor)
            for n in range(4)
        ]
        times = [turn.time for turn in read("a.json", json.dumps(entries)).turns]
        assert times == ["00:00:00", "00:00:04", "00:00:08", "00:00:12"], (factor, keys)


def test_a_cell_may_have_all_the_words_of_an_episode(read):
    transcript = read("a.csv", f"speaker,text\nAnn,{'The tide rises. ' * 10_000}\nBob,Yes.\n")
    assert [len(turn.text.split()) for turn in transcript.turns] == [30_000, 1]


def test_threads_may_read_large_and_small_cells_at_once(read):
    texts = [f"speaker,text\nAnn,{'The tide rises. ' * number}\nBob,Yes.\n" for number in (1, 10_000)]
    limit, interval = csv.field_size_limit(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            read_at_once = list(pool.map(lambda number: read(f"{number}.csv", texts[number % 2]), range(100)))
        assert {len(transcript.turns) for transcript in read_at_once} == {2} and csv.field_size_limit() == limit
    finally:
        sys.setswitchinterval(interval)
        csv.field_size_limit(limit)


def test_values_of_wrong_types_and_odd_letters_do_not_stop_a_file(read):
    entries = [
        {"speaker": ["x"], "start": "soon", "text": "One\x00 \ud800two."},
        {"start": float("nan"), "text": "Three.", "words": 5, "wdlist": {"a": 1}},
        {"start": -1, "text": None, "body": 7},
        {"start": 10**40, "text": "Four. \ue10000:01"},
    ]
    assert said(read("a.json", json.dumps({"segments": entries}))) == [
        ("Unknown Speaker", "One two. Three. Four. 00:01", None)
    ]


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


UNREADABLE = [
    ("a.md", b"Only prose.", "Only prose.; write each turn as '**Speaker:** text', or declare in notation.yaml"),
    ("a.md", "**Ann:** café, naïve".encode().replace(b"\xaf", b"?"), "not UTF-8 text (byte 18)"),
    ("a.md", b"\xff\xfe*\0*\0\xd8", "not whole UTF-16-LE text"),
    ("a.txt", b"Ann: \0\0\1\2\0", "NUL bytes, so it is not text; export its words"),
    ("a.json", b'{"episode": ', "not valid JSON"),
    ("a.json", b"[1]", "no list of objects with a text"),
    ("a.json", b'{"words": 1}', "no list of objects with a text"),
    ("a.json", b'{"segments": [{"text": "x", "start": 1' + b"0" * 5000 + b"}]}", "not valid JSON"),
    ("a.json", b'{"content": ["x"]}', "no list of objects with a text"),
    ("a.vtt", b"WEBVTT\n", "no speaker turn found"),
    ("a.csv", b"who,what\nAnn,Yes\n", "its columns are 'who, what'; name its columns speaker, text, start"),
    ("a.pdf", b"x", "no speaker turn found"),
    *(("a.txt", blank, "it is empty; give a file with words") for blank in (b"", b"\xef\xbb\xbf", b" \n\t\n", b"\xff\xfe")),
]  # fmt: skip


def test_a_file_that_cannot_be_read_is_named_with_reason_and_remedy(read):
    for name, content, words in UNREADABLE:
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

needs_real_files = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data/podcast is not here")


@needs_real_files
def test_every_real_markdown_episode_reads_sensibly():
    folder = read_transcripts(REAL / "changelog_md")
    assert len(folder.transcripts) == 30 and not folder.failures
    turns = [turn for transcript in folder.transcripts for turn in transcript.turns]
    assert not {"Break", "Jingle", "Outro"} & {turn.speaker for turn in turns}
    assert not [turn.text for turn in turns if "**" in turn.text or "](" in turn.text or "\\[" in turn.text]
    timed = {transcript.stem for transcript in folder.transcripts if any(turn.time for turn in transcript.turns)}
    assert {transcript.stem for transcript in folder.transcripts} - timed == {
        "changelog-news-22", "changelog-news-50", "changelog-news-59"
    }  # fmt: skip


@needs_real_files
def test_one_real_episode_reads_alike_from_each_format():
    names = ["66-business-of-apps.json", "metamuse-66-business-of-apps.srt", "metamuse-66-business-of-apps.vtt"]
    read_ones = [read_transcript(REAL / "formats" / name) for name in names]
    speakers = [[turn.speaker for turn in transcript.turns] for transcript in read_ones]
    assert speakers[0] == speakers[1] == speakers[2] and len(speakers[0]) == 103
    words = [" ".join(turn.text for turn in transcript.turns).split() for transcript in read_ones]
    assert words[0] == words[1] == words[2]
    text = read_transcript(REAL / "formats" / "66-business-of-apps.txt")
    assert {turn.speaker for turn in text.turns} == set(speakers[0])
