"""`model`: a language model behind one or several OpenAI-compatible servers. Knows no tool and no masking."""

from __future__ import annotations

import json
from typing import Any

from midthought.errors import NoReplyError, SettingsError
from midthought.feedback.critics.prompt import feedback_prompt
from midthought.feedback.critics.servers import Servers
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.types import Task

THOUGHT_END = "</think>"


class ModelCritic:
    """Asks with the settings' own parameters. NoReplyError (a ConnectionError) where no server gave a word of feedback."""

    def __init__(self, settings: FeedbackSettings) -> None:
        if not settings.model:
            raise SettingsError("the critic 'model' needs the name of the model that the servers serve; set model")
        self._settings = settings
        self.servers = Servers(
            settings.servers,
            timeout_seconds=settings.timeout_seconds,
            api_key_env=settings.api_key_env,
            max_concurrency=settings.max_concurrency,
        )

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        reply = await self.servers.ask(json.dumps(self.request(task, answer, reasoning)).encode())
        words = reply.text.rpartition(THOUGHT_END)[2].strip()
        if not words:
            raise NoReplyError(
                f"the feedback was empty (the reply ended with {reply.finish_reason!r}); see `midthought feedback check`",
                is_passing=False,
            )
        return words

    def request(self, task: Task, answer: str, reasoning: str) -> dict[str, Any]:
        """The body of the request, without the servers."""
        settings = self._settings
        prompt = feedback_prompt(task, answer, reasoning, shows_solution=settings.process_feedback)
        return request_body(settings, prompt)


def request_body(settings: FeedbackSettings, prompt: str) -> dict[str, Any]:
    """One chat completion as the settings want it. `stop_token_ids` is left out where there are none: it is vLLM's own."""
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
    }
    if settings.stop_token_ids:
        body["stop_token_ids"] = list(settings.stop_token_ids)
    return body
