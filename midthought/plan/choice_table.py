"""The table of what a run uses on its hardware: setting, value, and why. Chooses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from midthought.plan.engine_choice import installed_vllm, is_planned_in_process, needs_local, vllm_problem

SHOWN = (
    "model.dtype",
    "model.critic",
    "model.lora_rank",
    "model.attn_implementation",
    "training.gradient_checkpointing",
    "training.learning_rate",
    "training.rollout_correction",
    "training.micro_batch_tokens",
    "training.logits_mib",
    "inference.backend",
    "inference.in_process",
    "inference.gpu_memory_utilization",
    "inference.max_num_seqs",
)
"""Settings of the table, in its order."""


def table(config: Any, chosen: set[str], *, on_gpu: bool, is_given: bool) -> Iterator[str]:
    """Yields a row `section.key=value  why` for every setting of `SHOWN` that matters to this run.

    `chosen`: names of the settings that were `auto`.
    """
    rows = list(_rows(config, chosen, on_gpu=on_gpu, is_given=is_given))
    width = max(len(words) for words, _ in rows)
    for words, why in rows:
        yield f"{words:<{width}}  {why}"


def word(value: Any) -> str:
    """Returns a value in the syntax of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rows(config: Any, chosen: set[str], *, on_gpu: bool, is_given: bool) -> Iterator[tuple[str, str]]:
    in_process = is_planned_in_process(config)
    sizes = {f"{name}.{key}": most for name, section in config for key, most in section.test_sizes.items()}
    for name in (*SHOWN, *sizes):
        section, _, key = name.partition(".")
        if key == "critic" and not config.training.has_critic:
            continue
        if (key == "in_process" and not in_process) or (
            key == "gpu_memory_utilization" and not (in_process and on_gpu)
        ):
            continue
        value = getattr(getattr(config, section), key)
        is_open = name in chosen or value == "auto"
        why = _why(key, value, config, on_gpu=on_gpu and is_given) if is_open else "set by the user or the recipe"
        if is_open and name in sizes:
            why = f"about ten minutes of an evaluation arm, by parameters × tokens: at least 100, at most {sizes[name]}"
        yield f"{name}={word(value)}", why


def _why(key: str, value: Any, config: Any, *, on_gpu: bool) -> str:
    if key == "backend":
        return _why_backend(value, config, on_gpu)
    if key == "attn_implementation":
        return (
            "the default of transformers for this model"
            if value == "auto"
            else "torch's kernels, without extra packages"
        )
    if key == "learning_rate":
        return "adapters learn at ten times the rate of full weights" if config.model.adapter_rank else "full weights"
    if key == "rollout_correction":
        return _why_correction(value, config)
    if on_gpu and key == "lora_rank" and not value and find_spec("peft") is None:
        return "peft is not installed, so all weights are trained; for adapters: pip install 'midthought[lora]'"
    if on_gpu and key == "gradient_checkpointing" and not value:
        return "all activations fit, with memory to spare; recomputing takes a third more time"
    if value in ("float32", "separate", 0):
        return WHY_NOT[key]
    return WHY.get(key, "the largest of its values that fits")


def _why_correction(value: str, config: Any) -> str:
    if value == "truncated":
        return "another engine samples, whose probabilities differ slightly"
    if config.inference.backend == "local":
        return "the learner's own model samples"
    return "the policy loss uses the sampled probabilities itself"


def _why_backend(value: str, config: Any, on_gpu: bool) -> str:
    if value == "vllm" and not config.inference.in_process:
        return "inference.base_url names its servers"
    if value == "vllm":
        return "vLLM is installed, and fits beside the learner"
    if needs_local(config):
        return "ray.use_ray and inference.deterministic need it"
    if not on_gpu:
        return "samples on a CPU, or from a small model, without a copy of the weights"
    return vllm_problem(installed_vllm()) or "vLLM's own copy of the weights does not fit beside the learner"


WHY = {
    "dtype": "half the memory of float32; updates are computed in float32",
    "critic": "a value head on the policy's trunk needs no second model",
    "lora_rank": "adapters need no gradients and moments of the full weights",
    "gradient_checkpointing": "only layer inputs are stored; about a third more time",
    "in_process": "no server: it releases its memory while the learner works",
    "gpu_memory_utilization": "what is free while the learner waits",
}
WHY_NOT = {
    "dtype": "exact log-probabilities",
    "critic": "its value loss does not train the policy",
    "lora_rank": "all weights are trained",
    "gradient_checkpointing": "all activations fit",
}
