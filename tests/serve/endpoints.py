"""Serves a policy on a free loopback port in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from midthought.engines.generation import BaseInferenceEngine
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.server import address, listen, make_server
from midthought.rollout.chat_answer import ChatAnswers
from midthought.rollout.chat_policy import ChatPolicy
from midthought.serve.app import ChatService, make_app


@contextlib.contextmanager
def served(
    engine: BaseInferenceEngine,
    policy: ChatPolicy,
    name: str = "policy",
    access: AccessPolicy | None = None,
    **limits: int,
) -> Iterator[str]:
    """Serves the policy; gives the address of the endpoint."""
    service = ChatService(engine, ChatAnswers(policy), name, **limits)
    listening = listen("127.0.0.1", 0)
    server = make_server(make_app(service, access or AccessPolicy()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield address(listening) + "/v1"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        engine.shutdown()
