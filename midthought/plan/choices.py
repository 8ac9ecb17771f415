"""Chooses values for `auto` settings by hardware, and checks whether the run then fits in memory. Loads no weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from midthought.config import RecipeConfig, SupervisedSection, read_yaml, settled
from midthought.config.references import require_installed
from midthought.config.store import TINY, unset_values
from midthought.errors import ModelPathError, SettingsError
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.measures import fitted, remedy
from midthought.plan.memory import Memory, shared_samples
from midthought.plan.shape import Shape, find_shape, read_config, small_shape

LORA_RANK = 32
WEIGHT_RATES = (1e-6, 2e-5)
ADAPTER_RATES = (1e-5, 2e-4)
"""Learning rates (reinforcement learning, warm-up) of a given model. 1e-6 is the rate of DeepSeekMath, DAPO and VAPO, and the
default of verl and TRL. Adapters learn best at about ten times the rate of full weights: Schulman et al. 2025, "LoRA Without
Regret"."""
MADE_RATES = (TINY["training"]["learning_rate"], 3e-3)
"""Of the small model that a run creates."""
LARGEST_SUPERVISED_RATE = 1e-3
ARM_WORK = {"cpu": 1.2e13, "gpu": 2e16}
"""Parameters × tokens that an evaluation arm of a given model computes at most, which limits the number of test questions: about
ten minutes of a laptop's CPU in float32, and of a GPU such as an H100."""
KNOWN_VLLM = "0.32"
"""Version of vLLM that is known to run in this process (`engines.vllm_in_process`)."""
MIN_QUESTIONS = 100
"""With fewer test questions a share is less exact than 10 percentage points (half of the 95 % interval of 50 %)."""
_SHOWN = (
    *("model.dtype", "model.critic", "model.lora_rank", "model.attn_implementation", "training.gradient_checkpointing"),
    *("training.learning_rate", "training.rollout_correction", "training.micro_batch_tokens", "training.logits_mib"),
    *("inference.backend", "inference.in_process", "inference.gpu_memory_utilization", "inference.max_num_seqs"),
)
_CHOSEN = [name.partition(".")[2] for name in _SHOWN if name != "inference.in_process"] + ["chat_template_date"]
AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings of a run without `auto`, and its plan."""

    config: Any
    hardware: Hardware
    chosen: frozenset[str]
    """Settings that were `auto`, as `section.key`."""
    plan: Memory | None
    """None: the run cannot be planned; `unknown` has the reason."""
    unknown: str = ""
    source: str = ""
    """Folder or hub name of the user's model; empty for a small one that a run creates, and for a loaded one."""
    knows_prompts: bool = False
    """Whether the length of the longest prompt is known, not assumed."""

    def table(self) -> Iterator[str]:
        """Yields the settings that matter to this run, one a line, and the required memory."""
        yield f"Chosen for {self.hardware}:"
        yield from self._rows()
        if self.plan is None:
            yield f"Memory is not checked before this run: {self.unknown}"
        else:
            yield f"Memory needed: {self.plan.needed / GIB:.1f} GiB; {self.plan.limit / GIB:.1f} GiB can be used"
            if self.plan.engine_weights and self.config.model.adapter_rank:
                num_gib = self.plan.engine_weights / GIB
                yield f"While the learner works, vLLM keeps the base model in CPU memory: {num_gib:.1f} GiB"
        yield from filter(None, (self._prompts(), self.hardware.occupied))

    def _rows(self) -> Iterator[str]:
        config = self.config
        in_process = config.inference.backend == "vllm" and config.inference.in_process
        does_matter = {"critic": config.training.has_critic, "in_process": in_process}
        does_matter["gpu_memory_utilization"] = in_process and self.hardware.kind == "gpu"
        for name in (*_SHOWN, *(f"{section}.{key}" for section, each in config for key in each.test_sizes)):
            section, _, key = name.partition(".")
            if does_matter.get(key, True):
                value = getattr(getattr(config, section), key)
                note = self._note(key, value) if name in self.chosen else "set by the user or the recipe"
                yield f"{name}={word(value)}  {note}".rstrip()

    def _prompts(self) -> str:
        """Returns the length of prompts that is planned for, and for how many samples of a group each is computed."""
        plan, wanted = self.plan, shared_samples(self.config)
        if wanted == 1:
            number = "sample"
        elif plan is None or plan.shape.has_window:
            number = "sample if layers see only a window or are not attention (the log says so), else once per group"
        else:
            number = f"{plan.samples_together} of {wanted} samples"
        known = "" if self.knows_prompts else " (assumed)"
        length = "" if plan is None else f"{plan.prompt_tokens:,} tokens at most{known}, "
        return f"Prompts: {length}computed once per {number}"

    def _note(self, key: str, value: Any) -> str:
        """Returns what is missing for a better value, with the remedy."""
        if self.hardware.kind == "gpu" and self.source:
            if key == "lora_rank" and not value and find_spec("peft") is None:
                return "peft is not installed, so all weights are trained; for adapters: pip install 'midthought[lora]'"
            if key == "backend" and value == "local" and not needs_local(self.config):
                no_room = "vLLM's own copy of the weights does not fit beside the learner"
                return vllm_problem(installed_vllm()) or no_room
        return ""

    def require_possible(self) -> None:
        """Raises `SettingsError`, with the first setting that makes it fit, if the run needs more memory than available.

        Raises `MissingExtraError` if adapters are trained without peft, or 8-bit moments are requested without bitsandbytes.
        """
        if self.config.model.adapter_rank:
            require_installed("lora", "peft")
        if self.config.training.optimizer == "adamw_8bit":
            require_installed("adamw-8bit", "bitsandbytes")
        plan = self.plan
        if plan is None or self.fits:
            return
        others = {name: value for name, value in remedy(plan).items() if name not in self.chosen}  # these follow
        settings = " ".join(f"{name}={word(value)}" for name, value in others.items())
        none = "no setting makes it fit; take a smaller model, or hardware with more memory"
        way = f"it fits with {settings}" if settings else none
        room = f"of {self.hardware} {plan.limit / GIB:.1f} GiB can be used"
        raise SettingsError(
            f"{self.source or 'the model'} does not fit: training needs {plan.needed / GIB:.1f} GiB, and {room}; "
            f"{way}{'; ' * bool(self.hardware.occupied)}{self.hardware.occupied}"
        )

    @property
    def fits(self) -> bool:
        """Whether the run fits, as far as known."""
        return self.plan is None or self.plan.fits


