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


def test_plain_text_with_names_only_tells_speakers_from_sentences_with_a_colon(read):
    text = (
        "The Bell\n\nAnn: I say this: one thing, and\nRemember: it holds.\nBob: Two.\nAnn van Os: Three.\nhttps://x.org"
    )
    assert said(read("a.txt", text)) == [
        ("Ann", "I say this: one thing, and Remember: it holds.", None),
        ("Bob", "Two.", None),
        ("Ann van Os", "Three. https://x.org", None),
    ]
    assert read("b.txt", text).episode == "The Bell"


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


def test_whisper_and_word_timed_segments(read):
    whisper = {"text": "One. Two.", "segments": [{"start": 1.0, "text": " One."}, {"start": 2.5, "text": " Two."}]}
    assert read("a.json", json.dumps(whisper)).turns == (
        Turn("Unknown Speaker", "One. Two.", "00:00:01", ((1, "00:00:02"),)),
    )
    words = [{"word": "One ", "start": 9.1}, {"word": "two.", "start": 9.5}]
    timed = {"segments": [{"speaker_id": "s-0", "speaker_name": "Ann", "wdlist": words}]}
    assert said(read("b.json", json.dumps(timed))) == [("Ann", "One two.", "00:00:09")]


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


def test_captions_without_any_speaker_are_one_unknown_speakers(read):
    text = "1\n00:00:01,000 --> 00:00:02,000\n- One\n\n2\n00:00:02,000 --> 00:00:03,000\ntwo.\n"
    assert said(read("a.srt", text)) == [("Unknown Speaker", "One two.", "00:00:01")]


# -- formats by content --------------------------------------------------------------------------------------------

SAMPLES = {
    "Markdown": "# The Bell\n\n**Ann:** One two.\n\n**Bob:** Three.\n",
    "text": "Ann (00:00:01):\nOne two.\n\nBob (00:00:02):\nThree.\n",
    "JSON": '{"segments": [{"speaker": "Ann", "start": 1, "text": "One two."},\n'
    ' {"speaker": "Bob", "start": 2, "text": "Three."}]}',
    "SRT": "1\n00:00:01,000 --> 00:00:02,000\nAnn: One two.\n\n2\n00:00:02,000 --> 00:00:03,000\nBob: Three.\n",
    "VTT": "WEBVTT\n\n1\n00:01.000 --> 00:02.000\n<v Ann>One two.\n\n2\n00:02.000 --> 00:03.000\n<v Bob>Three.\n",
    "HTML": "<cite>Ann:</cite>\n<time>0:01</time>\n<p>One two.</p>\n<cite>Bob:</cite>\n<time>0:02</time>\n<p>Three.</p>\n",
}


@pytest.mark.parametrize("suffix", ["", ".txt", ".md", ".json", ".srt", ".vtt", ".html"])
@pytest.mark.parametrize("form", SAMPLES)
def test_the_content_says_which_format_a_file_has_whatever_its_suffix(read, form, suffix):
    transcript = read(f"episode{suffix}", SAMPLES[form])
    assert transcript.format == form
    assert [turn.speaker for turn in transcript.turns] == ["Ann", "Bob"]
    assert [turn.text for turn in transcript.turns] == ["One two.", "Three."]
    assert [turn.time for turn in transcript.turns] == ([None] * 2 if form == "Markdown" else ["00:00:01", "00:00:02"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "cp1252"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_other_encodings_and_line_ends_are_read_right(read, encoding, line_end):
    text = (
        "1\n00:00:01,000 --> 00:00:02,000\nZoë: “Déjà vu” – naïve.\n\n2\n00:00:02,000 --> 00:00:03,000\nBob: Three.\n"
    )
    transcript = read("a.srt", text.replace("\n", line_end).encode(encoding))
    assert said(transcript) == [("Zoë", "“Déjà vu” – naïve.", "00:00:01"), ("Bob", "Three.", "00:00:02")]


def test_a_page_about_captions_is_no_transcript(read):
    page = "# Formats\n\n" + "Some words about a format.\n\n" * 20 + f"```vtt\n{SAMPLES['VTT']}```\n"
    with pytest.raises(TranscriptError, match="no speaker turn found"):
        read("spec.md", page)


# -- more ways of writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "00:00:01 One two.\n00:00:04 Three.",
        "[00:01] One two.\n[00:04] Three.",
        "(0:01) One two.\n(0:04)\nThree.",
        "[00:00:01.000 --> 00:00:04.000]   One two.\n[00:00:04.000 --> 00:00:06.000]   Three.",
        "0:01\nOne two.\n0:04\nThree.",
        "00:00:01 - One two.\n00:00:04 - Three.",
    ],
)
def test_lines_with_times_and_no_names_are_one_unknown_speakers(read, text):
    assert read("a.txt", text).turns == (Turn("Unknown Speaker", "One two. Three.", "00:00:01", ((2, "00:00:04"),)),)


