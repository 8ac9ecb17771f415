"""`python -m benchmarks [rollout …] [--quick]`: runs the parts, prints the table, writes it as Markdown and JSON.

`python -m benchmarks gpu` is a command of its own (`benchmarks.gpu`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from benchmarks import (
    asynchronous,
    busy,
    gateway,
    learner,
    lora,
    memory,
    memory_scale,
    parse,
    plan,
    retrieval,
    rollout,
    scaling,
    service,
    tools,
    trl,
    vllm,
    worker_group,
)
from benchmarks.memory_scale import growth
from benchmarks.options import Options, add_options, read_options
from benchmarks.reciter import SIZES
from benchmarks.retrieval import displayed
from benchmarks.table import Row, describe_machine, to_markdown, write_json

PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    module.PART: module.measure
    for module in (
        rollout,
        tools,
        parse,
        scaling,
        memory,
        memory_scale,
        growth,
        trl,
        vllm,
        learner,
        lora,
        worker_group,
        plan,
        retrieval,
        displayed,
        service,
        busy,
        asynchronous,
        gateway,
    )
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all by default")
    add_options(parser)
    arguments = parser.parse_args(words)
    if unknown := sorted(set(arguments.parts) - PARTS.keys()):
        parser.error(f"unknown part {unknown[0]!r}; there is: {', '.join(PARTS)}")
    options = read_options(arguments)
    machine = describe_machine(options.device) | {"dtype": arguments.dtype, "rounds": options.num_rounds}
    machine |= {"date": datetime.now(UTC).date().isoformat(), "quick": options.quick}
    machine |= {"models": {size: SIZES[size].describe() for size in options.sizes}}
    name = "-".join(arguments.parts) or "bench"
    rows: list[Row] = []
    for part in arguments.parts or PARTS:
        for row in PARTS[part](options):
            print(row.to_markdown(), flush=True)
            rows.append(row)
            write_json(arguments.out / f"{name}.json", rows, machine)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = "\n".join([*(f"- {name}: {value}" for name, value in machine.items()), "", to_markdown(rows), ""])
    (arguments.out / f"{name}.md").write_text(table, "utf-8")
    print(f"\n{table}")
