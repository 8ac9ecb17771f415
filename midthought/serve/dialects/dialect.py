"""What the dialects share: the form of a request that was read, limits, and how bodies and tools are checked. Does not depend on
the server."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from midthought.engines.engine import Sampling
from midthought.errors import DataError, SettingsError
from midthought.rollout.openai_messages import require_shallow
from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ChatRequest
from midthought.serve.chat_messages import TOOL_NAME, checked_messages
from midthought.serve.chat_policy import ContextOverflowError
from midthought.tokenization import Renderer
from midthought.tools.definition import ToolDefinition
from midthought.tools.registry import encodable
from midthought.tools.schemas import MAX_SCHEMA_CHARS
from midthought.types.task import with_system

_log = logging.getLogger(__name__)
_JSON = json.JSONEncoder(ensure_ascii=False)
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_MESSAGES = 4_096
MAX_TOOLS = 128
MAX_COUNT = 2**31 - 1
"""Maximum of `max_tokens`; an answer has at most the tokens that fit into the model's context."""
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Of both dialects, by status."""


class RequestError(DataError):
    """A request that is refused, with the HTTP status and, if known, the parameter and the code that a program reads."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Effect(StrEnum):
    """What a parameter of a client does."""

    USED = "used"
    OVERRIDDEN = "overridden"
    """Replaced by the trainer's own in training. `midthought serve` uses it, or refuses it if it cannot."""
    IGNORED = "ignored"
    """Accepted, without effect on the answer."""
    REFUSED = "refused"


OVERRIDDEN = Effect.OVERRIDDEN
"""Marks a field of a request. `midthought serve` refuses it if it is no field of `Sampling`."""


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
    """Writes one response: `whole`, the body of one that is not streamed, or the events of a stream.

    These are `begin` (`num_prompt`: tokens of the prompt); for each answer `piece`; `end` (calls, why the answers ended, numbers
    of tokens) or `error`. `keep_alive` is an event that says nothing.
    """

    response_id: str

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]: ...
    def begin(self, num_prompt: int) -> bytes: ...
    def piece(self, number: int, piece: Piece) -> bytes: ...
    def end(self, answers: Sequence[ChatAnswer]) -> bytes: ...
    def error(self, failure: RequestError) -> bytes: ...
    def keep_alive(self) -> bytes: ...


class Dialect(Protocol):
    """A chat API.

    `read` returns a request (`training`: without the client's sampling options) or raises `DataError`; `error` returns the body
    of an error, `overflow` an error in the words that clients look for.
    """

    name: str

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked: ...
    def error(self, failure: RequestError) -> dict[str, Any]: ...
    def overflow(self, error: ContextOverflowError) -> RequestError: ...

    def failure(self, error: BaseException) -> RequestError:
        """Returns what the client reads of an error. One of the server (status 500) is logged, and its text is not sent."""
        match error:
            case RequestError():
                return error
            case ContextOverflowError():
                return self.overflow(error)
            case DataError() | SettingsError():
                return RequestError(str(error), param="messages")
        _log.error("a request was not answered", exc_info=error)
        return RequestError("internal error; see the server's log", status=500)


# -- requests ----------------------------------------------------------------------------------------------------


class Given(BaseModel):
    """An object of a request. It does not change, so that pydantic need not copy the defaults of every request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def __deepcopy__(self, memo: Any = None) -> Self:
        return self


GivenT = TypeVar("GivenT", bound=Given)


def effects(form: type[Given], *, ignored: str, refused: str) -> dict[str, Effect]:
    """Returns the effect of every parameter of a client: the fields of a request, used if they are not marked, and the others."""
    fields = form.model_fields.items()
    found = {name: Effect.OVERRIDDEN if Effect.OVERRIDDEN in field.metadata else Effect.USED for name, field in fields}
    return found | dict.fromkeys(ignored.split(), Effect.IGNORED) | dict.fromkeys(refused.split(), Effect.REFUSED)


def parsed(body: bytes, form: type[GivenT], parameters: Mapping[str, Effect]) -> GivenT:
    """Returns the body as an object of `form`, without parameters that are ignored or null. Raises `RequestError` with one
    sentence about the first thing that is wrong. Does not repeat the request."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON" if body else "the body is missing") from None
    if not isinstance(found, dict):
        raise RequestError("the body must be a JSON object")
    known = found.keys() & parameters
    is_nothing = {name for name in known if found[name] is None or parameters[name] is Effect.IGNORED}
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


