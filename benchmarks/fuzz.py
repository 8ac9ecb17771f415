"""Feeds mutated inputs to parsers, readers, settings and records: `python -m benchmarks.fuzz --inputs 1000000`.

An input may be refused only with one of the errors that its reader documents. Prints, for every reader, the number of inputs, the
share that was accepted, and the longest processor time of one input. Exits with 1 after an undocumented error.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from midthought.config.yaml_files import parse_assignments, read_yaml_file
from midthought.data.final_answers import last_boxed, last_number, option_letter
from midthought.data.rows import rows_of
from midthought.engines.servers.streams import EventSplitter
from midthought.env.answer_matching import numeric_match
from midthought.env.answers import CHECKS, extract
from midthought.env.judge import parse_verdict
from midthought.errors import MidthoughtError
from midthought.feedback.convert import RecordError, read_record
from midthought.feedback.settings import without_control_tokens
from midthought.memory.llm_questions.structured_output import parse_object
from midthought.memory.service import schemas
from midthought.memory.transcripts import read_transcript
from midthought.models.small_model import make_tokenizer
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.report.console import printable
from midthought.rollout.trajectory_json import load_trajectories
from midthought.tokenization import Renderer
from midthought.tools.arguments import ArgumentsChecker, ArgumentsError
from midthought.tools.builtin.calculate import CalculationError, calculate
from midthought.tools.parsers import find_call_format

MAX_CHARS = 20_000
SCRAPS = [
    *"{}[]()<>\"'\\#:,;|*&!%@`~-_=+^$./? \n\t\r\x00\x1b\x9b\u202e\ud800\u2028éß漢😀019aZ",
    *(
        "<think>",
        "</think>",
        "#call look ",
        "#look_result:",
        "Action:",
        "Action Input: ",
        "Observation: ",
        "<tool_call>",
    ),
    *(
        "<|im_end|>",
        "[INST]",
        "&a ",
        "*a ",
        "<<: ",
        "!!python/name:os ",
        "$ref",
        "#/$defs/a",
        "(a+)+$",
        "^(a|aa)*$",
        "null",
    ),
    *(
        "true",
        "NaN",
        "1e999",
        "-0",
        "9" * 400,
        "**",
        "sqrt(",
        "\\boxed{",
        "Verdict: yes",
        "data: ",
        "\r\n\r\n",
        "00:01:02",
    ),
]
SEEDS = {
    "calls": [
        '<think>#call look {"q": "tide", "k": [1, {"a": "}"}]}</think>Ada',
        'Thought: so\nAction: look\nAction Input: {"q": "x"}\nObservation: y\n',
        '<tool_call>\n{"name": "look", "arguments": {"q": 1}}\n</tool_call>',
        '```json\n{"tool": "look", "parameters": {"q": "`"}}\n```',
    ],
    "sums": ["(1 + 2) * 3 ** 4 / 7", "sqrt(2) - abs(-3) % 5", "12_345 * 1e3"],
    "answers": [
        "The answer is \\boxed{\\frac{1}{2}}.",
        "#### 1,234.5",
        "(B)",
        "so x = -3/4 %",
        "**Verdict: yes**",
        "Verdict: 7.5",
    ],
    "records": [
        '{"iteration": 0, "is_correct": false, "normalized_answer": "5", "unique_id": "a", "original_question": "Q?", '
        '"full_response": ["r"], "feedback": ["f", -0.2]}'
    ],
    "yaml": ["training:\n  seed: 1\n  learning_rate: 1e-4\nmemory: &a {transcripts: [x, y]}\nb: *a\n"],
    "assignments": ["training.seed=1", "model.local_path=a/b", "inference.base_url=[http://h:1, 'x']"],
    "schemas": [
        '{"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}, "b": {"anyOf": [{"type": "integer"}, '
        '{"$ref": "#/$defs/c"}]}}, "patternProperties": {"^x": {}}, "additionalProperties": false, "$defs": {"c": {"items": '
        '{"$ref": "#/$defs/c"}}}}'
    ],
    "bodies": [
        '{"query": "tide", "k": 5, "episodes": ["a"]}',
        '{"ids": ["a", "b"]}',
    ],
    "trajectories": [
        '{"task": {"task_id": "a", "prompt": "p", "answer": "b", "labels": {}}, "seed": 0, "group": 0, "segments": '
        '[{"token_ids": [1, 2, 3, 4], "spans": [["prompt", 0, 3, 1.0], ["policy", 3, 4, 1.0]], "sampled_logprobs": [null], '
        '"policy_versions": [-1]}], "tool_events": [], "stop_reason": "answered", "error": null, "num_cut": 0, '
        '"reward": {"parts": {"exact": 1.0}}, "tool_seconds": 0.0, "engine_seconds": 0.0, "turns": [], "turn_ends": [], '
        '"call_ends": [], "values": []}'
    ],
    "events": ['data: {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-0.1]}}]}\n\ndata: [DONE]\n\n'],
    "transcripts": [
        "# Title\n\n**Ann:** Some words of a talk.\n\n**Bob:** \\[00:01:37\\] And more words.\n",
        "1\n00:00:01,000 --> 00:00:05,000\nCara: The bread rises.\n",
        "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>Hello <b>there</b>\n",
        '{"title": "t", "segments": [{"speaker": "A", "text": "words", "start": 1.5}]}',
        "<html><body><p><b>Ann:</b> words &amp; more</p></body></html>",
    ],
    "rows": ['{"question": "q", "answer": "a"}\n{"question": 1}\n'],
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads foreign text."""

    name: str
    seeds: str
    read: Callable[[str], Any]
    errors: tuple[type[Exception], ...] = ()
    """Documented errors."""
    weight: int = 10
    """Share of the inputs; slow readers have less."""


