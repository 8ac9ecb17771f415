"""`midthought serve`: serves a policy until a signal arrives. Does not depend on the command line or on runs."""

from __future__ import annotations

from collections.abc import Callable

from midthought.config.references import require_installed
from midthought.engines.generation import BaseInferenceEngine
from midthought.memory.service.auth import AccessPolicy
from midthought.rollout.chat_answer import ChatAnswers
from midthought.rollout.chat_policy import ChatPolicy


def serve(
    engine: BaseInferenceEngine,
    policy: ChatPolicy,
    access: AccessPolicy,
    *,
    name: str,
    port: int,
    tell: Callable[[str], None] = print,
) -> None:
    """Serves the policy until SIGINT or SIGTERM; answers in progress are completed first.

    Raises SettingsError if the port cannot be opened, MissingExtraError without the extra `serve`.
    """
    require_installed("serve", "fastapi", "uvicorn")
    from midthought.memory.service.server import address, listen, make_server, run
    from midthought.serve.app import ChatService, make_app

    listening = listen(access.host, port)
    names = ", ".join(policy.executor.registry.names()) or "none"
    tell(f"{name} (tools: {names}) at {address(listening)}/v1")
    run(make_server(make_app(ChatService(engine, ChatAnswers(policy), name), access)), listening)
