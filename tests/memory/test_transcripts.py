"""Each format with a small example written by hand, and with real files if they are available."""

import json
import time
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


def test_a_markdown_turn_goes_on_over_paragraphs_until_the_next_speaker(read):
    transcript = read("the-show-7.md", "**Ann:** One.\n\nTwo\nthree.\n\n**Bob B. Reece, Psy.D:**\n\nFour.\n")
    assert said(transcript) == [("Ann", "One. Two three.", None), ("Bob B. Reece, Psy.D", "Four.", None)]
    assert (transcript.stem, transcript.episode) == ("the-show-7", "The Show 7")


def test_a_first_heading_gives_the_title_and_later_headings_are_not_speech(read):
    transcript = read("a.md", "# The *Tide* Clock\n\nRecorded in May.\n\n**Ann:** One.\n\n## Part two\n\nTwo.\n")
    assert transcript.episode == "The Tide Clock"
    assert said(transcript) == [("Ann", "One. Two.", None)]


def test_front_matter_gives_the_title(read):
    transcript = read("a.md", '---\ntitle: "The Bell"\ndate: 2020\n---\n**Ann:** One.\n')
    assert (transcript.episode, said(transcript)) == ("The Bell", [("Ann", "One.", None)])


def test_inline_times_are_taken_out_and_kept_with_the_word_that_follows(read):
    turn, second = read("a.md", "**Ann:** \\[04:01.06\\] One two [1:05:09] three.\n\n**Bob:** \\[75:10\\] Yes.").turns
    assert turn == Turn("Ann", "One two three.", "00:04:01", ((2, "01:05:09"),))
    assert second.time == "01:15:10"


def test_a_time_at_the_end_or_in_a_silent_turn_is_that_of_the_next_turn(read):
    text = "**Ann:** One. \\[00:10\\]\n\n**Bob:** Two.\n\n**Break**: \\[37:58\\]\n\n**Ann:** Three.\n\n**Bob:** Four."
    assert [turn.time for turn in read("a.md", text).turns] == [None, "00:00:10", "00:37:58", None]


def test_a_range_of_times_is_no_speech_and_counts_by_its_end(read):
    text = "**Ann:** One.\n\n**Break:** \\[19:02\\] to \\[20:00\\]\n\n**Bob:** Two."
    assert said(read("a.md", text)) == [("Ann", "One.", None), ("Bob", "Two.", "00:20:00")]


def test_turns_without_speech_vanish(read):
    transcript = read(
        "a.md", "**Jingle:**\n\n**Ann:** One.\n\n\\* \\* \\*\n\n**Clip from Elsewhere :**\n\n**Break:**\n"
    )
    assert said(transcript) == [("Ann", "One.", None)]


def test_links_and_emphasis_give_their_words_and_escapes_their_signs(read):
    text = (
        "**Ann:** See [the *docs*](https://x.org/a_(b) 'T') and **bold _words_**, `snake_case *x*`, snake_case_name, "
        "\\*literal\\*, 5 * 3 * 2, ~~gone~~ &amp; ![pic](a.png)<https://y.org> <b>b</b> x<y \\[laughter\\]."
    )
    expected = (
        "See the docs and bold words, snake_case *x*, snake_case_name, "
        "*literal*, 5 * 3 * 2, gone & https://y.org b x<y [laughter]."
    )
    assert said(read("a.md", text)) == [("Ann", expected, None)]


def test_quotes_and_lists_lose_their_marks_only(read):
    transcript = read("a.md", "**Ann:** I read:\n\n> A line\n> goes on.\n\n- one\n- two\n")
    assert said(transcript) == [("Ann", "I read: A line goes on. one two", None)]


def test_an_unintelligible_note_loses_its_time_and_gives_none(read):
    (turn,) = read("a.md", "**Ann:** We \\[unintelligible 00:04:48.27\\] go.").turns
    assert turn == Turn("Ann", "We [unintelligible] go.")


