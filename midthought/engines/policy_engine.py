"""The engine that a training run samples from, as the settings say: in this process, or servers that follow the policy."""

from __future__ import annotations

from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.engine import TrainedEngine
from midthought.engines.local.engine import LocalEngine
from midthought.engines.servers.training import serve_policy
from midthought.tokenization import Renderer


def policy_engine(
    policy: Any,
    trained: Any,
    renderer: Renderer,
    inference: InferenceConfig,
    *,
    model_path: str,
    max_seq_len: int,
) -> TrainedEngine:
    """An engine over the policy. Shut it down after use.

    Args:
        policy: the causal LM, whose weights change in place.
        trained: what the learner trains: the policy itself, or the policy with its adapters.
        model_path: what it was loaded from; empty where it was given or made.
    """
    if inference.backend != "local":
        return serve_policy(trained, renderer, inference, model_path=model_path, max_seq_len=max_seq_len)
    return LocalEngine(
        policy,
        eos_token_ids=renderer.eos_token_ids,
        max_num_seqs=settled(inference.max_num_seqs),
        max_seq_len=max_seq_len,
        cuda_graphs=inference.cuda_graphs,
        merge_adapters=inference.merge_adapters,
        deterministic=inference.deterministic,
    )
