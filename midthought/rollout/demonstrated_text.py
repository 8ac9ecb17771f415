"""Writes a conversation in a call format whose calls and results are text: the record that an episode would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from midthought.errors import DataError
from midthought.rollout.openai_messages import calls_of, events_of
from midthought.rollout.token_watch import TokenWatch
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN
from midthought.types import Task, ToolEvent, Trajectory


def demonstrated_text(
    task: Task, messages: Sequence[Message], first: int, renderer: Renderer, call_format: ToolCallFormat
) -> Trajectory:
    """Returns the record of a conversation whose first answer is message number `first`.

    - A thought is `reasoning_content`. If calls are made in the thought (`in_thought`), the text of an answer with calls is part
      of the thought, too, and the thought is closed before the final answer.
    - If sampling stops at a call, each result follows its call; otherwise all results follow the turn, as chat messages.

    Raises `DataError` if the calls cannot be read back from the text, or if a user's message follows results.
    """
    writer = _Writer(task, renderer, call_format, renderer.prompt(messages[:first]))
    rest = list(messages[first:])
    while rest:
        answer = rest.pop(0)
        between: list[Message] = []
        while rest and rest[0]["role"] != "assistant":
            between.append(rest.pop(0))
        results = [str(message["content"]) for message in between if message["role"] == "tool"]
        if results and len(results) < len(between):
            raise DataError(
                f"a message of the user follows the results of calls, which {call_format.name!r} cannot write; answer first"
            )
        events = events_of(answer, results)
        writer.is_trained_on = answer.get("weight") != 0
        if events:
            writer.add_calls(answer, events)
        else:
            writer.add_answer(answer)
        if between and not results:
            writer.trajectory.add_reply(renderer.following(between))
            writer.begin_turn()
    writer.require_calls([call for message in messages[first:] for call in calls_of(message)])
    return writer.trajectory


class _Writer:
    """Writes the turns of the policy, and reads their calls back as an episode would; knows whether a thought is open."""

    def __init__(self, task: Task, renderer: Renderer, call_format: ToolCallFormat, prompt_ids: list[int]) -> None:
        self.trajectory, self.is_trained_on = Trajectory(task, prompt_ids), True
        self._renderer, self._format = renderer, call_format
        self._open, self._close, self._calls_in_thought = THINK_OPEN, THINK_CLOSE, False
        if isinstance(call_format, InThoughtFormat):
            self._open, self._close = call_format.think_open, call_format.think_close
            self._calls_in_thought = call_format.layout == "inside"
        self._found: list[tuple[str | None, dict[str, Any]]] = []
        self.begin_turn()

    def begin_turn(self) -> None:
        self._is_thinking = self._renderer.opens_thought(self.trajectory.token_ids, self._open)
        self._watch = TokenWatch(self._renderer, self._format, in_thought=self._is_thinking)

    def require_calls(self, wanted: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Raises `DataError` if an episode with these tokens would run other calls."""
        if self._found != wanted:
            raise DataError(
                f"in the call format {self._format.name!r} its calls would be read as {self._found!r:.200}, and they are "
                f"{wanted!r:.200}; leave out texts that look like calls, or choose another call_format"
            )

    def add_calls(self, answer: Message, events: Sequence[ToolEvent]) -> None:
        """Writes an answer with calls, and the results."""
        thought, content = _texts(answer)
        if self._calls_in_thought:
            text = self._thought("\n".join(filter(None, (thought, content))))
        else:
            text = self._closed(thought) + (f"{content}\n" if content else "")
        calls = [self._format.render_call(str(event.call.tool_name), event.call.parameters) for event in events]
        if self._format.stops_at_call:
            for call, event in zip(calls, events, strict=True):
                self._write(self._renderer.control(text + call))
                self.trajectory.add_results([event], self._renderer.foreign(self._format.render_results([event])))
                self._watch.resume()
                text = ""
            return
        self._end_turn(text + "\n".join(calls))
        contents = [self._format.render_results([event]) for event in events]
        messages = [{"role": "tool", "content": content} for content in contents]
        self.trajectory.add_results(events, self._renderer.following(messages))
        self.begin_turn()

    def add_answer(self, answer: Message) -> None:
        """Writes an answer without calls."""
        thought, content = _texts(answer)
        self._end_turn(self._closed(thought) + content)

    def _thought(self, text: str) -> str:
        """Returns text of a thought, which stays open; each text is a line of its own."""
        opening = "" if self._is_thinking else f"{self._open}\n"
        self._is_thinking = True
        return opening + (f"{text}\n" if text else "")

    def _closed(self, text: str) -> str:
        """Returns a closed thought, empty if there is none and none is open."""
        if not text and not self._is_thinking:
            return ""
        thought = self._thought(text)
        self._is_thinking = False
        return f"{thought}{self._close}\n\n"

    def _end_turn(self, text: str) -> None:
        self._write([*self._renderer.control(text), *self._renderer.answer_end])

    def _write(self, token_ids: Sequence[int]) -> None:
        (self.trajectory.add_demonstrated if self.is_trained_on else self.trajectory.add_reply)(token_ids)
        for token_id in token_ids:
            self._watch.feed(token_id)
        self._found += [(call.tool_name, dict(call.parameters)) for call in self._watch.take()]


def _texts(answer: Message) -> tuple[str, str]:
    return str(answer.get("reasoning_content") or "").strip(), str(answer.get("content") or "").strip()
