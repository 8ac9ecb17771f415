"""Finds out how a chat template writes calls, by rendering conversations with known calls. Does not depend on model names."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from midthought.errors import SettingsError
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import PROBE_ID, as_tool_calls
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.call_syntax import ARGUMENTS, ID, INDEX, NAME, CallSyntax
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types.turn import THINK_TAGS

_USER = {"role": "user", "content": "probequestion"}
_ANSWER = "probeanswer"
_THOUGHTFUL = {"reasoning_content": "probethought"}
_TOOL = "probetool"
_ARGUMENTS: dict[str, Any] = {"probekeya": "probevaluea", "probekeyb": "probevalueb"}
_PROBE = ToolDefinition(_TOOL, "probedescription", [ToolParameter(key, "string", "text") for key in _ARGUMENTS])
_THOUGHT = re.compile(r"(<[^<>]+>\w*|\[[A-Z]+\])\s*probethought\s*(<[^<>]+>|\[/[A-Z]+\])")
_UNSUPPORTED = "the chat template writes calls in a form that is not supported"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenCallFormat:
    """Call format of a run, and the renderer to use with it."""

    call_format: ToolCallFormat
    renderer: Renderer
    """Its chat template describes the tools if it can."""
    reason: str
    """One line for the user."""


def choose_call_format(
    renderer: Renderer, definitions: Sequence[ToolDefinition], *, describe_tools: bool = True
) -> ChosenCallFormat:
    """Returns the model's own call format if its chat template has one, else `#call` in the thought (`InThoughtFormat`).

    The model's own format is read from what the template writes for a known call and its result. Raises `SettingsError` if
    the chat template describes the tools, and a description spells a control token.
    """
    try:
        if not renderer.chat_template.is_given:
            raise _NotWritten("the tokenizer has no chat template")
        probe = _Probe(renderer)
        syntax = probe.syntax()
    except SettingsError as error:
        reason = f"in_thought (#call), because {error}"
        return ChosenCallFormat(call_format=InThoughtFormat(), renderer=renderer, reason=reason)
    is_described = probe.describes_tools()
    call_format = NativeCallFormat(syntax, describes_tools=is_described, definitions=definitions)
    if definitions and describe_tools and is_described:
        renderer = renderer.with_tools([definition.json_schema() for definition in definitions])
    described = "and describes the tools" if is_described else "but does not describe the tools"
    example = call_format.render_call("NAME", {"ARGUMENT": "VALUE"})
    reason = f"the chat template writes calls {described}: {example!r}"
    return ChosenCallFormat(call_format=call_format, renderer=renderer, reason=reason)


class _NotWritten(SettingsError):
    """The template does not write calls in a form that can be read."""


class _Probe:
    """Renders conversations with known calls and takes the text around name and arguments apart."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer.with_tools([_PROBE.json_schema()])
        try:
            self._renderer.chat_template.text([_USER], add_generation_prompt=True)
        except SettingsError:
            self._renderer = renderer
        self._template = self._renderer.chat_template
        self._prompt = self._template.text([_USER], add_generation_prompt=True)
        self._ids, self._heads = (PROBE_ID, "callid002"), (_TOOL, _TOOL)
        """Ids of the first and the second call of a turn, and the texts with which their bodies begin."""

    def describes_tools(self) -> bool:
        """Whether a prompt with a tool contains its name and its description."""
        return _TOOL in self._prompt and "probedescription" in self._prompt

    def syntax(self) -> CallSyntax:
        """Returns the syntax. Raises `_NotWritten`, with the reason, if there is none."""
        one = self._turn(_ARGUMENTS)
        if name_is_in_id := _TOOL not in one and PROBE_ID in one:
            self._ids = self._heads = (f"functions.{_TOOL}:0", f"functions.{_TOOL}:1")
            one = self._turn(_ARGUMENTS)
        before, body, after = self._split(one)
        syntax = self._with_markers(replace(self._style(body, after), name_is_in_id=name_is_in_id), before, after)
        without_arguments = syntax.without_arguments.removesuffix(syntax.after_calls)
        syntax = replace(syntax, after_content=self._after_content(before), without_arguments=without_arguments)
        self._require_result(syntax)
        self._require_readable(syntax)
        think_tags = self._think_tags()
        return replace(syntax, around_answer=self._around_answer(think_tags[1]), think_tags=think_tags)

    # -- rendering ---------------------------------------------------------------------------------------------

    def _turn(self, *calls: Mapping[str, Any], content: str = "") -> str:
        """Returns what the template writes for an answer with these calls, by arguments, without the end of the turn."""
        named = [(_TOOL, arguments, call_id) for arguments, call_id in zip(calls, self._ids, strict=False)]
        message = {"role": "assistant", "content": content, "tool_calls": as_tool_calls(named)}
        plain = self._template.text([_USER, {"role": "assistant", "content": _ANSWER}]).partition(_ANSWER)[0]
        try:
            text = self._template.text([_USER, message])
        except SettingsError as error:
            raise _NotWritten(f"the chat template refuses calls ({error})") from None
        start = len(_common_prefix(plain, text))
        cut = plain[:start]
        if start < len(plain) and cut.rfind("<") > cut.rfind(">"):  # inside a tag
            start = cut.rfind("<")
        if text.startswith(self._prompt):
            start = max(start, len(self._prompt))
        return self._own_turn(text[start:])

    def _own_turn(self, turn: str) -> str:
        """Returns the text without a thought at its start, up to the token that ends the turn."""
        turn = re.sub(r"(?is)^.*<[^<>]*think[^<>]*>\s*", "", turn, count=1)
        pieces: list[str] = []
        for piece in self._renderer.split(turn):
            if piece in self._renderer.eos_token_ids:
                break
            pieces.append(self._renderer.decode([piece]) if isinstance(piece, int) else piece)
        return "".join(pieces)

    def _require_readable(self, syntax: CallSyntax) -> None:
        """Raises `_NotWritten` if a call is not written as the template writes it, or is read with other arguments.

        A call that cannot be read is no reason: some templates do not escape strings (LFM2.5).
        """
        arguments = {"probekey": "a \"b\" 'c'\n<d> & {e} 水", "probelist": [1, None]}
        if not syntax.name_is_in_id:
            self._ids = ("callid003", "callid004")

        def read(text: str) -> list[Any]:
            found = syntax.read(text, lambda tool, key: ("array",) if key == "probelist" else ("string",))
            return [(call.tool_name, call.parameters) for call in found if call.success]

        is_read = read(syntax.write([(_TOOL, arguments, self._ids[0])])) == [(_TOOL, arguments)]
        is_read &= read(self._turn(_ARGUMENTS)) == [(_TOOL, _ARGUMENTS)]
        is_read &= read(self._turn(arguments)) in ([(_TOOL, arguments)], [])
        for each in (_ARGUMENTS, {"probekey": "a", "probenumber": 2, "probetruth": True}):
            if not is_read or syntax.write([(_TOOL, each, self._ids[0])]).strip() not in self._turn(each):
                raise _NotWritten(_UNSUPPORTED)

    def _around_answer(self, think_close: str) -> tuple[str, str]:
        """Returns what stands around an answer after its thought, also if the prompt opens the thought."""
        for more in ({}, _THOUGHTFUL):
            text = self._template.text([_USER, {"role": "assistant", "content": _ANSWER, **more}])
            if text.startswith(self._prompt):
                thought, _, after = text[len(self._prompt) :].partition(_ANSWER)
                before = thought.rpartition("probethought")[2].rpartition(think_close)[2]
                return before.strip(), self._own_turn(after).strip()
        return "", ""

    def _think_tags(self) -> tuple[str, str]:
        """Returns what the policy writes before a thought (Gemma 4: `<|channel>thought`), and the tag after it."""
        calls = as_tool_calls([(_TOOL, _ARGUMENTS, self._ids[0])])
        for said in ({"content": _ANSWER}, {"content": "", "tool_calls": calls}):
            text = self._template.text([_USER, {"role": "assistant", **said, **_THOUGHTFUL}])
            if found := _THOUGHT.search(text):
                written = text[len(self._prompt) : found.end(1)] if text.startswith(self._prompt) else ""
                return written.strip() or found[1], found[2]
        return THINK_TAGS

    def _require_result(self, syntax: CallSyntax) -> None:
        """Raises `_NotWritten` if the template refuses or omits the result of a call, or if what follows the end of the call in
        an episode (`Renderer.following`) is not what the template writes there."""
        call = {"role": "assistant", "content": "", "tool_calls": as_tool_calls([(_TOOL, _ARGUMENTS, self._ids[0])])}
        result = {"role": "tool", "name": _TOOL, "tool_call_id": self._ids[0], "content": "proberesult"}
        try:
            text = self._template.text([_USER, call, result], add_generation_prompt=True)
        except SettingsError as error:
            raise _NotWritten(f"the chat template writes calls but refuses results ({error})") from None
        if "proberesult" not in text:
            raise _NotWritten("the chat template writes calls but omits results")
        followed = self._renderer.decode(self._renderer.following([result], [_USER, call]))
        _, is_written, rest = text.rpartition(syntax.write([(_TOOL, _ARGUMENTS, self._ids[0])]).strip())
        end = self._renderer.split(rest.removesuffix(followed))
        if is_written and not all(piece in self._renderer.eos_token_ids or not str(piece).strip() for piece in end):
            raise _NotWritten("the chat template does not mark the end of a call")

    # -- one call ----------------------------------------------------------------------------------------------

    def _split(self, turn: str) -> tuple[str, str, str]:
        """Returns the text before the call, from its name or object to the end of its arguments, and after it."""
        head = self._heads[0]
        if head not in turn or not all(text in turn for pair in _ARGUMENTS.items() for text in pair):
            raise _NotWritten("the chat template omits calls")
        arguments = _object_with(turn, lambda value: value == _ARGUMENTS)
        whole = _object_with(turn, lambda value: _ARGUMENTS in value.values() and _TOOL in value.values())
        if arguments and whole is None and turn.index(head) > arguments[0]:
            raise _NotWritten("the chat template writes the arguments of a call before its name")
        end = arguments[1] if arguments else turn.index("probevalueb") + len("probevalueb")
        start, end = whole or (turn.index(head), end)
        return turn[:start], turn[start:end], turn[end:]

    def _style(self, body: str, after: str) -> CallSyntax:
        if body.startswith("{"):
            keys = tuple((key, self._kind(value)) for key, value in json.loads(body).items())
            return CallSyntax(style="object", keys=keys)
        arguments = _object_with(body, lambda value: value == _ARGUMENTS)
        if arguments is None:
            return self._tags(body, after)
        between = body[len(self._heads[0]) : arguments[0]].replace(self._ids[0], "{id}")
        return CallSyntax(style="name_then_object", before_arguments=between)

    def _kind(self, value: Any) -> Any:
        kinds = ((_TOOL, NAME), (_ARGUMENTS, ARGUMENTS), (self._ids[0], ID), ("0", INDEX))
        return next((kind for known, kind in kinds if value == known), value)

    def _tags(self, body: str, after: str) -> CallSyntax:
        (key_a, value_a), (key_b, value_b) = _ARGUMENTS.items()
        loose = re.fullmatch(rf"{_TOOL}(.*?)\{{{key_a}:(.+?){value_a}\2,{key_b}:\2{value_b}", body, flags=re.DOTALL)
        if loose is not None and after.startswith(f"{loose[2]}}}"):
            return CallSyntax(style="loose_object", before_arguments=loose[1], quote=loose[2])
        keywords = re.fullmatch(rf"{_TOOL}\({key_a}=(['\"]){value_a}\1, {key_b}=\1{value_b}", body)
        if keywords is not None:
            truth = self._turn({key_a: True}).partition(f"{key_a}=")[2]
            return CallSyntax(style="keywords", quote=keywords[1], has_python_words=truth.startswith("True"))
        texts = re.split("|".join((_TOOL, key_a, value_a, key_b, value_b)), body)
        if len(texts) != 6:
            raise _NotWritten(_UNSUPPORTED)
        _, before_first, after_key, between, also_after_key, _ = texts
        before_key = _tag_suffix(before_first, between)
        after_value = between[: len(between) - len(before_key)]
        if not (after_key == also_after_key and before_key and after_value.strip() and after.startswith(after_value)):
            raise _NotWritten(_UNSUPPORTED)
        other = re.search(rf"{key_a}(.*?)(true|True)", self._turn({key_a: True}), flags=re.DOTALL)
        after_other = other[1] if other else after_key
        return CallSyntax(
            style="name_then_tags",
            before_arguments=before_first[: len(before_first) - len(before_key)],
            before_key=before_key,
            after_key=after_key,
            after_key_of_others="" if after_other == after_key else after_other,
            after_value=after_value,
            without_arguments=self._turn({}).partition(_TOOL)[2],
            has_python_words=other is not None and other[2] == "True",
            has_cdata="<![CDATA[" in self._turn({key_a: "<"}),
            has_python_objects="{'probekey': True}" in self._turn({key_a: {"probekey": True}}),
        )

    # -- several calls -----------------------------------------------------------------------------------------

    def _with_markers(self, syntax: CallSyntax, before: str, after: str) -> CallSyntax:
        """Separates the markers around each call from those around all of them, by a turn with two calls."""
        if syntax.style == "name_then_tags":
            after = after.removeprefix(syntax.after_value)
        elif syntax.style in ("keywords", "loose_object"):
            after = after.removeprefix(f"{syntax.quote}{')' if syntax.style == 'keywords' else '}'}")
        single = replace(syntax, before_call=before, after_call=after)
        second = {key: f"{value}2" for key, value in _ARGUMENTS.items()}
        try:
            turn = self._turn(_ARGUMENTS, second)
        except _NotWritten:
            return single
        one = before + syntax.write([(_TOOL, _ARGUMENTS, self._ids[0])])
        if "probevalueb2" not in turn or not turn.startswith(one):
            return single
        place = _object_with(turn, lambda value: second in value.values()) if syntax.style == "object" else None
        end = turn.index(turn[slice(*place)] if place else self._heads[1], len(one))
        between = turn[len(one) : end]
        before_call = _tag_suffix(before, between)
        rest = between[: len(between) - len(before_call)]
        after_call = _tag_prefix(rest, after)
        return replace(
            syntax,
            before_calls=before[: len(before) - len(before_call)],
            before_call=before_call,
            after_call=after_call,
            between_calls=rest[len(after_call) :],
            after_calls=after[len(after_call) :],
        )

    def _after_content(self, before: str) -> str:
        """Returns what separates a text from the calls after it."""
        try:
            turn = self._turn(_ARGUMENTS, content=_ANSWER)
        except _NotWritten:
            return ""
        found = re.search(f"{_ANSWER}(.*?){re.escape(before)}", turn, flags=re.DOTALL)
        return found[1] if found and before else ""


def _object_with(text: str, matches: Any) -> tuple[int, int] | None:
    """Returns start and end of the first JSON object in the text that matches."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"\{", text):
        try:
            value, end = decoder.raw_decode(text, found.start())
        except ValueError:
            continue
        if matches(value):
            return found.start(), end
    return None


def _tag_suffix(first: str, second: str) -> str:
    """Returns the longest common suffix that does not begin inside a tag or a word."""
    length = len(_common_prefix(first[::-1], second[::-1]))
    suffix = first[len(first) - length :]
    found = re.search(r"[<\[]", suffix)
    if found is not None:
        return suffix[found.start() :]
    return suffix if length == len(first) or not suffix.strip() else ""


def _tag_prefix(first: str, second: str) -> str:
    """Returns the longest common prefix that does not end inside a tag."""
    prefix = _common_prefix(first, second)
    is_inside = prefix.rfind("<") > prefix.rfind(">")
    return prefix[: prefix.rfind("<")] if is_inside else prefix


def _common_prefix(first: str, second: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(character for character, _ in same)
