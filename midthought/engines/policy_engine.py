"""The engine of a training run, which follows its policy. A backend is imported when it is chosen."""

from __future__ import annotations

from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.engine import TrainedEngine
from midthought.tokenization import Renderer


def check_backend(inference: InferenceConfig) -> None:
    """Raises `SettingsError` for a backend that training does not support, `MissingExtraError` for one that is not installed."""
    if inference.engine != "local":
        from midthought.engines.external_backends import check_external

        check_external(inference)


def policy_engine(
    policy: Any, trained: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> TrainedEngine:
    """Creates the engine of a training run. Shut it down after use. Servers and vLLM get LoRA adapters alone, others merged.

    Args:
        policy: the causal LM, whose weights change in place.
        trained: what the learner trains: the policy itself, or the policy with its adapters. None: a copy of the policy that is
            not trained here (Ray workers, evaluations).
        model_path: path that the model was loaded from; empty for a model without one.

    Raises `SettingsError` if the model of the servers at `base_url` is not named or differs, `EngineError` if an engine does
    not start or does not load the weights, `MissingExtraError` without httpx or vLLM.
    """
    if inference.engine == "local":
        from midthought.engines.local.engine import LocalEngine

        return LocalEngine(
            policy,
            eos_token_ids=renderer.eos_token_ids,
            max_num_seqs=settled(inference.max_num_seqs),
            max_seq_len=max_seq_len,
            merge_adapters=inference.merge_adapters,
            deterministic=inference.deterministic,
        )
    from midthought.engines.external_backends import external_engine

    followed = policy if trained is None else trained
    return external_engine(followed, renderer, inference, model_path=model_path, max_seq_len=max_seq_len)
