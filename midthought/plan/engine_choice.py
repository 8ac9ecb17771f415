"""What the engine of a run (`inference.backend=auto`) depends on. Imports neither vLLM nor torch."""

from __future__ import annotations

from importlib import metadata

from midthought.config import InferenceConfig, RecipeConfig

KNOWN_VLLM = "0.32"
"""Version of vLLM that is known to run in this process (`engines.vllm_in_process`)."""


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


def requested_backend(inference: InferenceConfig) -> str | None:
    """Returns the backend that other settings than `backend` ask for: vLLM with `in_process` or `base_url`. None: any."""
    return "vllm" if inference.in_process or inference.base_url else None


def before_choice(inference: InferenceConfig) -> InferenceConfig:
    """Returns the section for checks that come before the choice: `auto` counts as `local`, or as what is requested."""
    backend = (requested_backend(inference) or "local") if inference.backend == "auto" else inference.backend
    return inference.model_copy(update={"backend": backend})


def is_planned_in_process(config: RecipeConfig) -> bool:
    """Whether vLLM shares the learner's GPU, and releases its memory while the learner works."""
    return config.inference.backend == "vllm" and config.inference.in_process
