"""Writes responses of OpenAI's Chat Completions: whole ones, chunks of a stream, errors."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ClientCall
from midthought.serve.dialects.dialect import TextFields, event, new_id, num_prompt, num_tokens
from midthought.serve.errors import RequestError
from midthought.tokenization import Renderer

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Returns the body of an error, as OpenAI's clients read it."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ChatWriter:
    """Writes the response to one request."""

    def __init__(
        self,
        model: str,
        renderer: Renderer,
        num_choices: int,
        *,
        usage: bool = False,
        logprobs: bool = False,
        token_ids: bool = False,
    ) -> None:
        """`usage`: a stream ends with the numbers of tokens."""
        self.response_id = new_id("chatcmpl-")
        self._renderer, self._has_usage, self._has_logprobs, self._has_ids = renderer, usage, logprobs, token_ids
        self._head = {"id": self.response_id, "created": int(time.time()), "model": model}
        self._fields = [TextFields() for _ in range(num_choices)]

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        choices = [self._choice(number, answer) for number, answer in enumerate(answers)]
        found = {**self._head, "object": "chat.completion", "choices": choices, "usage": _usage(answers)}
        return found | (_prompt(answers[0]) if self._has_ids else {})

    def begin(self) -> bytes:
        """Returns the first chunk of each choice. It has no content, which is null in an answer of calls alone."""
        return b"".join(self._chunk(number, {"role": "assistant"}) for number in range(len(self._fields)))

    def piece(self, number: int, piece: Piece) -> bytes:
        is_thought, text = self._fields[number].add(piece)
        return self._chunk(number, {"reasoning_content" if is_thought else "content": text})

    def end(self, number: int, answer: ChatAnswer) -> bytes:
        """Returns the last chunks of a choice: its calls, then why it ended, with log-probabilities and token ids."""
        delta: dict[str, Any] = {} if answer.content or answer.calls else {"content": ""}
        if answer.calls:
            delta["tool_calls"] = _calls(answer.calls, numbered=True)
        before = self._chunk(number, delta) if delta else b""
        return before + self._chunk(number, {}, finish_reason=answer.finish, **self._values(answer))

    def close(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the chunk with the numbers of tokens, if the client wants it, and the end of the stream."""
        total = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(answers)}
        return (event(total) if self._has_usage else b"") + b"data: [DONE]\n\n"

    def error(self, failure: RequestError) -> bytes:
        return event(error_body(failure.status, str(failure), param=failure.param, code=failure.code))

    def keep_alive(self) -> bytes:
        return self._chunk(0, {})

    def _chunk(self, number: int, delta: dict[str, Any], finish_reason: str | None = None, **values: Any) -> bytes:
        choice = {"index": number, "delta": delta, "finish_reason": finish_reason, "logprobs": None, **values}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})

    def _choice(self, number: int, answer: ChatAnswer) -> dict[str, Any]:
        calls = {"tool_calls": _calls(answer.calls)} if answer.calls else {}
        content = answer.content or (None if calls else "")
        thoughts = {"reasoning_content": answer.thoughts} if answer.thoughts else {}
        message = {"role": "assistant", "content": content, "refusal": None, **thoughts, **calls}
        return {
            "index": number,
            "message": message,
            "finish_reason": answer.finish,
            "logprobs": None,
            **self._values(answer),
        }

    def _values(self, answer: ChatAnswer) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self._has_logprobs:
            values["logprobs"] = {"content": self._token_logprobs(answer), "refusal": None}
        if self._has_ids:
            values["token_ids"] = answer.trajectory.token_ids[num_prompt(answer) :]
        return values

    def _token_logprobs(self, answer: ChatAnswer) -> list[dict[str, Any]]:
        """Returns the tokens that the policy sampled, thoughts and calls included, without results."""
        trajectory, found = answer.trajectory, []
        rows = zip(trajectory.token_ids, trajectory.loss_mask, trajectory.sampled_logprobs, strict=True)
        for token_id, is_sampled, logprob in rows:
            if is_sampled:
                token = self._renderer.decode([token_id])
                value = logprob if math.isfinite(logprob) else -9999.0  # OpenAI's value for what is not known
                found.append({"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []})
        return found


def _usage(answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    num_prompt, num_completion = num_tokens(answers)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def _prompt(answer: ChatAnswer) -> dict[str, Any]:
    return {"prompt_token_ids": answer.trajectory.token_ids[: num_prompt(answer)]}


def _calls(calls: Sequence[ClientCall], *, numbered: bool = False) -> list[dict[str, Any]]:
    return [
        {
            **({"index": number} if numbered else {}),
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]