def test_stray_signs_in_a_long_turn_cost_little(read):
    began = time.process_time()
    for stray in ("*a ", "`a ", "_a ", "[a ", "[a](", "~~a ", "<!-- ", "\\["):
        assert len(read("a.md", "**Ann:** " + stray * 10_000).turns) == 1
    assert time.process_time() - began < 10  # a fraction of a second; a quadratic search takes minutes


# -- plain text ----------------------------------------------------------------------------------------------------


def test_plain_text_with_names_and_times_on_their_own_lines(read):
    transcript = read("a.txt", "Ann Lee (00:00):\r\nOne\r\ntwo.\r\n\r\nBob (01:02:03):\r\nThe point: three.\r\n")
    assert said(transcript) == [("Ann Lee", "One two.", "00:00:00"), ("Bob", "The point: three.", "01:02:03")]


def test_plain_text_with_dashes_after_the_time_and_wrapped_lines(read):
    transcript = read("a.txt", "Zoë Müller-Sim (00:00:07) - One\ntwo\n\nthree.\n\nBob (00:09) - Four.\n")
    assert said(transcript) == [("Zoë Müller-Sim", "One two three.", "00:00:07"), ("Bob", "Four.", "00:00:09")]


def test_plain_text_with_times_before_the_names(read):
    assert said(read("a.txt", "[00:01] Ann: One.\n[00:02] Bob: Two.")) == [
        ("Ann", "One.", "00:00:01"),
        ("Bob", "Two.", "00:00:02"),
    ]


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


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_the_original_json_layout(read):
    content = [
        {"speaker": "Ann", "transcript": " One\n two. ", "time": "00:00:05"},
        {"speaker": "Bob", "transcript": "  ", "time": "00:00:06"},
        {"transcript": "Three."},
    ]
    document = {"speakers": ["Ann", "Bob"], "episode": "The Bell", "content": content}
    transcript = read("a.json", json.dumps(document))
    assert transcript.episode == "The Bell"
    assert said(transcript) == [("Ann", "One two.", "00:00:05"), ("Unknown Speaker", "Three.", "00:00:06")]


def test_podcast_segments_of_one_speaker_form_one_turn_that_keeps_their_times(read):
    segments = [
        {"speaker": "Ann", "startTime": 0.5, "endTime": 1, "body": "One two"},
        {"speaker": "Ann", "startTime": 61.9, "body": "three."},
        {"startTime": 70, "body": "Four."},
        {"speaker": "Bob", "startTime": 3600, "body": "Five."},
    ]
    first, second = read("a.json", json.dumps({"version": "1.0.0", "segments": segments})).turns
    assert first == Turn("Ann", "One two three. Four.", "00:00:00", ((2, "00:01:01"), (3, "00:01:10")))
    assert second == Turn("Bob", "Five.", "01:00:00")


# -- captions ------------------------------------------------------------------------------------------------------


def test_srt_cues_merge_until_another_speaker_is_named(read):
    text = (
        "\ufeff1\r\n00:00:00,500 --> 00:00:02,000\r\nAnn: One\r\ntwo\r\n\r\n"
        "2\r\n00:00:02,000 --> 00:00:03,000\r\n<i>three</i> <laugh>.\r\n\r\n"
        "3\r\n00:01:03,000 --> 00:01:04,000\r\nBob: Four &amp; five.\r\n"
    )
    assert read("a.srt", text.encode()).turns == (
        Turn("Ann", "One two three <laugh>.", "00:00:00", ((2, "00:00:02"),)),
        Turn("Bob", "Four & five.", "00:01:03"),
    )


def test_vtt_voices_notes_and_short_times(read):
    text = (
        "WEBVTT - a title\n\nNOTE not\nspeech\n\nSTYLE\n::cue { color: red }\n\n"
        "intro\n00:01.000 --> 00:02.000 align:start\n<v.loud Ann Lee>One</v>\n\n"
        "00:02.000 --> 00:03.000\n<v Ann Lee>two. <v Bob>Three.\n"
    )
    assert read("a.vtt", text).turns == (
        Turn("Ann Lee", "One two.", "00:00:01", ((1, "00:00:02"),)),
        Turn("Bob", "Three.", "00:00:02"),
    )


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


