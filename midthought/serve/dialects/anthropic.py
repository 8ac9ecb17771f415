"""Anthropic's Messages: requests with their limits, as conversations in OpenAI's form; responses, events of a stream, errors.
Server tools, images, documents and text that the answer is to begin with are refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from midthought.rollout.openai_messages import require_shallow
from midthought.serve.answer_stream import Piece, TextFields
from midthought.serve.chat_answer import ChatAnswer, ClientCall
from midthought.serve.chat_policy import ContextOverflowError
from midthought.serve.dialects import dialect
from midthought.serve.dialects.dialect import MAX_COUNT, OVERRIDDEN, Asked, Given, RequestError, event
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message

_ERROR_TYPES = {**dialect.ERROR_TYPES, 503: "overloaded_error", 504: "timeout_error"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Part(Given, extra="ignore"):
    """A part of a request. Its other fields change nothing here, such as cache_control."""


class GivenMessage(_Part):
    """A message of the user, with results of calls, or an answer of the policy, with thoughts and calls."""

    role: Literal["system", "user", "assistant"]
    content: str | list[dict[str, Any]]


class Tool(_Part):
    """A tool of the client."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(alias="input_schema")


class ToolChoice(Given):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: Annotated[bool | None, AfterValidator(bool), OVERRIDDEN] = False


class JsonFormat(_Part):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(_Part):
    """The form of the answer. An effort changes nothing."""

    format: JsonFormat | None = None


class ThinkingConfig(_Part):
    """Whether the answer holds the thoughts. The policy thinks as it was trained to."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class CountRequest(Given):
    """`POST /v1/messages/count_tokens`, without the parameters that are ignored."""

    model: str
    messages: list[GivenMessage] = Field(min_length=1, max_length=dialect.MAX_MESSAGES)
    system: str | list[dict[str, Any]] = ""
    tools: list[Tool] = Field(default_factory=list, max_length=dialect.MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingConfig = ThinkingConfig(type="disabled")
    output_config: OutputConfig = OutputConfig()

    def asked(self, *, training: bool, **fields: Any) -> Asked:
        """Returns the request. `fields`: further arguments of `asked_of`. Raises `DataError`, `SettingsError`."""
        choice, form = self.tool_choice, self.output_config.format
        if choice.type == "tool" and not choice.name:
            raise RequestError("the parameter 'tool_choice.name' is missing", param="tool_choice.name")
        said = [each for each in _in_openai_form("system", "system", self.system) if each[1]["content"]]
        for number, message in enumerate(self.messages):
            said += _in_openai_form(f"messages.{number}.content", message.role, message.content)
        return dialect.asked_of(
            self,
            training=training,
            messages=dict(said),
            tools=() if choice.type == "none" else self.tools,
            required_tool={"any": "", "tool": choice.name}.get(choice.type),
            schema=("output_config", None if form is None else form.schema_),
            writer=MessageWriter(self.model, shows_thoughts=self.thinking.type != "disabled"),
            **fields,
        )


class MessagesRequest(CountRequest):
    """`POST /v1/messages`, without the parameters that are ignored."""

    max_tokens: int = Field(ge=1, le=MAX_COUNT)
    stop_sequences: list[dialect.Stop] = Field(default_factory=list, max_length=16)
    stream: bool = False
    temperature: Annotated[float | None, Field(ge=0, le=1), OVERRIDDEN] = None
    top_p: Annotated[float | None, Field(gt=0, le=1), OVERRIDDEN] = None
    top_k: Annotated[int | None, Field(ge=0, le=MAX_COUNT), OVERRIDDEN] = None


PARAMETERS = dialect.effects(
    MessagesRequest,
    ignored="cache_control diagnostics inference_geo metadata service_tier speed user_profile_id workspace_id",
    refused="container thread",
)
"""Every parameter of Anthropic's client. Its newest version has no temperature, top_p and top_k; `thread` is of its beta."""


def _in_openai_form(path: str, role: str, content: Any) -> Iterator[tuple[str, Message]]:
    """Yields the place and the form of a message; with results of calls, first one for each, and its text if it has one.
    `path`: of the content in the request. Raises `DataError`."""
    if isinstance(content, str):
        yield path.removesuffix(".content"), {"role": role, "content": content}
        return
    require_shallow(content, f"{path} is")
    message: dict[str, Any] = {"role": role, "content": ""}
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for number, block in enumerate(blocks):
        match role, block:
            case _, {"type": "text", "text": str(text)}:
                message["content"] += text
            case "assistant", {"type": "thinking", "thinking": str(text)}:
                message["reasoning_content"] = message.get("reasoning_content", "") + text
                message["signature"] = block.get("signature")
            case "assistant", {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)}:
                call = ClientCall(id=call_id, name=name, arguments=json.dumps(given, ensure_ascii=False))
                message.setdefault("tool_calls", []).append(call.in_openai_form())
            case "user", {"type": "tool_result", "tool_use_id": str(call_id)}:
                place = f"{path}.{number}"
                ((_, result),) = _in_openai_form(f"{place}.content", "tool", block.get("content", ""))
                yield place, {**result, "tool_call_id": call_id}
            case _:
                allowed = "text, in the role 'user' also tool_result, in the role 'assistant' thinking and tool_use"
                words = f"{path}.{number} is {block!r:.120}, in the role {role!r}; a content may have {allowed}"
                raise RequestError(words, param="messages")
    if not blocks or any(block["type"] != "tool_result" for block in blocks):
        yield path.removesuffix(".content"), message


