"""`midthought plan`: creates plans from words, for one model or several sizes. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from midthought.config import RecipeConfig, parse_assignments
from midthought.errors import SettingsError
from midthought.plan.advice import applied
from midthought.plan.choices import Choice, choose_and_plan, chosen_plan
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.memory import Memory
from midthought.plan.model_configs import MODEL_CONFIGS
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape

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
GIVEN = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
MEMORIES_GIB = (24, 48, 80)
"""The rows of `--sizes` with a recipe."""
HIDDEN = ("learning_rate", "attn_implementation", "logits_mib", "backend", "rollout_correction", "num_test")
"""Chosen settings that `--sizes` leaves out."""
CHOICE_HEAD = ("model", "GiB of the GPU", "usable", "needed", "chosen", "`train`")
HEAD = ("model", "GPUs", "GiB learning", "GiB sampling", "settings")


def make_plan(words: Sequence[str], config: RecipeConfig | None = None) -> Memory:
    """Returns the plan of these words; defaults come from the recipe, if given, and `inference.backend=auto` is `local`.

    Raises `SettingsError`, `ModelPathError`.
    """
    given = parse_assignments(words)
    if config is None:
        settings = PlanSettings(**given)
        return Memory(find_shape(settings), settings)
    source = str(given.get("model", config.model.local_path))
    return chosen_plan(config, source, given, is_given=bool(source), has_vllm=False)[1]


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits words into the plan's (`gpus=8`) and a recipe's, which have a section (`training.batch_size=64`)."""
    recipes = [word for word in words if "." in word.partition("=")[0]]
    return [word for word in words if word not in recipes], recipes


def size_rows(words: Sequence[str]) -> Iterator[str]:
    """Yields a Markdown table with a row for each of `SIZES` and the settings that differ after `advice.applied`."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{' --- |' * len(HEAD)}"
    for name in SIZES:
        assert name in MODEL_CONFIGS
        yield _size_row(PlanSettings(**parse_assignments([*words, f"model={name}"])))


def choice_rows(begin: Callable[[str], RecipeConfig], words: Sequence[str]) -> Iterator[str]:
    """Yields a Markdown table of what `train` chooses, needs and rejects, for models of `GIVEN` on GPUs of `MEMORIES_GIB`, with
    the local engine.

    `begin` returns the initial settings of a recipe for a model name.
    """
    given = parse_assignments(words)
    yield f"| {' | '.join(CHOICE_HEAD)} |"
    yield f"|{' --- |' * len(CHOICE_HEAD)}"
    for name in GIVEN:
        for memory_gib in MEMORIES_GIB:
            hardware = Hardware("gpu", f"a GPU of {memory_gib} GiB", memory_gib)
            choice = choose_and_plan(begin(name), hardware, source=name, words=given, has_vllm=False)
            yield f"| {name} | {memory_gib} | {' | '.join(_choice_cells(choice))} |"


def _choice_cells(choice: Choice) -> tuple[str, ...]:
    if choice.plan is None:
        raise SettingsError(choice.unknown)
    keys = [word.partition(".")[2] for word in choice.chosen if not any(key in word for key in HIDDEN)]
    outcome = "starts"
    if not choice.fits:
        settings = " ".join(f"`{words}`" for words in choice.remedy())
        outcome = f"refuses; it fits with {settings}" if settings else "refuses; no setting makes it fit"
    most = max(choice.plan.totals.values())
    chosen = " ".join(f"`{key}`" for key in keys) or "nothing"
    return f"{choice.plan.limit / GIB:.1f}", f"{most / GIB:.1f}", chosen, outcome


def _size_row(settings: PlanSettings) -> str:
    _, memory = applied(Memory(find_shape(settings), settings))
    before = settings.model_dump()
    changed = {key: value for key, value in memory.settings.model_dump().items() if value != before[key]}
    phases = memory.totals
    cells = (
        settings.model,
        f"{memory.settings.gpus}",
        f"{phases['learning'] / GIB:.0f}",
        f"{phases.get('sampling', phases['learning']) / GIB:.0f}",
        " ".join(f"`{key}={value}`".lower() for key, value in changed.items() if key not in ("gpus", "shard"))
        or "as given",
    )
    return f"| {' | '.join(cells)}{'' if memory.fits else ': does not fit'} |"
