"""Chooses values for `auto` settings by hardware, and checks whether the run then fits in memory. Loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from midthought.config import RecipeConfig, read_yaml
from midthought.errors import MissingExtraError, ModelPathError, SettingsError
from midthought.plan.advice import ON_ONE_CPU, ON_ONE_GPU, Step, advise, needed
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.memory import Memory
from midthought.plan.run_settings import plan_arguments
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape

LORA_RANK = 32
WEIGHT_RATES = (2e-6, 2e-5)
ADAPTER_RATES = (2e-5, 2e-4)
"""Learning rates (reinforcement learning, warm-up) of a given model. Adapters learn best at about ten times the rate of full
weights: Schulman et al. 2025, "LoRA Without Regret"."""
SIZES = (("training", "micro_batch_tokens", (4096, 2048, 1024)), ("inference", "max_num_seqs", (128, 64, 32, 16, 8)))
"""Section, key and values of settings that affect only memory and speed, largest first. On a GPU, the first that fits is used."""

AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings of a run without `auto`, and its plan."""

    config: Any
    hardware: Hardware
    chosen: tuple[str, ...]
    """Chosen values, as `section.key=value`."""
    plan: Memory | None
    """None: the run cannot be planned; `unknown` has the reason."""
    unknown: str = ""

    def lines(self) -> Iterator[str]:
        """Yields lines of text with the chosen values and the required memory."""
        if self.chosen:
            yield f"Chosen for {self.hardware}: {' '.join(self.chosen)}"
        if self.hardware.kind == "gpu" and "model.lora_rank=0" in self.chosen:
            yield "All weights are trained, because peft is not installed; for adapters: pip install 'midthought[lora]'"
        if self.plan is None:
            yield f"Memory is not checked before this run: {self.unknown}"
        else:
            most, limit = _most(self.plan) / GIB, self.plan.limit / GIB
            yield f"Memory needed (midthought plan): {most:.1f} GiB; {limit:.1f} GiB can be used"

    def require_possible(self) -> None:
        """Raises `SettingsError`, with settings that make it fit, if the run needs more memory than available.

        Raises `MissingExtraError` if adapters are trained and peft is not installed.
        """
        if self.config.model.adapter_rank and find_spec("peft") is None:
            raise MissingExtraError("peft", "lora")
        plan = self.plan
        if plan is None or self.fits:
            return
        steps = self.remedy()
        if steps:
            words = " ".join(step.settings for step in steps)
            remedy = f"it fits with {words} ({steps[-1].num_bytes / GIB:.1f} GiB)"
        else:
            remedy = "no setting makes it fit; take a smaller model, or hardware with more memory"
        name = plan.settings.model or "the model"
        raise SettingsError(
            f"{name} does not fit: training needs {_most(plan) / GIB:.1f} GiB, and of {self.hardware} "
            f"{plan.limit / GIB:.1f} GiB can be used; {remedy}"
        )

    @property
    def fits(self) -> bool:
        """Whether the run fits, as far as known."""
        return self.plan is None or _most(self.plan) <= self.plan.limit

    def remedy(self) -> list[Step]:
        """Settings with which the run fits; empty if there are none."""
        assert self.plan is not None
        steps, better = advise(self.plan, ON_ONE_GPU if self.hardware.kind == "gpu" else ON_ONE_CPU)
        return needed(self.plan, steps) if better.fits else []


def choose(config: AnyConfig, *, on_gpu: bool, is_given: bool = True, by_verl: bool = False) -> AnyConfig:
    """Returns the settings with a value for every `auto`.

    `is_given`: the model is the user's, not the small one that a run creates. `by_verl`: verl trains it, with a critic that
    is a separate model and with all weights sharded over its GPUs.
    """
    is_large = on_gpu and is_given
    model = config.model
    takes_adapters = is_large and not by_verl and find_spec("peft") is not None
    rank = model.adapter_rank if model.lora_rank != "auto" or not takes_adapters else LORA_RANK
    is_shared = is_large and not by_verl and not config.ray.num_critics
    rate, warmup_rate = ADAPTER_RATES if rank else WEIGHT_RATES
    values: dict[str, Any] = {
        "model.dtype": "bfloat16" if is_large else "float32",
        "model.critic": "shared" if is_shared else "separate",
        "model.lora_rank": rank,
        "training.gradient_checkpointing": is_large,
        "training.learning_rate": rate,
        **{f"{section}.{key}": sizes[0] for section, key, sizes in SIZES},
    }
    changes: dict[str, dict[str, Any]] = {}
    for name, key in _open(config):
        changes.setdefault(name, {})[key] = values.get(f"{name}.{key}", warmup_rate)
    return config.merged(changes)


