"""A policy with all that writes and reads its conversations, and the prompts of conversations in OpenAI's form.

A conversation that the policy has had is continued from its tokens, not rendered again. Does not depend on HTTP.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from midthought.config import InferenceConfig
from midthought.engines.engine import Engine
from midthought.errors import DataError, SettingsError
from midthought.rollout.openai_messages import result_event, result_messages
from midthought.serve.chat_messages import digest, for_template, results_at_end
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.types import ParsedAction, ToolEvent
from midthought.types.task import with_system

MAX_KEPT_TOKENS = 8_000_000
"""Tokens of conversations that are kept to be continued, 4 bytes each; the oldest are dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPolicy:
    """What answers. The same fields as in the episodes that the policy was trained in (`PromptBuilder`)."""

    engine: Engine
    renderer: Renderer
    """Its chat template describes the policy's tools if `describes_tools` and if the template can."""
    call_format: ToolCallFormat
    executor: ToolExecutor
    """Runs the policy's own tools."""
    max_seq_len: int
    """Maximum tokens of a sequence, including the prompt."""
    system_prompt: str = ""
    describes_tools: bool = True
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    """Limits and default sampling options of an answer."""

    def with_client_tools(self, tools: Sequence[ToolDefinition]) -> ChatPolicy:
        """Returns the policy whose prompts also describe the client's tools. Raises `SettingsError` if a description spells a
        control token."""
        if not tools or not isinstance(self.call_format, NativeCallFormat):
            return self
        others = self._own_tools(tools)
        call_format = NativeCallFormat(
            self.call_format.syntax,
            describes_tools=self.call_format.describes_tools,
            definitions=[*others, *tools],
        )
        described = [*(others if self.describes_tools else ()), *tools]
        renderer = self.renderer
        if call_format.describes_tools:
            renderer = renderer.with_tools([tool.json_schema() for tool in described])
        return dataclasses.replace(self, renderer=renderer, call_format=call_format)

    def messages(self, said: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> list[Message]:
        """Returns the conversation with the system prompt and the descriptions of tools."""
        described = [*(self._own_tools(tools) if self.describes_tools else ()), *tools]
        return with_system(said, self.system_prompt, self.call_format.instructions(described))

    def _own_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        names = {tool.name for tool in tools}
        return [tool for tool in self.executor.registry.definitions() if tool.name not in names]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPrompt:
    """The tokens that an answer continues: of a conversation, or of a turn that waits for results of the client's tools."""

    token_ids: Sequence[int]
    messages: list[Message]
    """The conversation as the chat template takes it, with the turn that waits if its calls are a chat turn."""
    in_thought: bool | None = None
    """Whether the tokens end within a thought; None: the last token says so."""
    before: bytes = b""
    """Digest of the client's messages before the turn that waits."""
    calls: Sequence[ParsedAction] = ()
    """Calls of the turn that waits."""
    events: Sequence[ToolEvent | None] = ()
    """Results of the policy's own tools; None for a call of the client's."""
    ids: Sequence[str] = ()
    """Ids of the client's calls, in order."""

    def all_events(self, results: Mapping[str, str]) -> list[ToolEvent]:
        """Returns the events of all calls, with the client's results."""
        given = iter(results[each] for each in self.ids)
        return [
            result_event(call.tool_name, call.parameters, next(given)) if event is None else event
            for call, event in zip(self.calls, self.events, strict=True)
        ]


class ChatHistory:
    """Tokens of the newest conversations, so that they are continued exactly. Any number of requests may continue one."""

    def __init__(self, max_tokens: int = MAX_KEPT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._kept: OrderedDict[bytes | tuple[str, ...], ChatPrompt] = OrderedDict()
        self._num_tokens = 0

    def keep(self, key: bytes | tuple[str, ...], prompt: ChatPrompt) -> None:
        """Keeps the conversation up to an answer (by its digest), or a turn with calls (by the sorted ids of the client's)."""
        self._drop(key)
        self._kept[key] = prompt
        self._num_tokens += len(prompt.token_ids)
        while self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._kept)))

    def get(self, key: bytes | tuple[str, ...]) -> ChatPrompt | None:
        """Returns what was kept with this key."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def _drop(self, key: bytes | tuple[str, ...]) -> None:
        if (dropped := self._kept.pop(key, None)) is not None:
            self._num_tokens -= len(dropped.token_ids)


def prompt_of(
    policy: ChatPolicy, said: Sequence[Message], tools: Sequence[ToolDefinition], history: ChatHistory
) -> ChatPrompt:
    """Returns the prompt of the next answer: the tokens of the conversation so far if it was held here, else rendered.

    Raises `SettingsError` if the chat template refuses the conversation, `DataError` if it fills the model's context.
    """
    prompt = _continued_turn(policy, said, history) or _continued_answer(policy, said, history)
    prompt = prompt or _rendered(policy, said, tools)
    if len(prompt.token_ids) >= policy.max_seq_len:
        raise DataError(
            f"the conversation has {len(prompt.token_ids)} tokens, and a sequence may have {policy.max_seq_len} with its answer; "
            "shorten it"
        )
    return prompt


def require_room(policy: ChatPolicy, said: Sequence[Message], tools: Sequence[ToolDefinition]) -> None:
    """Raises `DataError` if the messages or the tools of the client alone have more tokens than a sequence may have. Takes no
    longer than a prompt of that length, however long they are: encoding 8 MB would hold up all other answers for a minute."""
    if sum(map(len, texts := [*_texts(said, tools)])) <= policy.max_seq_len:
        return
    if policy.renderer.exceed(texts, policy.max_seq_len):
        raise DataError(
            f"the conversation and the descriptions of its tools are longer than the {policy.max_seq_len} tokens that a sequence "
            "may have with its answer; shorten them"
        )


def _texts(said: Sequence[Message], tools: Sequence[ToolDefinition]) -> Iterator[str]:
    for message in said:
        yield message["content"]
        yield from (str(message[name]) for name in ("reasoning_content", "tool_calls") if message.get(name))
    yield from (json.dumps(tool.json_schema(), ensure_ascii=False) for tool in tools)


def _rendered(policy: ChatPolicy, said: Sequence[Message], tools: Sequence[ToolDefinition]) -> ChatPrompt:
    messages = for_template(policy.messages(said, tools), policy.call_format)
    try:
        return ChatPrompt(token_ids=policy.renderer.prompt(messages), messages=messages)
    except SettingsError:
        as_user = [{**message, "role": "user"} if message["role"] == "tool" else message for message in messages]
        if as_user == messages:
            raise
        return ChatPrompt(token_ids=policy.renderer.prompt(as_user), messages=as_user)


def _continued_answer(policy: ChatPolicy, said: Sequence[Message], history: ChatHistory) -> ChatPrompt | None:
    place = next((n for n in reversed(range(len(said))) if said[n]["role"] == "assistant"), None)
    if place is None or said[place].get("tool_calls") or not policy.inference.keep_thoughts:
        return None
    kept = history.get(digest(said[: place + 1]))
    return None if kept is None else _followed(policy, kept, list(said[place + 1 :]))


def _continued_turn(policy: ChatPolicy, said: Sequence[Message], history: ChatHistory) -> ChatPrompt | None:
    results = results_at_end(said)
    held = history.get(tuple(sorted(results)))
    if held is None or held.before != digest(said[: -len(results) - 1]):
        return None
    events, call_format = held.all_events(results), policy.call_format
    if call_format.stops_at_call:
        token_ids = [*held.token_ids, *policy.renderer.foreign(call_format.render_results(events))]
        return ChatPrompt(token_ids=token_ids, messages=held.messages, in_thought=held.in_thought)
    num_before = sum(len(message.get("tool_calls") or ()) for message in held.messages[:-1])
    return _followed(policy, held, result_messages(call_format, held.calls, events, num_before))


def _followed(policy: ChatPolicy, prompt: ChatPrompt, messages: list[Message]) -> ChatPrompt:
    """Returns the prompt after an answer that these messages follow."""
    history = (prompt.messages,) if isinstance(policy.call_format, NativeCallFormat) else ()
    token_ids = [*prompt.token_ids, *policy.renderer.following(messages, *history)]
    return ChatPrompt(token_ids=token_ids, messages=[*prompt.messages, *messages])
