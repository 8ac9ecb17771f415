"""Base of the public engines over model servers: uses a running server or starts one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.servers.connection import RetryPolicy, require_httpx
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.server import ServerOptions
from midthought.models.pretrained import load_tokenizer
from midthought.tokenization import Renderer

_PROBE = "def tide(x):\n\treturn [x, 12345] # é ﷽ 🦉  Who's there?\r\n"


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
        dtype, server_flags, server_python, server_log, server_timeout_seconds: for a server started here: type of its
            weights, further command-line arguments, Python interpreter with its package, file for its output, and
            deadline until it is ready.

    Raises:
        SettingsError: a server serves another model, or has another tokenizer.
        EngineError: no server answers, or the server started here does not become ready.
        MissingExtraError: httpx is not installed, or, without `base_url`, the server's package.
    """

    engine_class: ClassVar[type[ServerEngine]]

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
        server_flags: Sequence[str] = (),
        server_python: str | None = None,
        server_log: str | Path | None = None,
        server_timeout_seconds: float = 900.0,
        **sampling: Any,
    ) -> None:
        renderer = Renderer(load_tokenizer(model_path) if tokenizer is None else tokenizer)
        require_httpx(self.engine_class.server_class.name)
        name = str(model_path) if served_model_name is None else served_model_name
        self._server: ServerProcess | None = None
        if not base_url:
            options = ServerOptions(
                served_model_name=name,
                dtype=dtype,
                max_seq_len=max_seq_len,
                max_num_seqs=max_num_seqs,
                flags=server_flags,
            )
            self._server = start_server(
                self.engine_class.server_class,
                model_path,
                options,
                python=server_python,
                log_path=server_log,
                timeout_seconds=server_timeout_seconds,
            )
        with contextlib.ExitStack() as undo:
            if self._server is not None:
                undo.callback(self._server.stop)
            core = self.engine_class(
                base_url or (),
                name,
                eos_token_ids=renderer.eos_token_ids,
                probe=probe_text(renderer),
                max_seq_len=max_seq_len,
                max_num_seqs=max_num_seqs,
                api_key_env=api_key_env,
                process=self._server,
                retry_policy=retry_policy,
            )
            super().__init__(core, renderer, **sampling)
            undo.callback(super().shutdown)
            self.run(core.check())
            undo.pop_all()

    def shutdown(self) -> None:
        """Shuts down, and stops the server if it was started here."""
        super().shutdown()
        if self._server is not None:
            self._server.stop()


def probe_text(renderer: Renderer) -> tuple[str, list[int]]:
    """Returns a text that tokenizers split differently, including control tokens, and its ids in ours."""
    text = _PROBE + renderer.decode(sorted(renderer.control_token_ids))
    return text, renderer.tokenizer(text, add_special_tokens=False).input_ids