@pytest.mark.parametrize(
    "text",
    [
        "00:00:01 Ann Lee: One two.\n00:00:04 Bob: Three.",
        "Ann Lee  0:01\nOne two.\n\nBob  0:04\nThree.",
        "Ann Lee (00:01) One two.\nBob (00:04) Three.",
        "[00:00:01] [Ann Lee]: One two.\n[00:00:04] [Bob]: Three.",
        "Ann Lee [00:01]: One two.\nBob [00:04]: Three.",
    ],
)
def test_names_and_times_stand_in_many_orders(read, text):
    assert said(read("a.txt", text)) == [("Ann Lee", "One two.", "00:00:01"), ("Bob", "Three.", "00:00:04")]


def test_names_in_brackets_as_whisperx_writes_them(read):
    text = "[SPEAKER_00]: One two.\n[SPEAKER_01]: Three.\n[SPEAKER_00]: Four."
    assert [turn.speaker for turn in read("a.txt", text).turns] == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00"]


def test_prose_is_a_transcript_from_fifty_words_on(read):
    words = "".join(f"Line {number} of what was said there\nand another one of them.\n" for number in range(5))
    (turn,) = read("a.txt", words).turns
    assert turn == Turn("Unknown Speaker", " ".join(words.split()))
    with pytest.raises(TranscriptError, match="no speaker turn"):
        read("b.txt", "A note of eight words, and no more.")


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


@pytest.mark.parametrize(
    "document",
    [
        {"transcription": [{"timestamps": {"from": "00:00:01,500", "to": "00:00:02,000"}, "text": " One two."}]},
        {"text": "One two.", "chunks": [{"timestamp": [1.5, 2.0], "text": " One two."}]},
        [{"start": 1.5, "text": "One two."}],
        {"segments": [{"start": "1.5", "text": "One two."}]},
        {"segments": [{"start": "00:01", "text": "One two.", "words": None}]},
    ],
)
def test_lists_of_other_tools(read, document):
    assert said(read("a.json", json.dumps(document))) == [("Unknown Speaker", "One two.", "00:00:01")]
    assert said(read("b.json", json.dumps({"text": "One two."}))) == [("Unknown Speaker", "One two.", None)]


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


def test_captions_without_blank_lines_and_cues_that_roll_up(read):
    srt = "1\n00:01,000 --> 00:02,000\nOne two.\n2\n00:02,000 --> 00:03,000\n3 three.\n3\n00:03,000 --> 00:04,000\nFour.\n"
    assert said(read("a.srt", srt)) == [("Unknown Speaker", "One two. 3 three. Four.", "00:00:01")]
    rolled = (
        "WEBVTT\nKind: captions\n\n00:00:01.000 --> 00:00:02.000\n \none<00:00:01.500><c> two</c>\n\n"
        "00:00:02.000 --> 00:00:02.010\none two\n \n\n00:00:02.010 --> 00:00:04.000\none two\nthree<c> four</c>\n\n"
        "00:00:04.000 --> 00:00:04.010\nthree four\n \n\n00:00:04.010 --> 00:00:06.000\nthree four\nfive\n"
    )
    (turn,) = read("a.vtt", rolled).turns
    assert turn.text == "one two three four five" and turn.time == "00:00:01"


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
    assert transcript.num_repeats == 2 and not transcript.is_doubtful
    assert transcript.doubts == ("8 words were left out as repetitions of a speech recognizer, but may have been said",)


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
        ("a.md", b"Only prose.", "no speaker turn found; write each turn as '**Speaker:** text'"),
        ("a.md", b"**Ann:** caf\xe9 \x81", "not UTF-8 text (byte 12); save the file as UTF-8"),
        ("a.md", "**Ann:** café, naïve".encode().replace(b"\xaf", b"?"), "not UTF-8 text (byte 18)"),
        ("a.md", "**Анна:** Привет".encode("cp1251"), "not UTF-8 text (byte 2); save the file as UTF-8"),
        ("a.md", b"\xff\xfe*\0*\0\xd8", "not whole UTF-16-LE text"),
        ("a.txt", b"Ann: \0\0\1\2\0", "NUL bytes"),
        ("a.txt", b"%PDF-1.7 ...", "export its words as text, or as .docx"),
        ("a.docx", b"PK\x03\x04...", "it is a damaged or encrypted Word file"),
        ("a.doc", b"\xd0\xcf\x11\xe0..", "it is an old Office file, not text; export its words"),
        ("a.json", b'{"episode": ', "not valid JSON"),
        ("a.json", b"[1]", "the entries of the list are not all objects"),
        ("a.json", b'{"words": 1}', "no list of entries with text"),
        ("a.json", b'{"segments": [{"text": "x", "start": 1' + b"0" * 5000 + b"}]}", "a number that is too long"),
        ("a.json", b'{"content": ["x"]}', "not all objects"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.vtt", b"WEBVTT\n", "no speaker turn found"),
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
