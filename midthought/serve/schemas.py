"""Requests of OpenAI's chat API with their limits. Does not depend on policies or the server."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from midthought.errors import DataError
from midthought.rollout.openai_messages import require_shallow
from midthought.serve.chat_answer import ChatRequest
from midthought.serve.chat_messages import TOOL_NAME, checked_messages
from midthought.tools.definition import ToolDefinition
from midthought.tools.schemas import MAX_SCHEMA_CHARS

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_MESSAGES = 4_096
MAX_TOOLS = 128
MAX_CHOICES = 16
MAX_SEED = 2**62
MAX_COUNT = 2**31 - 1
"""Of tokens. More tokens than the model's context are as many as fit into it."""


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Function(_Given):
    """A tool of the client."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted, without effect: the policy writes calls as it was trained to."""


class Tool(_Given):
    """A tool of the client, as `tools` lists it."""

    type: Literal["function"]
    function: Function


class StreamOptions(_Given):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ResponseFormat(BaseModel):
    """Only text."""

    type: Literal["text"]


_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class ChatCompletionRequest(_Given):
    """`POST /v1/chat/completions`."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
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
    frequency_penalty: float | None = Field(None, ge=0, le=0)
    presence_penalty: float | None = Field(None, ge=0, le=0)
    response_format: ResponseFormat | None = None
    return_token_ids: bool = False
    """Adds `prompt_token_ids` to the response, and `token_ids` to each choice, as vLLM does."""
    user: str | None = None
    """This field and the following ones are accepted, without effect."""
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    def requests(self, seed: int) -> list[ChatRequest]:
        """Returns one request per choice. `seed`: used if the client gives none. Raises `DataError`, `SettingsError`."""
        seed = seed if self.seed is None else self.seed
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        common: dict[str, Any] = {
            "messages": checked_messages(self.messages),
            "tools": [] if self.tool_choice == "none" else [_definition(tool.function) for tool in self.tools or ()],
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "sampling": {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None},
            "stop": stop,
        }
        return [ChatRequest(**common, seed=(seed + number) % MAX_SEED) for number in range(self.n or 1)]


def _definition(function: Function) -> ToolDefinition:
    if not TOOL_NAME.fullmatch(function.name):
        raise DataError(f"the tool {function.name!r:.80}: a name has 1 to 64 letters, digits, _ and -")
    require_shallow(function.parameters, f"the parameters of the tool {function.name!r} are")
    if len(json.dumps(function.parameters)) > MAX_SCHEMA_CHARS:
        raise DataError(
            f"the parameters of the tool {function.name!r} have more than {MAX_SCHEMA_CHARS:,} characters of JSON"
        )
    schema = {"type": "object", "properties": {}, **(function.parameters or {})}
    if not isinstance(schema["properties"], dict):
        raise DataError(f"the tool {function.name!r}: 'properties' of its parameters must be an object")
    return ToolDefinition(function.name, function.description or "", schema)  # type: ignore[arg-type]
