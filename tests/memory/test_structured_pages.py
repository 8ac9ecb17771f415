"""HTML and XML: elements that are not shown, speakers that a page marks, records."""

import pytest
from read_texts import said

from midthought.errors import TranscriptError

LINES = [
    "So the bell rang at three.", "Did it, and who was there?", "Nobody, as far as I know.", "The clock was fast, then.",
    "It was always fast.", "We heard it, too.", "Then you know it.", "I do.",
]  # fmt: skip
TURNS = [(("Ann Lee", "Bob Reece")[n % 2], line) for n, line in enumerate(LINES)]


def test_initials_hidden_words_and_links_that_are_signs_are_no_words(read):
    page = "".join(
        f'<div class="turn"><div class="avatar">{name[0]}</div><p class="speaker">{name}</p>'
        f'<p><a href="#" class="play">▶</a> {text}</p></div>'
        for name, text in TURNS
    )
    page += '<div role="status" aria-live="polite" hidden>Only for show.</div><span aria-hidden="true">open menu</span>'
    transcript = read(f"<html><body>{page}</body></html>", "a.html")
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_words_with_a_colon_on_a_page_that_marks_its_speakers_are_speech(read):
    turns = [
        *TURNS[:3],
        ("Bob Reece", "The clock was fast. Clearly: it rang twice a day, and nobody came."),
        *TURNS[4:],
    ]
    page = "".join(
        f'<p class="speaker">{name}</p>' + "".join(f"<p>{part}</p>" for part in text.replace(". ", ".|").split("|"))
        for name, text in turns
    )
    transcript = read(f"<html><body>{page}</body></html>", "a.html")
    assert said(transcript) == turns and not transcript.is_doubtful


def test_speakers_that_a_page_marks_once_are_speakers(read):
    turns = [
        ("Sayer (off):", "Here is the news."),
        *TURNS[:5],
        ("Cid Moore (chair):", "Nobody: so it was."),
        *TURNS[5:],
    ]
    page = "".join(
        f'<div class="entry"><span class="timestamp">00:{n:02d}</span>\n<span class="speaker">{name}</span>\n'
        f'<span class="content">{text}</span></div>\n'
        for n, (name, text) in enumerate(turns)
    )
    page = f"<header><h1>The news</h1><p>Of a day</p></header>{page}<footer><p>Made of it</p></footer>"
    transcript = read(f"<html><body>{page}</body></html>", "a.html")
    assert said(transcript) == [(name.rstrip(":"), text) for name, text in turns] and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns] == [f"00:00:{n:02d}" for n in range(len(turns))]


def records(turns):
    return "".join(
        f"<segment>\n<start>{3 * n}.5</start><end>{3 * n + 2}</end>\n<speaker>{name}</speaker><text>{text}</text></segment>\n"
        for n, (name, text) in enumerate(turns)
    )


def test_records_of_xml_are_entries(read):
    transcript = read(f'<?xml version="1.0"?>\n<data>\n{records([*TURNS, ("Ann Lee", "")])}</data>', "a.xml")
    assert said(transcript) == TURNS and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns][:3] == ["00:00:00", "00:00:03", "00:00:06"]
    with pytest.raises(TranscriptError, match="have no words"):
        read(f"<data>{records([(name, '') for name, _ in TURNS])}</data>", "b.xml")
    assert read(f"<data>{records([TURNS[0]] + [(name, '') for name, _ in TURNS])}</data>", "c.xml").is_doubtful


def test_a_short_line_before_a_time_is_no_name_if_others_have_none(read):
    parts = [f"<p>[00:{n:02d}:00]</p><p>{LINES[n % 8]} It was {n} then.</p>" for n in range(30)]
    parts[9] += "<p>Wonderful</p>"
    transcript = read(f"<html><body>{''.join(parts)}</body></html>", "a.html")
    assert transcript.speakers == () and "9 then. Wonderful Nobody" in transcript.turns[0].text


@pytest.mark.parametrize(
    "words",
    [
        "Lorem ipsum dolor sit amet. " * 20,
        "sprite.webp#xywh=0,0,320,180 " * 9,
        "@for (rule of rules; {{ rule }} ) " * 9,
    ],
)
def test_placeholders_and_templates_are_reported(read, words):
    assert read(f"<html><body><p>{words}</p><p>{' '.join(LINES * 4)}</p></body></html>", "a.html").is_doubtful


def test_a_label_in_an_element_of_its_own_is_a_speaker_in_doubt(read):
    page = "".join(f'<p><span class="speaker">{name}</span> {text}</p>' for name, text in TURNS)
    transcript = read(f"<html><body>{page}<p><b>Carl Ott:</b> I came late.</p></body></html>", "a.html")
    assert said(transcript) == [*TURNS, ("Carl Ott", "I came late.")] and transcript.is_doubtful


def test_a_label_with_a_colon_is_not_hidden(read):
    page = "".join(f'<p class="avatar">{name}:</p><p>{text}</p>' for name, text in TURNS)
    assert said(read(f"<html><body>{page}</body></html>", "a.html")) == TURNS


def test_words_within_records_are_read_and_words_outside_of_them_are_listed(read):
    records = "".join(
        f"<segment><start>{5 * n}</start><speaker id='a/b'>{name}</speaker><text>{text.replace('bell', '<b>bell</b>')}</text>"
        f"{'<note/>' if n == 3 else ''}</segment>"
        for n, (name, text) in enumerate(TURNS)
    )
    transcript = read(f"<t><title>The Bell</title>{records}<p>Recorded in <q>May</q></p></t>", "a.xml")
    assert said(transcript) == TURNS
    assert [skip.text for skip in transcript.skipped] == ["The Bell", "Recorded in", "May"]
