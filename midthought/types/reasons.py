"""Closed sets: why an episode or a completion ended, where tokens come from, how a call ended."""

from __future__ import annotations

import enum


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


class Finish(enum.StrEnum):
    """Why one call of `engine.sample` ended."""

    CALL = "call"
    """The stopper found the end of a call inside the last token."""
    END = "end"
    """An end-of-sequence token was sampled; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_tokens` were sampled."""


class SpanKind(enum.StrEnum):
    """Origin of a run of tokens. It determines the loss mask: only SAMPLED tokens are trained on."""

    PROMPT = "prompt"
    SAMPLED = "policy"
    RESULT = "tool"
    REPLY = "reply"


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
