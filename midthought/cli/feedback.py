"""`midthought feedback`: logs to conversations, data sets to problems, and a check of the feedback servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midthought.files.output_folder import require_our_lines
from midthought.memory.rows import require_our_parquet
from midthought.report.console import tell

app = typer.Typer(help="Feedback: logs, problems, servers.", no_args_is_help=True)

Strict = Annotated[bool, typer.Option("--strict", help="Fail at the first invalid row.")]


@app.command()
def convert(
    log: Annotated[Path, typer.Argument(help="JSON Lines file with one record per problem and round.")],
    out: Annotated[Path, typer.Argument(help="Parquet file of conversations for SFT.")],
    dataset: Annotated[str, typer.Option(help="Data set of the problems; it decides the answer format.")] = "math",
    strict: Strict = False,
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Check answers again; logs mark some correct answers as wrong.")
    ] = False,
) -> None:
    """Convert published feedback logs to conversations with tool calls."""
    from midthought.feedback.convert import convert as convert_log
    from midthought.feedback.convert import report_lines

    require_our_parquet(out, ("messages", "tools"))
    report = convert_log(log, out, dataset=dataset, strict=strict, recheck=recheck, tell=tell)
    tell("\n".join([*report_lines(report), f"written to {out}"]))


@app.command()
def problems(
    dataset: Annotated[str, typer.Argument(help="math, gsm8k, mmlu, trivia_qa, multiplication, …: docs/data.md.")],
    out: Annotated[Path, typer.Argument(help="Output file: .parquet for verl's rows, .jsonl for tasks.")],
    source: Annotated[
        str | None, typer.Option(help="File, or name on the Hugging Face hub; default: the data set's own.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split on the hub.")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of problems to draw; default: all.")] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of drawn or generated problems and of the order of GPQA's options.")
    ] = 14,
    strict: Strict = False,
) -> None:
    """Write a data set's problems, from the hub, a file or a seed."""
    from midthought.feedback.commands import write_problems

    if out.suffix == ".parquet":
        require_our_parquet(out, ("data_source", "prompt"))
    elif out.suffix == ".jsonl":
        require_our_lines(out, ("task_id", "prompt", "answer"))
    write_problems(dataset, out, source=source, split=split, limit=limit, seed=seed, strict=strict, tell=tell)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="YAML file: plain settings, or verl's tool configuration.")],
) -> None:
    """Ask the feedback servers a few questions; every failure is reported with its remedy."""
    from midthought.feedback.commands import run_check

    raise typer.Exit(run_check(config, tell))
