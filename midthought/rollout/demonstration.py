"""Turns a conversation with `tool_calls` into a demonstration: the record that an episode with the same turns would have."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from midthought.errors import DataError
from midthought.rollout.demonstrated_text import demonstrated_text
from midthought.rollout.openai_messages import calls_of, events_of, first_answer, in_one_form
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.types import Task, Trajectory

_log = logging.getLogger(__name__)


def demonstration(
    task: Task,
    messages: Sequence[Message],
    renderer: Renderer,
    call_format: ToolCallFormat,
    *,
    is_given: bool = True,
) -> Trajectory:
    """Returns a record in which the answers are trained on, calls and thoughts (`reasoning_content`) included, except those with
    `weight: 0`.

    `messages` are OpenAI's: they begin before the first answer, and end with an answer. In the model's own call format
    (`NativeCallFormat`), ids of calls are replaced by those that an episode would have; in any other, calls and results are
    written as text (`demonstrated_text`). Raises `DataError` if a message is malformed or the roles have another order,
    `SettingsError` if the chat template does not write an answer as a continuation of its prompt. `is_given` False: a check
    wrote the messages, so nothing is logged, and errors do not name the task.
    """
    try:
        messages = in_one_form(messages)
        first = first_answer(messages)
        _require_no_end(messages, renderer)
        if isinstance(call_format, NativeCallFormat):
            return _in_own_format(task, messages, first, renderer, call_format, is_given)
        return demonstrated_text(task, messages, first, renderer, call_format)
    except DataError as error:
        raise DataError(f"task {task.task_id!r}: {error}" if is_given else str(error)) from None


def _require_no_end(messages: Sequence[Message], renderer: Renderer) -> None:
    """Raises `DataError` if an answer spells a token that ends a turn: the policy would learn to stop there."""
    ends = [renderer.decode([token_id]) for token_id in renderer.eos_token_ids]
    for number, message in enumerate(messages):
        said = [
            message.get("content"),
            message.get("reasoning_content"),
            *(str(call) for call in message.get("tool_calls") or ()),
        ]
        spelled = [end for end in ends if message["role"] == "assistant" and any(end in text for text in said if text)]
        if spelled:
            raise DataError(
                f"message {number} contains {spelled[0]!r}, the token that ends a turn; remove it from the text"
            )


def _in_own_format(
    task: Task,
    messages: Sequence[Message],
    first: int,
    renderer: Renderer,
    call_format: NativeCallFormat,
    is_given: bool,
) -> Trajectory:
    said = with_our_ids(messages, call_format.syntax.make_id)
    answers = [number for number, message in enumerate(said) if message["role"] == "assistant"]
    trajectory = Trajectory(task, renderer.prompt(said[:first]))
    for answer, after in zip(answers, [*answers[1:], None], strict=True):
        token_ids = _written(said[answer], said[:answer], renderer, call_format)
        omitted = _omitted(said[answer], token_ids, trajectory.token_ids, renderer, call_format)
        for what in omitted if is_given else ():
            _warn_once(what)
        (trajectory.add_reply if said[answer].get("weight") == 0 else trajectory.add_demonstrated)(token_ids)
        if after is not None:
            between = said[answer + 1 : after]
            token_ids = renderer.following(between, said[: answer + 1])
            results = [str(result["content"]) for result in between if result["role"] == "tool"]
            if events := events_of(said[answer], results):
                trajectory.add_results(events, token_ids)
            else:
                trajectory.add_reply(token_ids)
    return trajectory


def _written(
    answer: Message, history: Sequence[Message], renderer: Renderer, call_format: NativeCallFormat
) -> list[int]:
    """Returns the answer's tokens as the template writes it. If its only call could not be read back, because the template does
    not escape quotes (LFM2), the call is written as the call format does."""
    token_ids = renderer.answer(answer, history)
    text, wanted = _without_end(token_ids, renderer), calls_of(answer)
    start = call_format.syntax.first_marker(text)
    if (
        len(wanted) != 1
        or start == len(text)
        or [each.success for each in call_format.parse_all(text[start:])] == [True]
    ):
        return token_ids
    return [*renderer.control(text[:start] + call_format.render_calls(wanted)), token_ids[-1]]


def _without_end(token_ids: Sequence[int], renderer: Renderer) -> str:
    """Returns the text without the token that ends the turn."""
    has_end = token_ids[-1] in renderer.eos_token_ids
    return renderer.decode(token_ids[: len(token_ids) - has_end])


def _omitted(
    answer: Message, token_ids: Sequence[int], before: Sequence[int], renderer: Renderer, call_format: NativeCallFormat
) -> list[str]:
    """Returns a sentence for the text and for the thought, if the template leaves it out. Raises `DataError` if an episode with
    these tokens would run other calls."""
    text, wanted = _without_end(token_ids, renderer), calls_of(answer)
    in_thought = renderer.opens_thought(before, call_format.think_tags[0])
    found = [(call.tool_name, dict(call.parameters)) for call in call_format.parse_all(text, in_thought=in_thought)]
    if found != wanted:
        raise DataError(
            f"in the chat template's call format {call_format.name!r} its calls would be read as {found!r:.200}, and they are "
            f"{wanted!r:.200}; write one answer for each call if the format has no parallel calls, leave out texts that look "
            "like calls, or choose another call_format"
        )
    parts = {
        noun: str(answer.get(key) or "").strip()
        for noun, key in (("text", "content"), ("thought", "reasoning_content"))
    }
    return [
        f"the chat template leaves out the {noun} {said!r:.80} of an answer{' with calls' if wanted else ''}"
        for noun, said in parts.items()
        if said and said not in text
    ]


@functools.lru_cache(maxsize=256)
def _warn_once(what: str) -> None:
    _log.warning("demonstrations: %s; it is not trained on. call_format='hermes' or 'in_thought' writes it", what)


def with_our_ids(messages: Sequence[Message], make_id: Callable[[str, int], str]) -> list[Message]:
    """Returns the messages with the ids of `make_id(name of the tool, number of the call)`, and the names of tools beside
    results."""
    said: list[Message] = []
    known: dict[str, tuple[str, str]] = {}
    waiting: list[tuple[str, str]] = []
    num_calls = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting, renamed = [], []
            for call in calls:
                name = call["function"]["name"]
                ours = make_id(name, num_calls)
                num_calls += 1
                waiting.append((ours, name))
                known[call.get("id") or ours] = (ours, name)
                renamed.append({**call, "id": ours, "type": "function"})
            message = {**message, "content": message.get("content") or "", "tool_calls": renamed}
        elif message["role"] == "tool":
            first = waiting.pop(0) if waiting else ("", "")
            ours, name = known.get(message.get("tool_call_id") or "", first)
            message = {**message, "tool_call_id": ours, "name": name}
        said.append(message)
    return said
