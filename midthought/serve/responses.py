"""Responses of OpenAI's chat API: whole answers, chunks of a stream, and errors. Does not depend on HTTP."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from midthought.serve.answer_stream import Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ClientCall
from midthought.tokenization import Renderer

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Returns the body of an error, as OpenAI's clients read it."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Completion:
    """Writes the responses to one request."""

    def __init__(self, model: str, renderer: Renderer, *, logprobs: bool = False, token_ids: bool = False) -> None:
        self._renderer, self._logprobs, self._token_ids = renderer, logprobs, token_ids
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._fields: dict[int, set[str]] = {}
        """Fields of each choice that have text already."""

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Returns a whole response."""
        choices = [self._choice(number, answer) for number, answer in enumerate(answers)]
        found = {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(answers)}
        return found | (self._prompt(answers[0]) if self._token_ids else {})

    def first(self, number: int) -> dict[str, Any]:
        """Returns the first chunk of a choice."""
        return self._chunk(number, {"role": "assistant", "content": ""})

    def piece(self, number: int, piece: Piece) -> dict[str, Any]:
        """Returns the chunk with this piece of a choice's text."""
        name = "content" if piece.kind is PieceKind.ANSWER else "reasoning_content"
        written = self._fields.setdefault(number, set())
        before = "\n" if piece.is_new and name in written else ""
        written.add(name)
        return self._chunk(number, {name: before + piece.text})

    def last(self, number: int, answer: ChatAnswer) -> list[dict[str, Any]]:
        """Returns the last chunks of a choice: its calls, then why it ended, with log-probabilities and token ids."""
        found = []
        if answer.calls:
            found.append(self._chunk(number, {"tool_calls": _calls(answer.calls, numbered=True)}))
        return [*found, self._chunk(number, {}, finish_reason=answer.finish, **self._values(answer))]

    def total(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Returns the chunk with the numbers of tokens."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(answers)}

    def _chunk(
        self, number: int, delta: dict[str, Any], finish_reason: str | None = None, **values: Any
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "finish_reason": finish_reason, "logprobs": None, **values}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

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
        if self._logprobs:
            values["logprobs"] = {"content": self._token_logprobs(answer), "refusal": None}
        if self._token_ids:
            values["token_ids"] = answer.trajectory.token_ids[_num_prompt(answer) :]
        return values

    def _prompt(self, answer: ChatAnswer) -> dict[str, Any]:
        return {"prompt_token_ids": answer.trajectory.token_ids[: _num_prompt(answer)]}

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


def usage(answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    """Returns the numbers of tokens. Those of a completion include the results of the policy's own tools."""
    num_prompt = _num_prompt(answers[0])
    num_completion = sum(answer.trajectory.num_response for answer in answers)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def _num_prompt(answer: ChatAnswer) -> int:
    return answer.trajectory.segments[0].spans[0].end


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
