"""The public engines: a model in this process, model servers, vLLM in this process, scripted texts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import Script, ScriptedEngine, byte_tokenizer
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import require_own_server, start_server
from midthought.engines.servers.preparation import probe_text
from midthought.engines.servers.server import Server, ServerOptions
from midthought.engines.servers.sglang import SGLangServer
from midthought.engines.servers.vllm import VLLMServer
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.vllm_setup import import_vllm
from midthought.errors import SettingsError
from midthought.models.memory import max_positions
from midthought.models.pretrained import load_model, load_tokenizer, placed
from midthought.tokenization import Renderer


class LocalInferenceEngine(BaseInferenceEngine):
    """A Hugging Face causal LM in this process, with continuous batching.

    Args:
        model: a folder, GGUF file or Hugging Face name, or a loaded model (which needs its `tokenizer`).
        tokenizer: the fast tokenizer of a loaded model.
        dtype: data type of the weights, if the model is loaded here.
        device: device of a model that is loaded here, see `placed`; a loaded model stays on its device.
        max_num_seqs: maximum sequences in the cache.
        max_seq_len: maximum tokens of a sequence, including the prompt.
        cuda_graphs: on a GPU, record passes of few tokens as CUDA graphs and replay them.
        deterministic: batches depend only on the prompts.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        dtype: str = "float32",
        device: str = "auto",
        max_num_seqs: int = 128,
        max_seq_len: int = 4096,
        cuda_graphs: bool = True,
        deterministic: bool = False,
        **sampling: Any,
    ) -> None:
        from midthought.engines.local.engine import LocalEngine

        if isinstance(model, str) or hasattr(model, "__fspath__"):
            path, model = model, placed(load_model(model, dtype), device)
            tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
        if tokenizer is None:
            raise SettingsError("a loaded model needs its tokenizer: LocalInferenceEngine(model, tokenizer)")
        renderer = Renderer(tokenizer)
        core = LocalEngine(
            model,
            eos_token_ids=renderer.eos_token_ids,
            max_num_seqs=max_num_seqs,
            max_seq_len=min(max_seq_len, max_positions(model.config) or max_seq_len),
            cuda_graphs=cuda_graphs,
            deterministic=deterministic,
        )
        super().__init__(core, renderer, **sampling)
        self.model: Any = model

    def update_weights(self) -> None:
        """Drops the cache: the model's weights were changed in place."""

        async def drop_cache() -> None:
            self.core.update_weights()  # type: ignore[attr-defined]

        self.run(drop_cache())

    def shutdown(self) -> None:
        """Shuts down and releases the model."""
        super().shutdown()
        self.model = self.core = None  # type: ignore[assignment]


class ScriptedInferenceEngine(BaseInferenceEngine):
    """Writes scripted texts, for testing recipes, tools and environments without a model.

    Args:
        script: see `ScriptedEngine`; the n-th prompt of this engine gets the n-th text.
        tokenizer: any fast tokenizer; a byte-level one with a chat template by default.
    """

    def __init__(self, script: Script, tokenizer: Any = None, **sampling: Any) -> None:
        renderer = Renderer(byte_tokenizer() if tokenizer is None else tokenizer)
        super().__init__(ScriptedEngine(script, renderer), renderer, **sampling)


