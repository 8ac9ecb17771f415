"""Captions whose names have any shape, and whose times are damaged."""

import pytest
from read_texts import said
from test_reading_signals import EXPECTED, LINES


def test_names_on_the_first_line_of_cues_may_have_any_shape(read):
    names = [
        "Client RepA",
        "Client RepA",
        "+12*******65",
        "+12*******65",
        "Person A",
        "Client RepA",
        "Client RepA",
        "Person A",
    ]
    cues = [
        f"00:00:{n:02d}.000 --> 00:00:{n:02d}.900\n{name}\n{text}\n"
        for n, (name, text) in enumerate(zip(names, LINES, strict=True))
    ]
    transcript = read("".join(cues))
    assert {turn.speaker for turn in transcript.turns} == set(names) and not transcript.is_doubtful


def test_three_cues_with_labels_of_persons(read):
    cues = [f"0:0:{n}.0 --> 0:0:{n}.820\nPerson {name}\nHello\n" for n, name in enumerate("ABC")]
    assert said(read("".join(cues))) == [(f"Person {name}", "Hello") for name in "ABC"]


@pytest.mark.parametrize("arrow", ["--", "-- > 00:00:59.000", "→ 00:00:59.000"])
def test_damaged_arrows_of_cues(read, arrow):
    cues = [f"00:00:{n:02d}.000 {arrow}\n{name}: {text} \n \n" for n, (name, text) in enumerate(EXPECTED)]
    transcript = read(f"WEBVTT \n \n{''.join(cues)}", "a.vtt")
    assert said(transcript) == EXPECTED and [turn.time for turn in transcript.turns][1] == "00:00:01"
    assert not transcript.is_doubtful and "'00:00:00.000 " in transcript.doubts[0]


def test_words_with_a_colon_on_the_line_of_a_time_are_no_settings(read):
    cues = [f"00:00:{n:02d}.000 --> 00:00:{n:02d}.900 align:start {text}\n\n" for n, text in enumerate(LINES)]
    assert "I think that is right: the clock was fast." in said(read("".join(cues), "a.srt"))[0][1]