class MessageWriter:
    """Writes the response to one request. Its id is the signature of the thoughts, too."""

    def __init__(self, model: str, *, shows_thoughts: bool) -> None:
        self.response_id = dialect.new_id("msg_")
        self._head = {"id": self.response_id, "type": "message", "role": "assistant", "model": model}
        self._shows_thoughts, self._fields = shows_thoughts, TextFields()
        self._open: str | None = None
        """Type of the block that is not closed."""
        self._num_blocks = 0

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        (answer,) = answers
        signed = {"thinking": {"signature": self.response_id}}
        blocks: list[dict[str, Any]] = [
            {"type": kind, kind: "".join(text for _, text in parts), **signed.get(kind, {})}
            for kind, parts in itertools.groupby(self._parts(answer.pieces), lambda part: part[0])
        ]
        blocks += [_call(call, json.loads(call.arguments)) for call in answer.calls]
        return {**self._head, "content": blocks, **_end(answer), "usage": _usage(answer)}

    def begin(self, num_prompt: int) -> bytes:
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": num_prompt, "output_tokens": 0}
        return _event("message_start", message={**self._head, **nothing, "usage": usage})

    def piece(self, number: int, piece: Piece) -> bytes:
        found = b""
        for kind, text in self._parts([piece]):
            if kind != self._open:
                signed = {"signature": ""} if kind == "thinking" else {}
                found += self._close_block() + self._open_block({"type": kind, kind: "", **signed})
            found += self._delta(type=f"{kind}_delta", **{kind: text})
        return found

    def end(self, answers: Sequence[ChatAnswer]) -> bytes:
        (answer,) = answers
        found = self._close_block()
        for call in answer.calls:
            found += self._open_block(_call(call, {}))
            found += self._delta(type="input_json_delta", partial_json=call.arguments) + self._close_block()
        return found + _event("message_delta", delta=_end(answer), usage=_usage(answer)) + _event("message_stop")

    def error(self, failure: RequestError) -> bytes:
        return event(ANTHROPIC.error(failure), "error")

    def keep_alive(self) -> bytes:
        return _event("ping")

    def _parts(self, pieces: Iterable[Piece]) -> Iterator[tuple[str, str]]:
        """Yields type of block and text of the pieces, without thoughts that the client does not want."""
        for is_thought, text in map(self._fields.add, pieces):
            if self._shows_thoughts or not is_thought:
                yield "thinking" if is_thought else "text", text

    def _open_block(self, block: dict[str, Any]) -> bytes:
        self._open = block["type"]
        return _event("content_block_start", index=self._num_blocks, content_block=block)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._delta(type="signature_delta", signature=self.response_id) if self._open == "thinking" else b""
        self._open, self._num_blocks = None, self._num_blocks + 1
        return signed + _event("content_block_stop", index=self._num_blocks - 1)


class AnthropicDialect(dialect.Dialect):
    """Anthropic's Messages."""

    name = "anthropic"

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked:
        given = dialect.parsed(body, MessagesRequest, PARAMETERS)
        limits = {"max_tokens": given.max_tokens, "stop": given.stop_sequences}
        return given.asked(training=training, stream=given.stream, **limits)

    def read_count(self, body: bytes, *, training: bool) -> Asked:
        """Returns the request whose prompt is to be counted. Raises as `read`."""
        return dialect.parsed(body, CountRequest, PARAMETERS).asked(training=training)

    def error(self, failure: RequestError) -> dict[str, Any]:
        other = "api_error" if failure.status >= 500 else "invalid_request_error"
        # with this code, the client sends whole conversations
        code = "thread_unsupported_request" if failure.param == "thread" else failure.code
        details = {"details": {"error_code": code, "unsupported": []}} if code else {}
        found = {"type": _ERROR_TYPES.get(failure.status, other), "message": str(failure), **details}
        return {"type": "error", "error": found, "request_id": dialect.new_id("req_")}

    def overflow(self, error: ContextOverflowError) -> RequestError:
        num = f"more than {error.max_tokens}" if error.num_tokens is None else error.num_tokens
        return RequestError(f"prompt is too long: {num} tokens > {error.max_tokens} maximum")


ANTHROPIC = AnthropicDialect()


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


def _call(call: ClientCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _end(answer: ChatAnswer) -> dict[str, Any]:
    reason = _STOP_REASONS[answer.finish] if answer.stop_text is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stop_text}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    return {"input_tokens": dialect.num_prompt(answer), "output_tokens": answer.trajectory.num_response}
