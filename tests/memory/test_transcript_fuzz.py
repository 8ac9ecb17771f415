"""Damaged transcripts: each is read or refused with TranscriptError, within its deadline, and what is read can be stored."""

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from midthought.errors import TranscriptError
from midthought.memory.chunks import chunk_transcript
from midthought.memory.transcripts import read_transcript

DEADLINE_SECONDS = 5.0
"""CPU time per file, so that a busy machine does not fail the test."""
REAL = Path(__file__).parents[2].parent / "shared/data/podcast/formats"
SUFFIXES = ("", ".md", ".txt", ".json", ".srt", ".vtt", ".html")


def lines_of(count: int) -> list[tuple[str, str, int]]:
    return [("Ann Lee" if n % 2 else "Zoë", f"Line {n} of “it”, with *signs* & [marks].", 7 * n) for n in range(count)]


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def seeds() -> list[bytes]:
    """A transcript in every notation, and the first characters of real ones if they are available."""
    said = lines_of(12)
    whisper = [
        {
            "start": float(t),
            "end": t + 5.0,
            "text": f" {words}",
            "words": [{"word": " Line", "start": t, "speaker": who}],
        }
        for who, words, t in said
    ]
    texts = [
        "# The Bell\n\n" + "".join(f"**{who}:** \\[{clock(t)}\\] {words}\n\n" for who, words, t in said),
        "---\ntitle: 'The Bell'\n---\n"
        + "".join(f"**{who}**: {words}\n\n> a quote\n- an item\n" for who, words, _ in said),
        "".join(f"{who} ({clock(t)}):\r\n{words}\r\n\r\n" for who, words, t in said),
        "".join(f"{who} ({clock(t)}) - {words}\n" for who, words, t in said),
        "".join(f"{who}: {words}\n" for who, words, _ in said),
        "".join(f"{clock(t)} {words}\n" for _, words, t in said),
        "".join(f"[{clock(t)}.000 --> {clock(t + 5)}.000]   {words}\n" for _, words, t in said),
        "".join(
            f"{n}\n{clock(t)},000 --> {clock(t + 5)},000\n{who}: {words}\n\n"
            for n, (who, words, t) in enumerate(said, 1)
        ),
        "WEBVTT\n\nNOTE x\n\n"
        + "".join(
            f"{n}\n{clock(t)}.000 --> {clock(t + 5)}.000\n<v {who}><i>{words}</i>\n\n"
            for n, (who, words, t) in enumerate(said)
        ),
        "<!doctype html><title>The Bell</title>"
        + "".join(
            f"<cite>{who}:</cite>\n<time>{clock(t)}</time>\n<p>{words} &amp; &#233;</p>\n" for who, words, t in said
        ),
        "<html><body>"
        + "".join(f"<div><b>{who}</b> ({clock(t)}) <span>{words}</span></div>" for who, words, t in said),
        json.dumps({"segments": whisper}),
        json.dumps(
            {"version": "1.0.0", "segments": [{"speaker": w, "startTime": t, "body": b} for w, b, t in said]}, indent=1
        ),
        json.dumps(
            {"episode": "The Bell", "content": [{"speaker": w, "transcript": b, "time": clock(t)} for w, b, t in said]}
        ),
        "".join(json.dumps({"start": t, "text": words}) + "\n" for _, words, t in said),
        " ".join(words for _, words, _ in said),
    ]
    found = [text.encode() for text in texts] + [texts[2].encode("utf-16"), texts[4].encode("cp1252")]
    if REAL.is_dir():
        found += [path.read_bytes()[:3000] for path in sorted(REAL.rglob("*.*")) if path.suffix != ".md"]
    return found


ODD = [
    "\x00", "\ufeff", "\u202e", "\ud83d", "\U0001f600", "e\u0301\u0301\u0301", "\ue100", "\u2028", "\x85", "\x1b[31m", "é",
    "&#1114112;", "&#99999999999999999999;", "\\ud800", "**", "<v ", "<cite>", "-->", "[", "](", "<!--", "{", "\\", "`", "_",
    "~~", "99:99:99", "00:00:00,000 --> 00:00:00,000", "1e999", "NaN", "-0", "null", "[]", "{}", '""',
    "Ann:", "\r", "\t", "٣:٤٥",
]  # fmt: skip


