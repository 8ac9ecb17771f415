"""docs/gpu.md shows what is chosen for every model on every GPU. `python tests/plan/test_gpu_table.py` writes the table anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from midthought.plan.choices import Choice, choose_and_plan
from midthought.plan.hardware import GIB, Hardware
from midthought.recipes import find_recipe

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
TABLE = re.compile(r"(<!-- choices -->\n)(.*?)(<!-- end -->\n)", flags=re.DOTALL)
MEMORIES_GIB = (24, 48, 80, 141)
MODELS = tuple(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B"))
USUAL = ("bfloat16", "shared", 32, "sdpa", True)


def choice_of(model: str, memory_gib: int) -> Choice:
    config, _ = find_recipe("podcast").begin(Path(), words=[f"model.local_path={model}"])
    return choose_and_plan(config, Hardware("gpu", "a GPU", memory_gib), source=model, has_vllm=True)


def cell(model: str, memory_gib: int) -> str:
    choice = choice_of(model, memory_gib)
    config = choice.config
    model_settings, training, inference = config.model, config.training, config.inference
    needed = max(choice.plan.totals.values()) / GIB
    parts = [f"`{inference.backend}`"]
    if inference.in_process:
        parts.append(f"share {inference.gpu_memory_utilization}")
    parts += [f"{inference.max_num_seqs} seqs", f"{training.micro_batch_tokens} tokens", f"needed {needed:.1f}"]
    own = (
        model_settings.dtype,
        model_settings.critic,
        model_settings.lora_rank,
        model_settings.attn_implementation,
        training.gradient_checkpointing,
    )
    parts += [str(value) for value, usual in zip(own, USUAL, strict=True) if value != usual]
    if training.logits_mib != 64:
        parts.append(f"logits {training.logits_mib} MiB")
    if not choice.fits:
        steps = choice.remedy()
        remedy = " ".join(f"`{step.settings}`" for step in steps)
        parts.append(f"**refused**: fits with {remedy}" if steps else "**refused**: smaller model or larger GPU")
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


@pytest.mark.parametrize("memory_gib", MEMORIES_GIB)
@pytest.mark.parametrize("model", MODELS)
def test_a_cell_of_the_page_is_what_is_chosen(model, memory_gib):
    remedy = "write it anew: python tests/plan/test_gpu_table.py"
    assert cells_of_the_page()[model, memory_gib] == cell(model, memory_gib), remedy


@pytest.mark.parametrize("memory_gib", MEMORIES_GIB)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_said_to_fit_fits_in_nine_tenths_of_the_memory(model, memory_gib):
    choice = choice_of(model, memory_gib)
    if choice.fits:
        choice.require_possible()
        assert max(choice.plan.totals.values()) <= 0.9 * memory_gib * GIB
        if choice.config.inference.in_process:
            assert choice.plan.num_sequences >= 16


def table() -> str:
    rows = [f"| {model} | {' | '.join(cell(model, memory) for memory in MEMORIES_GIB)} |" for model in MODELS]
    head = f"| model | {' | '.join(f'{memory} GiB' for memory in MEMORIES_GIB)} |"
    return "\n".join([head, f"|{' --- |' * (1 + len(MEMORIES_GIB))}", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda found: found[1] + table() + found[3], PAGE.read_text("utf-8")), "utf-8")