def readers(folder: Path) -> list[Reader]:
    """Returns all readers. Readers of files write their inputs to `folder`."""
    renderer = Renderer(make_tokenizer(["the tide clock ran fast"], 300))
    plain = PodcastConfig()

    def from_file(name: str, read: Callable[[Path], Any]) -> Callable[[str], Any]:
        def written(text: str) -> Any:
            (folder / name).write_bytes(_bytes(text))
            return read(folder / name)

        return written

    def check_arguments(text: str) -> None:
        schema = json.loads(text)
        if isinstance(schema, dict):
            ArgumentsChecker(schema).check({"a": "a" * 40 + "!", "b": [[[]]], "x": schema})

    formats = [find_call_format(name) for name in ("in_thought", "react", "hermes", "json", "function_calling")]
    calls = [Reader(f"calls: {each.name}", "calls", each.parse_all, weight=6) for each in formats]
    return [
        *calls,
        Reader("calculate", "sums", calculate, (CalculationError,)),
        Reader("answers", "answers", lambda text: (last_number(text), last_boxed(text), option_letter(text))),
        Reader(
            "judged answers",
            "answers",
            lambda text: ([extract(each, text) for each in CHECKS], numeric_match(text, text[::-1])),
        ),
        Reader("verdict", "answers", lambda text: (parse_verdict(text), parse_verdict(text, (0, 10)))),
        Reader("feedback record", "records", lambda text: read_record(_bytes(text)), (RecordError,)),
        Reader("control tokens", "calls", lambda text: printable(without_control_tokens(text))),
        Reader("tokens", "calls", lambda text: renderer.foreign(renderer.truncate(text, 64))),
        Reader("settings file", "yaml", from_file("a.yaml", read_yaml_file), (yaml.YAMLError,), weight=2),
        Reader(
            "settings",
            "assignments",
            lambda text: plain.merged(parse_assignments([text])),
            (MidthoughtError,),
            weight=2,
        ),
        Reader(
            "schema",
            "schemas",
            check_arguments,
            (MidthoughtError, ArgumentsError, ValueError, RecursionError),
            weight=3,
        ),
        Reader(
            "body: search", "bodies", lambda text: schemas.Query.model_validate_json(_bytes(text)), (ValidationError,)
        ),
        Reader("body: ids", "bodies", lambda text: schemas.Ids.model_validate_json(_bytes(text)), (ValidationError,)),
        Reader("trajectories", "trajectories", from_file("t.jsonl", load_trajectories), (MidthoughtError,), weight=3),
        Reader("server events", "events", lambda text: EventSplitter().feed(_bytes(text)), (MidthoughtError,)),
        Reader("model's JSON", "records", lambda text: parse_object(text, {"type": "object"}), (ValueError,)),
        Reader("transcript .md", "transcripts", from_file("a.md", read_transcript), (MidthoughtError,), weight=1),
        Reader("transcript .json", "transcripts", from_file("a.json", read_transcript), (MidthoughtError,), weight=1),
        Reader("rows", "rows", from_file("a.jsonl", lambda path: list(rows_of(path))), (MidthoughtError,), weight=3),
        Reader("rows .csv", "rows", from_file("a.csv", lambda path: list(rows_of(path))), (MidthoughtError,), weight=3),
    ]


