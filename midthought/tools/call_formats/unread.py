"""Finds calls of known tools that a policy writes and that are not run: in a place or a notation that its call format ignores.

The other call formats are tried on the sampled text. Does not depend on a list of phrases.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat, split_thoughts
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import TaggedCallFormat
from midthought.tools.parsers import call_format_names, find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Trajectory

MAX_CHARACTERS, MIN_SHARE = 50_000, 0.1
"""No further episode is read after so many characters (at most a second of one core); share of the episodes with a call that is
not run, from which on they are `is_frequent`."""
_FENCE = re.compile(r"^ {0,3}```[^\n`]*\n(.*?)\n\s*```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadCalls:
    """How many of some episodes have a call of a known tool that was not run, and the most frequent kind of it."""

    num_episodes: int
    count: int
    tool: str = ""
    text: str = ""
    """One of these calls."""
    remedy: str = ""
    """Names the call format that reads such calls."""

    @property
    def is_frequent(self) -> bool:
        """Whether at least `MIN_SHARE` of the episodes have such a call."""
        return self.count >= max(1, MIN_SHARE * self.num_episodes)

    def __str__(self) -> str:
        call = f"a call of {self.tool!r} that is not run: {self.text[:80]!r}"
        return f"{self.count} of {self.num_episodes} sampled episodes write {call}"


class UnreadCallReader:
    """Reads the texts of episodes with all call formats, the model's own among them, besides the one that is used."""

    def __init__(self, renderer: Renderer, call_format: ToolCallFormat, registry: ToolRegistry) -> None:
        self._used, self._registry = call_format, registry
        self._others: dict[str, ToolCallFormat] = {}
        for name in call_format_names():
            if name != call_format.name:
                self._others[name] = find_call_format(name)
                self._others[name].think_tags = call_format.think_tags
        own = choose_call_format(renderer, registry.definitions(), describe_tools=False).call_format
        if own.name not in (call_format.name, *self._others):
            self._others["auto"] = own

    def read(self, episodes: Sequence[Trajectory]) -> UnreadCalls:
        """Returns how many of the episodes, the first ones up to `MAX_CHARACTERS`, have such a call."""
        ends = itertools.accumulate(sum(len(turn.model_output) for turn in each.turns) for each in episodes)
        episodes = episodes[: 1 + sum(end < MAX_CHARACTERS for end in ends)]
        found = [first for episode in episodes if (first := next(self._in_episode(episode), None))]
        if not found:
            return UnreadCalls(num_episodes=len(episodes), count=0)
        (remedy, tool), _ = Counter((remedy, call.tool_name or "") for call, remedy in found).most_common(1)[0]
        text = next(call.raw_text for call, each in found if (each, call.tool_name) == (remedy, tool))
        return UnreadCalls(num_episodes=len(episodes), count=len(found), tool=tool, text=text, remedy=remedy)

    def _in_episode(self, episode: Trajectory) -> Iterator[tuple[ParsedAction, str]]:
        """Returns every call that is not run, and the remedy."""
        for turn in episode.turns:
            text, in_thought = turn.model_output, turn.begins_in_thought
            if not any(name in text for name in self._registry):
                continue
            read = [call for call, _ in _calls(self._used, text, in_thought)]
            rest = functools.reduce(lambda left, call: left.replace(call.raw_text, ""), read, text)
            if any(name in rest for name in self._registry):
                # a draft in a thought is no finding if the turn then runs a call of the same tool
                silent = {*self._registry} - {call.tool_name for call in read}
                for call, remedy in self._in_turn(text, in_thought=in_thought):
                    is_quoted = any(call.raw_text in each.raw_text for each in read)
                    if call.success and call.tool_name in silent and not is_quoted:
                        yield call, remedy

    def _in_turn(self, text: str, *, in_thought: bool) -> Iterator[tuple[ParsedAction, str]]:
        """Returns every call that some format reads somewhere, and how to have it read."""
        for name, other in self._others.items():
            yield from _calls(other, text, in_thought, f"set call_format={name!r}, which reads this call")
        formats, used_in_thought = (self._used, *self._others.values()), self._used.name == InThoughtFormat.name
        for part, is_thought in split_thoughts(text, self._used.think_tags, in_thought=in_thought):
            for each in formats if is_thought else ():
                name, where = (each.name, "after") if used_in_thought else (InThoughtFormat.name, "in")
                remedy = f"set call_format={name!r} and show its calls {where} the thought in demonstrations (sft)"
                yield from _calls(each, part, False, remedy)
            if not is_thought:
                remedy = "set call_format=InThoughtFormat('between'), which reads calls after a thought, too"
                yield from _calls(InThoughtFormat(), part, True, remedy)
            for each in (each for each in formats if isinstance(each, TaggedCallFormat)):
                tags = " and ".join(each.tags)
                for body in _FENCE.findall(part):
                    for call in each.call_object.read_block(body, body):
                        yield call, f"set call_format={each.name!r} and show its tags {tags} in demonstrations (sft)"


def _calls(
    call_format: ToolCallFormat, text: str, in_thought: bool, remedy: str = ""
) -> Iterator[tuple[ParsedAction, str]]:
    with contextlib.suppress(Exception):  # of a parser of the user
        for call in call_format.parse_all(text, in_thought=in_thought):
            yield call, remedy
