"""Part `parse`: the cost of finding calls in sampled tokens, measured alone, for every call format."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.models.small_model import make_tokenizer
from midthought.rollout.episode import TokenWatch
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.parsers import find_call_format

PART = "parse"
CORPUS = Path(__file__).parents[1] / "midthought/recipes/podcast/sample"
CALL_FORMATS = ("in_thought", "hermes", "json", "react", "function_calling")
VOCABULARY = 4096
NUM_TOKENS = 20_000
NUM_BETWEEN_CALLS = 48
NUM_CALLS_IN_TURN = 4
MAX_MICROSECONDS = 3.0


def measure(options: Options) -> Iterator[Row]:
    num_tokens = 2_000 if options.quick else NUM_TOKENS
    renderer = Renderer(make_tokenizer([path.read_text("utf-8") for path in sorted(CORPUS.iterdir())], VOCABULARY))
    for name in CALL_FORMATS:
        yield from scanning(options, renderer, find_call_format(name), num_tokens)


def scanning(options: Options, renderer: Renderer, call_format: ToolCallFormat, num_tokens: int) -> Iterator[Row]:
    """The scanner on text that is decoded already, and with the decoding before it, in turn."""
    turns = make_turns(renderer, call_format, num_tokens)
    pieces = [_decoded(renderer, turn) for turn in turns]
    num_tokens = sum(map(len, turns))
    in_thought = call_format.name == "in_thought"

    def watch() -> int:
        return sum(_found(TokenWatch(renderer, call_format, in_thought=in_thought), turn) for turn in turns)

    def scan() -> int:
        return sum(_found(call_format.scanner(in_thought=in_thought), turn) for turn in pieces)

    microseconds: dict[str, list[float]] = {"scanning tokens, decoding included": [], "scanning decoded text": []}
    for number in range(options.num_rounds + 1):
        for (figure, measured), work in zip(microseconds.items(), (watch, scan), strict=True):
            began = time.perf_counter()
            num_calls = work()
            elapsed = time.perf_counter() - began
            assert num_calls == NUM_CALLS_IN_TURN * len(turns), f"{figure}: {num_calls} calls found"
            if number:
                measured.append(1e6 * elapsed / num_tokens)
    characters = sum(len(piece) for turn in pieces for piece in turn) / num_tokens
    for figure, measured in microseconds.items():
        yield Row(
            part=PART,
            setting=f"{call_format.name}, {characters:.1f} characters a token",
            figure=figure,
            value=Spread.of(measured),
            unit="µs a token",
            at_most=MAX_MICROSECONDS,
        )


def make_turns(renderer: Renderer, call_format: ToolCallFormat, num_tokens: int) -> list[list[int]]:
    """About so many tokens of prose with calls in it, in turns of four calls."""
    draw = random.Random(0)
    prose = renderer.foreign("\n".join(path.read_text("utf-8") for path in sorted(CORPUS.glob("*.md"))))

    def some_prose(num: int) -> list[int]:
        start = draw.randrange(len(prose) - num)
        return prose[start : start + num]

    def block() -> list[int]:
        query = renderer.decode(some_prose(6))
        return [
            *some_prose(NUM_BETWEEN_CALLS),
            *renderer.control("\n" + call_format.render_call("look", {"query": query}) + "\n"),
        ]

    turns: list[list[int]] = []
    while sum(map(len, turns)) < num_tokens:
        turns.append([token_id for _ in range(NUM_CALLS_IN_TURN) for token_id in block()])
    return turns


def _decoded(renderer: Renderer, token_ids: Sequence[int]) -> list[str]:
    """The pieces that the decode stream gives for these tokens."""
    stream = renderer.decode_stream()
    return [stream.step(token_id) for token_id in token_ids]


def _found(watch: Any, items: Sequence[Any]) -> int:
    """Feed a `TokenWatch` with tokens, or a scanner with pieces, as an episode does; the number of calls found."""
    num_calls = 0
    for item in items:
        if watch.feed(item):
            num_calls += len(watch.take())
            watch.resume()
    return num_calls + len(watch.take())
