"""What the public engines over model servers share: a server that runs, or one that is started, behind `generate`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.servers.connection import RetryPolicy, require_httpx
from midthought.engines.servers.dialect import ServerOptions
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess
from midthought.pretrained import load_tokenizer
from midthought.tokenization import Renderer

_DEFAULT = RetryPolicy()
_PROBE = "def tide(x):\n\treturn [x, 12345] # é ﷽ 🦉  Who's there?\r\n"


class ServerInferenceEngine(BaseInferenceEngine):
    """An engine over model servers: with `base_url` those that run already, else one that it starts and ends.

    What is made is checked at once: that the server answers, serves this model, and makes the same tokens of a text.

    Args:
        model_path: a folder or Hugging Face name, as the server sees it too unless `served_model_name` says otherwise.
        base_url: `http://HOST:PORT` of a server, or several of the same model; None or empty to start one.
        served_model_name: the name that the model is served under.
        tokenizer: the model's fast tokenizer; that of `model_path` by default.
        api_key_env: the environment variable that holds the servers' key.
        max_seq_len: most tokens of a sequence, prompt included; the server's own limit by default.
        max_num_seqs: most requests on their way to each server (further ones wait here), and most sequences that a
            server started here runs at once.
        connect_timeout_seconds … max_attempts: see `RetryPolicy`.
        dtype, server_flags, server_python, server_log, server_timeout_seconds: of a server started here: the type of its
            weights, further words of its command line, the interpreter of an environment that has its package, a file
            for its output, and how long it may take until it is ready.

    Raises:
        SettingsError: a server that serves another model, or has another tokenizer.
        EngineError: no server answers, or the one that was started does not get ready.
        MissingExtraError: httpx is not installed, or, without `base_url`, the server's own package.
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
        connect_timeout_seconds: float = _DEFAULT.connect_timeout_seconds,
        first_token_timeout_seconds: float = _DEFAULT.first_token_timeout_seconds,
        next_token_timeout_seconds: float = _DEFAULT.next_token_timeout_seconds,
        total_timeout_seconds: float = _DEFAULT.total_timeout_seconds,
        max_attempts: int = _DEFAULT.max_attempts,
        dtype: str = "auto",
        server_flags: Sequence[str] = (),
        server_python: str | None = None,
        server_log: str | Path | None = None,
        server_timeout_seconds: float = 900.0,
        **sampling: Any,
    ) -> None:
        patience = RetryPolicy(
            connect_timeout_seconds=connect_timeout_seconds,
            first_token_timeout_seconds=first_token_timeout_seconds,
            next_token_timeout_seconds=next_token_timeout_seconds,
            total_timeout_seconds=total_timeout_seconds,
            max_attempts=max_attempts,
        )
        renderer = Renderer(load_tokenizer(model_path) if tokenizer is None else tokenizer)
        require_httpx(self.engine_class.dialect.name)
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
                self.engine_class.dialect,
                model_path,
                options,
                python=server_python,
                log_path=server_log,
                timeout_seconds=server_timeout_seconds,
            )
            base_url = self._server.url
        with contextlib.ExitStack() as undo:
            if self._server is not None:
                undo.callback(self._server.stop)
            core = self.engine_class(
                base_url,
                name,
                eos_token_ids=renderer.eos_token_ids,
                probe=probe_text(renderer),
                max_seq_len=max_seq_len,
                max_num_seqs=max_num_seqs,
                api_key_env=api_key_env,
                patience=patience,
                how_it_ended=None if self._server is None else self._server.how_it_ended,
            )
            super().__init__(core, renderer, **sampling)
            undo.callback(super().shutdown)
            self.run(core.check())
            undo.pop_all()

    def shutdown(self) -> None:
        """End the server that was started here, if one was."""
        super().shutdown()
        if self._server is not None:
            self._server.stop()


def probe_text(renderer: Renderer) -> tuple[str, list[int]]:
    """A text that tokenizers differ in, control tokens included, and its ids under ours."""
    text = _PROBE + renderer.decode(sorted(renderer.control_token_ids))
    return text, renderer.tokenizer(text, add_special_tokens=False).input_ids
