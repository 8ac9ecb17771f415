"""Every form of `docs/memory.md` in a small file: with the file's names, order, words and times."""

import json
from pathlib import Path

import pytest
from documents import docx, paragraph, pdf, run

from midthought.memory.transcripts import Transcript, read_transcript

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
FILES = sorted(path for path in GOLDEN.iterdir() if path.name != "expected.json")
TURNS = EXPECTED["list.json"]["turns"]


def seen(transcript: Transcript) -> dict[str, object]:
    turns = [
        [turn.speaker, turn.text, turn.time, *([dict(map(str, mark) for mark in turn.marks)] if turn.marks else [])]
        for turn in transcript.turns
    ]
    return {"format": transcript.format, "style": transcript.style, "episode": transcript.episode, "turns": turns}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_form_is_read_exactly(path):
    assert seen(read_transcript(path)) == EXPECTED[path.name]


def test_word_pdf_and_parquet_are_read_exactly(tmp_path):
    import pyarrow
    from pyarrow import parquet

    deleted = "<w:del><w:r><w:delText>Never said.</w:delText></w:r></w:del>"
    word = {
        "bold.docx": [
            paragraph(run(f"{name}:", bold=True), run(f" [{time}] {text}"), deleted) for name, text, time in TURNS
        ],
        "own_line.docx": [paragraph(run(f"{name} ({time})")) + paragraph(run(text)) for name, text, time in TURNS],
        "line_break.docx": [
            paragraph(run(name, bold=True), run(f"   {time}"), "<w:r><w:br/></w:r>", run(text))
            for name, text, time in TURNS
        ],
        "split_runs.docx": [
            paragraph(
                run(name[:2], bold=True), run(f"{name[2:]} ", bold=True), run(f"({time}): {text[:5]}"), run(text[5:])
            )
            for name, text, time in TURNS
        ],
    }
    heading = paragraph(run("The Bell"), style="Heading1")
    for name, body in word.items():
        (tmp_path / name).write_bytes(docx(heading + "".join(body), footer1="<w:ftr>Page</w:ftr>"))
    plain = [(name.replace("ë", "e").replace("í", "i"), text, time) for name, text, time in TURNS]
    pages = [
        ["The Bell, a transcript", f"{name} ({time})", text, f"Page {page}"]
        for page, (name, text, time) in enumerate(plain)
    ]
    (tmp_path / "pages.pdf").write_bytes(pdf(pages))
    columns = {
        "start": [3.0, 64.5, 72.0, 3720.0],
        "speaker": [turn[0] for turn in TURNS],
        "text": [turn[1] for turn in TURNS],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "columns.parquet")
    for path in sorted(tmp_path.iterdir()):
        transcript = read_transcript(path)
        said = [[turn.speaker, turn.text, turn.time] for turn in transcript.turns]
        assert said == (list(map(list, plain)) if path.suffix == ".pdf" else TURNS), path.name
        assert transcript.doubts == (), path.name
        assert transcript.episode == "The Bell" or path.suffix != ".docx"
    assert {each.text for each in read_transcript(tmp_path / "pages.pdf").skipped} >= {
        "The Bell, a transcript",
        "Page 0",
    }


def test_the_content_says_which_format_a_file_has_whatever_its_suffix(tmp_path):
    for name in ("list.json", "names.srt", "voices.vtt", "names.ass", "podcast_namespace.html", "bold_name.md"):
        for suffix in ("", ".txt", ".json" if name == "list.json" else ".text"):
            (tmp_path / f"a{suffix}").write_bytes((GOLDEN / name).read_bytes())
            assert seen(read_transcript(tmp_path / f"a{suffix}"))["turns"] == EXPECTED[name]["turns"], (name, suffix)


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