def damaged(rng: random.Random, sources: list[bytes]) -> bytes:
    content = bytearray(rng.choice(sources))
    for _ in range(rng.randint(1, 4)):
        content = bytearray(rng.choice(DAMAGES)(rng, content, sources))
    return bytes(content)


def flip_bytes(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytearray:
    for _ in range(rng.randint(1, 20) if content else 0):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return content


def change_lines(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytes:
    lines = bytes(content).split(b"\n")
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(lines) or 1)
        kind = rng.randrange(4)
        if kind == 0:
            lines[place : place + 1] = []
        elif kind == 1:
            lines[place:place] = lines[place : place + 1] * rng.choice([1, 2, 50])
        elif kind == 2:
            lines[place : place + 1] = [line[: rng.randrange(len(line) + 1)] for line in lines[place : place + 1]]
        else:
            rng.shuffle(lines)
    return b"\n".join(lines)


def cut(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytearray:
    place = rng.randrange(len(content) + 1)
    return content[:place] if rng.random() < 0.7 else content[place:]


def put_odd(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytes:
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(content) + 1)
        content[place:place] = (rng.choice(ODD) * rng.choice([1, 1, 3, 300])).encode("utf-8", "surrogatepass")
    return content


def put_numbers(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytes:
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    for _ in range(3 if places else 0):
        place = min(rng.choice(places), len(content))
        content[place:place] = rng.choice([b"9" * 20, b"9" * 5000, b"-", b".", b"1e400", b"0x"])
    return content


def nest(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytes:
    opening, closing = rng.choice(
        [(b"[", b"]"), (b'{"a":', b"}"), (b"<p>", b"</p>"), (b"(", b")"), (b"**", b"**"), (b"> ", b"")]
    )
    depth = rng.choice([3, 300, 20_000])
    return opening * depth + bytes(content) + (closing * depth if rng.random() < 0.5 else b"")


def splice(rng: random.Random, content: bytearray, sources: list[bytes]) -> bytes:
    other = rng.choice(sources)
    place, start = rng.randrange(len(content) + 1), rng.randrange(len(other) + 1)
    return bytes(content[:place]) + other[start:]


DAMAGES: list[Callable[[random.Random, bytearray, list[bytes]], bytes | bytearray]] = [
    flip_bytes, change_lines, cut, put_odd, put_numbers, nest, splice,
]  # fmt: skip


@contextmanager
def deadline(seconds: float):
    def stop(*_):
        raise AssertionError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read_or_refused(path: Path, seconds: float = DEADLINE_SECONDS) -> bool:
    with deadline(seconds):
        try:
            transcript = read_transcript(path)
        except TranscriptError as error:
            assert str(error).startswith(f"{path}: ")
            return False
        chunks = chunk_transcript(transcript)
    assert chunks and all(chunk.transcript.strip() for chunk in chunks)
    for turn in transcript.turns:
        f"{turn.speaker} {turn.text}".encode()
        assert turn.speaker.strip() and turn.text == " ".join(turn.text.split())
    transcript.episode.encode()
    return True


def read_damaged(folder: Path, count: int, seed: int) -> int:
    rng = random.Random(f"damage-{seed}")
    sources = seeds()
    num_read = 0
    for number in range(count):
        path = folder / f"episode{rng.choice(SUFFIXES)}"
        path.write_bytes(damaged(rng, sources))
        try:
            num_read += read_or_refused(path)
        except BaseException:
            path.rename(folder / f"broken-{number}{path.suffix}")
            print(f"damaged file {number} of seed {seed}: {folder}/broken-{number}{path.suffix}")
            raise
        path.unlink()
    return num_read


def test_undamaged_seeds_are_read(tmp_path):
    for number, content in enumerate(seeds()):
        path = tmp_path / f"seed{number}"
        path.write_bytes(content)
        if number != 11:  # 3,000 letters of a JSON file are no JSON
            assert read_or_refused(path) or content.startswith(b"{"), content[:100]


def test_a_thousand_damaged_files(tmp_path):
    num_read = read_damaged(tmp_path, 1000, seed=0)
    assert 300 < num_read < 1000  # the damage is neither nothing nor everything


def test_a_page_of_millions_of_tags_is_refused_at_once(tmp_path):
    """A damaged file like it took 14 seconds."""
    path = tmp_path / "nested.html"
    path.write_text("<p>" * 2_000_000 + "Ann: words" + "</p>" * 2_000_000, "utf-8")
    with deadline(2.0), pytest.raises(TranscriptError, match="it has 4,000,000 tags, more than 500,000; split it"):
        read_transcript(path)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files(tmp_path):
    assert 30_000 < read_damaged(tmp_path, 100_000, seed=1) < 100_000


STRAY = [
    "*a ", "`a ", "_a ", "[a ", "[a](", "[a](b", "![](", "~~a ", "<!-- ", "<!--", "\\[", "[00:01 ", "[ ", "<v ", "<v a",
    "<p", "<p>", "<cite>", "<script>", "&#9", "&#", "&amp", "(00:01) ", "Ann: ", "Ann (", "a" * 50 + ":", " ", "#",
    "# ", "- ", "> ", "=", "= =", "**", "**a", "**:", "__", "[[", "]]", "((", "())", "{", "[1,", "{\"a\":[", "\\", "\"",
    ".", "?)", "<<", ">>", "-->", "0", "00:", "9:99 ", "🙂", "é", "\u0301", "no ", "no no yes ", "a b c d e ", "'", "—",
    "? Ann: ", "_[: ", "a. A: ", ". A: ", "[A]: ", "n1: a\n\n", "A\n\n", "1)\n",
]  # fmt: skip
STARTS = [
    "",
    "**Ann:** ",
    "Ann: ",
    "Ann (00:01): ",
    "1\n00:00:01,000 --> 00:00:02,000\n",
    "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>",
]
STARTS += ["<cite>Ann</cite><p>", "# ", '{"segments": [{"text": "', "---\ntitle: ", "00:01 a\n00:02 "]


def test_long_lines_of_stray_signs_cost_little(tmp_path):
    path = tmp_path / "long"
    for number, stray in enumerate(STRAY):
        start = STARTS[number % len(STARTS)]
        path.write_text(start + stray * (50_000 // len(stray)), "utf-8")
        read_or_refused(path)
    path.write_text("- " * 150_000 + " x")  # nearly a rule of signs
    read_or_refused(path, seconds=2)
    path.write_text("**Ann:** " + " " * 50_000 + " x")
    read_or_refused(path, seconds=2)


GROWING = {
    "labels after questions": "? Ann: ",
    "titles of people": "Mr. Lee: ",
    "colons after brackets": "_[: ",
    "blanks after sentences": ".        a: ",
    "arrows": ">> ",
}


def seconds_for(path: Path, text: str) -> float:
    path.write_text(text, "utf-8")
    start = time.process_time()
    read_or_refused(path, seconds=60)
    return time.process_time() - start


@pytest.mark.parametrize("stray", GROWING.values(), ids=GROWING.keys())
def test_a_line_of_sixteen_times_the_length_costs_about_sixteen_times_as_much(tmp_path, stray):
    """A cost that grows with the square of the length is 256 times as much."""
    line = stray * (10_000 // len(stray))
    short = min(seconds_for(tmp_path / "short", line) for _ in range(3))
    assert seconds_for(tmp_path / "long", line * 16) < 64 * short


CHAT = "@UTF8\n@Begin\n@Languages:\teng\n*CHI:\t"
GRID = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n5\n<exists>\n2\n'
HOSTILE = {
    "marks that start a CHAT file, in one line": "@Font " * 330 + "\n",
    "comments of RTTM in one line": ";; " * 600 + "\n",
    "blanks in CHAT": CHAT + ("a" + " " * 5000) * 200,
    "lines of blanks in CHAT": CHAT + "\n\t \t " * 200_000,
    "a long name of a tier": f'{GRID}"IntervalTier"\n"a{"_" * 10**6}!"\n0\n5\n1\n0\n5\n"hello there"\n',
    "a long name of a tier of sounds": f'{GRID}"IntervalTier"\n"{"_phon" * 200_000} a"\n0\n5\n1\n0\n5\n"hello there"\n',
    "many tiers": GRID
    + "".join(f'"IntervalTier"\n"t{n}"\n0\n5\n1\n0\n5\n"one{n} two{n} three{n}"\n' for n in range(15_000)),
    "blank lines in a TextGrid": GRID + "\n" * 10**6,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_annotations_cost_little(tmp_path, text):
    path = tmp_path / "annotations"
    path.write_text(text, "utf-8")
    read_or_refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_lines_of_a_million_letters_cost_little(tmp_path, start):
    path = tmp_path / "long"
    for stray in STRAY:
        path.write_text(start + stray * (10**6 // len(stray)) + " x", "utf-8")
        read_or_refused(path, seconds=60)
