"""Five checks with a planted failure each; files that are refused; hostile files."""

import subprocess
import sys
import time

import pytest
from documents import docx, paragraph, pdf, run

from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript

TALK = [f"Ann (00:{n:02}:00): The tide rises at {n}.\n\nBob (00:{n:02}:30): It falls at {n}.\n\n" for n in range(40)]
GOOD = TALK[0]
WORDS = " ".join(f"word{n}" for n in range(250))


@pytest.fixture
def doubts(tmp_path):
    def read(text: str, name: str = "a.txt") -> tuple[str, ...]:
        (tmp_path / name).write_text(text)
        return read_transcript(tmp_path / name).doubts

    return read


LATE = GOOD + "Ann (00:00:20): Again.\n"
PLANTED = {
    "[00:01] The tide rises.\n[00:04] It falls.\n": "no speaker is named in 5 words",
    "Ann: The tide rises.\n\nAnn: It falls.\n": "'Ann' is the only speaker in 2 turns",
    LATE: "the time goes back 1 times, first from 00:00:30 to 00:00:20",
    f"Ann: Hi.\n\nBob: {WORDS}\n": "turn 2, of 'Bob', has 250 of 251 words",
    f"{WORDS}\n\n" + "".join(TALK): " words of the file are in no turn",
}


@pytest.mark.parametrize(("text", "sentence"), PLANTED.items(), ids=range(5))
def test_each_of_the_five_checks_finds_its_planted_failure_alone(doubts, text, sentence):
    assert doubts(GOOD) == ()
    (found,) = doubts(text)
    assert sentence in found and ";" in found


def test_words_of_a_damaged_cue_and_of_a_field_are_lost_with_a_report(doubts):
    cues = "".join(f"00:0{n}.000 --> 00:0{n}.900\n<v {'Ann' if n % 2 else 'Bob'}>The tide rises.\n\n" for n in range(6))
    assert doubts(f"WEBVTT\n\n{cues}", "a.vtt") == ()
    (found,) = doubts(f"WEBVTT\n\n{cues}00:07.000 -- > 00:08.000\nNobody hears this.\n", "a.vtt")
    assert "words of the file are in no turn" in found and "nobody" in found
    entries = '{"speaker": "Ann", "text": "Yes, so."}, {"speaker": "Bob", "text": "No."}'
    (found,) = doubts(f'{{"text": "Yes, so. No. Nobody read this.", "segments": [{entries}]}}', "a.json")
    assert "'nobody read this'" in found


REFUSED = {
    "notation.txt": "".join(f"12.{n} ~ {'ab'[n % 2]}1 ~ Good morning to all of you.\n" for n in range(20)),
    "dashes.txt": "".join(f"{('Ann', 'Bob')[n % 2]} — Good morning to all of you.\n" for n in range(20)),
    "chat.txt": "".join(f"<{('ann', 'bob')[n % 2]}> Good morning to all of you.\n" for n in range(20)),
    "few.txt": "A note of eight words, and no more.",
    "table.md": "".join(f"| {n} | the tide | rises and falls and rises again |\n" for n in range(20)),
    "page.md": "# Formats\n\n"
    + "1. Some words\n" * 20
    + "```vtt\nWEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>One.\n```\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_no_form_is_refused_with_its_lines_and_the_remedy(tmp_path, name):
    (tmp_path / name).write_text(REFUSED[name])
    with pytest.raises(TranscriptError, match="no speaker turn found") as caught:
        read_transcript(tmp_path / name)
    assert name in str(caught.value) and "declare in notation.yaml how turns start" in str(caught.value)
    assert REFUSED[name].split("\n")[0][:20].strip() in str(caught.value)


def test_a_package_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    files = {
        "pysubs2": ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nAnn: Yes.\n", "memory"),
        "webvtt": ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nAnn: Yes.\n", "memory"),
        "charset_normalizer": ("c.txt", "Ann: caf\xe9 and more".encode("cp1252"), "memory"),
        "selectolax.lexbor": ("a.html", "<html><p>Ann: Yes.", "documents"),
        "mammoth": ("a.docx", docx(paragraph(run("Ann: Yes."))), "documents"),
        "pypdf": ("a.pdf", pdf([["Ann: Yes."]]), "documents"),
    }
    for module, (name, content, extra) in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(TranscriptError, match=rf"{name}: \S+ is not installed; .*midthought\[{extra}\]"):
                read_transcript(tmp_path / name)


LONG = 200_000
HOSTILE = {
    "long.txt": "Ann: " + "a " * (LONG // 2),
    "letters.txt": "a" * LONG,
    "labels.txt": "Ann: " * (LONG // 5),
    "lines.txt": "Ann: x\n" + "word\n" * (LONG // 20),
    "stars.md": "**a " * (LONG // 8),
    "links.md": "[a](" * (LONG // 4),
    "deep.json": "[" * LONG,
    "objects.json": '{"words":[' * 400 + "{}" + "]}" * 400,
    "text.json": '{"segments":[{"text":"' + "a " * (LONG // 2) + '"}]}',
    "voices.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<v " * (LONG // 3),
    "tags.srt": "1\n00:00:01,000 --> 00:00:02,000\n" + "<i " * (LONG // 3),
    "signs.html": "<html>" + "<" * LONG,
    "cell.csv": "speaker,text\nAnn," + "a " * (LONG // 2),
    "binary.txt": bytes(range(256)) * 8,
    "binary": bytes((number * 7919) % 256 for number in range(4_000)),
    "sound.md": b"ID3\x04\0\0\0" + bytes(range(256)) * 8,
    "damaged.docx": docx(paragraph(run("Ann: Yes.")))[:-300],
    "other.docx": b"PK\x03\x04" + bytes(range(256)) * 8,
    "nested.docx": docx("<w:p>" * 20_000),
    "damaged.pdf": pdf([["Ann: Yes."]])[:120],
    "scan.pdf": pdf([[]]),
    "junk.pdf": b"%PDF-1.7\n" + bytes(range(256)) * 2_000,
    "junk.parquet": b"PAR1" + bytes(range(256)) * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_read_or_refused_with_its_name_in_little_time(tmp_path, name):
    content = HOSTILE[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.process_time()
    try:
        assert read_transcript(tmp_path / name).is_doubtful
    except TranscriptError as error:
        assert str(error).startswith(f"{tmp_path / name}: ") and ";" in str(error) and len(str(error)) < 1000
    assert time.process_time() - began < 30  # seconds; a cost that grows with the square takes hours


def test_entities_of_a_hostile_word_file_stay_small(tmp_path):
    laughs = "".join(f"<!ENTITY a{n} '&a{n - 1};&a{n - 1};'>" for n in range(1, 60))
    whole = docx(paragraph("<w:r><w:t>&a59;</w:t></w:r>"), start=f"<!DOCTYPE x [<!ENTITY a0 'ha'>{laughs}]>")
    (tmp_path / "a.docx").write_bytes(whole)
    with pytest.raises(TranscriptError, match=r"a\.docx: it is a damaged Word file"):
        read_transcript(tmp_path / "a.docx")


def test_a_damaged_pdf_prints_nothing(tmp_path):
    whole = pdf([["Ann: The tide rises.", "Bob: It falls."]])
    (tmp_path / "a.pdf").write_bytes(whole[: whole.index(b"startxref")] + b"startxref\n7\n%%EOF\n")
    program = f"from midthought.memory.transcripts import read_transcript as r; print(len(r({str(tmp_path / 'a.pdf')!r}).turns))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"2"] and done.stderr == b""
