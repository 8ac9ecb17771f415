"""XML and HTML: declared encodings, tags of any name, references, links and notices around the words."""

import pytest
from read_texts import said

from midthought.memory.transcripts import read_transcript

TURNS = [
    ("Ann Lee", "So the bell rang at three, and nobody was there."),
    ("Bob Reece", "I think that is right, a clock was fast."),
    ("Ann Lee", "We had no idea, and what did you do?"),
    ("Bob Reece", "It cost five dollars, and took two days."),
    ("Ann Lee", "That is the tide clock in the hall."),
    ("Bob Reece", "Nobody went out for three weeks after that."),
]
FRENCH = "où ça été sûr, là-bas, à côté du café ? ça, c'est l'idée même du maître, dès l'été"


def page(body):
    return f"<!DOCTYPE html><html><head><title>Tides</title></head><body>{body}</body></html>"


LINES = "".join(f"<p><b>{name}:</b> {text}</p>" for name, text in TURNS)


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "windows-1253", "iso-8859-2"])
def test_xml_has_the_encoding_that_it_declares(tmp_path, encoding):
    words = (
        FRENCH if encoding == "ISO-8859-1" else {"windows-1253": "Πού ήταν;", "iso-8859-2": "Žluťoučký kůň."}[encoding]
    )
    text = f'<?xml version="1.0" encoding="{encoding}"?><Trans><Turn startTime="1">{words}</Turn></Trans>'
    (tmp_path / "a.trs").write_bytes(text.encode(encoding))
    assert said(read_transcript(tmp_path / "a.trs")) == [("Unknown Speaker", words)]


def test_a_declared_encoding_that_is_not_the_files_counts_nothing(tmp_path):
    for declared in ("utf-16", "nothing", "unicode_escape"):
        text = f'<?xml version="1.0" encoding="{declared}"?><Trans><Turn startTime="1">{FRENCH}</Turn></Trans>'
        (tmp_path / "a.trs").write_bytes(text.encode("cp1252"))
        assert said(read_transcript(tmp_path / "a.trs")) == [("Unknown Speaker", FRENCH)]


def test_tags_of_any_name_are_no_words(read):
    turns = "".join(
        f"<talk_turn><speaker>{name}</speaker> {text} <side-note>(applause)</side-note></talk_turn>"
        for name, text in TURNS
    )
    transcript = read(f"<?xml version='1.0' standalone='no' ?>\n<body><place>Hall</place>{turns}</body>", "a.xml")
    assert said(transcript) == [(name, f"{text} (applause)") for name, text in TURNS] and not transcript.is_doubtful


def test_blocks_of_tei_name_the_speaker_and_have_notes_on_the_words(read):
    turns = "".join(
        f'<annotationBlock who="{name}" start="#T1"><u><seg>{text}</seg></u>'
        '<spanGrp type="mor"><span>n|bell v|ring</span></spanGrp></annotationBlock>'
        for name, text in TURNS
    )
    head = "<teiHeader><title>Bells</title><notesStmt><note><note>CHI</note></note></notesStmt></teiHeader>"
    transcript = read(
        f'<?xml version="1.0"?><TEI xmlns="http://tei">{head}<text><body>{turns}</body></text></TEI>', "a.xml"
    )
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_references_that_were_escaped_twice(read):
    text = page(LINES.replace("So the", "It&amp;#x27;s &amp;quot;so&amp;quot;: the"))
    assert said(read(text, "a.html"))[0] == ("Ann Lee", 'It\'s "so": the bell rang at three, and nobody was there.')


NOTICES = [
    '<div class="bar"><a href="a.html">Home</a> | <a href="b.html">Our Shows</a> | <a href="c.html">About</a></div>',
    '<div class="bar"><a href="a.html">Fact Check</a>\n<a href="b.html">Human Rights</a>\n<a href="c.html">Civic Tech</a></div>',
    '<a href="#top">Back to top</a>',
    '<div><a href="#!" class="x">Close</a></div>',
    '<div class="old"><a href="t0.html">Ep 0: Trailer</a></div><div class="new"><a href="t2.html">Ep 2: A Storm</a></div>',
    '<div class="cookies"><p>We use cookies for your experience.</p><a>Got it!</a></div>',
    '<div role="note"><p>This is a full text transcript of the video. You can watch it on our site.</p></div>',
    "<header><h1>Tides</h1><p>The tides of this bay: Ann Lee of our university</p></header>",
]


@pytest.mark.parametrize("notice", NOTICES)
def test_links_and_notices_around_the_words_are_no_speech(read, notice):
    plain = "".join(f"<p>{text}</p>" for _, text in TURNS) * 3
    assert not read(page(f"{notice}{LINES}{notice}"), "a.html").is_doubtful
    for body, expected in ((LINES, TURNS), (plain, [("Unknown Speaker", " ".join([text for _, text in TURNS] * 3))])):
        transcript = read(page(f"{notice}{body}{notice}"), "a.html")
        assert said(transcript) == expected
        assert transcript.skipped[0].reason == "not the content of the page"