def as_recorded(config: AnyConfig, file: Path) -> AnyConfig:
    """Returns the settings with the values that the run chose for `auto` at its start, read from its `config.yaml`."""
    recorded = read_yaml(file)
    changes: dict[str, dict[str, Any]] = {}
    for name, key in _open(config):
        if key in recorded.get(name, {}):
            changes.setdefault(name, {})[key] = recorded[name][key]
    return config.merged(changes)


def _open(config: RecipeConfig) -> Iterator[tuple[str, str]]:
    """Yields section and key of every `auto` that is chosen here, which excludes `model.device`."""
    for name, section in config:
        for key in (
            "dtype",
            "critic",
            "lora_rank",
            "gradient_checkpointing",
            "learning_rate",
            *(key for _, key, _ in SIZES),
        ):
            if getattr(section, key, None) == "auto":
                yield name, key


def choose_and_plan(
    config: RecipeConfig,
    hardware: Hardware,
    *,
    source: str,
    is_given: bool = True,
    words: Mapping[str, Any] | None = None,
) -> Choice:
    """Runs `choose` and plans the run on this hardware.

    Args:
        source: folder or hub name of the initial model; empty: the run creates a small one.
        words: further arguments of the plan.
    """
    on_gpu = hardware.kind == "gpu"
    settled, plan, unknown = choose(config, on_gpu=on_gpu, is_given=is_given), None, _unknown(config, hardware)
    if not unknown:
        more = {"gpu_memory_gib": hardware.memory_gib, **_apart(config), **(words or {})}
        try:
            settled, plan = chosen_plan(config, source, more, on_gpu=on_gpu, is_given=is_given)
        except (SettingsError, ModelPathError) as error:
            unknown = str(error).partition(". ")[0]
    return Choice(settled, hardware, tuple(_changed(config, settled)) if is_given else (), plan, unknown)


def chosen_plan(
    config: AnyConfig, source: str, words: Mapping[str, Any], *, on_gpu: bool = True, is_given: bool = True
) -> tuple[AnyConfig, Memory]:
    """Runs `choose`, on a GPU with the largest `SIZES` that fit, and plans the run. Raises `SettingsError`, `ModelPathError`."""
    settled = choose(config, on_gpu=on_gpu, is_given=is_given)
    plan = plan_of(settled, source, words)
    for section, key, sizes in SIZES if on_gpu else ():
        for size in sizes[1:] if getattr(getattr(config, section), key) == "auto" else ():
            if _most(plan) <= plan.limit:
                break
            settled = settled.merged({section: {key: size}})
            plan = plan_of(settled, source, words)
    return settled, plan


def plan_of(config: RecipeConfig, source: str, words: Mapping[str, Any]) -> Memory:
    """Returns the plan of a run without `auto` that starts from the model in `source`, on the GPUs in `words`."""
    found = plan_arguments(config)
    if source:
        found = {key: value for key, value in found.items() if key not in ("hidden_size", "num_layers", "num_heads")}
        found["model"] = source
    settings = PlanSettings(**{**found, **words})
    return Memory(find_shape(settings), settings)


def _most(plan: Memory) -> int:
    return max(plan.totals.values())


def _apart(config: RecipeConfig) -> dict[str, Any]:
    """Returns arguments for servers, whose memory is not planned here: an engine on its own GPU with minimal cache."""
    if config.inference.backend == "local" or config.ray.use_ray:
        return {}
    return {"gpus": 2, "engine_gpus": 1, "engine": "local", "max_num_seqs": 1}


def _unknown(config: RecipeConfig, hardware: Hardware) -> str:
    """Returns the reason why this run cannot be planned; empty if it can."""
    ray = config.ray
    if hardware.memory_gib is None:
        return f"the memory of {hardware.name} is not known"
    if ray.num_learners > 1 or ray.num_critics:
        return "ray.num_learners and ray.num_critics learn on machines whose memory is not known here"
    return ""


def _changed(before: RecipeConfig, after: RecipeConfig) -> Iterator[str]:
    """Yields the values that replace `auto`, as words; the critic's only if there is a critic."""
    has_critic = after.training.has_critic
    for name, key in _open(before):
        if has_critic or key != "critic":
            yield f"{name}.{key}={_word(getattr(getattr(after, name), key))}"


def _word(value: Any) -> str:
    """Returns a value in the syntax of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
