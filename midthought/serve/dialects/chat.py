"""OpenAI's Chat Completions: requests with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from midthought.serve.chat_answer import ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.serve.dialects.chat_writer import ChatWriter, error_body
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

MAX_CHOICES = 16
MAX_SEED = 2**62
PARAMETERS = {
    name: effect
    for effect, names in {
        Effect.USED: "model messages tools tool_choice max_tokens max_completion_tokens stop n stream stream_options logprobs "
        "top_logprobs response_format return_token_ids modalities",
        Effect.OVERRIDDEN: "temperature top_p top_k min_p seed frequency_penalty presence_penalty logit_bias parallel_tool_calls",
        Effect.IGNORED: "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options "
        "prompt_cache_retention reasoning_effort verbosity prediction",
        Effect.REFUSED: "audio function_call functions moderation web_search_options",
    }.items()
    for name in names.split()
}
"""Every parameter of OpenAI's client; top_k, min_p and return_token_ids are vLLM's."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_UNSERVED = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "parallel_tool_calls": True}
"""Parameters that `midthought serve` cannot use, with the values that change nothing."""


class Function(Given):
    """A tool of the client."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted, without effect: the policy writes calls as it was trained to."""


class Tool(Given):
    """A tool of the client, as `tools` lists it."""

    type: Literal["function"]
    function: Function


class ToolName(Given):
    """The name of a tool."""

    name: str


class NamedTool(Given):
    """The tool that is to be called."""

    type: Literal["function"]
    function: ToolName


class StreamOptions(Given):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ResponseFormat(Given):
    """Text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


def _unless_text(given: ResponseFormat) -> ResponseFormat | None:
    return None if given.type == "text" else given


class ChatCompletionRequest(Given):
    """`POST /v1/chat/completions`, without the parameters that are ignored."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT), AfterValidator(lambda given: max(given, 0))] | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=0)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    response_format: Annotated[ResponseFormat, AfterValidator(_unless_text)] | None = None
    modalities: list[Literal["text"]] | None = None
    return_token_ids: bool = False
    """Adds `prompt_token_ids` to the response, and `token_ids` to each choice, as vLLM does."""

    def overridden(self) -> dict[str, Any]:
        """Returns the parameters that training overrides, if the client has set them to more than what changes nothing."""
        names = [name for name, effect in PARAMETERS.items() if effect is Effect.OVERRIDDEN]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, _UNSERVED.get(name))}

    @property
    def required_tool(self) -> str | None:
        """The tool that is to be called; "": any."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        return "" if self.tool_choice == "required" else None

    def requests(self, *, training: bool) -> list[ChatRequest]:
        """Returns one request per choice. Raises `DataError`, `SettingsError`."""
        messages = checked_messages(self.messages)
        if self.response_format is not None:
            messages = with_json_format(messages, (self.response_format.json_schema or {}).get("schema"))
        tools = [] if self.tool_choice == "none" else [tool.function for tool in self.tools or ()]
        common: dict[str, Any] = {
            "messages": messages,
            "tools": [definition(tool.name, tool.description, tool.parameters) for tool in tools],
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or [],
        }
        if training:
            return [ChatRequest(**common, answer_id=new_id("answer_")) for _ in range(self.n or 1)]
        common["sampling"] = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        seeds = [None if self.seed is None else (self.seed + number) % MAX_SEED for number in range(self.n or 1)]
        return [ChatRequest(**common, seed=seed, answer_id=new_id("answer_")) for seed in seeds]


class ChatDialect:
    """OpenAI's Chat Completions."""

    name = "chat"

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked:
        asked = parsed(body, ChatCompletionRequest, PARAMETERS)
        overridden = asked.overridden()
        if not training:
            unserved = {name: value for name, value in overridden.items() if name in _UNSERVED}
            if asked.required_tool is not None:
                unserved["tool_choice"] = asked.required_tool or "required"
            if asked.response_format is not None:
                unserved["response_format"] = asked.response_format
            require_served(unserved)
        return Asked(
            model=asked.model,
            stream=bool(asked.stream),
            requests=asked.requests(training=training),
            overridden=tuple(overridden),
            required_tool=asked.required_tool,
            has_response_format=asked.response_format is not None,
            writer=ChatWriter(
                asked.model,
                renderer,
                asked.n or 1,
                usage=asked.stream_options is not None and asked.stream_options.include_usage,
                logprobs=bool(asked.logprobs),
                token_ids=asked.return_token_ids,
            ),
        )

    def failure(self, error: BaseException) -> RequestError:
        return failure_of(error, _overflow)

    error = staticmethod(error_body)

    def model(self, name: str, created: int, max_len: int) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "midthought",
            "max_model_len": max_len,
        }

    def models(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"object": "list", "data": list(entries)}


CHAT = ChatDialect()


def _overflow(error: ContextOverflowError) -> RequestError:
    words = f"this model's maximum context length is {error.max_tokens} tokens: {error}"
    return RequestError(words, param="messages", code="context_length_exceeded")
