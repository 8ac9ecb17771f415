"""Chunks of invented episodes."""

from collections.abc import Iterable

from midthought.memory.chunks import Chunk


def episode(stem: str, texts: Iterable[str], **others: object) -> list[Chunk]:
    """One chunk of each text."""
    values = {"episode": f"The {stem.title()}", "speaker": "Ann", "time": "00:00:00", **others}
    return [
        Chunk(chunk_id=f"{stem}_{n}", stem=stem, transcript=text, number=n, **values) for n, text in enumerate(texts)
    ]


def lines(num: int, word: str = "Line") -> list[str]:
    return [f"{word} {n}." for n in range(num)]