class ServerInferenceEngine(BaseInferenceEngine):
    """An engine over model servers: with `base_url` running ones, else one that it starts and stops.

    The constructor checks that the server answers, serves this model, and has the same tokenizer.

    Args:
        model_path: folder or Hugging Face name; the server uses the same unless `served_model_name` differs.
        base_url: `http://HOST:PORT` of a server, or `unix:/PATH` of its socket, or several of the same model; None or empty to
            start one that only this user can reach.
        served_model_name: the model's name on the server.
        tokenizer: the model's fast tokenizer; that of `model_path` by default.
        api_key_env: environment variable with the servers' API key.
        max_seq_len: maximum tokens of a sequence, including the prompt; the server's limit by default.
        max_num_seqs: maximum concurrent requests to each server (further ones wait here), and maximum concurrent
            sequences of a server started here.
        retry_policy: deadlines and retries of requests.
        dtype, gpu_memory_utilization, server_flags, server_python: for a server started here: type of its weights, its share of
            the GPU's memory (None: its own default), further command-line arguments, Python interpreter with its package.

    Raises:
        SettingsError: a server serves another model, or has another tokenizer; `server_flags` with `base_url`.
        EngineError: no server answers, or the server started here does not become ready.
        MissingExtraError: httpx is not installed, or, without `base_url`, the server's package.
    """

    core: ServerEngine
    server_class: ClassVar[type[Server]]

    def __init__(
        self,
        model_path: str | Path,
        base_url: str | Sequence[str] | None = None,
        *,
        served_model_name: str | None = None,
        tokenizer: Any = None,
        api_key_env: str | None = None,
        max_seq_len: int | None = None,
        max_num_seqs: int = 128,
        retry_policy: RetryPolicy | None = None,
        dtype: str = "auto",
        gpu_memory_utilization: float | None = None,
        server_flags: Sequence[str] = (),
        server_python: str | None = None,
        **sampling: Any,
    ) -> None:
        require_own_server(server_flags, base_url)
        renderer = Renderer(load_tokenizer(model_path) if tokenizer is None else tokenizer)
        name = str(model_path) if served_model_name is None else served_model_name
        process = None
        if not base_url:
            options = ServerOptions(
                served_model_name=name,
                dtype=dtype,
                max_seq_len=max_seq_len,
                max_num_seqs=max_num_seqs,
                gpu_memory_share=gpu_memory_utilization,
                flags=server_flags,
            )
            process = start_server(self.server_class, model_path, options, python=server_python)
        core = ServerEngine(
            self.server_class,
            base_url or (),
            name,
            eos_token_ids=renderer.eos_token_ids,
            probe=probe_text(renderer),
            max_seq_len=max_seq_len,
            max_num_seqs=max_num_seqs,
            api_key_env=api_key_env,
            process=process,
            retry_policy=retry_policy,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(core.shutdown)
            super().__init__(core, renderer, **sampling)
            undo.callback(super().shutdown)
            core.check()
            undo.pop_all()

    def shutdown(self) -> None:
        """Shuts down, and stops the server if it was started here."""
        super().shutdown()
        self.core.shutdown()


class VLLMInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    server_class = VLLMServer


class SGLangInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    server_class = SGLangServer


class VLLMInProcessInferenceEngine(BaseInferenceEngine):
    """vLLM in this process. `create_inference_engine(…, "vllm", in_process=True)` returns it.

    Args:
        model_path: a folder or Hugging Face name; safetensors only, code that comes with a model is never run.
        tokenizer: the model's fast tokenizer; that of `model_path` by default.
        max_seq_len, max_num_seqs, dtype, engine_args: see `VLLMInProcessEngine`.
        gpu_memory_utilization: vLLM's share of the GPU's memory; None: its own default.
        retry_policy: deadlines of requests.

    Raises:
        MissingExtraError: vLLM is not installed in this environment.
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
        gpu_memory_utilization: float | None = None,
        engine_args: Mapping[str, Any] | None = None,
        retry_policy: RetryPolicy | None = None,
        **sampling: Any,
    ) -> None:
        import_vllm()
        share = {} if gpu_memory_utilization is None else {"gpu_memory_utilization": gpu_memory_utilization}
        renderer = Renderer(load_tokenizer(model_path) if tokenizer is None else tokenizer)
        core = VLLMInProcessEngine(
            model_path,
            eos_token_ids=renderer.eos_token_ids,
            max_seq_len=max_seq_len,
            max_num_seqs=max_num_seqs,
            dtype=dtype,
            engine_args={**share, **(engine_args or {})},
            retry_policy=retry_policy,
        )
        super().__init__(core, renderer, **sampling)
        core.start()

    def shutdown(self) -> None:
        """Stops vLLM and its processes."""
        super().shutdown()
        self.core.shutdown()
