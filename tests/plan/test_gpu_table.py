"""docs/servers.md shows what is chosen on every GPU. `python tests/plan/test_gpu_table.py` writes the table anew."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import SettingsError
from midthought.plan.choices import KNOWN_VLLM

PAGE = Path(__file__).parents[2] / "docs" / "servers.md"
TABLE = re.compile(r"(<!-- choices -->\n)(.*?)(<!-- end -->\n)", flags=re.DOTALL)
MEMORIES_GIB = (24, 48, 80, 141)
MODELS = tuple(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B"))
USUAL = {
    "model.dtype": "bfloat16",
    "model.critic": "shared",
    "model.lora_rank": "32",
    "model.attn_implementation": "sdpa",
}
"""Settings that a cell names only if they differ."""


def dry_run(model: str, memory_gib: int) -> tuple[dict[str, str], str, str]:
    """Returns what `midthought train podcast --dry-run` prints: values by setting, needed GiB, and the refusal (empty: none)."""
    with ExitStack() as stack:
        stack.enter_context(patch("midthought.plan.choices.installed_vllm", lambda: KNOWN_VLLM))
        stack.enter_context(patch("midthought.plan.choices.find_spec", lambda name: object()))
        words = ["train", "podcast", "--dry-run", "--gpu-gib", str(memory_gib), f"model.local_path={model}"]
        result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SettingsError):
        raise result.exception
    values = dict(line.split()[0].split("=", 1) for line in result.output.splitlines() if re.match(r"\w+\.\w+=", line))
    needed = re.search(r"^Memory needed: (\S+) GiB; ", result.output, flags=re.MULTILINE)
    return values, needed[1], str(result.exception or "")


def cell(model: str, memory_gib: int) -> str:
    values, needed, refusal = dry_run(model, memory_gib)
    parts = [f"`{values['inference.backend']}`"]
    if "inference.in_process" in values:
        parts.append(f"share {values['inference.gpu_memory_utilization']}")
    parts += [f"{values['inference.max_num_seqs']} seqs", f"{values['training.micro_batch_tokens']} tokens"]
    parts += ["recomputed"] * (values["training.gradient_checkpointing"] != "false")
    parts.append(f"needed {needed}")
    parts += [values[name] for name, usual in USUAL.items() if values[name] != usual]
    if refusal:
        remedy = re.search(r"it fits with (.*)$", refusal)
        parts.append(f"**refused**: fits with `{remedy[1]}`" if remedy else "**refused**: smaller model or larger GPU")
    return ", ".join(parts)


def cells_of_the_page() -> dict[tuple[str, int], str]:
    _, _, *rows = TABLE.search(PAGE.read_text("utf-8"))[2].splitlines()
    found = {}
    for row in rows:
        name, *cells = row.strip("| ").split(" | ")
        found |= {(name, memory): text for memory, text in zip(MEMORIES_GIB, cells, strict=True)}
    return found


@pytest.fixture(autouse=True)
def with_peft(monkeypatch):
    monkeypatch.setattr("midthought.plan.choices.find_spec", lambda name: object())


@pytest.mark.parametrize("model", MODELS)
def test_the_page_shows_what_is_chosen(model):
    for memory_gib in MEMORIES_GIB:
        remedy = "write it anew: python tests/plan/test_gpu_table.py"
        assert cells_of_the_page()[model, memory_gib] == cell(model, memory_gib), remedy


def table() -> str:
    rows = [f"| {model} | {' | '.join(cell(model, memory) for memory in MEMORIES_GIB)} |" for model in MODELS]
    head = f"| model | {' | '.join(f'{memory} GiB' for memory in MEMORIES_GIB)} |"
    return "\n".join([head, f"|{' --- |' * (1 + len(MEMORIES_GIB))}", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda found: found[1] + table() + found[3], PAGE.read_text("utf-8")), "utf-8")
