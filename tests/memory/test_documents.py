"""Word, OpenDocument and PDF files, written here part by part."""

import io
import time
import zipfile
from xml.sax.saxutils import escape

import pytest
from rendered import REV_END, Said, clock, short

from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript, read_transcripts

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
TURNS = [
    Said("Ann Lee", "So the bell rang at three, & nobody was there.", 3),
    Said("Bob", "I think that is right: the clock was fast.", 64),
    Said("Ann Lee", "We had no idea. What did you do?", 3700),
    Said("Bob", "Well, we went to the harbor.", 3720),
]
EXPECTED = [(turn.speaker, turn.words, clock(turn.seconds)) for turn in TURNS]


def run(text: str, *, bold: bool = False) -> str:
    return f'<w:r><w:rPr>{"<w:b/>" if bold else ""}</w:rPr><w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


def paragraph(*runs: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f'<w:p w:rsidR="00A">{properties}{"".join(runs)}</w:p>'


def docx(body: str, **parts: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "word/document.xml", f"<?xml version='1.0'?><w:document {W}><w:body>{body}</w:body></w:document>"
        )
        for name, text in parts.items():
            archive.writestr(f"word/{name}.xml", text)
    return content.getvalue()


def line_break() -> str:
    return "<w:r><w:br/></w:r>"


def cell(text: str) -> str:
    return f"<w:tc>{paragraph(run(text))}</w:tc>"


DOCUMENTS = {
    "name (time) in one paragraph, words in the next": lambda t: (
        paragraph(run(f"{t.speaker} ({clock(t.seconds)})")) + paragraph(run(t.words))
    ),
    "bold name, tab": lambda t: paragraph(run(f"{t.speaker}:", bold=True), run(f" [{clock(t.seconds)}] {t.words}")),
    "Teams": lambda t: paragraph(run(t.speaker, bold=True), run(f"   {short(t.seconds)}"), line_break(), run(t.words)),
    "Rev": lambda t: paragraph(run(f"{t.speaker} ({short(t.seconds)}):")) + paragraph(run(t.words)),
    "HappyScribe": lambda t: paragraph(run(f"[{clock(t.seconds)}.120] - {t.speaker}")) + paragraph(run(t.words)),
    "empty paragraphs": lambda t: (
        paragraph(run(t.speaker, bold=True)) + paragraph(run(clock(t.seconds))) + paragraph(run(t.words)) + "<w:p/>"
    ),
    "table": lambda t: f"<w:tr>{cell(clock(t.seconds))}{cell(t.speaker)}{cell(t.words)}</w:tr>",
    "split runs": lambda t: paragraph(
        run(t.speaker[:2], bold=True),
        run(f"{t.speaker[2:]} ", bold=True),
        run(f"({short(t.seconds)}): "),
        run(t.words[:9]),
        run(t.words[9:]),
    ),
}


def said(path):
    transcript = read_transcript(path)
    assert not transcript.is_doubtful
    return [(turn.speaker, turn.text, turn.time) for turn in transcript.turns]


@pytest.mark.parametrize("layout", DOCUMENTS)
def test_word_documents_read_back_unchanged(tmp_path, layout):
    path = tmp_path / "a.docx"
    path.write_bytes(docx(paragraph(run("The Bell"), style="Title") + "".join(map(DOCUMENTS[layout], TURNS))))
    assert said(path) == EXPECTED
    assert read_transcript(path).episode == "The Bell" and read_transcript(path).format == "Word"


@pytest.mark.parametrize("are_items", [True, False])
def test_items_of_a_list_are_no_certain_speech(tmp_path, are_items):
    lines = [
        "the bells",
        "as loud as they can be",
        "the tide clock",
        "not for very long",
        "a new boat",
        "and a red one",
    ]
    lines += ["They are for everybody who can swim in the sea, and they were always there when we went out."] * 4
    item = "<w:pPr><w:numPr/></w:pPr>" if are_items else ""
    body = "".join(paragraph(item if " " in line and len(line) < 30 else "", run(line)) for line in lines)
    path = tmp_path / "a.docx"
    path.write_bytes(docx(paragraph(run("Interview")) + body))
    assert read_transcript(path).is_doubtful == are_items


def test_deleted_text_side_notes_and_headings_are_no_speech(tmp_path):
    path = tmp_path / "a.docx"
    deleted = "<w:del><w:r><w:delText>Never said.</w:delText></w:r></w:del>"
    body = (
        paragraph(run("Ann: Yes."), deleted) + paragraph(run("Part two"), style="Heading1") + paragraph(run("Bob: No."))
    )
    path.write_bytes(
        docx(body + paragraph(run("Ann: Well.")), footer1=f"<w:ftr {W}>{paragraph(run('Page 1'))}</w:ftr>")
    )
    transcript = read_transcript(path)
    assert [(turn.speaker, turn.text) for turn in transcript.turns] == [
        ("Ann", "Yes."),
        ("Bob", "No."),
        ("Ann", "Well."),
    ]
    assert {(each.text, each.reason) for each in transcript.skipped} == {
        ("Part two", "heading"),
        ("Page 1", "header, footer or note"),
    }


def test_a_table_with_named_columns_is_read_by_its_columns(tmp_path):
    def table(*rows: tuple[str, ...]) -> str:
        return "".join(f"<w:tr>{''.join(map(cell, row))}</w:tr>" for row in rows)

    about = table(("Job name", "bell.wav"), ("Language", "en"))
    turns = [(clock(turn.seconds), "4.2s", turn.speaker, "", turn.words) for turn in TURNS]
    path = tmp_path / "a.docx"
    path.write_bytes(docx(about + table(("Start", "Dur.", "Speaker", "", "Transcription"), *turns)))
    assert said(path) == EXPECTED


def test_tables_without_speakers_are_reported(tmp_path):
    rows = "".join(f"<w:tr>{cell('The bell of the harbor')}{cell(turn.words)}</w:tr>" for turn in TURNS * 3)
    path = tmp_path / "a.docx"
    path.write_bytes(docx(rows))
    assert read_transcript(path).is_doubtful


def test_a_document_whose_main_part_has_a_number(tmp_path):
    path = tmp_path / "a.docx"
    whole = docx("".join(paragraph(run(f"{turn.speaker}: {turn.words}")) for turn in TURNS))
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document2.xml", source.read("word/document.xml"))
    assert [turn.speaker for turn in read_transcript(path).turns] == [turn.speaker for turn in TURNS]


def test_open_document_text(tmp_path):
    content = io.BytesIO()
    rows = "".join(
        f'<text:p text:style-name="P1"><text:span>{t.speaker}</text:span> ({short(t.seconds)})<text:line-break/>'
        f"{escape(t.words)}</text:p>"
        for t in TURNS
    )
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(
            "content.xml", f"<office:document-content><office:body>{rows}</office:body></office:document-content>"
        )
    (tmp_path / "a.odt").write_bytes(content.getvalue())
    assert said(tmp_path / "a.odt") == EXPECTED


def pdf(pages: list[list[str]]) -> bytes:
    """A PDF with a line of Helvetica for each line."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for lines in pages:
        escaped = (line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") for line in lines)
        stream = "BT /F1 10 Tf 14 TL 50 750 Td " + " ".join(f"({line}) Tj T*" for line in escaped) + " ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    trailer = f"trailer << /Size {size} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return f"{out}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


def drawn_pdf(stream: str) -> bytes:
    """A PDF of one page with this content."""
    whole = pdf([["x"]]).decode()
    before = whole[whole.index("BT ") : whole.index("\nendstream")]
    return whole.replace(before, stream).replace(f"/Length {len(before)}", f"/Length {len(stream)}").encode()


def pages_of(pattern: str) -> list[list[str]]:
    pages = []
    for number, turn in enumerate(TURNS, 1):
        lines = pattern.format(
            name=turn.speaker, short=short(turn.seconds), clock=clock(turn.seconds), text=turn.words
        ).split("\n")
        pages.append(["The Bell, a transcript", *lines, REV_END.strip(), f"Page {number} of {len(TURNS)}"])
    return pages


@pytest.mark.parametrize(("font", "end"), [("", "ET"), ("/F1 10 Tf", "")], ids=["no font", "no end"])
def test_words_that_have_no_known_place_are_read_in_the_order_of_drawing(tmp_path, font, end):
    pytest.importorskip("pypdf")
    drawn = " ".join(f"({turn.speaker} [{clock(turn.seconds)}]: {turn.words}) Tj T*" for turn in TURNS)
    path = tmp_path / "a.pdf"
    path.write_bytes(drawn_pdf(f"BT {font} 14 TL 50 750 Td {drawn} {end}"))
    assert said(path) == EXPECTED
    known = (
        "BT /F1 10 Tf 14 TL 50 750 Td (Ann Lee [00:00:01]: Hello to all of you.) Tj T* (Bob [00:00:02]: Hello.) Tj ET"
    )
    path.write_bytes(drawn_pdf(f"{known} BT {font} 14 TL 50 500 Td {drawn} {end}"))
    assert said(path)[2:] == EXPECTED


def test_words_that_a_page_draws_one_by_one_are_whole(tmp_path):
    pytest.importorskip("pypdf")
    lines = [f"{turn.speaker}: {turn.words}" for turn in TURNS]
    drawn = ["1 0 0 -1 0 792 cm"]  # as browsers print pages: the blanks between words are not drawn
    for number, line in enumerate(lines):
        place = 50.0
        for word in line.split():
            drawn.append(f"BT /F1 10 Tf 1 0 0 -1 {place:.1f} {60 + 14 * number} Tm 0 -9 Td ({word}) Tj ET")
            place += 4.6 * len(word) + 2.0
    (tmp_path / "a.pdf").write_bytes(drawn_pdf(" ".join(drawn)))
    assert [(turn.speaker, turn.text) for turn in read_transcript(tmp_path / "a.pdf").turns] == [
        (turn.speaker, turn.words) for turn in TURNS
    ]


def test_a_long_word_or_number_in_a_pdf_costs_little(tmp_path):
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([["Ann: One.", "Bob: Two.", "1:1" * 20_000 + "x y", "Ann: Three.", "Bob: Four."]]))
    began = time.process_time()
    assert read_transcript(path).turns[0].text == "One."
    assert time.process_time() - began < 10  # a fraction of a second; a quadratic search takes minutes


@pytest.mark.parametrize(
    "pattern",
    ["{name} ({short}):\n{text}", "[{clock}] {name}: {text}", "{name}\n{clock}\n{text}", "{name}  {short}\n{text}"],
)
def test_pdf_files_read_back_unchanged(tmp_path, pattern):
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(pages_of(pattern)))
    assert said(path) == EXPECTED
    assert {each.reason for each in read_transcript(path).skipped} == {"repeated on pages"}


def test_words_that_a_pdf_draws_one_by_one_make_lines(tmp_path):
    pytest.importorskip("pypdf")
    drawn = []
    for row, turn in enumerate(TURNS):
        for place, word in enumerate(f"{turn.speaker}: {turn.words}".split()):
            drawn.append(f"1 0 0 1 {40 + 45 * place} {700 - 20 * row} Tm ({word}) Tj")
    path = tmp_path / "a.pdf"
    path.write_bytes(drawn_pdf(f"BT /F1 8 Tf {' '.join(drawn)} ET"))
    assert [(turn.speaker, turn.text) for turn in read_transcript(path).turns] == [(t.speaker, t.words) for t in TURNS]


def test_an_index_of_words_at_the_end_is_no_speech(tmp_path):
    pytest.importorskip("pypdf")
    index = [f"bell [{n}] {n}:3,7 {n + 1}:2 {n + 2}:4,9" for n in range(25)]
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([*pages_of("{name}: {text}"), index]))
    transcript = read_transcript(path)
    assert [turn.text for turn in transcript.turns] == [turn.words for turn in TURNS]
    assert any("index" in each.reason for each in transcript.skipped)


def test_pages_with_two_columns_are_read_column_by_column(tmp_path):
    pytest.importorskip("pypdf")
    columns = [[f"the bell {side} {row} rang again" for row in range(9)] for side in ("left", "right")]
    drawn = " ".join(
        f"1 0 0 1 {50 + 300 * side} {700 - 14 * row} Tm ({text}) Tj"
        for side, column in enumerate(columns)
        for row, text in enumerate(column)
    )
    path = tmp_path / "a.pdf"
    path.write_bytes(drawn_pdf(f"BT /F1 8 Tf {drawn} ET"))
    assert read_transcript(path).turns[0].text == " ".join(map(" ".join, columns))


def test_page_headers_of_left_and_right_pages_and_line_numbers_are_no_speech(tmp_path):
    pytest.importorskip("pypdf")
    pages = []
    for number in range(8):
        turn = TURNS[number % len(TURNS)]
        lines = [f"{turn.speaker.upper()}: {turn.words}", *(f"and {word * (number + 1)}" for word in "abcd")]
        top = f"{number + 1} THE BELL" if number % 2 else f"A hearing {number + 1}"
        pages.append([top, *(f"{place} {line}" for place, line in enumerate(lines, 1))])
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(pages))
    said_there = [turn.text for turn in read_transcript(path).turns]
    assert said_there == [
        " ".join([turn.words, *(f"and {word * (number + 1)}" for word in "abcd")])
        for number, turn in enumerate([*TURNS, *TURNS])
    ]


def test_documents_that_cannot_be_read_are_reported_and_the_others_are_read(tmp_path):
    pytest.importorskip("pypdf")
    good = docx("".join(paragraph(run(f"{turn.speaker}: {turn.words}")) for turn in TURNS))
    (tmp_path / "good.docx").write_bytes(good)
    (tmp_path / "cut.docx").write_bytes(good[:-300])
    (tmp_path / "bomb.docx").write_bytes(docx(" " * (65 * 2**20)))
    (tmp_path / "cut.pdf").write_bytes(pdf(pages_of("{name}: {text}"))[:120])
    (tmp_path / "scan.pdf").write_bytes(pdf([[]]))
    with zipfile.ZipFile(tmp_path / "other.docx", "w") as archive:
        archive.writestr("a.txt", "Ann: Yes.")
    folder = read_transcripts(tmp_path)
    assert [each.stem for each in folder.transcripts] == ["good"]
    reasons = {path.name: reason for path, reason in folder.failures}
    assert (
        "damaged or encrypted Word file" in reasons["cut.docx"] and "more than 64 MiB; split it" in reasons["bomb.docx"]
    )
    assert "export its words as text, or as .docx" in reasons["cut.pdf"] and "(OCR)" in reasons["scan.pdf"]
    assert "no Word or OpenDocument file" in reasons["other.docx"]


def test_entities_of_a_hostile_document_stay_small(tmp_path):
    laughs = (
        "<!DOCTYPE x [<!ENTITY a 'ha ha ha'>"
        + "".join(f"<!ENTITY a{n} '&a{n - 1};&a{n - 1};'>" for n in range(1, 60))
        + "]>"
    )
    (tmp_path / "a.docx").write_bytes(
        docx(laughs + paragraph(run("Ann: Yes.")) + paragraph("<w:r><w:t>Bob: &a59;</w:t></w:r>"))
    )
    try:
        assert read_transcript(tmp_path / "a.docx").num_words < 20
    except TranscriptError as error:
        assert "no speaker turn" in str(error)


def test_a_label_at_the_top_of_pages_is_no_running_head(tmp_path):
    pytest.importorskip("pypdf")
    asked = [
        f"{('User', 'Interviewer')[n % 2]}: That is line {letter} of ours." for n, letter in enumerate("efghijklmn")
    ]
    pages = [["Interviewer:", f"Hello, this is part {n}.", *(f"{line} And {n}." for line in asked)] for n in "abcd"]
    (tmp_path / "a.pdf").write_bytes(pdf(pages))
    turns = read_transcript(tmp_path / "a.pdf").turns
    assert [turn.text for turn in turns if turn.text.startswith("Hello")] == [
        f"Hello, this is part {n}." for n in "abcd"
    ]