def mutated(seeds: Sequence[str], draw: random.Random) -> str:
    """Returns a seed after a few random insertions, deletions, repetitions and copies from another seed."""
    text = draw.choice(seeds)
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        at, kind = draw.randrange(len(text) + 1), draw.randrange(5)
        until = min(len(text), at + draw.choice((1, 2, 8, 40)))
        if kind == 0:
            text = text[:at] + text[until:]
        elif kind == 1:
            text = text[:at] + draw.choice(SCRAPS) + text[at:]
        elif kind == 2:
            text = text[:at] + (text[at:until] or "a") * draw.choice((2, 3, 10, 300)) + text[until:]
        elif kind == 3:
            other = draw.choice(seeds)
            text = text[:at] + other[draw.randrange(len(other)) :]
        else:
            text = text[:at] + draw.choice(SCRAPS) + text[until:]
        text = text[:MAX_CHARS]
    return text


def fuzz(reader: Reader, num_inputs: int, seed: int) -> tuple[int, float, str, list[str]]:
    """Returns accepted inputs, the longest processor time in seconds with its input, and undocumented errors."""
    draw = random.Random(f"{seed} {reader.name}")
    num_accepted, longest, slowest, wrong = 0, 0.0, "", []
    for _ in range(num_inputs):
        text = mutated(SEEDS[reader.seeds], draw)
        started = time.thread_time()
        try:
            reader.read(text)
            num_accepted += 1
        except reader.errors:
            pass
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {str(error)[:100]} for {text[:200]!a}")
        seconds = time.thread_time() - started
        if seconds > longest:
            longest, slowest = seconds, text
    return num_accepted, longest, slowest, wrong


def main(words: Sequence[str] | None = None) -> int:
    """Runs all readers. Returns 1 after an undocumented error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(words)
    memory = Path("/dev/shm")  # noqa: S108  # a private folder is created there
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        all_readers = readers(Path(folder))
        total, num_wrong, num_done, worst = sum(each.weight for each in all_readers), 0, 0, 0.0
        for reader in all_readers:
            num_inputs = -(-chosen.inputs * reader.weight // total)
            num_accepted, longest, slowest, wrong = fuzz(reader, num_inputs, chosen.seed)
            print(
                f"{reader.name:24} {num_inputs:9,} inputs  {num_accepted / num_inputs:4.0%} accepted  {longest * 1e3:8.1f} ms",
                flush=True,
            )
            if longest > 0.1:
                print(f"    slowest: {slowest[:200]!a}")
            for line in wrong[:3]:
                print(f"    {line}")
            num_wrong, num_done, worst = num_wrong + len(wrong), num_done + num_inputs, max(worst, longest)
    print(
        f"{num_done:,} inputs, {num_wrong} undocumented errors, at most {worst * 1e3:.1f} ms of processor time for one input"
    )
    return int(num_wrong > 0)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


if __name__ == "__main__":
    sys.exit(main())
