"""`create_inference_engine(…, "vllm", in_process=True)`: vLLM in this process for users who sample without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.vllm_in_process.engine import VLLMInProcessEngine
from midthought.engines.vllm_in_process.setup import import_vllm
from midthought.models.pretrained import load_tokenizer
from midthought.tokenization import Renderer


class VLLMInProcessInferenceEngine(BaseInferenceEngine):
    """vLLM in this process. `create_inference_engine(…, "vllm", in_process=True)` returns it.

    Args:
        model_path: a folder or Hugging Face name; safetensors only, code that comes with a model is never run.
        tokenizer: the model's fast tokenizer; that of `model_path` by default.
        max_seq_len, max_num_seqs, dtype, engine_args: see `VLLMInProcessEngine`.
        retry_policy: deadlines of requests.

    Raises:
        VLLMNotInstalledError: (a MissingExtraError) vLLM is not installed in this environment.
        SettingsError: an argument is unknown to vLLM or fixed here.
        EngineError: vLLM does not start.
    """

    core: VLLMInProcessEngine

    def __init__(
        self,
        model_path: str | Path,
        *,
        tokenizer: Any = None,
        max_seq_len: int | None = None,
        max_num_seqs: int = 128,
        dtype: str = "auto",
        engine_args: Mapping[str, Any] | None = None,
        retry_policy: RetryPolicy | None = None,
        **sampling: Any,
    ) -> None:
        import_vllm()
        renderer = Renderer(load_tokenizer(model_path) if tokenizer is None else tokenizer)
        core = VLLMInProcessEngine(
            model_path,
            eos_token_ids=renderer.eos_token_ids,
            max_seq_len=max_seq_len,
            max_num_seqs=max_num_seqs,
            dtype=dtype,
            engine_args=engine_args,
            retry_policy=retry_policy,
        )
        super().__init__(core, renderer, **sampling)
        core.start()

    def shutdown(self) -> None:
        """Stops vLLM and its processes."""
        super().shutdown()
        self.core.shutdown()
