"""Renders conversations with a tokenizer's chat template, and separates the template's own text from the contents.

Does not encode: it returns text. Does not depend on how a particular template writes anything.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from midthought.errors import SettingsError, near_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""`role` and `content`; an answer may have `tool_calls`, a result `name` and `tool_call_id` (OpenAI's messages)."""

PROBE_ID = "callid001"
"""Id of a call in a conversation that is rendered to examine the template. Mistral's templates require nine characters."""
ROLES = ("system", "user", "assistant", "tool")
_MARK = f"content{uuid.uuid4().hex}"
"""Surrounds the contents of a rendered conversation; no text contains it."""
_MARKED = re.compile(rf"{_MARK}n(\d+)([bi])(.*?){_MARK}e", flags=re.DOTALL)
_NOW = re.compile(r"""\bstrftime_now\(\s*(?:format\s*=\s*)?(["'])(.*?)\1\s*\)""")
_GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")
"""Blocks that transformers adds to Jinja."""
_OURS = frozenset({"messages", "tools", "add_generation_prompt"})
_OF_TRANSFORMERS = frozenset({"raise_exception", "strftime_now", "documents", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class Content:
    """Text of a message at its place in the rendered conversation. `text` is what the template made of it (escaped in JSON, for
    example)."""

    message: int
    text: str


class ChatTemplate:
    """The chat template of a tokenizer, with its arguments and the tools that it describes.

    Args:
        tokenizer: any tokenizer of transformers; without a chat template, contents are joined by newlines.
        arguments: further arguments of the template, such as `enable_thinking`. Raises `SettingsError`, with the names
            that the template uses, if it does not use one. A `datetime.date` as `strftime_now` is what it writes as today's date.
        tools: JSON Schemas as in OpenAI's `tools`; empty: none are described.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        self._tools = [dict(tool) for tool in tools] or None
        templates = tokenizer.chat_template
        if isinstance(templates, Mapping) and "default" not in templates:
            names = sorted(templates)
            raise SettingsError(
                f"the tokenizer has the chat templates {', '.join(names)} and none named 'default'; choose one: "
                f"tokenizer.chat_template = tokenizer.chat_template[{names[0]!r}]"
            )
        for name in arguments.keys() - {"strftime_now"}:
            if name not in self.argument_names:
                known = near_names(name, self.argument_names) if self.argument_names else "It uses none."
                raise SettingsError(f"model.chat_template_kwargs: the chat template does not use {name!r}. {known}")

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatTemplate:
        """Returns the same template with other tools."""
        return ChatTemplate(self._tokenizer, self._arguments, tools)

    @property
    def is_given(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self._tokenizer.chat_template)

    @functools.cached_property
    def argument_names(self) -> list[str]:
        """Names of the arguments that the template uses besides messages, tools and special tokens."""
        if not self.is_given:
            return []
        from jinja2 import Environment, TemplateSyntaxError, meta
        from jinja2.ext import loopcontrols
        from jinja2.nodes import Name, Test

        source = _GENERATION.sub("", self._source)
        try:
            parsed = Environment(extensions=[loopcontrols]).parse(source)  # noqa: S701  # only parsed
        except TemplateSyntaxError as error:
            raise SettingsError(f"the chat template is not valid Jinja: {error}") from None
        own = {name.name for name in parsed.find_all(Name) if name.ctx == "store"}
        tests = (test.node for test in parsed.find_all(Test) if test.name in ("defined", "undefined"))
        own -= {node.name for node in tests if isinstance(node, Name)}  # an argument with a default
        used = meta.find_undeclared_variables(parsed)
        return sorted(used - own - _OURS - _OF_TRANSFORMERS - set(self._tokenizer.special_tokens_map))

    @property
    def _source(self) -> str:
        source, day = str(self._tokenizer.get_chat_template(tools=self._tools)), self._arguments.get("strftime_now")
        return _NOW.sub(lambda call: json.dumps(day.strftime(call[2])), source) if isinstance(day, date) else source

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Returns the rendered conversation. If the template has no system role, the system message and an empty line are put
        before the user's first message. Raises `SettingsError` if the template refuses the conversation."""
        as_text = any(message.get("tool_calls") for message in messages) and self._takes_arguments_as_text
        as_blocks = any(message.get("reasoning_content") for message in messages) and self._takes_thoughts_as_blocks
        plain = [_plain(message, as_text, as_blocks) for message in messages]
        if [message["role"] for message in plain[:2]] == ["system", "user"] and not self._takes_system:
            plain[:2] = [{**plain[1], "content": f"{plain[0]['content']}\n\n{plain[1]['content']}"}]
        return self._render(plain, add_generation_prompt)

    def continuation(self, message: Message, history: Sequence[Message]) -> str:
        """Returns the text of an answer after the prompt of `history`, with the end of the turn.

        Thoughts in the history do not matter: a template may drop them when an answer follows (gpt-oss). If the prompt opens a
        thought and the template does not write thoughts (DeepSeek R1), the answer's thought is written and closed here. Raises
        `SettingsError` if the template writes the answer in a form that does not continue the prompt.
        """
        thought = str(message.get("reasoning_content") or "").strip()
        for past in (history, [_without_thought(each) for each in history]):
            prompt = self.text(past, add_generation_prompt=True)
            text = self.text([*past, message])
            if text.startswith(prompt):
                return text[len(prompt) :]
            before, opening, blanks = prompt.rpartition("<think>")
            if opening and not blanks.strip() and thought and thought not in text and text.startswith(before):
                return f"{thought}\n</think>\n\n{text[len(before) :]}"
        raise SettingsError(
            f"the chat template does not write this answer as a continuation of its prompt, which ends with "
            f"{prompt[-40:]!r}; add the thought (reasoning_content) that the prompt begins, or leave it out"
        )

    @functools.cached_property
    def _takes_system(self) -> bool:
        """Whether the template writes system messages."""
        try:
            said = self._render([{"role": "system", "content": "probesystem"}, {"role": "user", "content": "a"}], True)
        except SettingsError:
            return False
        return "probesystem" in said

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        from jinja2 import TemplateError

        render: Any = self._tokenizer.apply_chat_template
        options = {**self._arguments, "tokenize": False, "add_generation_prompt": add_generation_prompt}
        if isinstance(options.pop("strftime_now", None), date):
            options["chat_template"] = self._source
        if self._tools:
            options["tools"] = self._tools
        try:
            return str(render(list(messages), **options))
        except (TemplateError, TypeError) as error:
            roles = tuple(message["role"] for message in messages)
            raise SettingsError(f"the chat template refuses the roles {roles}: {error}; use another template") from None

    @functools.cached_property
    def _takes_arguments_as_text(self) -> bool:
        """Whether the template expects the arguments of a call as JSON text, as in OpenAI's API, and not as an object."""
        answer = {"role": "assistant", "content": "", "tool_calls": as_tool_calls([("f", {"key": "value"}, PROBE_ID)])}
        try:
            return "{'key'" in self._render([{"role": "user", "content": "a"}, answer])
        except SettingsError:
            return True

    @functools.cached_property
    def _takes_thoughts_as_blocks(self) -> bool:
        """Whether the template expects the thought of an answer as a block of its content (Mistral)."""
        user = {"role": "user", "content": "a"}
        answer = {"role": "assistant", "content": "b", "reasoning_content": "probethought"}
        try:
            if "probethought" in self._render([user, _plain(answer, False, False)]):
                return False
            written = self._render([user, _plain(answer, False, True)])
        except SettingsError:
            return False
        return "probethought" in written and "'thinking'" not in written  # a list that was written as it is

    def parts(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[str | Content]:
        """Returns the template's own text (str) and the contents, in order.

        Contents are the messages' texts, without blanks around them except in answers, and the keys and strings in the
        arguments of calls. Results and arguments are given to the template, which may escape them; other contents are inserted
        unchanged. Raises `SettingsError` for an unknown role, and if the template refuses the conversation or leaves a content
        out (other than text beside calls).
        """
        for message in messages:
            if message["role"] not in ROLES:
                raise SettingsError(f"unknown role {message['role']!r}; use one of {', '.join(ROLES)}")
        if not self.is_given:
            return self._joined(messages, add_generation_prompt)
        marked = [_marked(message, f"{_MARK}n{number}") for number, message in enumerate(messages)]
        text = self.text(marked, add_generation_prompt=add_generation_prompt)
        head, *rest = _MARKED.split(text)
        parts: list[str | Content] = [head]
        for number, kind, inner, tail in zip(*(rest[start::4] for start in range(4)), strict=True):
            said = inner if kind == "i" else _apart(messages[int(number)])[1]
            parts += [Content(int(number), said), tail]
        found = {part.message for part in parts if isinstance(part, Content)}
        for number, message in enumerate(messages):
            if number not in found and not message.get("tool_calls"):
                roles = tuple(message["role"] for message in messages)
                raise SettingsError(
                    f"the chat template leaves out message {number} ({message['role']!r}) of the roles {roles}; "
                    "put its words into another message or use another template"
                )
        return parts

    def _joined(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[str | Content]:
        bos_id = self._tokenizer.bos_token_id
        has_bos = bos_id is not None and self._tokenizer("").input_ids[:1] == [bos_id]
        parts: list[str | Content] = [str(self._tokenizer.bos_token) if has_bos else ""]
        for number, message in enumerate(messages):
            parts += [*(["\n"] if number else []), Content(number, message["content"])]
        return [*parts, "\n" if add_generation_prompt else ""]


def as_tool_calls(calls: Sequence[tuple[str, Mapping[str, Any], str]]) -> list[dict[str, Any]]:
    """Returns (name, arguments, id) of calls as `tool_calls` of an OpenAI message."""
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for name, arguments, call_id in calls
    ]


def _plain(message: Message, arguments_as_text: bool, thought_as_block: bool) -> dict[str, Any]:
    """Returns the message with the arguments of its calls and its thought as the template expects them; the thought also under
    the name that gpt-oss reads."""
    if thought := message.get("reasoning_content"):
        message = {"thinking": thought, **message}
        if thought_as_block:
            blocks = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": message["content"] or ""}]
            message = {**_without_thought(message), "content": blocks}
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) and not arguments_as_text:
            arguments = json.loads(arguments)
        elif not isinstance(arguments, str) and arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _without_thought(message: Message) -> Message:
    return {key: value for key, value in message.items() if key not in ("reasoning_content", "thinking", "reasoning")}


def _apart(message: Message) -> tuple[str, Any, str]:
    """Returns the blanks before a message's content, the content, and the blanks after it. Templates may remove such blanks,
    except around an answer: there they are part of the content."""
    content = message["content"]
    if not isinstance(content, str) or message["role"] == "assistant":
        return "", content, ""
    said = content.strip()
    before, _, after = content.partition(said) if said else (content, "", "")
    return before, said, after


def _marked(message: Message, mark: str) -> dict[str, Any]:
    """Returns the message with marks around its contents."""
    end = mark.rpartition("n")[0] + "e"

    def inside(value: Any) -> Any:
        if isinstance(value, str):
            return f"{mark}i{value}{end}"
        if isinstance(value, Mapping):
            return {f"{mark}i{key}{end}": inside(inner) for key, inner in value.items()}
        return [inside(inner) for inner in value] if isinstance(value, list | tuple) else value

    marked = dict(message)
    before, said, after = _apart(message)
    if message["role"] == "tool":
        marked["content"] = f"{before}{inside(said)}{after}" if isinstance(said, str) else inside(said)
    elif message["content"] or not message.get("tool_calls"):
        marked["content"] = f"{before}{mark}b{end}{after}"
    if calls := message.get("tool_calls"):
        marked["tool_calls"] = []
        for call in calls:
            arguments = call["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            marked["tool_calls"].append({**call, "function": {**call["function"], "arguments": inside(arguments)}})
    if message.get("reasoning_content"):
        marked["reasoning_content"] = inside(message["reasoning_content"])
    return marked
