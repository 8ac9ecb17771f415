"""Turns a conversation with `tool_calls` into a demonstration: the record that an episode with the same turns would have."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from midthought.errors import DataError
from midthought.rollout.openai_messages import (
    calls_of,
    events_of,
    first_answer,
    in_one_form,
    result_messages,
    with_our_ids,
)
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.call_formats.streaming import TokenWatch
from midthought.types import Task, ToolEvent, Trajectory

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

    `messages` are OpenAI's: they begin before the first answer, and end with an answer.

    - In the model's own call format (`NativeCallFormat`), the chat template writes the answers; ids of calls are replaced by
      those that an episode would have.
    - In any other, calls and results are text. If calls are made in the thought (`in_thought`), the text of an answer with calls
      is part of the thought, too, and the thought is closed before the final answer. If sampling stops at a call, each result
      follows its call; otherwise all results follow the turn, as chat messages.

    Raises `DataError` if a message is malformed, the roles have another order, or the calls cannot be read back,
    `SettingsError` if the chat template does not write an answer as a continuation of its prompt. `is_given` False: a check
    wrote the messages, so nothing is logged, and errors do not name the task.
    """
    try:
        messages = in_one_form(messages)
        first = first_answer(messages)
        _require_no_end(messages, renderer)
        if isinstance(call_format, NativeCallFormat):
            messages = with_our_ids(messages, call_format.syntax.make_id)
        writer = _Writer(Trajectory(task, renderer.prompt(messages[:first])), renderer, call_format)
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        for number, end in itertools.pairwise([*answers, len(messages)]):
            for what in writer.add(messages[number], messages[:number], messages[number + 1 : end]):
                if is_given:
                    _warn_once(what)
        return writer.trajectory
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


