"""Serves a policy on a free loopback port in a thread of this process; policies that are written beforehand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from playing import chat_policy
from served import served as on_loopback

from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.inference_engines import ScriptedInferenceEngine
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.server import make_server
from midthought.serve.app import make_shared_app
from midthought.serve.chat_policy import ChatPolicy


def scripted(
    text: Callable[[], str | None], *, tools: Any = (), max_seq_len: int = 10_000, **fields: Any
) -> tuple[ScriptedInferenceEngine, ChatPolicy]:
    """A policy that samples `text()` again and again, with `#call` in its thoughts."""
    engine = ScriptedInferenceEngine(lambda episode, token_ids: text())
    fields = {"tools": tools, "max_seq_len": max_seq_len, **fields}
    return engine, chat_policy(engine.core, engine.renderer, **fields)


@contextlib.contextmanager
def served(
    engine: BaseInferenceEngine,
    policy: ChatPolicy,
    name: str = "policy",
    access: AccessPolicy | None = None,
    **limits: int,
) -> Iterator[str]:
    """Serves the policy; gives the address of the endpoint."""
    app = make_shared_app(policy, engine.start, name, access or AccessPolicy(), **limits)
    try:
        with on_loopback(app, make_server) as url:
            yield f"{url}/v1"
    finally:
        engine.shutdown()
