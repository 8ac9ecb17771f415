"""OpenAI's chat API: requests with their limits, and responses: whole answers, chunks of a stream, errors. Does not depend on
policies or the server."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from midthought.errors import DataError
from midthought.rollout.openai_messages import require_shallow
from midthought.serve.answer_stream import Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ChatRequest, ClientCall
from midthought.serve.chat_messages import TOOL_NAME, checked_messages
from midthought.tokenization import Renderer
from midthought.tools.definition import ToolDefinition
from midthought.tools.schemas import MAX_SCHEMA_CHARS

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_MESSAGES = 4_096
MAX_TOOLS = 128
MAX_CHOICES = 16
MAX_SEED = 2**62
MAX_COUNT = 2**31 - 1
"""Of tokens. More tokens than the model's context are as many as fit into it."""
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


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


# -- responses ---------------------------------------------------------------------------------------------------


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