def supervised_rate(num_parameters: int) -> float:
    """Returns the learning rate of supervised steps of all weights: 2e-5 at 7e9 parameters, and in inverse proportion to the
    square root of their number elsewhere, at most 1e-3; two digits. docs/real_models.md has a measurement."""
    return float(f"{min(WEIGHT_RATES[1] * math.sqrt(7e9 / num_parameters), LARGEST_SUPERVISED_RATE):.1e}")


def resolve(
    config: AnyConfig,
    hardware: Hardware,
    *,
    source: str,
    is_given: bool = True,
    has_vllm: bool | None = None,
    model: Mapping[str, Any] | None = None,
    prompt_tokens: int | None = None,
    unknown: str = "",
    **fixed: Any,
) -> Choice:
    """Replaces every `auto` in the settings, and plans the run on this hardware.

    Args:
        source: folder or hub name of the initial model; empty: the run creates a small one, or `model` is loaded.
        is_given: whether the model is the user's, not a small one that a run created.
        has_vllm: whether a suitable vLLM is installed. None: looks for one.
        model: the parsed `config.json` of a loaded model.
        prompt_tokens: of the longest prompt; None: `Memory` assumes a number.
        unknown: why the run cannot be planned; empty if it may be.
        fixed: what the settings do not say, as in `Memory`.
    """
    first = _with_rank_of_folder(config, source)
    if prompt_tokens is not None:
        fixed["prompt_tokens"] = min(prompt_tokens, settled(config.inference.max_seq_len, prompt_tokens))
    options: dict[str, Any] = {"on_gpu": hardware.kind == "gpu", "is_given": is_given}
    unknown, given = unknown or _unknown(config, hardware), source if is_given else ""
    chosen = frozenset(_open(config)) | ({"inference.in_process"} if config.inference.backend == "auto" else set())
    if not unknown:
        try:
            made = small_shape(config.model) if model is None else Shape.from_config(model)
            shape = find_shape(source) if source else made
            if config.training.teacher and "teacher_shape" not in fixed:
                from midthought.models.pretrained import policy_folder

                fixed["teacher_shape"] = find_shape(str(policy_folder(Path(config.training.teacher))))
            plan = Memory.of(shape, choose(first, has_vllm=has_vllm, **options), hardware, **fixed)
        except (SettingsError, ModelPathError) as error:
            unknown = str(error).partition(". ")[0]
    if unknown:
        return Choice(choose(first, has_vllm=False, **options), hardware, chosen, None, unknown, given)
    kept = {*fixed} | ({"backend"} if config.inference.engine != "local" else set())
    kept |= {"lora_rank"} if not is_given or find_spec("peft") is None else set()
    values, plan = fitted(plan, {name for name in _open(first) if name.partition(".")[2] not in kept})
    found = choose(_assigned(first, values), has_vllm=has_vllm, **options)
    found = _assigned(found, _of_plan(config, plan, hardware, source, is_given))
    return Choice(found, hardware, chosen, plan, "", given, prompt_tokens is not None)


