"""OpenAI's Chat Completions: requests with their limits; whole responses, chunks of a stream, errors."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from midthought.serve.answer_stream import Piece, TextFields
from midthought.serve.chat_answer import ChatAnswer
from midthought.serve.chat_policy import ContextOverflowError
from midthought.serve.dialects import dialect
from midthought.serve.dialects.dialect import MAX_COUNT, OVERRIDDEN, Asked, Given, RequestError, event
from midthought.tokenization import Renderer

MAX_CHOICES = 16
MAX_SEED = 2**62


class Function(Given):
    """A tool of the client, or the name of one."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted, without effect: the policy writes calls as it was trained to."""


class Tool(Given):
    """A tool of the client, as `tools` lists it."""

    type: Literal["function"]
    function: Function


class StreamOptions(Given):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ResponseFormat(Given):
    """Text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatCompletionRequest(Given):
    """`POST /v1/chat/completions`, without the parameters that are ignored."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=dialect.MAX_MESSAGES)
    tools: list[Tool] = Field(default_factory=list, max_length=dialect.MAX_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | Tool = "auto"
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    stop: Annotated[
        list[dialect.Stop], Field(max_length=4), BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)
    ] = Field(default_factory=list)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=0)
    response_format: ResponseFormat = ResponseFormat(type="text")
    modalities: list[Literal["text"]] = Field(default_factory=list)
    return_token_ids: bool = False
    """Adds `prompt_token_ids` to the response, and `token_ids` to each choice, as vLLM does."""
    temperature: Annotated[float | None, Field(ge=0, le=2), OVERRIDDEN] = None
    top_p: Annotated[float | None, Field(gt=0, le=1), OVERRIDDEN] = None
    top_k: Annotated[int | None, Field(ge=-1, le=MAX_COUNT), AfterValidator(lambda k: max(k, 0)), OVERRIDDEN] = None
    min_p: Annotated[float | None, Field(ge=0, le=1), OVERRIDDEN] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63), OVERRIDDEN] = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), OVERRIDDEN] = 0
    presence_penalty: Annotated[float, Field(ge=-2, le=2), OVERRIDDEN] = 0
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(lambda bias: bias or None), OVERRIDDEN] = None
    parallel_tool_calls: Annotated[bool, OVERRIDDEN] = True


PARAMETERS = dialect.effects(
    ChatCompletionRequest,
    ignored="user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options prompt_cache_retention "
    "reasoning_effort verbosity prediction",
    refused="audio function_call functions moderation web_search_options",
)
"""Every parameter of OpenAI's client; top_k, min_p and return_token_ids are vLLM's."""


class ChatWriter:
    """Writes the response to one request."""

    def __init__(self, given: ChatCompletionRequest, renderer: Renderer) -> None:
        self.response_id = dialect.new_id("chatcmpl-")
        self._head = {"id": self.response_id, "created": int(time.time()), "model": given.model}
        self._has_usage = given.stream_options.include_usage
        self._renderer, self._has_logprobs, self._has_ids = renderer, given.logprobs, given.return_token_ids
        self._fields = [TextFields() for _ in range(given.n)]

    def whole(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        choices = []
        for number, answer in enumerate(answers):
            message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
            if answer.thoughts:
                message["reasoning_content"] = answer.thoughts
            if answer.calls:
                message |= {"content": answer.content or None, "tool_calls": _calls(answer)}
            choices.append(self._choice(number, answer, message=message))
        found = {**self._head, "object": "chat.completion", "choices": choices, "usage": _usage(answers)}
        if self._has_ids:
            found["prompt_token_ids"] = answers[0].trajectory.token_ids[: dialect.num_prompt(answers[0])]
        return found

    def begin(self, num_prompt: int) -> bytes:
        """Returns the first chunk of each choice. It has no content, which is null in an answer of calls alone."""
        return b"".join(self._delta(number, role="assistant") for number in range(len(self._fields)))

    def piece(self, number: int, piece: Piece) -> bytes:
        is_thought, text = self._fields[number].add(piece)
        return self._delta(number, **{"reasoning_content" if is_thought else "content": text})

    def end(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the last chunks: calls of each choice and why it ended, with log-probabilities and token ids; then the numbers
        of tokens, if the client wants them."""
        found = b""
        for number, answer in enumerate(answers):
            if answer.calls:
                calls = [{"index": place, **call} for place, call in enumerate(_calls(answer))]
                found += self._delta(number, tool_calls=calls)
            elif not answer.content:
                found += self._delta(number, content="")
            found += self._chunk([self._choice(number, answer, delta={})])
        return found + (self._chunk([], usage=_usage(answers)) if self._has_usage else b"") + b"data: [DONE]\n\n"

    def error(self, failure: RequestError) -> bytes:
        return event(CHAT.error(failure))

    def keep_alive(self) -> bytes:
        return self._delta(0)

    def _delta(self, number: int, **delta: Any) -> bytes:
        return self._chunk([self._choice(number, delta=delta)])

    def _chunk(self, choices: Sequence[dict[str, Any]], **values: Any) -> bytes:
        return event({**self._head, "object": "chat.completion.chunk", "choices": choices, **values})

    def _choice(self, number: int, answer: ChatAnswer | None = None, **said: Any) -> dict[str, Any]:
        """Returns a choice, or a part of it. `answer`: set if it ends."""
        found = {"index": number, **said, "finish_reason": answer and answer.finish, "logprobs": None}
        if answer is not None and self._has_logprobs:
            found["logprobs"] = {"content": self._token_logprobs(answer), "refusal": None}
        if answer is not None and self._has_ids:
            found["token_ids"] = answer.trajectory.token_ids[dialect.num_prompt(answer) :]
        return found

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


class ChatDialect(dialect.Dialect):
    """OpenAI's Chat Completions."""

    name = "chat"

    def read(self, body: bytes, *, training: bool, renderer: Renderer) -> Asked:
        given = dialect.parsed(body, ChatCompletionRequest, PARAMETERS)
        choice, form, seed = given.tool_choice, given.response_format, given.seed
        return dialect.asked_of(
            given,
            training=training,
            stream=given.stream,
            messages={f"messages.{number}": message for number, message in enumerate(given.messages)},
            tools=[] if choice == "none" else [tool.function for tool in given.tools],
            required_tool=choice.function.name if isinstance(choice, Tool) else "" if choice == "required" else None,
            schema=("response_format", None if form.type == "text" else (form.json_schema or {}).get("schema") or {}),
            writer=ChatWriter(given, renderer),
            seeds=[None if seed is None else (seed + number) % MAX_SEED for number in range(given.n)],
            max_tokens=given.max_completion_tokens or given.max_tokens,
            stop=given.stop,
        )

    def error(self, failure: RequestError) -> dict[str, Any]:
        other = "server_error" if failure.status >= 500 else "invalid_request_error"
        kind = dialect.ERROR_TYPES.get(failure.status, other)
        return {"error": {"message": str(failure), "type": kind, "param": failure.param, "code": failure.code}}

    def overflow(self, error: ContextOverflowError) -> RequestError:
        words = f"this model's maximum context length is {error.max_tokens} tokens: {error}"
        return RequestError(words, param="messages", code="context_length_exceeded")


CHAT = ChatDialect()


def _usage(answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    prompt, answer = dialect.num_prompt(answers[0]), sum(each.trajectory.num_response for each in answers)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _calls(answer: ChatAnswer) -> list[dict[str, Any]]:
    return [call.in_openai_form() for call in answer.calls]