class _Writer:
    """Writes the turns of the policy, and reads their calls back as an episode would; knows whether a thought is open."""

    def __init__(self, trajectory: Trajectory, renderer: Renderer, call_format: ToolCallFormat) -> None:
        self.trajectory = trajectory
        self._renderer, self._format = renderer, call_format
        self._is_native = isinstance(call_format, NativeCallFormat)
        self._calls_in_thought = isinstance(call_format, InThoughtFormat) and call_format.layout == "inside"
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._is_thinking = self._renderer.opens_thought(self.trajectory.token_ids, self._format.think_tags[0])
        self._watch = TokenWatch(self._renderer, self._format, in_thought=self._is_thinking)

    def add(self, answer: Message, history: Sequence[Message], between: Sequence[Message]) -> list[str]:
        """Writes an answer after `history`, and the messages between it and the next one. Returns a sentence for each text of the
        answer that the template leaves out."""
        results = [str(message["content"]) for message in between if message["role"] == "tool"]
        if not self._is_native and 0 < len(results) < len(between):
            raise DataError(
                f"a message of the user follows the results of calls, which {self._format.name!r} cannot write; answer first"
            )
        events = events_of(answer, results)
        self._is_trained_on, self._found = answer.get("weight") != 0, list[tuple[str | None, dict[str, Any]]]()
        if self._format.stops_at_call and events:
            self._write_with_results(answer, events)
            self._require_calls(answer)
            return []
        token_ids = self._own_tokens(answer, history) if self._is_native else self._text_tokens(answer)
        self._write(token_ids)
        self._require_calls(answer)
        if between:
            following = between if self._is_native else result_messages(self._format, (), events, 0) or between
            before = [*history, answer] if self._is_native else ()
            context = self._renderer.following(following, before, self.trajectory.token_ids[-1])
            if events:
                self.trajectory.add_results(events, context)
            else:
                self.trajectory.add_reply(context)
            self._begin_turn()
        return self._omitted(answer, token_ids) if self._is_native else []

    def _write(self, token_ids: Sequence[int]) -> None:
        (self.trajectory.add_demonstrated if self._is_trained_on else self.trajectory.add_reply)(token_ids)
        for token_id in token_ids:
            if token_id not in self._renderer.eos_token_ids:
                self._watch.feed(token_id)
        self._found += [(call.tool_name, dict(call.parameters)) for call in self._watch.take()]

    def _require_calls(self, answer: Message) -> None:
        """Raises `DataError` if an episode with these tokens would run other calls."""
        if self._found != (wanted := calls_of(answer)):
            whose = "chat template's " if self._is_native else ""
            raise DataError(
                f"in the {whose}call format {self._format.name!r} its calls would be read as {self._found!r:.200}, and they are "
                f"{wanted!r:.200}; write one answer for each call if the format has no parallel calls, leave out texts that look "
                "like calls, or choose another call_format"
            )

    # -- in the model's own call format ------------------------------------------------------------------------

    def _own_tokens(self, answer: Message, history: Sequence[Message]) -> list[int]:
        """Returns the answer's tokens as the template writes it. If its only call could not be read back, because the template
        does not escape quotes (LFM2), the call is written as the call format does."""
        assert isinstance(self._format, NativeCallFormat)
        token_ids = self._renderer.answer(answer, history)
        text, wanted = self._without_end(token_ids), calls_of(answer)
        start = self._format.syntax.first_marker(text)
        if (
            len(wanted) != 1
            or start == len(text)
            or [each.success for each in self._format.parse_all(text[start:])] == [True]
        ):
            return token_ids
        return [*self._renderer.control(text[:start] + self._format.render_calls(wanted)), token_ids[-1]]

    def _without_end(self, token_ids: Sequence[int]) -> str:
        has_end = token_ids[-1] in self._renderer.eos_token_ids
        return self._renderer.decode(token_ids[: len(token_ids) - has_end])

    def _omitted(self, answer: Message, token_ids: Sequence[int]) -> list[str]:
        text = self._without_end(token_ids)
        parts = {
            noun: str(answer.get(key) or "").strip()
            for noun, key in (("text", "content"), ("thought", "reasoning_content"))
        }
        return [
            f"the chat template leaves out the {noun} {said!r:.80} of an answer{' with calls' if self._found else ''}"
            for noun, said in parts.items()
            if said and said not in text
        ]

    # -- in a call format of text ------------------------------------------------------------------------------

    def _write_with_results(self, answer: Message, events: Sequence[ToolEvent]) -> None:
        text = self._text(answer, has_calls=True)
        for event in events:
            call = self._format.render_call(str(event.call.tool_name), event.call.parameters)
            self._write(self._renderer.control(text + call))
            self.trajectory.add_results([event], self._renderer.foreign(self._format.render_results([event])))
            self._watch.resume()
            text = ""

    def _text_tokens(self, answer: Message) -> list[int]:
        calls = [self._format.render_call(*call) for call in calls_of(answer)]
        text = self._text(answer, has_calls=bool(calls)) + "\n".join(calls)
        return [*self._renderer.control(text), *self._renderer.answer_end]

    def _text(self, answer: Message, *, has_calls: bool) -> str:
        """Returns the thought and the text of an answer, in front of its calls if there are some."""
        thought, content = (str(answer.get(key) or "").strip() for key in ("reasoning_content", "content"))
        if has_calls and self._calls_in_thought:
            return self._thought("\n".join(filter(None, (thought, content))))
        if thought or self._is_thinking:
            thought = f"{self._thought(thought)}{self._format.think_tags[1]}\n\n"
            self._is_thinking = False
        return thought + (f"{content}\n" if content and has_calls else content)

    def _thought(self, text: str) -> str:
        """Returns text of a thought, which stays open; each text is a line of its own."""
        opening = "" if self._is_thinking else f"{self._format.think_tags[0]}\n"
        self._is_thinking = True
        return opening + (f"{text}\n" if text else "")


@functools.lru_cache(maxsize=256)
def _warn_once(what: str) -> None:
    _log.warning("demonstrations: %s; it is not trained on. call_format='hermes' or 'in_thought' writes it", what)
