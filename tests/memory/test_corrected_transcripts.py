"""`memory add` replaces a corrected transcript, and not another one that has the same file name."""

import random

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from word_embedder import WordEmbedder

from midthought.memory.duplicates import is_corrected
from midthought.memory.store import MemoryStore

SHORT = "**SPEAKER_00 (00:00:01):** The tide clock has a copper hand.\n\n**SPEAKER_01 (00:00:09):** I wind it every third day.\n"
INTRO = "SPEAKER_00 (00:00:00): Welcome to the show of the harbour, with all that the sea has brought to us."
WORDS = [
    "tide", "clock", "copper", "hand", "wind", "harbour", "gull", "rope", "sail", "mast", "keel", "anchor", "fog", "bell",
    "lamp", "wheel", "shore", "stone", "sand", "wave",
]  # fmt: skip


def sentences(seed: int, num: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=9)).capitalize() + "." for _ in range(num)]


def written(said: list[str], every: int = 5) -> str:
    """Turns of two labels; an intro comes first, as in each episode of the show."""
    turns = [
        f"SPEAKER_0{n % 2} (00:0{n // 60 + 1}:{n % 60:02d}): {' '.join(said[start : start + every])}"
        for n, start in enumerate(range(0, len(said), every))
    ]
    return "\n\n".join([INTRO, *turns]) + "\n"


@pytest.fixture
def talks(tmp_path, monkeypatch, command):
    monkeypatch.setattr("midthought.memory.embedding.load_embedder", lambda name: WordEmbedder())
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "tide.md").write_text(SHORT)
    (tmp_path / "talks" / "long.txt").write_text(written(sentences(1, 100)))
    assert command("memory", "add", tmp_path / "talks", "--path", tmp_path / "memory")[0] == 0
    return tmp_path / "talks"


def add(command, files, *more):
    folder = files if files.is_dir() else files.parent
    return command("memory", "add", files, "--path", folder.parent / "memory", *more)


def speakers(talks) -> set[str]:
    return {name for chunk in MemoryStore.open(talks.parent / "memory").chunks() for name in chunk.speakers}


def test_names_for_labels_change_every_chunk_and_no_word(talks, command):
    (talks / "speakers.yaml").write_text("SPEAKER_00: Ann Lee\nSPEAKER_01: Bob Ray\n")
    code, said = add(command, talks)
    assert code == 0 and " 0 known" in said.out, said.err
    assert speakers(talks) == {"Ann Lee", "Bob Ray"}


def test_another_episode_with_the_same_name_and_intro_is_refused(talks, command):
    (talks / "long.txt").write_text(written(sentences(2, 100)))
    code, out = add(command, talks)
    assert code == 2 and "another transcript in the memory is named 'long'; rename the file" in out.err
    assert add(command, talks, "--replace")[0] == 0


def test_words_are_compared_in_runs():
    chinese, count = "潮汐钟只有一根铜指针，没有数字。我每三天上一次发条。", " ".join(map(str, range(500)))
    for old, new, expected in (
        (chinese, chinese.replace("三", "四"), True),
        (chinese, "灯塔的看守人在雾中敲钟。海鸥落在桅杆上，风停了。", False),
        ("A clock.", "A moon.", False),
        ("Yes.", "yes", True),
        ("", "A moon.", False),
        ("one two three four five six", "six five four three two one", False),
        ("5 6, 17 18, 4 5, 90 91", count, False),
        (count, " ".join(map(str, range(100, 300))), True),
    ):
        assert is_corrected(old, new) == is_corrected(new, old) == expected, (old, new)
