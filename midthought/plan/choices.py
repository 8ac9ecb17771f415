"""Values for settings that are `auto`, by hardware, and whether a run then fits its memory. Loads no weights."""

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
"""Section, key and values of what changes memory and speed alone, largest first: on a GPU the first with which a run fits."""

AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings of a run without `auto`, and its plan."""

    config: Any
    hardware: Hardware
    chosen: tuple[str, ...]
    """What was chosen, as `section.key=value`."""
    plan: Memory | None
    """None: it cannot be planned, for the reason in `unknown`."""
    unknown: str = ""

    def lines(self) -> Iterator[str]:
        """What was chosen and what it needs, for people."""
        if self.chosen:
            yield f"Chosen for {self.hardware}: {' '.join(self.chosen)}"
        if self.hardware.kind == "gpu" and "model.lora_rank=0" in self.chosen:
            yield "All weights learn, as peft is not installed; for adapters: pip install 'midthought[lora]'"
        if self.plan is None:
            yield f"Memory is not checked before this run: {self.unknown}"
        else:
            most, limit = _most(self.plan) / GIB, self.plan.limit / GIB
            yield f"Memory needed (midthought plan): {most:.1f} GiB; {limit:.1f} GiB can be used"

    def require_possible(self) -> None:
        """Raise SettingsError, naming the settings that make it fit, if the run needs more memory than there is.

        Raises MissingExtraError if adapters are to learn and peft is not installed.
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
        """True if nothing is known that speaks against it."""
        return self.plan is None or _most(self.plan) <= self.plan.limit

    def remedy(self) -> list[Step]:
        """Settings with which the run fits; none if no setting makes it fit."""
        assert self.plan is not None
        steps, better = advise(self.plan, ON_ONE_GPU if self.hardware.kind == "gpu" else ON_ONE_CPU)
        return needed(self.plan, steps) if better.fits else []


def choose(config: AnyConfig, *, on_gpu: bool, is_given: bool = True, by_verl: bool = False) -> AnyConfig:
    """The settings with a value in place of every `auto`.

    `is_given`: the model is a user's, not the small one that a run makes. `by_verl`: verl trains it, whose critic is a
    model of its own and which divides all weights over its GPUs.
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
    """The settings with every `auto` as it was chosen when the run began, read from its `config.yaml`."""
    recorded = read_yaml(file)
    changes: dict[str, dict[str, Any]] = {}
    for name, key in _open(config):
        if key in recorded.get(name, {}):
            changes.setdefault(name, {})[key] = recorded[name][key]
    return config.merged(changes)


def _open(config: RecipeConfig) -> Iterator[tuple[str, str]]:
    """Section and key of every `auto` that is chosen here; `model.device` is not."""
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
    """`choose`, and the plan of the run on this hardware.

    Args:
        source: folder or hub name of the model that the run begins with; empty: it makes a small one.
        words: further words of the plan.
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
    """`choose`, on a GPU with the largest `SIZES` that fit, and the plan. Raises SettingsError, ModelPathError."""
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
    """The plan of a run without `auto` that begins with the model in `source`, on GPUs that `words` describe."""
    found = plan_arguments(config)
    if source:
        found = {key: value for key, value in found.items() if key not in ("hidden_size", "num_layers", "num_heads")}
        found["model"] = source
    settings = PlanSettings(**{**found, **words})
    return Memory(find_shape(settings), settings)


def _most(plan: Memory) -> int:
    return max(plan.totals.values())


def _apart(config: RecipeConfig) -> dict[str, Any]:
    """Words for servers, whose memory is not planned here: an engine on a GPU of its own, with next to no cache."""
    if config.inference.backend == "local" or config.ray.use_ray:
        return {}
    return {"gpus": 2, "engine_gpus": 1, "engine": "local", "max_num_seqs": 1}


def _unknown(config: RecipeConfig, hardware: Hardware) -> str:
    """Why a plan would say nothing of this run; empty if it does."""
    ray = config.ray
    if hardware.memory_gib is None:
        return f"the memory of {hardware.name} is not known"
    if ray.num_learners > 1 or ray.num_critics:
        return "ray.num_learners and ray.num_critics learn on machines whose memory is not known here"
    return ""


def _changed(before: RecipeConfig, after: RecipeConfig) -> Iterator[str]:
    """Values that replace `auto`, as words; that of a critic only if there is one."""
    has_critic = after.training.has_critic
    for name, key in _open(before):
        if has_critic or key != "critic":
            yield f"{name}.{key}={_word(getattr(getattr(after, name), key))}"


def _word(value: Any) -> str:
    """A value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
