"""Files of unknown layouts: what the values show is used, what stays uncertain is reported as a doubt."""

import json

import pytest
from read_texts import said

from midthought.errors import TranscriptError

LINES = [
    "So the bell rang at three, and nobody was there.", "I think that is right: the clock was fast.",
    "We had no idea, and what did you do?", "It cost five dollars, and took two days.", "That is the tide clock in the hall.",
    "Nobody went out for three weeks after that.", "Then the first boat left, and all of us waved.", "And I still think of it.",
]  # fmt: skip
NAMES = ["Ann Lee", "Bob Reece"] * 4


EXPECTED = list(zip(NAMES, LINES, strict=True))


def test_times_of_the_day(read):
    lines = [
        f"[{10 + n // 4}:{n:02d} {'AM' if n < 4 else 'PM'}] {name}: {text}\n" for n, (name, text) in enumerate(EXPECTED)
    ]
    transcript = read("".join(lines))
    assert said(transcript) == EXPECTED and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns][3:5] == ["10:03:00", "23:04:00"]


def test_numbers_are_milliseconds_where_words_would_take_minutes(read):
    lines = [f"{name} [{4000 * n}.00 - {4000 * n + 3500}.00]:\n{text}\n\n" for n, (name, text) in enumerate(EXPECTED)]
    assert [turn.time for turn in read("".join(lines)).turns][:3] == ["00:00:00", "00:00:04", "00:00:08"]


def test_a_label_before_seconds(read):
    lines = [f"SPEAKER_0{n % 2} {5.289 * n:.3f}  {text}\n" for n, text in enumerate(LINES)]
    transcript = read("".join(lines))
    assert transcript.speakers == ("SPEAKER_00", "SPEAKER_01") and transcript.turns[1].time == "00:00:05"


@pytest.mark.parametrize("unknown", ["role", "participant", "talking_head"])
def test_the_key_of_the_speaker_follows_from_its_values(read, unknown):
    entries = [{unknown: name, "text": text, "language": "en"} for name, text in EXPECTED]
    transcript = read(json.dumps({"turns": entries}), "a.json")
    assert said(transcript) == EXPECTED
    assert transcript.is_doubtful == (unknown == "talking_head")  # an unknown key is reported


def test_entries_that_are_lists(read):
    rows = [[3 * n, 3 * n + 2.5, name, text] for n, (name, text) in enumerate(EXPECTED)]
    transcript = read(json.dumps({"result": rows}), "a.json")
    assert said(transcript) == EXPECTED and transcript.turns[1].time == "00:00:03"


@pytest.mark.parametrize(
    "top", ["", "Speaker,Time,Context\n", ",Name,Words said\n"], ids=["no names", "unknown text", "numbered rows"]
)
def test_columns_without_a_known_name_for_the_text(read, top):
    def row(n: int, name: str, text: str) -> str:
        cells = {"": [name, f'"{text}"'], "S": [name, str(3 * n), f'"{text}"'], ",": [str(n), name, f'"{text}"']}[
            top[:1]
        ]
        return ",".join(cells) + "\n"

    transcript = read(top + "".join(row(n, *turn) for n, turn in enumerate(EXPECTED)), "a.csv")
    assert said(transcript) == EXPECTED and "which column has the text" in transcript.doubts[0]


def test_commas_of_the_text_are_kept_in_a_table_without_quotes(read):
    assert read("Text,\n" + "".join(f" {text},\n" for text in LINES), "a.csv").turns[0].text == " ".join(LINES)


def test_a_table_without_text_is_refused(read):
    with pytest.raises(TranscriptError, match="no column for the text"):
        read("Type,Onset,Speaker\n" + "".join(f"SPEAKER,{n}.5,SPEAKER_0{n % 2}\n" for n in range(9)), "a.csv")


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        ("Segment{{index={n}; name='{name}'; text='{text}'; start={n}}}\n", "codes of a markup"),
        ("[ 00:00:0{n}.032 -->  00:00:0{n}.824] {n} SPEAKER_0{n}\n", "words on average"),
        ("{first} speaking\n{text}\n{text}\n", "short lines recur"),
    ],
)
def test_labels_in_an_unknown_notation_are_reported(read, line, doubt):
    text = "".join(
        line.format(n=n, name=name, first=name.split()[0], text=text) for n, (name, text) in enumerate(EXPECTED)
    )
    transcript = read(text)
    assert transcript.is_doubtful and doubt in " ".join(transcript.doubts)