def asked_of(
    given: Any,
    *,
    training: bool,
    messages: Mapping[str, Mapping[str, Any]],
    tools: Sequence[Any],
    required_tool: str | None,
    schema: tuple[str, Mapping[str, Any] | None],
    writer: Writer,
    stream: bool = False,
    seeds: Sequence[int | None] = (None,),
    **limits: Any,
) -> Asked:
    """Returns a request of `midthought serve` or, in `training`, without the client's sampling parameters.

    `given`: the body with all fields; `messages`: by their places in it; `schema`: the name of the parameter with the response
    format, and the JSON schema of the answer (empty: any JSON; None: any text); `seeds`: one per choice; `limits`: further fields
    of each `ChatRequest`. Raises `DataError`, `SettingsError`.
    """
    overridden, (_, json_schema) = _overridden(given), schema
    if not training:
        names = {name for name, value in (("tool_choice", required_tool), schema) if value is not None}
        unserved = {name: value for name, value in overridden.items() if name not in Sampling.__dataclass_fields__}
        for name, value in (unserved | given.model_dump(include=names, exclude_unset=True, by_alias=True)).items():
            words = f"the parameter {name!r} with the value {value!r:.80} is not supported; leave it out"
            raise RequestError(words, param=name)
        limits["sampling"] = {name: value for name, value in overridden.items() if name != "seed"}
    said = checked_messages(list(messages.values()), list(messages))
    if json_schema is not None:
        require_shallow(json_schema, "the schema of the response format is")
        text = encodable(json.dumps(json_schema, ensure_ascii=False))
        matching = f" that matches this JSON schema:\n{text}" if json_schema else "."
        said = with_system(said, f"Answer with JSON only, without any other text{matching}")
    limits |= {"messages": said, "tools": [_definition(tool) for tool in tools], "answer_id": writer.response_id}
    return Asked(
        model=given.model,
        stream=stream,
        requests=[ChatRequest(**limits, seed=None if training else seed) for seed in seeds],
        overridden=list(overridden),
        required_tool=required_tool,
        has_response_format=json_schema is not None,
        writer=writer,
    )


def _overridden(given: Given) -> dict[str, Any]:
    """Returns the parameters that training overrides, if they have another value than the default, which changes nothing."""
    found: dict[str, Any] = {}
    for name, field in type(given).model_fields.items():
        if isinstance(value := getattr(given, name), Given):
            found |= _overridden(value)
        elif Effect.OVERRIDDEN in field.metadata and value != field.default:
            found[name] = value
    return found


def _definition(tool: Any) -> ToolDefinition:
    """`tool`: has name, description and parameters. Raises `DataError`, `SettingsError`."""
    if not TOOL_NAME.fullmatch(tool.name):
        raise DataError(f"the tool {tool.name!r:.80}: a name has 1 to 64 letters, digits, _ and -")
    require_shallow(tool.parameters, f"the parameters of the tool {tool.name!r} are")
    text = encodable(json.dumps(tool.parameters or {}, ensure_ascii=False))
    if len(text) > MAX_SCHEMA_CHARS:
        raise DataError(
            f"the parameters of the tool {tool.name!r} have more than {MAX_SCHEMA_CHARS:,} characters of JSON"
        )
    schema = {"type": "object", "properties": {}, **json.loads(text)}
    if not isinstance(schema["properties"], dict):
        raise DataError(f"the tool {tool.name!r}: 'properties' of its parameters must be an object")
    return ToolDefinition(tool.name, encodable(tool.description or ""), schema)  # type: ignore[arg-type]


# -- responses ---------------------------------------------------------------------------------------------------


def new_id(prefix: str) -> str:
    """Returns an id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


def model_entry(name: str, created: int, max_len: int) -> dict[str, Any]:
    """Returns the entry of a model in `/v1/models`, which the clients of both dialects read. `created`: seconds since 1970;
    `max_len`: tokens of a sequence."""
    found = {"id": name, "object": "model", "created": created, "owned_by": "midthought", "max_model_len": max_len}
    date = datetime.fromtimestamp(created, UTC).isoformat()
    found |= {"type": "model", "display_name": name, "created_at": date, "lifecycle": "active"}
    return {**found, "max_input_tokens": max_len, "max_tokens": max_len}


def num_prompt(answer: ChatAnswer) -> int:
    """Returns the tokens of the prompt of an answer."""
    return answer.trajectory.segments[0].spans[0].end


def event(data: Any, name: str | None = None) -> bytes:
    """Returns a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {_JSON.encode(data)}\n\n".encode()
