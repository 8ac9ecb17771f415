"""Every form of `docs/memory.md` in a small file: with the file's names, order, words and times."""

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from documents import docx, paragraph, pdf, run
from pyarrow import parquet

from midthought.memory.transcripts import Transcript, read_transcript

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
"""`declared/` has its notations in notation.yaml, and names in speakers.yaml."""
TURNS = EXPECTED["list.json"]["turns"]


def seen(transcript: Transcript) -> dict[str, object]:
    turns = [
        [turn.speaker, turn.text, turn.time, *([dict(map(str, mark) for mark in turn.marks)] if turn.marks else [])]
        for turn in transcript.turns
    ]
    return {"format": transcript.format, "style": transcript.style, "episode": transcript.episode, "turns": turns}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_form_is_read_exactly(name):
    assert seen(read_transcript(GOLDEN / name)) == EXPECTED[name]


def test_every_file_is_read():
    settings = {"expected.json", "notation.yaml", "speakers.yaml"}
    files = {path for path in GOLDEN.rglob("*") if path.is_file() and path.name not in settings}
    assert files == {GOLDEN / name for name in EXPECTED}


def test_word_pdf_and_parquet_are_read_exactly(tmp_path):
    deleted = "<w:del><w:r><w:delText>Never said.</w:delText></w:r></w:del>"
    line_break = "<w:r><w:br/></w:r>"

    def write(name: str, *paragraphs: tuple[str, ...]) -> None:
        heading = paragraph(run("The Bell"), style="Heading1")
        body = "".join(paragraph(*runs) for runs in paragraphs)
        (tmp_path / name).write_bytes(docx(heading + body, footer1="<w:ftr>Page</w:ftr>"))

    write("bold.docx", *((run(f"{name}:", bold=True), run(f" [{time}] {text}"), deleted) for name, text, time in TURNS))
    write("own_line.docx", *((run(part),) for name, text, time in TURNS for part in (f"{name} ({time})", text)))
    write(
        "break.docx", *((run(name, bold=True), run(f"   {time}"), line_break, run(text)) for name, text, time in TURNS)
    )
    runs = [(name[:2], f"{name[2:]} ", f"({time}): {text[:5]}", text[5:]) for name, text, time in TURNS]
    write("split_runs.docx", *((run(a, bold=True), run(b, bold=True), run(c), run(d)) for a, b, c, d in runs))
    plain = [[name.replace("ë", "e").replace("í", "i"), text, time] for name, text, time in TURNS]
    pages = [
        ["The Bell, a transcript", f"{n} ({time})", text, f"Page {at}"] for at, (n, text, time) in enumerate(plain)
    ]
    (tmp_path / "pages.pdf").write_bytes(pdf(pages))
    columns = {
        "start": [3.0, 64.5, 72.0, 3720.0],
        "speaker": [n for n, _, _ in TURNS],
        "text": [t for _, t, _ in TURNS],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "columns.parquet")
    for path in sorted(tmp_path.iterdir()):
        transcript = read_transcript(path)
        assert seen(transcript)["turns"] == (plain if path.suffix == ".pdf" else TURNS), path.name
        assert transcript.doubts == (), path.name
        assert transcript.episode == "The Bell" or path.suffix != ".docx"
    skipped = {each.text for each in read_transcript(tmp_path / "pages.pdf").skipped}
    assert skipped >= {"The Bell, a transcript", "Page 0"}


def test_the_content_says_which_format_a_file_has_whatever_its_suffix(tmp_path):
    for name in ("list.json", "names.srt", "voices.vtt", "names.ass", "podcast_namespace.html", "bold_name.md"):
        for suffix in ("", ".txt", ".json" if name == "list.json" else ".text"):
            file = shutil.copy(GOLDEN / name, tmp_path / f"a{suffix}")
            assert seen(read_transcript(file))["turns"] == EXPECTED[name]["turns"], (name, suffix)


def test_encodings_and_line_ends_make_no_difference(tmp_path):
    text = (GOLDEN / "name_and_time.txt").read_text()
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "cp1252"):
        for end in ("\n", "\r\n", "\r"):
            (tmp_path / "a.txt").write_bytes(text.replace("\n", end).encode(encoding))
            assert seen(read_transcript(tmp_path / "a.txt"))["turns"] == TURNS, (encoding, end)
    others = {
        "cp1250": "Zofia: Dzień dobry, źle się czuję, ależ skąd, więc chodźmy.",
        "cp1251": "Анна: Привет, как дела сегодня? Мы говорим о колоколах.",
        "cp1254": "Ayşe: Günaydın, nasılsın? Çok güzel bir gün, değil mi?",
        "koi8_r": "Анна: Привет, как дела сегодня? Мы говорим о колоколах.",
        "cp932": "田中: こんにちは、今日は天気がいいですね。",
        "gb18030": "王: 你好，今天我们来谈谈这个问题。",
        "big5": "王: 你好，今天我們來談談這個問題。",
        "cp949": "김: 안녕하세요 오늘은 날씨가 좋네요.",
    }
    for encoding, line in others.items():
        (tmp_path / "a.txt").write_bytes(line.encode(encoding))
        (turn,) = read_transcript(tmp_path / "a.txt").turns
        assert f"{turn.speaker}: {turn.text}" == line, encoding
