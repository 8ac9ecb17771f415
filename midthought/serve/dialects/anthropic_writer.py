"""Writes responses of Anthropic's Messages: whole ones, events of a stream, errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ClientCall
from midthought.serve.dialects.dialect import TextFields, event, new_id, num_tokens
from midthought.serve.errors import RequestError

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Returns the body of an error, as Anthropic's clients read it."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = {"details": {"error_code": code, "unsupported": []}} if code else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": new_id("req_")}


class MessageWriter:
    """Writes the response to one request. `signature`: that of the thoughts; None: they are left out."""

    def __init__(self, model: str, *, signature: str | None) -> None:
        self.response_id = new_id("msg_")
        self._signature = signature
        self._head = {"id": self.response_id, "type": "message", "role": "assistant", "model": model}
        self._fields = TextFields()
        self._open: str | None = None
        """Type of the block that is not closed."""
        self._num_blocks = 0

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        (answer,), self._fields = answers, TextFields()
        blocks: list[dict[str, Any]] = []
        for piece in answer.pieces:
            if (part := self._part(piece)) is not None:
                kind, text = part
                if not blocks or blocks[-1]["type"] != kind:
                    blocks.append(_block(kind, self._signature))
                blocks[-1][kind] += text
        blocks += [{**_call(call), "input": json.loads(call.arguments)} for call in answer.calls]
        return {**self._head, "content": blocks, **_end(answer), "usage": _usage(answers)}

    def begin(self) -> bytes:
        usage = {"input_tokens": 0, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event("message_start", message=message)

    def piece(self, number: int, piece: Piece) -> bytes:
        if (part := self._part(piece)) is None:
            return b""
        kind, text = part
        found = b"" if kind == self._open else self._close_block() + self._open_block(kind, _block(kind, ""))
        return found + self._delta(type=f"{kind}_delta", **{kind: text})

    def end(self, number: int, answer: ChatAnswer) -> bytes:
        found = self._close_block()
        for call in answer.calls:
            found += self._open_block("tool_use", _call(call))
            found += self._delta(type="input_json_delta", partial_json=call.arguments)
            found += self._close_block()
        return found

    def close(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the events after the blocks. They have the numbers of tokens, which replace those of the first event."""
        return _event("message_delta", delta=_end(answers[0]), usage=_usage(answers)) + _event("message_stop")

    def error(self, failure: RequestError) -> bytes:
        return event(error_body(failure.status, str(failure)), "error")

    def keep_alive(self) -> bytes:
        return _event("ping")

    def _part(self, piece: Piece) -> tuple[str, str] | None:
        """Returns the type of block and the text of a piece; None: a thought that the client does not want."""
        is_thought, text = self._fields.add(piece)
        if is_thought:
            return None if self._signature is None else ("thinking", text)
        return "text", text

    def _open_block(self, kind: str, block: dict[str, Any]) -> bytes:
        self._open = kind
        return _event("content_block_start", index=self._num_blocks, content_block=block)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        is_thought, self._open = self._open == "thinking", None
        signature = self._delta(type="signature_delta", signature=self._signature) if is_thought else b""
        self._num_blocks += 1
        return signature + _event("content_block_stop", index=self._num_blocks - 1)


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


def _block(kind: str, signature: str | None) -> dict[str, Any]:
    return {"type": kind, kind: "", **({"signature": signature} if kind == "thinking" else {})}


def _call(call: ClientCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _end(answer: ChatAnswer) -> dict[str, Any]:
    if answer.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_text}
    return {"stop_reason": _STOP_REASONS[answer.finish], "stop_sequence": None}


def _usage(answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    num_prompt, num_answer = num_tokens(answers)
    return {"input_tokens": num_prompt, "output_tokens": num_answer}