def test_a_bold_label_in_another_style_than_the_names_is_reported(read):
    lines = [f"**{name}**\n\n{text}\n\n" for name, text in EXPECTED]
    transcript = read("".join([*lines[:4], "**Lightclient in chat:**\n\n* It would be nice.\n\n", *lines[4:]]), "a.md")
    assert transcript.is_doubtful and "'Lightclient in chat'" in transcript.doubts[0]


def test_times_and_numbered_lines_within_speech_are_reported(read):
    turns = "".join(f"{name}: {text}\n0:3:5{n}.230 -> and so on\n" for n, (name, text) in enumerate(EXPECTED))
    assert "8 lines with a time were read as words" in read(turns).doubts[0]
    turns = "".join(f"A: {text}\nB: Yes.\n{n}. How was it before?\n" for n, text in enumerate(LINES))
    transcript = read(turns, "b.txt")
    assert transcript.is_doubtful and "8 numbered lines were read as speech" in transcript.doubts[0]


def test_the_text_after_a_heading_of_notes_is_no_speech(read):
    turns = "".join(f"<p><strong>{name}:</strong> {text}</p>\n" for name, text in EXPECTED * 2)
    page = f"<html><body><h1>The Bell</h1>{turns}<h2>Action items</h2><ul><li><b>Ann Lee:</b> Send it.</li></ul></body></html>"
    transcript = read(page, "a.html")
    assert len(transcript.turns) == 16 and ("Ann Lee: Send it.", "after the transcript") in transcript.skipped


def test_names_marked_in_two_ways_on_a_page_are_reported(read):
    turns = "".join(f'<p><span class="speaker">{name}</span> {text}</p>\n' for name, text in EXPECTED)
    transcript = read(f"<html><body>{turns}<ul><li><b>Ann Lee:</b> Send it.</li></ul></body></html>", "a.html")
    assert transcript.is_doubtful and "marked in another way" in transcript.doubts[-1]


def test_a_list_of_those_present_and_words_before_colons_are_no_turns(read):
    present = "Ann Lee - President\n\nBob Reece - Bank of Oslo\n\nCid Moore - Tide Fund\n\n"
    transcript = read(present + "".join(f"{name}\n\n{text}\n\n" for name, text in EXPECTED * 2))
    assert transcript.speakers == ("Ann Lee", "Bob Reece") and len(transcript.turns) == 16
    turns = "".join(f"{name}: {text}\nIt was a summary of the day, and more of it.\n" for name, text in EXPECTED * 2)
    assert read(f"{turns}A Summary: The bell rang.\n", "b.txt").speakers == ("Ann Lee", "Bob Reece")


def test_a_mark_between_two_rules_and_notes_of_an_archive_are_skipped(read):
    text = "=== Session started at 16:58 ===\n" + "".join(f"[16:58:{n:02d}] {text}\n" for n, text in enumerate(LINES))
    transcript = read(f"{text}=== Session ended ===\n_note: {'It is a long note. ' * 20}\n")
    assert transcript.turns[0].text == " ".join(LINES) and len(transcript.skipped) == 3


def test_labels_of_any_shape_in_captions_where_every_cue_has_one(read):
    turns = list(zip(["Ann Lee", "Ann’s iPhone"] * 4, LINES, strict=True))
    cues = [f"00:00:0{n}.000 --> 00:00:0{n}.900\n{name}: {text}\n\n" for n, (name, text) in enumerate(turns)]
    assert said(read("WEBVTT\n\n" + "".join(cues), "a.vtt")) == turns


def test_names_above_a_role_and_names_after_a_sign(read):
    lines = [
        f"{name.upper()}\n{'MODERATOR' if n % 2 else ''}\n\n{text}\n" for n, (name, text) in enumerate(EXPECTED * 2)
    ]
    transcript = read("".join(lines).replace("\n\n\n", "\n\n"))
    assert transcript.speakers == ("ANN LEE", "BOB REECE") and len(transcript.turns) == 16
    transcript = read("".join(f"@{name.split()[0].lower()}1 {text}\n" for name, text in EXPECTED), "b.txt")
    assert [turn.speaker for turn in transcript.turns] == ["ann1", "bob1"] * 4


