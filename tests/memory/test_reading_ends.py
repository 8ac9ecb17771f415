"""The first and last lines of a conversation: credits and notes of a meeting are no speech, a first question is."""

import pytest
from read_texts import said

TALK = [
    ("Ann", "Good morning, and welcome to the tides."),
    ("Bob", "Thank you for having me."),
    ("Ann", "How high is the water at night?"),
    ("Bob", "It is seven meters high."),
    ("Ann", "I would not swim in it."),
    ("Bob", "Nobody does."),
]
LINES = [f"{name}: {words}" for name, words in TALK]
NOTES = ["Ann: Send the figures to the harbor.", "Bob: Measure the tide on Friday."]


def srt(lines):
    return "".join(f"{n}\n00:00:{n:02d},000 --> 00:00:{n + 1:02d},000\n{line}\n\n" for n, line in enumerate(lines, 1))


@pytest.mark.parametrize(
    "credit",
    [
        "Transcribed by Jane Doe",
        "Subtitles by the Amara.org community",
        "Captions provided by Acme",
        "SUBTITLES BY JANE DOE",
        "Subtitles created by c3subtitles.de\nin the year 2020. Join, and help us!",
        "(Transcribed by Jane Doe, jane@doe.org.)",
        "Transcription by: Jane Doe",
    ],
)
@pytest.mark.parametrize("suffix", ["srt", "vtt"])
def test_credits_in_the_last_cue_are_no_speech(read, credit, suffix):
    text = srt([*LINES, credit])
    transcript = read(text if suffix == "srt" else "WEBVTT\n\n" + text.replace(",000", ".000"), f"a.{suffix}")
    assert said(transcript) == TALK and not transcript.is_doubtful
    assert [(each.text, each.reason) for each in transcript.skipped] == [
        (" ".join(credit.split()), "line of a service")
    ]


def test_credits_in_the_first_cue_are_no_speech(read):
    transcript = read(srt(["Subtitles by Jane Doe", *LINES]), "a.srt")
    assert said(transcript) == TALK and [each.text for each in transcript.skipped] == ["Subtitles by Jane Doe"]


@pytest.mark.parametrize(
    "line", ["Bob: Transcribed by Jane, every word.", "It was transcribed by Jane.", "Transcribed by hand, all of it."]
)
def test_what_somebody_says_about_a_transcription_is_speech(read, line):
    transcript = read(srt([*LINES, line]), "a.srt")
    assert transcript.turns[-1].text.endswith(line.removeprefix("Bob: ")) and not transcript.skipped


def test_a_file_of_credits_only_is_not_emptied(read):
    assert read(srt(["Subtitles by Jane Doe"]), "a.srt").turns


@pytest.mark.parametrize(
    "heading", ["Action items", "Next steps:", "Decisions", "## Summary", "Attendees", "Key decisions"]
)
@pytest.mark.parametrize("blank", ["\n", "\n\n"])
def test_notes_of_a_meeting_after_its_turns_are_skipped_or_doubted(read, heading, blank):
    transcript = read(blank.join([*LINES * 2, heading, *NOTES]), "a.txt")
    are_turns = transcript.turns[-1].text == NOTES[-1].removeprefix("Bob: ")
    is_named = any("Send the figures" in doubt for doubt in transcript.doubts)
    assert transcript.is_doubtful and is_named if are_turns else NOTES[0] in [each.text for each in transcript.skipped]


def test_a_conversation_goes_on_after_a_heading_such_as_next_steps(read):
    transcript = read("\n\n".join([*LINES, "## Next steps", *LINES, *LINES]), "a.md")
    assert said(transcript) == TALK * 3 and not transcript.is_doubtful


@pytest.mark.parametrize("between", ["It was short.", "## The harbor"])
def test_a_conversation_goes_on_below_another_heading(read, between):
    before = [f"{line} So I thought on day {n}." for n in range(4) for line in LINES]
    transcript = read("\n\n".join([*before, "## Summary", between, "## The tides", *LINES]), "a.md")
    assert said(transcript)[-6:] == TALK and not any("no part of a turn" in doubt for doubt in transcript.doubts)


@pytest.mark.parametrize("label", ["Profile", "Brenda"])
@pytest.mark.parametrize("blank", ["\n", "\n\n"])
def test_a_label_of_personal_notes_is_no_speaker_but_a_name_is(read, label, blank):
    facts = ["Ann Lee, 47, a baker, measures tides.", "Bob Ray, 51, has two boats.", "Cal Fox, 33, sells fish."]
    transcript = read(blank.join(line for fact in facts for line in (f"{label}: {fact}", *LINES)), "a.txt")
    assert transcript.speakers == (("Brenda", "Ann", "Bob") if label == "Brenda" else ("Ann", "Bob"))
    assert transcript.is_doubtful == (label == "Profile")


@pytest.mark.parametrize("blank", ["\n", "\n\n"])
def test_a_first_line_without_a_period_stays_a_turn(read, blank):
    transcript = read(blank.join(["Cal: so what happened then", *LINES * 2]), "a.txt")
    assert said(transcript) == [("Cal", "so what happened then"), *TALK, *TALK]


@pytest.mark.parametrize(
    "title", ["The Bell: A Talk about Tides", "Interviewed: a baker of 23", "The bell: a talk about the tides"]
)
def test_a_title_with_a_colon_is_no_turn(read, title):
    transcript = read("\n\n".join([title, *LINES * 2]), "a.txt")
    assert said(transcript) == TALK * 2


def test_captions_in_capitals_without_names_have_no_doubt(read):
    words = [f"{first}A{last}E" for first in "BCDFGL" for last in "KLMNP"]  # each begins one line
    lines = [f"{who} {word} IT FOR WHAT {who} AND THE {word} KNOW" for word in words for who in ("I", "YOU")]
    transcript = read(srt(lines), "a.srt")
    assert transcript.speakers == () and transcript.doubts == ()


def test_a_field_of_one_word_before_the_turns_is_a_header(read):
    turns = "\n".join(f"{('Ann', 'Bob')[n % 2]}: We left at {n}." for n in range(12))
    transcript = read(f"Genre: true crime podcast\n{turns}")
    assert sorted({turn.speaker for turn in transcript.turns}) == ["Ann", "Bob"]


def test_a_sentence_that_begins_like_a_credit_is_speech(read):
    said = ["Transcription by RNA polymerase starts at the promoter."] + [f"Then step {n} follows." for n in range(9)]
    cues = (f"{n}\n00:00:{n:02},000 --> 00:00:{n + 1:02},000\n{text}\n" for n, text in enumerate(said, 1))
    assert read("\n".join(cues), "a.srt").turns[0].text.startswith("Transcription by RNA")