def test_one_json_object_on_each_line(read):
    text = (
        '{"start": 1, "speaker": 0, "text": "One two."}\n{"start": 2, "speaker": {"name": "Bob"}, "text": "Three."}\n'
    )
    assert said(read("a", text)) == [("Speaker 0", "One two.", "00:00:01"), ("Bob", "Three.", "00:00:02")]


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


def test_html_pages_without_cite_are_read_line_by_line(read):
    page = (
        "<!DOCTYPE html><html><head><title>The Bell &amp; I</title><style>p { x: '<p>' }</style></head><body>"
        "<script>if (a < b) { document.write('<p>Eve: no</p>') }</script><!-- <p>Eve: no</p> -->"
        '<div class="ts-segment"><span class="ts-name">Ann Lee</span><span class="ts-timestamp">'
        '<a href="https://x.org?t=1">(00:00:01)</a></span> <span class="ts-text">One &lt;two&gt;.</span></div>'
        '<div class="ts-segment"><span>Bob</span> <span><a>(00:00:02)</a></span> <span>Three.</span></div></body></html>'
    )
    transcript = read("a.html", page)
    assert transcript.episode == "The Bell & I"
    assert said(transcript) == [("Ann Lee", "One <two>.", "00:00:01"), ("Bob", "Three.", "00:00:02")]


# -- repetitions ---------------------------------------------------------------------------------------------------


def whisper(*lines: str, **fields: str) -> str:
    return json.dumps({"segments": [{"start": n, "text": f" {text}", **fields} for n, text in enumerate(lines)]})


def test_a_line_again_and_again_is_dropped_and_counted(read):
    lines = ["So we began.", *["Thanks for watching this video."] * 9, "And then it rang."]
    transcript = read("a.json", whisper(*lines))
    assert transcript.turns[0].text == "So we began. Thanks for watching this video. And then it rang."
    assert transcript.turns[0].marks == ((3, "00:00:01"), (8, "00:00:10"))
    assert transcript.num_repeats == 8


def test_lines_that_come_round_together_and_loops_within_a_line_are_dropped(read):
    rounds = read("a.json", whisper("Begin.", *["I do not know what it is.", "It is what it is."] * 4, "End."))
    assert rounds.turns[0].text == "Begin. I do not know what it is. It is what it is. End." and rounds.num_repeats == 6
    loop = read("b.json", whisper("Well, " + "it goes on and on. " * 20 + "The end."))
    assert loop.turns[0].text == "Well, it goes on and on. The end." and loop.num_repeats == 19


def test_what_people_say_twice_stays(read):
    answers = "".join(f"**{name}:** {word}\n\n" for name in ("Ann", "Bob") * 3 for word in ("Yeah.",))
    assert read("a.md", answers).num_repeats == 0
    assert read("a.json", whisper("Yeah.", "Yeah.", "No.", "No.", "No.")).num_repeats == 0
    assert read("b.json", whisper("I told you so, again.", "I told you so, again.")).num_repeats == 0
    for words in ("Ah!", "Sha-ta-ta-ta-ta!"):
        cues = "".join(f"{n}\n00:00:{n:02},000 --> 00:00:{n + 1:02},000\n{words}\n\n" for n in range(1, 9))
        assert read("d.srt", cues).turns[0].text.split() == [words] * 8
    assert read("c.json", whisper("No, no, no, no, no, no! Ha ha ha ha ha ha ha ha.")).num_repeats == 0


def test_no_word_is_left_out_as_a_repetition_without_a_message(read):
    transcript = read("a.json", whisper(*(f"Sentence {n}." for n in range(9)), *["Let it be now."] * 3))
    assert transcript.num_repeats == 2
    assert "8 words of the file are in no turn (8 are repetitions of a speech recognizer)" in transcript.doubts[1]


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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
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
    ],
)
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