def test_text_copied_from_the_page_of_a_video(read):
    top = "Transcript. Use arrow keys to navigate between transcript entries.\n\nSearch\n\n"
    lines = [
        f"{name}\n0 minutes {5 * n + 1} seconds0:{5 * n + 1:02d}\n{name} 0 minutes {5 * n + 1} seconds\n{text}\n\n"
        for n, (name, text) in enumerate(EXPECTED)
    ]
    transcript = read(top + "".join(lines))
    assert said(transcript) == EXPECTED and transcript.turns[2].time == "00:00:11"
    lines = [f"0:{5 * n + 10}{5 * n + 10} secondes{text}\n" for n, text in enumerate(LINES)]
    transcript = read("Chapitre 1 : La cloche\n0:00It begins here.\n" + "".join(lines), "b.txt")
    assert transcript.turns[0].text == " ".join(["It begins here.", *LINES]) and transcript.turns[0].time == "00:00:00"


def test_text_of_json_that_is_in_no_turn_is_reported(read):
    parts = {f"part {n}": ["SPEAKER_01", [{"content": text, "start": 3}]] for n, text in enumerate(LINES)}
    doubts = read(json.dumps(parts), "a.json").doubts
    assert any("labels of speakers were not used" in doubt for doubt in doubts)
    assert any("text of other keys was not read" in doubt for doubt in doubts)


def test_a_label_on_the_line_of_the_times_is_a_speaker(read):
    cue = "00:00:{0:02},930 --> 00:00:{1:02},650 [speaker_{2}]\nSo it was on day {0}.\nYes.\n\n"
    text = "".join(cue.format(n, n + 1, n % 2) for n in range(12))
    turns = [("speaker_0", "So it was on day 0. Yes."), ("speaker_1", "So it was on day 1. Yes.")]
    for name in ("a.txt", "a.srt"):
        assert said(read(text, name))[:2] == turns
    settings = text.replace("[speaker_0]", "align:start position:12%").replace("[speaker_1]", "X1:40 X2:600")
    confidence = text.replace("[speaker_0]", "0.95").replace("[speaker_1]", "(87 %)")
    for other in (settings, confidence):
        assert [words[:30] for _, words in said(read(other, "a.srt"))] == ["So it was on day 0. Yes. So it"]


def test_a_line_outside_of_cues_is_reported_though_it_is_a_sentence_of_a_cue_too(read):
    cue = "1\n00:00:01,000 --> 00:00:02,000\nSo the bell rang.\n\nIt rang for a long time.\n\n"
    transcript = read("It rang for a long time.\n\n" + cue, "a.srt")
    assert said(transcript)[0][1] == "So the bell rang. It rang for a long time."
    assert [skip.text for skip in transcript.skipped] == ["It rang for a long time."]


def test_a_speaker_in_the_second_line_of_a_ttml_cue(read):
    said_by = [
        ("E.Lee", "So be it, and you will end."),
        ("C.Reece", "A first question."),
        ("E.Lee", "Yes: the mill, of course."),
    ]
    cues = "".join(
        f'<p begin="00:00:{n:02}:12"><span>-{name}: {text}</span><br/><span>That is it.</span></p>'
        for n, (name, text) in enumerate(said_by * 4)
    )
    cues += '<p begin="00:00:50:12"><span>That is all.</span><br><span>-C.Reece: Good night.</span></br></p>'
    turns = said(read(f'<tt xmlns="http://www.w3.org/ns/ttml"><body>{cues}</body></tt>', "a.ttml"))
    assert turns[:2] == [
        ("E.Lee", "So be it, and you will end. That is it."),
        ("C.Reece", "A first question. That is it."),
    ]
    assert turns[-2:] == [("E.Lee", "Yes: the mill, of course. That is it. That is all."), ("C.Reece", "Good night.")]


def test_names_and_titles_that_start_lines_without_a_sign_after_them_are_doubtful(read):
    names = ["Ann Lee, Head of the Bells", "Bob Reece, CFO, Bell Works", "Operator"]
    said = [
        f"{names[n % 3]} {words}\n\nThat was in the week {chr(97 + n)}x.\n\nThen {chr(97 + n)}y followed it, and I left."
        for n, words in enumerate([*LINES, *LINES][:12])
    ]
    assert read("\n\n".join(said)).is_doubtful
    assert not read("\n\n".join(f"Paris, Rome and London: {words}" for words in LINES[:4])).doubts