def choose(
    config: AnyConfig, *, on_gpu: bool, is_given: bool = True, by_verl: bool = False, has_vllm: bool | None = None
) -> AnyConfig:
    """Returns the settings with a value for every `auto`, except shares of memory and kernels, which need a plan.

    `by_verl`: verl trains the model, with a critic that is a separate model and with all weights sharded over its GPUs. Others:
    as in `resolve`.
    """
    is_large = on_gpu and is_given
    model, is_ours = config.model, is_large and not by_verl
    takes_adapters = is_ours and model.lora_rank == "auto" and find_spec("peft") is not None
    rank = LORA_RANK if takes_adapters else model.adapter_rank
    if has_vllm is None:
        has_vllm = not vllm_problem(installed_vllm())
    backend, in_process = ("vllm", True) if is_ours and has_vllm and not needs_local(config) else ("local", False)
    if config.inference.backend != "auto" or config.inference.engine != "local":
        backend, in_process = config.inference.engine, config.inference.in_process
    is_other = by_verl or backend != "local" or config.training.max_staleness > 0
    is_other = is_other and config.training.policy_loss not in config.training.sampling_corrected
    rate, warmup_rate = (ADAPTER_RATES if rank else WEIGHT_RATES) if is_given else MADE_RATES
    values: dict[str, Any] = {
        "model.dtype": "bfloat16" if is_large else "float32",
        "model.critic": "shared" if is_ours else "separate",
        "model.lora_rank": rank,
        "model.attn_implementation": "auto",
        "model.chat_template_date": date.today(),
        "training.gradient_checkpointing": is_large,
        "training.learning_rate": rate,
        "training.rollout_correction": "truncated" if is_other else "none",
        "training.micro_batch_tokens": 4096,
        "training.logits_mib": 64,
        "inference.backend": backend,
        "inference.gpu_memory_utilization": "auto",
        "inference.max_num_seqs": 128,
    }
    found = {}
    for name in _open(config):
        section, _, key = name.partition(".")
        found[name] = values.get(name, getattr(config, section).test_sizes.get(key, warmup_rate))
    if config.inference.backend == "auto":
        found["inference.in_process"] = in_process
    return _assigned(config, found)