def test_links_may_be_names_times_and_words(read):
    names = "".join(f'<p><a href="/{name[0]}.html">{name}</a></p><p>{text}</p>' for name, text in TURNS)
    assert said(read(page(names), "a.html")) == TURNS
    words = "".join(
        "<p>" + " ".join(f'<a href="?t={n}">{word}</a>' for n, word in enumerate(text.split())) + "</p>"
        for _, text in TURNS
    )
    assert said(read(page(words * 2), "a.html")) == [("Unknown Speaker", " ".join([text for _, text in TURNS] * 2))]
    times = "".join(f'<p><a href="#t{n}">0:0{n}</a> {text}</p>' for n, (_, text) in enumerate(TURNS))
    assert read(page(times), "a.html").turns[0].time == "00:00:00"


def test_a_few_messages_with_dates_below_their_authors(read):
    messages = "".join(
        f'<div class="message"><span class="author">{name}</span><span class="time">30/01/2025, 09:34:0{n}</span>'
        f'<div class="content">{text}</div></div>'
        for n, (name, text) in enumerate(TURNS[:3])
    )
    transcript = read(page(messages), "a.html")
    assert said(transcript) == TURNS[:3] and transcript.turns[1].time == "09:34:01"


def test_a_page_without_paragraphs_is_read_in_its_lines(read):
    lines = "\n".join(
        f"{'A.B.' if n % 2 else 'C.D.'}: <i>{text[:4]}</i>{text[4:]}" for n, (_, text) in enumerate(TURNS)
    )
    expected = [("A.B" if n % 2 else "C.D", text) for n, (_, text) in enumerate(TURNS)]
    assert said(read(f"<html>\n<head></head>\n<body>\n{lines}\n</body></html>", "a.html")) == expected
    assert said(read(lines.replace("<i>", "").replace("</i>", ""))) == expected  # an initial ends no sentence


def test_elements_that_name_speakers_within_lines_are_not_lost(read):
    body = "<div>\n" + "\n".join(f"<i>{name}</i>\n<span>{text}</span>" for name, text in TURNS) + "\n</div>"
    assert said(read(page(body), ".html")) == TURNS


def test_a_short_page_without_names_and_times_is_doubted(read):
    text = "".join(f"<p>{text}</p>" for _, text in TURNS)
    assert read(page(text), "a.html").is_doubtful and read(page(f"<p>Download: {text}</p>"), "a.html").is_doubtful
    assert not read(page("".join(f"<p>0:0{n} {text}</p>" for n, (_, text) in enumerate(TURNS))), "a.html").is_doubtful


@pytest.mark.parametrize("before", ["<!-- Tag of a counter -->\n", "{% load static %}\n", "---\nlayout: main\n---\n"])
def test_a_page_may_start_below_a_comment_or_the_code_of_a_template(read, before):
    transcript = read(before + page(f"<script>head: main();</script>{LINES}"), "a.html")
    assert transcript.format == "HTML" and said(transcript)[-5:] == TURNS[1:]


def test_first_turns_have_the_full_names_of_later_initials(read):
    names = {"Ann Lee": "A.L", "Bob Reece": "B.R"}
    later = "\n".join(f"{names[name]}.: {text}" for name, text in TURNS[2:] + TURNS)
    text = "\n".join(f"{name}: {text}" for name, text in TURNS[:2]) + "\n" + later
    assert said(read(text)) == TURNS[:2] + [(names[name], text) for name, text in TURNS[2:] + TURNS]
    fields = f"Ann Lee: engineer\nBob Reece: sailor\n\n{later}"
    assert dict(read(fields).header) == {"Ann Lee": "engineer", "Bob Reece": "sailor"}


def test_a_page_is_no_notice_because_of_a_class_name(read):
    transcript = read(page(f'<div class="page with-breadcrumbs">{LINES}<div>Yes.</div>{LINES}</div>'), "a.html")
    assert len(transcript.turns) == 2 * len(TURNS)


def test_a_notice_ends_where_its_element_ends(read):
    notice = (
        '<div class="cookies"><div><p>We use cookies.</p></div><p>Read what we do with them, if you like.</p></div>'
    )
    transcript = read(page(f"{LINES}{notice}"), "a.html")
    assert said(transcript) == TURNS
    assert [skipped.text for skipped in transcript.skipped] == [
        "We use cookies. Read what we do with them, if you like."
    ]


def test_tags_that_a_page_shows_escaped_stay_so(read):
    transcript = read(page(LINES.replace("So the", "So &amp;lt;b&amp;gt; the")), "a.html")
    assert transcript.turns[0].text.startswith("So &lt;b&gt; the")


@pytest.mark.parametrize("encoding", ["unicode_escape", "raw_unicode_escape", "utf-7", "rot13", "hex"])
def test_a_declared_encoding_of_programs_counts_nothing(tmp_path, encoding):
    path = tmp_path / "a.html"
    text = page(f'<meta charset="{encoding}">{LINES.replace("the hall", chr(92).join(("C:", "new")))}<p>é</p>')
    path.write_bytes(text.encode("cp1252"))
    assert "C:\\new" in read_transcript(path).turns[4].text
