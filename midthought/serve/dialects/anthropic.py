"""Anthropic's Messages: requests with their limits, as conversations in OpenAI's form. Server tools, images, documents and text
that the answer is to begin with are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from midthought.rollout.openai_messages import require_shallow
from midthought.serve.chat_answer import ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.serve.dialects.anthropic_writer import MessageWriter, error_body
from midthought.serve.dialects.dialect import (
    MAX_COUNT,
    MAX_MESSAGES,
    MAX_TOOLS,
    Asked,
    Effect,
    Given,
    Stop,
    definition,
    failure_of,
    new_id,
    parsed,
    require_served,
    with_json_format,
)
from midthought.serve.errors import ContextOverflowError, RequestError
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message

PARAMETERS = {
    name: effect
    for effect, names in {
        Effect.USED: "model messages system tools tool_choice max_tokens stop_sequences stream thinking output_config",
        Effect.OVERRIDDEN: "temperature top_p top_k",
        Effect.IGNORED: "cache_control diagnostics inference_geo metadata service_tier speed user_profile_id workspace_id",
        Effect.REFUSED: "container thread",
    }.items()
    for name in names.split()
}
"""Every parameter of Anthropic's client. Its newest version has no temperature, top_p and top_k; `thread` is of its beta."""
_SAMPLING = ("temperature", "top_p", "top_k")


class _Part(BaseModel):
    """A part of a message or a tool. Its other fields change nothing here: cache_control, citations, caller, is_error."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Text(_Part):
    """Text."""

    type: Literal["text"]
    text: str


def _as_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts = Annotated[list[Text], BeforeValidator(_as_blocks)]


class Thinking(_Part):
    """A thought of the policy."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUse(_Part):
    """A call of the policy."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(_Part):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)


class GivenMessage(_Part):
    """A message: of the user with results of calls, or an answer of the policy with thoughts and calls."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[
        list[Annotated[Text | Thinking | ToolUse | ToolResult, Field(discriminator="type")]],
        BeforeValidator(_as_blocks),
    ]

    def in_openai_form(self) -> Iterator[Message]:
        """Returns one message or, with results, one for each and the text. Raises `DataError`."""
        for block in self.content:
            role = "user" if isinstance(block, ToolResult) else "assistant"
            if not isinstance(block, Text) and self.role != role:
                raise RequestError(
                    f"a {block.type} block is in a message of the role {self.role!r}; it belongs to the role {role!r}",
                    param="messages",
                )
        text = _joined([block for block in self.content if isinstance(block, Text)])
        message: dict[str, Any] = {"role": self.role, "content": text}
        if thoughts := [block for block in self.content if isinstance(block, Thinking)]:
            message["reasoning_content"] = "".join(block.thinking for block in thoughts)
            message["signature"] = thoughts[-1].signature
        if calls := [_call(block) for block in self.content if isinstance(block, ToolUse)]:
            message["tool_calls"] = calls
        results = [block for block in self.content if isinstance(block, ToolResult)]
        for result in results:
            yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": _joined(result.content)}
        if len(results) < len(self.content) or not results:
            yield message


class Tool(_Part):
    """A tool of the client."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(Given):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


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
    messages: list[GivenMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Texts | None = None
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    def asked(self, *, training: bool, stream: bool = False, **limits: Any) -> Asked:
        """Returns the request. `limits`: further fields of the `ChatRequest`. Raises `DataError`, `SettingsError`."""
        choice = self.tool_choice or ToolChoice(type="auto")
        form = self.output_config and self.output_config.format
        overridden = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        unserved: dict[str, Any] = {"output_config": "json_schema"} if form else {}
        if choice.type in ("any", "tool"):
            unserved["tool_choice"] = choice.name or choice.type
        if choice.disable_parallel_tool_use:
            overridden["disable_parallel_tool_use"] = unserved["disable_parallel_tool_use"] = True
        if not training:
            require_served(unserved)
            limits["sampling"] = overridden
        system = _joined(self.system or ())
        said = [{"role": "system", "content": system}] if system else []
        messages = checked_messages([*said, *(each for message in self.messages for each in message.in_openai_form())])
        tools = () if choice.type == "none" else self.tools or ()
        request = ChatRequest(
            messages=with_json_format(messages, form.schema_) if form else messages,
            tools=[definition(tool.name, tool.description, tool.input_schema) for tool in tools],
            answer_id=new_id("answer_"),
            **limits,
        )
        shows_thoughts = self.thinking is not None and self.thinking.type != "disabled"
        return Asked(
            model=self.model,
            stream=stream,
            requests=[request],
            overridden=tuple(overridden),
            required_tool={"any": "", "tool": choice.name}.get(choice.type),
            has_response_format=form is not None,
            writer=MessageWriter(self.model, signature=request.answer_id if shows_thoughts else None),
        )


class MessagesRequest(CountRequest):
    """`POST /v1/messages`, without the parameters that are ignored."""

    max_tokens: int = Field(ge=1, le=MAX_COUNT)
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=MAX_COUNT)
    stream: bool | None = None


CountT = TypeVar("CountT", bound=CountRequest)


def _parsed(body: bytes, form: type[CountT]) -> CountT:
    try:
        return parsed(body, form, PARAMETERS)
    except RequestError as error:
        if error.param == "thread":  # with this code, the client sends whole conversations
            error.code = "thread_unsupported_request"
        raise


def _joined(texts: Sequence[Text]) -> str:
    return "".join(block.text for block in texts)


def _call(block: ToolUse) -> dict[str, Any]:
    require_shallow(block.input, f"the input of the tool_use {block.id!r:.80} is")
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


class AnthropicDialect:
    """Anthropic's Messages."""

    name = "anthropic"

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked:
        given = _parsed(body, MessagesRequest)
        limits = {"max_tokens": given.max_tokens, "stop": given.stop_sequences or []}
        return given.asked(training=training, stream=bool(given.stream), **limits)

    def read_count(self, body: bytes, *, training: bool) -> Asked:
        """Returns the request whose prompt is to be counted. Raises as `read`."""
        return _parsed(body, CountRequest).asked(training=training)

    def count(self, num_tokens: int) -> dict[str, Any]:
        """Returns the body of a response of `count_tokens`."""
        return {"input_tokens": num_tokens}

    def failure(self, error: BaseException) -> RequestError:
        return failure_of(error, _overflow)

    error = staticmethod(error_body)

    def model(self, name: str, created: int, max_len: int) -> dict[str, Any]:
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": max_len,
            "max_tokens": max_len,
        }

    def models(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        return {"data": list(entries), "has_more": False, **ends}


ANTHROPIC = AnthropicDialect()


def _overflow(error: ContextOverflowError) -> RequestError:
    num = f"more than {error.max_tokens}" if error.num_tokens is None else error.num_tokens
    return RequestError(f"prompt is too long: {num} tokens > {error.max_tokens} maximum")
