"""A line is a turn only if the whole file supports it; nothing of the text is lost; doubt is reported."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_texts import said

from midthought.errors import TranscriptError
from midthought.memory.formats import FORMATS, format_of
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.speech_signs import with_lost_words
from midthought.memory.transcripts import read_transcripts
from midthought.memory.turns import Segment

PROSE = (
    "So the bell rang at three and nobody was there to hear it, which was odd. The clock in the hall had stopped a week before, "
    "and we had no other way to tell the time, except for the tide, which came in twice a day and left again. "
    "My uncle said that a bell without a clock is like a boat without water, and I still think of it now and then."
)
MORE = (
    "Then the winter came and the harbor was full of ice. Nobody went out for three weeks. When the first boat left, all of us "
    "stood on the pier and waved, and somebody rang the bell again, as if nothing had happened in between."
)
FIELDS = (
    "Title: The Bell\nHost: Ann Lee\nGuest: Bob Reece\nDate: 2021-03-04\nSummary: A show about bells and\nwhat they mean.\n"
    "License: CC BY 4.0\nURL: https://x.org/a\n\n"
)
HEADER = (
    ("Title", "The Bell"), ("Host", "Ann Lee"), ("Guest", "Bob Reece"), ("Date", "2021-03-04"),
    ("Summary", "A show about bells and what they mean."), ("License", "CC BY 4.0"), ("URL", "https://x.org/a"),
)  # fmt: skip


@pytest.mark.parametrize(
    "stray", ["NOTE: this was cut.", "NAME: a placeholder.", "Remember: it holds.", "Chicago: a city."]
)
@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_a_stray_label_in_prose_is_text_and_the_text_before_it_stays(read, stray, gap):
    text = gap.join([PROSE, stray, MORE])
    transcript = read(text)
    assert transcript.speakers == ()
    assert transcript.turns[0].text == " ".join(text.split())


@pytest.mark.parametrize("turn", ["{}: {}\n\n", "{} (00:0{}:01)\n{}\n\n", "[00:0{2}:01] {0}: {1}\n"])
def test_a_stray_label_between_turns_belongs_to_the_turn_and_is_reported(read, turn):
    if "{} (" in turn:
        lines = [turn.format(name, n, PROSE) for n, name in enumerate(["Ann", "Bob"] * 3)]
    else:
        lines = [turn.format(name, PROSE, n) for n, name in enumerate(["Ann", "Bob"] * 3)]
    transcript = read("".join([*lines[:3], "NOTE: the tape ended.\n\n", *lines[3:]]))
    assert transcript.speakers == ("Ann", "Bob") and len(transcript.turns) == 6
    assert transcript.turns[2].text.endswith("now and then. NOTE: the tape ended.")
    assert transcript.doubts == ("read as text, not as speakers: 'NOTE'",) and transcript.is_doubtful


def test_header_fields_are_no_speech(read):
    turns = "Ann Lee: Welcome.\n\nBob Reece: Thank you: it is good.\n\nAnn Lee: So.\n"
    transcript = read(FIELDS + turns)
    assert transcript.episode == "The Bell" and transcript.header == HEADER
    assert said(transcript) == [("Ann Lee", "Welcome."), ("Bob Reece", "Thank you: it is good."), ("Ann Lee", "So.")]
    prose = read(FIELDS + PROSE, "b.txt")
    assert prose.header == HEADER and said(prose) == [("Unknown Speaker", " ".join(PROSE.split()))]


def test_a_field_that_is_also_a_speaker(read):
    text = "Title: The Bell\nHost: Ann Lee\n\nHost: Welcome to the show.\nGuest: Thank you.\nHost: So.\nGuest: Well.\n"
    transcript = read(text)
    assert transcript.header == (("Title", "The Bell"), ("Host", "Ann Lee"))
    assert [speaker for speaker, _ in said(transcript)] == ["Host", "Guest", "Host", "Guest"]


def test_markdown_prose_and_pages_about_something(read):
    prose = read(f"# The Bell\n\n{PROSE}\n\n## Part two\n\n{MORE}", "a.md")
    assert prose.episode == "The Bell" and said(prose) == [("Unknown Speaker", f"{PROSE} {MORE}")]
    assert [(each.text, each.reason) for each in prose.skipped] == [("Part two", "heading")]
    with pytest.raises(TranscriptError, match="no speaker turn"):
        read(f"# Formats\n\n{PROSE}\n\n{MORE}\n\n```\ncode\n```\n", "b.md")


def test_a_caller_who_speaks_once_is_a_speaker(read):
    text = "".join(f"Ann: Something {n}.\nBob: Yes indeed.\n" for n in range(6))
    assert read(f"{text}Caroline: I have a question.\nAnn: Sure.\n").speakers == ("Ann", "Bob", "Caroline")


def test_sounds_and_notes_in_captions_are_no_speakers(read):
    cues = ["So the bell rang", "[Music]", "at three", "NOTE: unclear", "[Music]", "and nobody was there"] * 4
    text = "".join(f"{n}\n00:00:{n:02d},000 --> 00:00:{n + 1:02d},000\n{cue}\n\n" for n, cue in enumerate(cues, 1))
    assert read(text, "a.srt").speakers == ()


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        (
            "".join(f"Day {n}: we rang the bell and left it there.\n" for n in range(1, 12)),
            "every speaker label occurs once",
        ),
        (f"{PROSE}\n\n{MORE}\n\n" * 2 + "Ann: Yes.\nBob: No.\n" * 9, "lines that start like turns were read as text"),
        (
            "".join(f"Ann (00:{m:02d}:00): Yes.\nBob (00:{90 - m:02d}:00): No.\n" for m in range(1, 40)),
            "of the times go back",
        ),
    ],
)
def test_doubtful_files_are_reported(read, tmp_path, text, doubt):
    transcript = read(text)
    assert transcript.is_doubtful and any(doubt in each for each in transcript.doubts)
    (tmp_path / "b.txt").write_text("Ann: Yes.\nBob: No.\nAnn: Well.\n")
    assert [each.stem for each in read_transcripts(tmp_path).doubtful] == ["a"]


def test_a_narrator_among_names_in_capitals_and_a_long_summary_after_fields(read):
    turns = "ANN: Hello.\n\nBOB: Hi.\n\nANN: So.\n\nNARRATOR: They left.\n\nBOB: Bye.\n"
    transcript = read(
        f"Title: The Bell\nDate: May 3\n\nSummary: Of bells.\n\n{MORE}\n\nTranscript:\n\n{turns}{turns}{turns}{turns}"
    )
    assert transcript.speakers == ("ANN", "BOB", "NARRATOR") and transcript.episode == "The Bell"
    assert ("", MORE) in transcript.header and transcript.doubts == ()


def test_short_lines_with_times_are_no_names(read):
    lines = [
        "So the bell rang at three.",
        "Yeah.",
        "And nobody was there.",
        "Exactly.",
        "Yeah.",
        "Right",
        "Well, then it was odd.",
    ]
    transcript = read("\n\n".join(f"00:00:{n:02d} {line}" for n, line in enumerate(lines * 3)))
    assert transcript.speakers == () and transcript.num_words == 3 * sum(len(line.split()) for line in lines)


def test_voices_of_captions_in_lines_of_text(read):
    transcript = read("00:00:01 <v Ann Lee>One two.\n\n00:00:05 <v Bob>Three.\n\n<v Ann Lee>Four.\n")
    assert said(transcript) == [("Ann Lee", "One two."), ("Bob", "Three."), ("Ann Lee", "Four.")]


@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_front_matter_is_a_header(read, name):
    text = (
        "---\ntitle: 'The Bell'\nspeakers:\n  - Ann Lee\ndate: 2021\n---\nAnn Lee: Yes.\n\nBob: No.\n\nAnn Lee: Well.\n"
    )
    transcript = read(text, name)
    assert transcript.header == (("title", "The Bell"), ("speakers", "Ann Lee"), ("date", "2021"))
    assert transcript.episode == "The Bell" and transcript.speakers == ("Ann Lee", "Bob")


def test_a_manual_with_bold_labels_is_doubtful(read):
    text = "".join(f"## Step {n}\n\n**Status:** Done.\n\n**Files:** {n} of them are ready.\n\n" for n in range(6))
    transcript = read(f"# The setup\n\n{text}", "a.md")
    assert transcript.is_doubtful and "it may be a page about something" in transcript.doubts[-1]


LINES = [
    "NOTE: this was cut.", "Ann: Well, it was so.", "Bob: I agree: it was.", "Title: The Bell", "Host: Ann Lee", "00:01:02",
    "[00:02:03] Ann: Hello.", "Ann (00:03:04)", "Bob [00:04:05]: Yes.", "and nobody was there to hear it", "", "", "Ann",
    "- Yes.",
    "[Music]", "## Part two", "**Ann:** Bold words.", "**Note:** More.", "Transcribed by https://otter.ai", "Page 3 of 12",
    "---",
    "主持人：大家好。", "דנה: שלום", "So it was, in 10:30 or so, odd.", "| Ann | Yes |", "https://x.org/a",
    "(00:05:06) and so on",
    "[END]",
    "SUMMARY KEYWORDS", "bell, clock", "Ann | 00:07:08", "00:08:09 Bob", "Q: Why?", "A: Because.", "ann: lower case",
    "00:09:10 Yeah.", "Yeah.",
]  # fmt: skip


def letters(words) -> list[str]:
    return [
        "".join(filter(str.isalpha, word))
        for text in words
        for word in text.replace("：", " ").replace("|", " ").split()
    ]


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=40), suffix=st.sampled_from([".txt", ".md", ".html"])
)
def test_no_word_is_lost(lines, suffix):
    """Each word is speech, a speaker, part of the header, or listed as skipped."""
    text = "\n".join([*lines, PROSE])
    form = FORMATS["HTML"] if suffix == ".html" else format_of(text, suffix)
    reading = form.read(text.replace("\n", "<br>") if suffix == ".html" else text)
    shown = [f"{segment.speaker or ''} {segment.text}" for segment in reading.segments]
    shown += [f"{key} {value}" for key, value in reading.header] + [each.text for each in reading.skipped]
    missing = letters([text])
    for word in letters(shown):
        if word in missing:
            missing.remove(word)
    assert not [word for word in missing if word]


def test_labels_without_the_shape_of_names_are_speakers_where_the_style_is_sure(read):
    lines = [f"[00:0{n}] **{name}**: {PROSE}\n\n" for n, name in enumerate(["qx()", "kushti", "qx()", "Ann Lee"] * 2)]
    assert read("".join(lines)).speakers == ("qx()", "kushti", "Ann Lee")


def test_a_bold_line_between_bold_names_that_may_be_a_heading_is_reported(read):
    lines = [f"**{name}**\n{PROSE}\n\n" for name in ["Ann", "Bob"] * 4]
    transcript = read("".join([*lines[:3], "**lightclient in chat**\nYes.\n\n", *lines[3:]]), "a.md")
    assert transcript.is_doubtful and "'lightclient in chat'" in transcript.doubts[0]


def test_questions_and_answers_of_a_hearing(read):
    text = "THE COURT: Go on.\nQ. Where were you?\nA. At the pier. I saw\nthe bell.\nQ. When?\nA. At three.\n" * 3
    assert [turn.speaker for turn in read(text).turns] == ["THE COURT", "Q", "A", "Q", "A"] * 3


def test_fields_after_headings_and_initials_that_are_words(read):
    turns = "".join(f"{name}: Bell {n} rang. {MORE[n:]}\n\n" for n, name in enumerate(["JHD", "SYG", "JHD", "MLS"] * 3))
    transcript = read(f"# Day 1\n\n{turns}## Next\n\nPresenter: Ann Lee (AL)\n\nIS: I have it, as it is.\n", "a.md")
    assert transcript.speakers == ("JHD", "SYG", "MLS", "IS") and len(transcript.turns) == 13
    assert ("Presenter: Ann Lee (AL)", "field after a heading") in [
        (skip.text, skip.reason) for skip in transcript.skipped
    ]


def test_a_known_label_without_a_blank_after_it(read):
    transcript = read("Ann: So it rang.\n\nBob: Yes.\n\nAnn:It did.\n\nBob: At 10:30.\n")
    assert [turn.speaker for turn in transcript.turns] == ["Ann", "Bob", "Ann", "Bob"]


def test_arrows_without_a_name_are_another_speaker(read):
    cue = "00:00:0{}.000 --> 00:00:0{}.500\n{}\n\n"
    said = [">> ANN: The clock.", "It ran fast.", ">> BOB: Did it?", ">> I think so.", ">> ANN: Yes."]
    transcript = read("WEBVTT\n\n" + "".join(cue.format(n, n, text) for n, text in enumerate(said)), "a.vtt")
    assert [turn.speaker for turn in transcript.turns] == ["ANN", "BOB", "Unknown Speaker", "ANN"]


def test_a_transcript_within_a_fence_is_read_and_code_alone_is_refused(read):
    turns = "".join(f"**[0{n}:00] SPEAKER_0{n % 2}:** {PROSE}\n\n" for n in range(4))
    assert read(f"```\n{turns}```\n", "a.md").speakers == ("SPEAKER_00", "SPEAKER_01")
    with pytest.raises(TranscriptError, match="no speaker turn found"):
        read(f"# Bells\n\n```\n{PROSE}\n\n{MORE}\n```\n", "a.md")


@pytest.mark.parametrize(
    "document",
    [
        [
            {
                "speaker": {"name": "Ann"},
                "text_blocks": [{"text": "It rang.", "start": 1}, {"text": "At three.", "start": 2}],
            }
        ]
        * 2,
        [{"ParticipantRole": "Ann", "Content": "It rang. At three."}] * 2,
        [{"text": "It rang. At three.", "data": {"speaker": "Ann", "start": 1}}] * 2,
    ],
)
def test_speakers_of_nested_entries(read, document):
    entries = [dict(entry) for entry in document]
    entries[1] |= {"speaker": {"name": "Bob"}} if "speaker" in entries[1] else {}
    transcript = read(json.dumps({"turns": entries}), "a.json")
    assert transcript.speakers[0] == "Ann" and transcript.turns[0].text.startswith("It rang. At three.")


def test_words_with_spans_of_speakers_and_words_repeated_with_speakers(read):
    words = [{"id": n, "start": n, "end": n + 0.5, "text": f"w{n}"} for n in range(60)]
    spans = [{"start": 0, "end": 30, "speaker": "Ann"}, {"start": 30, "end": 60, "speaker": "Bob"}]
    transcript = read(json.dumps({"words": words, "paragraphs": spans}), "a.json")
    assert [(turn.speaker, len(turn.text.split())) for turn in transcript.turns] == [("Ann", 30), ("Bob", 30)]
    parts = [
        {"alternatives": [{"words": [{"word": f"w{n}", "startTime": f"{n}s"} for n in range(k, k + 20)]}]}
        for k in (0, 20)
    ]
    tagged = [{"word": f"w{n}", "startTime": f"{n}s", "speakerTag": 1 + (n > 30)} for n in range(40)]
    results = {"results": [*parts, {"alternatives": [{"words": tagged}]}]}
    assert [turn.speaker for turn in read(json.dumps(results), "b.json").turns] == ["Speaker 1", "Speaker 2"]


def test_the_numbers_of_lines_are_no_words(read):
    lines = [
        "Q. Where were you?",
        "A. At the pier, when the",
        "bell rang.",
        "Q. And then?",
        "A. Then I left.",
        "Q. When?",
    ]
    transcript = read("".join(f"{n:2}        {line}\n" for n, line in enumerate(lines, 1)))
    assert said(transcript)[:2] == [("Q", "Where were you?"), ("A", "At the pier, when the bell rang.")]


def test_a_known_name_before_a_note_in_brackets_starts_a_turn(read):
    transcript = read(f"Ann: {PROSE}\n\nBob [crosstalk 00:00:12] {MORE}\n\nAnn: Yes.\n\nBob: No.\n")
    assert [turn.speaker for turn in transcript.turns] == ["Ann", "Bob", "Ann", "Bob"]
    assert transcript.turns[1].text.startswith("[crosstalk] Then the winter")


def test_a_list_of_names_and_a_link_are_no_turns(read):
    turns = "".join(f"{name}: Bell {n} rang. {MORE[n:]}\n\n" for n, name in enumerate(["Ann", "Bob"] * 4))
    transcript = read(f"Remote: Cid Moore (CM), Dan Reece (DR), Eve Lee (EL)\n\n{turns}PR: https://x.org/1\n\n{turns}")
    assert transcript.speakers == ("Ann", "Bob")


def test_a_sound_that_recurs_is_no_speaker(read):
    transcript = read(f"{PROSE}\n(Laughter)\n{MORE}\n(Laughter)\nIt was odd.\n(Applause)\n")
    assert transcript.speakers == ()


def test_words_that_are_nowhere_in_what_was_understood_are_a_doubt(read):
    cue = "00:00:{0:02}.930 --> 00:00:{1:02}.650 align:start\nSo it was on day {0}.\n\n"
    cues = "WEBVTT\n\n" + "".join(cue.format(n, n + 1) for n in range(12))
    assert not read(cues, "a.vtt").is_doubtful
    lost = cues.replace("So it", "{\\i1}<i>So</i> it")
    assert not read(lost, "a.vtt").is_doubtful
    understood = Reading(
        None, [Segment("Ann", "So it was.")], (("Topic", "tides"),), (Skipped("a heading", "heading"),)
    )
    assert not with_lost_words(understood, "Topic: tides\n# a heading\nAnn: So it was.").doubts
    assert with_lost_words(understood, "Topic: tides\nAnn: So it was. Bob Reece: And what did you say then?").doubts


def test_a_few_rows_of_a_table_without_a_speaker_are_a_doubt(read):
    rows = [f"{'AB'[n % 2]}n,So it was on day {n}." for n in range(12)]
    rows[4] = ",But not for me."
    assert read("Speaker,Transcript\n" + "\n".join(rows), "a.csv").is_doubtful
    rows[4] = ",(laughter)"
    assert not read("Speaker,Transcript\n" + "\n".join(rows), "a.csv").is_doubtful


def test_one_turn_of_a_name_in_capitals_is_a_doubt(read):
    text = "Oral question 14\n\nHON. A. REECE: Those are allegations. " + "So it was, and nobody was there. " * 12
    assert read(f"<html><body><h3>Question 14</h3><p>{text[18:]}</p></body></html>", "a.html").is_doubtful


TIDES = ("spring", "summer", "autumn", "winter", "march", "may", "june")


def test_references_of_html_in_plain_text_are_their_signs(read):
    text = "&gt;&gt; We couldn&#39;t go. " + "".join(f"So it was in {n}, and that&#39;s it. " for n in TIDES)
    transcript = read(text)
    assert "couldn't go." in said(transcript)[0][1]
    assert not transcript.is_doubtful


def test_words_with_their_signs_are_no_speakers(read):
    words = [{"word": word.lower(), "punct": word, "start": n} for n, word in enumerate(" ".join([PROSE] * 3).split())]
    transcript = read(json.dumps({"retval": {"words": words}}), "a.json")
    assert {name for name, _ in said(transcript)} == {"Unknown Speaker"}


def test_labels_of_known_speakers_within_the_text_of_entries_are_a_doubt(read):
    entries = [{"speaker": ("Ann Lee", "Bob Reece")[n % 2], "text": f"So it was on day {n}."} for n in range(9)]
    assert not read(json.dumps(entries), "a.json").is_doubtful
    entries[3]["text"] += " Ann Lee: Was it? Bob Reece: It was."
    assert read(json.dumps(entries), "a.json").is_doubtful


@pytest.mark.parametrize(
    "line",
    [
        "- The bell of town {n} was cast in a year of rain",
        "| town {n} | bell {n} | the year of its casting is known |",
        "- [The bell of town {n}](https://example.org/{n}) and [its tower](https://example.org/t/{n})",
        "-b{n} N,    --bell-{n} N    [0   ] the number of the bell that rings",
    ],
)
def test_lists_tables_links_and_options_are_no_speech(read, line):
    text = "# The bells\n\nThese are all of them:\n\n" + "".join(line.format(n=n) + "\n" for n in range(20))
    assert read(text, "a.md").is_doubtful


def test_text_without_blanks_is_doubtful(read):
    codes = ["".join(f"H{n * 7919 % 100000:05d}B{m * 104729 % 100000:05d}" for m in range(8)) for n in range(30)]
    assert read("The prisoners\n\n" + "\n".join(f"{code} of the county of Kings" for code in codes)).is_doubtful


def test_labels_of_pages_and_licenses_within_speech_are_doubtful(read):
    words = f"{PROSE} {MORE} ".split() * 4
    tagged = [f"{word} LEE:</b>" if n % 100 == 0 else word for n, word in enumerate(words * 5)]
    license = "All rights reserved. It is royalty-free. Ask for our prior written permission. See terms & conditions. "
    for text in (" ".join(tagged), license + " ".join(words)):
        assert read(text).is_doubtful


@pytest.mark.parametrize(
    "text",
    [
        f"In this episode, Ann and Bob talk about bells and towns. {MORE}",
        f"Ann Lee and Bob Reece are joined by a guest who knows all about bells. {MORE}",
        f"You are a helper of a town. Read the transcript of a meeting below and extract what was said about bells. {MORE}",
    ],
)
def test_descriptions_and_instructions_are_doubtful(read, text):
    assert read(text, "a.md").is_doubtful
    assert not read(f"{text} {PROSE} {MORE} {PROSE} {MORE} {PROSE}", "a.md").is_doubtful
