"""`midthought plan`: words to a plan, for one model or for a row of sizes. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midthought.config import RecipeConfig, merge_configs, parse_assignments
from midthought.plan.advice import advise
from midthought.plan.gpus import GIB
from midthought.plan.known import KNOWN
from midthought.plan.memory import Memory
from midthought.plan.recipe import words_of
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape
from midthought.plan.timing import Timing

SIZES = (
    "meta-llama/Llama-3.2-1B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B",
)
"""The rows of `--sizes`."""
HEAD = ("model", "GPUs", "GiB learning", "GiB sampling", "s sampling", "s learning", "s together", "settings")


def make_plan(words: Sequence[str], config: RecipeConfig | None = None) -> Memory:
    """The plan of these words; what they do not say is a recipe's, where there is one. Raises SettingsError, ModelPathError."""
    settings = _settings(words, config)
    return Memory(find_shape(settings), settings)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The plan's own words, and a recipe's settings, which have a section: `gpus=8`, `training.batch_size=64`."""
    recipes = [word for word in words if "." in word.partition("=")[0]]
    return [word for word in words if word not in recipes], recipes


def size_rows(words: Sequence[str]) -> Iterator[str]:
    """A Markdown table, a row for each of `SIZES`: with the measures of `advise` that it needs."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{' --- |' * len(HEAD)}"
    for name in SIZES:
        assert name in KNOWN
        yield _size_row(_settings([*words, f"model={name}"]))


def _size_row(settings: PlanSettings) -> str:
    steps, memory = advise(Memory(find_shape(settings), settings))
    changed = {key: value for step in steps for key, value in step.changes.items()}
    timing = Timing(memory)
    sampling = timing.prompts.expected + timing.decoding.expected
    phases = memory.totals
    cells = (
        settings.model,
        f"{memory.settings.gpus}",
        f"{phases['learning'] / GIB:.0f}",
        f"{phases.get('sampling', phases['learning']) / GIB:.0f}",
        f"{sampling:.0f}",
        f"{timing.expected - sampling:.0f}",
        f"{timing.expected:.0f}",
        " ".join(f"`{key}={value}`".lower() for key, value in changed.items() if key not in ("gpus", "shard"))
        or "as given",
    )
    return f"| {' | '.join(cells)}{'' if memory.fits else ': does not fit'} |"


def _settings(words: Sequence[str], config: RecipeConfig | None = None) -> PlanSettings:
    given = parse_assignments(words)
    if config is None:
        return PlanSettings(**given)
    found = words_of(config)
    if "model" in given:
        found = {key: value for key, value in found.items() if key not in ("hidden_size", "num_layers", "num_heads")}
    return PlanSettings(**merge_configs(found, given))
