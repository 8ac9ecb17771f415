"""Options of a benchmark; every part has the same command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.reciter import SIZES, Reciter

NUM_ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How much is measured, and on what."""

    sizes: tuple[str, ...] = ("tiny", "small")
    num_rounds: int = NUM_ROUNDS
    quick: bool = False
    """Little work and one round: to see that it runs, not to quote."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def reciter(self, size: str, style: str = "in_thought", *, num_span: int) -> Reciter:
        return Reciter(size, style, num_span=num_span, device=self.device, dtype=self.dtype)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=sorted(SIZES), help="models")
    parser.add_argument(
        "--rounds", type=_positive, default=NUM_ROUNDS, help=f"repeats of every comparison ({NUM_ROUNDS})"
    )
    parser.add_argument("--quick", action="store_true", help="little work, one round: to see that it runs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for the table, as .md and .json")


def _positive(word: str) -> int:
    if (number := int(word)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rounds; give 1 or more")
    return number


def read_options(arguments: argparse.Namespace) -> Options:
    return Options(
        sizes=tuple(arguments.sizes[:1] if arguments.quick else arguments.sizes),
        num_rounds=1 if arguments.quick else arguments.rounds,
        quick=arguments.quick,
        device=arguments.device,
        dtype=getattr(torch, arguments.dtype),
    )
