"""What the policy did: calls with their results, turns, and why an episode ended."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from midthought.errors import near_names

THINK_TAGS = ("<think>", "</think>")
_UNREAD: Any = object()


def text_after_thought(text: str, *, in_thought: bool, tags: tuple[str, str] = THINK_TAGS) -> str | None:
    """Returns a turn's text after its last closed thought, or all of it; None in an open thought (`in_thought`: at first)."""
    _, closed, after = text.rpartition(tags[1])
    return None if tags[0] in after or (in_thought and not closed) else after.strip()


def as_recorded(value: Any, *, is_part: bool = False) -> Any:
    """Returns a deep copy, which whoever gave the value cannot change later; parts of a dict that cannot be copied are shared."""
    try:
        return copy.deepcopy(value)
    except Exception:
        is_whole = is_part or not isinstance(value, dict)
        return value if is_whole else {name: as_recorded(part, is_part=True) for name, part in value.items()}


class StopReason(enum.StrEnum):
    """Why an episode ended. Every episode has exactly one reason, set once."""

    ANSWERED = "answered"
    """The policy ended its answer (end-of-sequence) and got no reply."""
    LENGTH = "length"
    """The token budget was used up before the answer ended."""
    MAX_TURNS = "max_turns"
    """The limit on turns was reached."""
    MAX_STEPS = "max_steps"
    """The environment cut the episode: at `environment.max_steps`, or at a limit of its own (`info["truncated"]`)."""
    FAILED = "failed"
    """The episode failed (engine, environment); the error is in `Trajectory.error`."""
    CANCELLED = "cancelled"
    """The run was stopped."""

    @property
    def is_truncated(self) -> bool:
        """Whether the episode was ended by something other than the policy."""
        return self is not StopReason.ANSWERED


class ToolOutcome(enum.StrEnum):
    """Outcome of a tool call. Anything but `OK` is returned to the model as an error message."""

    OK = "ok"
    MALFORMED = "malformed"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"
    """The tool was not called: too many calls that missed their deadline still run."""
    NO_CALLS_LEFT = "no_calls_left"

    @property
    def is_of_tool(self) -> bool:
        """Whether only the call of a registered tool, which was not beyond the limit, can have this outcome."""
        return self not in (ToolOutcome.MALFORMED, ToolOutcome.UNKNOWN_TOOL, ToolOutcome.NO_CALLS_LEFT)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedAction:
    """A call found in a text. `success` is False if it cannot be run; by default it is True with a name and without an error."""

    tool_name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    raw_text: str = ""
    success: bool = None  # type: ignore[assignment]
    error: str | None = None
    call_id: str | None = None
    """The call's id, if the policy wrote one."""

    def __post_init__(self) -> None:
        if self.success is None:
            object.__setattr__(self, "success", self.tool_name is not None and self.error is None)


@dataclass(kw_only=True, slots=True)
class ToolCall:
    """An executed call with its result. Empty and falsy if there was no call."""

    tool_name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    success: bool | None = None
    result: str | None = None
    """Text for the model: the tool's result or the error message."""

    def __bool__(self) -> bool:
        return self.tool_name is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolEvent:
    """Record of one call, from which rewards and metrics are computed."""

    call: ToolCall
    outcome: ToolOutcome
    seconds: float = 0.0
    """Wall-clock seconds from the request to the result, including waiting."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further data from the tool, for example the ids of the chunks that it found. JSON values only."""


@dataclass(kw_only=True, slots=True)
class Turn:
    """One answer of the policy, from one reply (or the prompt) to the next, including its thoughts and calls.

    Examples:
        >>> turn = Turn(turn_number=1, model_output="Hello.")
        >>> turn["model_output"], turn["turn"]
        ('Hello.', 1)
    """

    turn_number: int = 1
    """1, 2, …"""
    model_output: str = ""
    """The policy's text, without tool results."""
    answer: str | None = _UNREAD
    """The policy's answer: the text after its thought, or the text that the chat template marks (gpt-oss: the channel `final`).
    None if a thought is not closed, the mark is missing, or the turn ends with calls. Read from `model_output` by default."""
    begins_in_thought: bool = False
    """Whether the chat template opened the thought that the policy continues."""
    think_tags: tuple[str, str] = THINK_TAGS
    """What opens and closes a thought in `model_output`, as the call format of the policy says."""
    parsed_action: ParsedAction | None = None
    """The first call of the turn; None if there was none."""
    tool_call: ToolCall = field(default_factory=ToolCall)
    """The executed first call with its result; empty and falsy if there was no call."""
    observation: str | None = None
    """Reply of the environment or the user; in a conversation by hand, the results of calls. None if there was none."""
    reward: float = 0.0
    """Reward from the environment for this turn."""
    done: bool = False
    """Whether the episode ended with this turn."""
    info: Mapping[str, Any] | None = None
    """`info` of the environment's `step`; None if the turn was no step."""

    def __post_init__(self) -> None:
        if self.answer is _UNREAD:
            self.answer = text_after_thought(self.model_output, in_thought=self.begins_in_thought, tags=self.think_tags)

    def __getitem__(self, name: str) -> Any:
        """Returns a field; in the setup package's summaries, they are called `turn`, `response` and `tool_result`, too."""
        if name == "tool_result":
            return self.tool_call.result
        name = {"turn": "turn_number", "response": "model_output"}.get(name, name)
        if name not in self.__dataclass_fields__:
            raise KeyError(f"a turn has no {name!r}. {near_names(str(name), self.__dataclass_fields__)}")
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the field of that name, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default
