"""What the dialects share: the form of a request that was read, limits, and how bodies and tools are checked. Does not depend on
the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from midthought.errors import DataError, SettingsError
from midthought.rollout.openai_messages import require_shallow
from midthought.serve.answer_stream import Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ChatRequest
from midthought.serve.chat_messages import TOOL_NAME
from midthought.serve.errors import ContextOverflowError, RequestError
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.definition import ToolDefinition
from midthought.tools.schemas import MAX_SCHEMA_CHARS
from midthought.types.task import with_system

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_MESSAGES = 4_096
MAX_TOOLS = 128
MAX_COUNT = 2**31 - 1
"""Of tokens. More tokens than the model's context are as many as fit into it."""
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Effect(StrEnum):
    """What a parameter of a client does."""

    USED = "used"
    OVERRIDDEN = "overridden"
    """Replaced by the trainer's own in training. `midthought serve` uses it, or refuses it if it cannot."""
    IGNORED = "ignored"
    """Accepted, without effect on the answer."""
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A valid request of any dialect."""

    model: str
    stream: bool
    requests: Sequence[ChatRequest]
    """One per choice. A response format is text of their system message."""
    overridden: Sequence[str]
    """Names of the client's parameters that training overrides."""
    required_tool: str | None
    """The tool that the client wants to be called; "" any, None no particular one."""
    has_response_format: bool
    writer: Writer


class Writer(Protocol):
    """Writes one response: `whole`, or the events of a stream: `begin`, `piece` and `end` of each answer, `close`."""

    response_id: str

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Returns the body of a response that is not streamed."""

    def begin(self) -> bytes:
        """Returns the events before the first piece."""

    def piece(self, number: int, piece: Piece) -> bytes:
        """Returns the events with this piece of an answer."""

    def end(self, number: int, answer: ChatAnswer) -> bytes:
        """Returns the last events of an answer: its calls, then why it ended."""

    def close(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the events after all answers: numbers of tokens and the end of the stream."""

    def error(self, failure: RequestError) -> bytes:
        """Returns the event that ends a stream with an error."""

    def keep_alive(self) -> bytes:
        """Returns an event that says nothing."""


class Dialect(Protocol):
    """A chat API."""

    name: str

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked:
        """Returns the request. `training`: the client's sampling parameters are overridden. Raises `DataError`."""

    def failure(self, error: BaseException) -> RequestError:
        """Returns what the client reads of an error."""

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        """Returns the body of an error."""

    def model(self, name: str, created: int, max_len: int) -> dict[str, Any]:
        """Returns the entry of a model in `/v1/models`. `created`: seconds since 1970; `max_len`: tokens of a sequence."""

    def models(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns the body of `/v1/models`."""


# -- requests ----------------------------------------------------------------------------------------------------


class Given(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


GivenT = TypeVar("GivenT", bound=BaseModel)


def parsed(body: bytes, form: type[GivenT], parameters: Mapping[str, Effect]) -> GivenT:
    """Returns the body as an object of `form`, without parameters that are ignored or null. Raises `RequestError` with one
    sentence about the first thing that is wrong. Does not repeat the request."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON" if body else "the body is missing") from None
    if not isinstance(found, dict):
        raise RequestError("the body must be a JSON object")
    is_nothing = {name for name, value in found.items() if value is None and name in parameters}
    is_nothing |= {name for name, effect in parameters.items() if effect is Effect.IGNORED}
    try:
        return form.model_validate({name: value for name, value in found.items() if name not in is_nothing})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:50] for part in problem["loc"])
    words = {
        "extra_forbidden": f"the parameter {place!r} is not supported; leave it out",
        "missing": f"the parameter {place!r} is missing",
    }.get(problem["type"], f"{place}: {problem['msg']}")
    raise RequestError(words.encode(errors="replace").decode(), param=place or None)


def require_served(unserved: Mapping[str, Any]) -> None:
    """Raises `RequestError` for a parameter with a value that only training accepts, because it overrides it."""
    for name, value in unserved.items():
        raise RequestError(
            f"the parameter {name!r} with the value {value!r:.80} is not supported; leave it out", param=name
        )


def definition(name: str, description: str | None, parameters: dict[str, Any] | None) -> ToolDefinition:
    """Returns a tool of the client. Raises `DataError`, `SettingsError`."""
    if not TOOL_NAME.fullmatch(name):
        raise DataError(f"the tool {name!r:.80}: a name has 1 to 64 letters, digits, _ and -")
    require_shallow(parameters, f"the parameters of the tool {name!r} are")
    if len(json.dumps(parameters)) > MAX_SCHEMA_CHARS:
        raise DataError(f"the parameters of the tool {name!r} have more than {MAX_SCHEMA_CHARS:,} characters of JSON")
    schema = {"type": "object", "properties": {}, **(parameters or {})}
    if not isinstance(schema["properties"], dict):
        raise DataError(f"the tool {name!r}: 'properties' of its parameters must be an object")
    return ToolDefinition(name, description or "", schema)  # type: ignore[arg-type]


def with_json_format(messages: Sequence[Message], schema: Mapping[str, Any] | None) -> list[Message]:
    """Returns the conversation whose system message asks for JSON, with this schema if there is one."""
    require_shallow(schema, "the schema of the response format is")
    matching = f" that matches this JSON schema:\n{json.dumps(schema, ensure_ascii=False)}" if schema else "."
    return with_system(messages, f"Answer with JSON only, without any other text{matching}")


# -- responses ---------------------------------------------------------------------------------------------------


def new_id(prefix: str) -> str:
    """Returns an id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


class TextFields:
    """The two texts of one answer, its thoughts and what it says, piece by piece; each part begins on a line of its own."""

    def __init__(self) -> None:
        self._has_text = {True: False, False: False}

    def add(self, piece: Piece) -> tuple[bool, str]:
        """Returns whether the piece belongs to the thoughts, and its text."""
        is_thought = piece.kind is not PieceKind.ANSWER
        before = "\n" if piece.is_new and self._has_text[is_thought] else ""
        self._has_text[is_thought] = True
        return is_thought, before + piece.text


def num_tokens(answers: Sequence[ChatAnswer]) -> tuple[int, int]:
    """Returns the tokens of the prompt and those of the answers, which include results of the policy's own tools."""
    return num_prompt(answers[0]), sum(answer.trajectory.num_response for answer in answers)


def num_prompt(answer: ChatAnswer) -> int:
    """Returns the tokens of the prompt of an answer."""
    return answer.trajectory.segments[0].spans[0].end


def event(data: Any, name: str | None = None) -> bytes:
    """Returns a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def failure_of(error: BaseException, overflow: Callable[[ContextOverflowError], RequestError]) -> RequestError:
    """Returns what a client reads of an error. `overflow` returns a dialect's own words."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ContextOverflowError):
        return overflow(error)
    if isinstance(error, DataError | SettingsError):
        return RequestError(str(error), param="messages")
    return RequestError("internal error; see the server's log", status=500)