def as_recorded(config: AnyConfig, file: Path) -> AnyConfig:
    """Returns the settings of a resumed run. The values in its `config.yaml` replace `auto`, which the run chose at its start,
    and those that are not set and change what is learned, whose defaults may have been others."""
    recorded = read_yaml(file)
    found = unset_values(config, recorded)
    is_older = config.training.max_staleness and not recorded.get("training", {}).get("max_staleness")
    for name, _, key in (each.partition(".") for each in _open(config)):
        if key == "rollout_correction" and is_older:
            continue  # what the run chose was for tokens of the newest weights
        if key in recorded.get(name, {}) and key not in found[name]:
            found[name][key] = recorded[name][key]
            if key == "backend":
                found[name]["in_process"] = recorded[name].get("in_process", False)
    kinds = {name: type(getattr(config, name)) for name in found}
    return config.copied({name: kinds[name](**{**getattr(config, name).given(), **found[name]}) for name in found})


def vllm_problem(version: str | None) -> str:
    """Returns why a vLLM of this version is not chosen, with the remedy; empty if it is. None: not installed."""
    if version is None:
        return f"vLLM is not installed; to sample with it: pip install 'vllm=={KNOWN_VLLM}.*'"
    if version.split(".")[:2] != KNOWN_VLLM.split("."):
        return f"vLLM {version} is installed, and {KNOWN_VLLM} is known to work: pip install 'vllm=={KNOWN_VLLM}.*'"
    return ""


def installed_vllm() -> str | None:
    """Returns the version of vLLM in this environment. None: not installed."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def needs_local(config: RecipeConfig) -> bool:
    """Whether only `local` does what the settings ask for: Ray workers, or batches that can be repeated."""
    return config.ray.use_ray or config.inference.deterministic


def _open(config: RecipeConfig) -> list[str]:
    """Returns every setting, `section.key`, that is `auto` and is chosen here, which excludes `model.device`."""
    keys = ((name, section, key) for name, section in config for key in (*_CHOSEN, *section.test_sizes))
    return [f"{name}.{key}" for name, section, key in keys if getattr(section, key, None) == "auto"]


def _assigned(config: AnyConfig, values: Mapping[str, Any]) -> AnyConfig:
    """Returns the settings with these values by `section.key`."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return config.copied(sections)


def _with_rank_of_folder(config: AnyConfig, source: str) -> AnyConfig:
    """Sets `model.lora_rank`, if it is `auto`, to the rank of the adapters in a folder: they are merged, and as many parameters
    learn again."""
    adapters = Path(source or "-").expanduser() / "adapter_config.json"
    if config.model.lora_rank != "auto" or not adapters.is_file():
        return config
    return config.merged({"model": {"lora_rank": read_config(adapters).get("r") or LORA_RANK}})


def _of_plan(config: RecipeConfig, plan: Memory, hardware: Hardware, source: str, is_given: bool) -> dict[str, Any]:
    """Returns values of `auto` that need a plan: for a given model its numbers of test questions, and the learning rate of
    supervised steps of all weights; on a GPU `sdpa` for an architecture whose memory is planned, and vLLM's share of it."""
    values: dict[str, Any] = {}
    most = max(MIN_QUESTIONS, int(ARM_WORK[plan.device] / plan.shape.computing_parameters / plan.tokens_of_episode))
    for name, section in config if is_given else ():
        values |= {f"{name}.{key}": min(size, most) for key, size in section.test_sizes.items()}
        if isinstance(section, SupervisedSection) and not plan.lora_rank:
            values[f"{name}.learning_rate"] = supervised_rate(plan.shape.parameters)
    if source and hardware.kind == "gpu":
        values["model.attn_implementation"] = "sdpa"
    if plan.backend == "vllm":
        free = plan.memory_gib / (hardware.total_gib or plan.memory_gib)
        values["inference.gpu_memory_utilization"] = plan.share * free
    return {name: values[name] for name in _open(config) if name in values}


def _unknown(config: RecipeConfig, hardware: Hardware) -> str:
    """Returns the reason why this run cannot be planned; empty if it can."""
    if hardware.memory_gib is None:
        return f"the memory of {hardware.name} is not known"
    if config.ray.num_learners > 1:
        return "ray.num_learners learn on machines whose memory is not known here"
    return ""


def word(value: Any) -> str:
    """Returns a value in the syntax of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
