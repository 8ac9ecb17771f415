"""A policy with all that writes and reads its conversations, and the prompts of conversations in OpenAI's form.

A conversation that the policy has had is continued from its tokens, not rendered again. Does not depend on HTTP.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from midthought.config import InferenceConfig
from midthought.engines.engine import Engine
from midthought.errors import DataError, SettingsError
from midthought.rollout.openai_messages import result_event, result_messages
from midthought.rollout.turn_graph import TurnGraph, TurnNode
from midthought.serve.chat_messages import digest_of, for_template, issued_ids
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.types import Task, Trajectory
from midthought.types.task import with_system

MAX_TOOL_SETS = 64
"""Sets of tools of clients that a policy remembers."""


class ContextOverflowError(DataError):
    """A conversation that leaves no room for an answer. `num_tokens` None: not counted, but more than `max_tokens`."""

    def __init__(self, num_tokens: int | None, max_tokens: int) -> None:
        self.num_tokens, self.max_tokens = num_tokens, max_tokens
        num = f"more than {max_tokens}" if num_tokens is None else num_tokens
        super().__init__(
            f"the conversation and its tools have {num} tokens, and a sequence may have {max_tokens} in all; shorten them"
        )


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
    _with_tools: dict[bytes, ChatPolicy] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The policy with tools of clients: a template is probed anew for other tools, which takes milliseconds."""

    def with_client_tools(self, tools: Sequence[ToolDefinition], described: Sequence[str]) -> ChatPolicy:
        """Returns the policy whose prompts also describe the client's tools, as `described` does. Raises `SettingsError` if a
        description spells a control token."""
        if not tools or not isinstance(self.call_format, NativeCallFormat):
            return self
        if (digest := digest_of(b"", described)) not in self._with_tools:
            if len(self._with_tools) >= MAX_TOOL_SETS:
                self._with_tools.clear()
            self._with_tools[digest] = self._described(tools, self.call_format)
        return self._with_tools[digest]

    def _described(self, tools: Sequence[ToolDefinition], native: NativeCallFormat) -> ChatPolicy:
        definitions = [*self._own_tools(tools), *tools]
        call_format = NativeCallFormat(native.syntax, describes_tools=native.describes_tools, definitions=definitions)
        renderer = self.renderer
        if call_format.describes_tools:
            renderer = renderer.with_tools([tool.json_schema() for tool in self._in_prompts(tools)])
        return dataclasses.replace(self, renderer=renderer, call_format=call_format)

    def messages(self, said: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> list[Message]:
        """Returns the conversation with the system prompt and the descriptions of tools."""
        return with_system(said, self.system_prompt, self.call_format.instructions(self._in_prompts(tools)))

    def _in_prompts(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        return [*(self._own_tools(tools) if self.describes_tools else ()), *tools]

    def _own_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        names = {tool.name for tool in tools}
        return [tool for tool in self.executor.registry.definitions() if tool.name not in names]


def prompt_of(
    policy: ChatPolicy,
    said: Sequence[Message],
    tools: Sequence[ToolDefinition],
    digests: Sequence[bytes],
    graph: TurnGraph,
) -> TurnNode:
    """Returns the prompt of the next answer: the tokens of the conversation so far if it was held here, else rendered.

    `digests`: of `chained`. Raises `SettingsError` if the chat template refuses the conversation.
    """
    place = next((n for n in reversed(range(len(said))) if said[n]["role"] == "assistant"), None)
    if place is not None:
        tail = said[place + 1 :]
        results = [each["content"] for each in itertools.takewhile(lambda each: each["role"] == "tool", tail)]
        if policy.inference.keep_thoughts or len(results) == len(tail):
            node = graph.find(digests[place + 1], issued_ids(said))
            if node is not None:
                return _continued(policy, node, results, tail)
    return _rendered(policy, said, tools)


def require_room(policy: ChatPolicy, said: Sequence[Message], tools: Sequence[str]) -> None:
    """Raises `ContextOverflowError` if the messages and the descriptions of the client's tools alone have more tokens than a
    sequence may have. Takes no longer than a prompt of that length, however long they are: encoding 8 MB would hold up all other
    answers for a minute."""
    texts = [*[message["content"] for message in said], *tools]
    others = [message for message in said if len(message) > 2]
    texts += [str(each[name]) for each in others for name in ("reasoning_content", "tool_calls") if each.get(name)]
    if sum(map(len, texts)) > policy.max_seq_len and policy.renderer.exceed(texts, policy.max_seq_len):
        raise ContextOverflowError(None, policy.max_seq_len)


def _rendered(policy: ChatPolicy, said: Sequence[Message], tools: Sequence[ToolDefinition]) -> TurnNode:
    messages = for_template(policy.messages(said, tools), policy.call_format)
    try:
        token_ids = policy.renderer.prompt(messages)
    except SettingsError:
        as_user = [{**message, "role": "user"} if message["role"] == "tool" else message for message in messages]
        if as_user == messages:
            raise
        messages, token_ids = as_user, policy.renderer.prompt(as_user)
    return TurnNode(record=_context(token_ids), messages=messages)


def _continued(policy: ChatPolicy, node: TurnNode, results: Sequence[str], tail: Sequence[Message]) -> TurnNode:
    """Returns the prompt after an answer that these messages follow, the results of its calls first."""
    renderer, call_format = policy.renderer, policy.call_format
    token_ids, messages, given = list[int](), list(tail[len(results) :]), iter(results)
    events = [
        result_event(call.tool_name, call.parameters, next(given)) if event is None else event
        for call, event in zip(node.calls, node.events, strict=True)
    ]
    if events and call_format.stops_at_call:
        token_ids += renderer.foreign(call_format.render_results(events))
    elif events:
        num_before = sum(len(message.get("tool_calls") or ()) for message in node.messages[:-1])
        messages = result_messages(call_format, node.calls, events, num_before) + messages
    if messages:
        history = node.messages if isinstance(call_format, NativeCallFormat) else ()
        token_ids += renderer.following(messages, history, (token_ids or node.record.token_ids)[-1])
    return TurnNode(
        parent=node,
        record=_context(token_ids),
        messages=[*node.messages, *messages],
        answered=events,
        observation="\n".join(message["content"] for message in tail),
        is_same_turn=not messages and node.in_thought is not None,
    )


def _context(token_ids: Sequence[int]) -> Trajectory:
    return Trajectory(Task(task_id="chat", prompt="", answer=""), token_ids)
