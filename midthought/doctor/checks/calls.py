"""Checks of the calls: every tool can be called in the call format, read back token by token, and answered."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from midthought.doctor.registry import check
from midthought.doctor.scripted import Line, example_call, play, written
from midthought.doctor.setup import PolicyParts, Setup, SkippedError
from midthought.errors import DataError, SettingsError
from midthought.guards.finding import Finding
from midthought.types import Task, ToolOutcome, Trajectory

RESULT = "Ada Lovelace"
_TASK = Task(task_id="doctor", prompt="Who?", answer="")


@check("calls", is_fast=True)
def calls(setup: Setup) -> Iterator[Finding]:
    """A call of every tool is written in the call format, found in the policy's tokens, run with the same arguments, and its
    result is inserted after it. Sampling stops after the call's last token."""
    parts = setup.parts
    if not parts.registry:
        return
    task = setup.tasks[0] if setup.tasks else _TASK
    num_tools = 0
    for definition in parts.registry.definitions():
        call = example_call(parts.registry, definition)
        if call is None:
            continue
        num_tools += 1
        yield from _not_taken(parts, call)
        try:
            script = written(parts, task, Line(answer="Ada", call=call, result=RESULT))
        except (DataError, SettingsError) as error:
            yield _not_read(parts, call, error)
            continue
        (episode,) = play(parts, setup.config.inference, [script], result=RESULT)
        yield from _differences(parts, call, script, episode)
    if not num_tools and len(parts.registry):
        raise SkippedError("no example arguments fit the schemas of the tools")


def _not_taken(parts: PolicyParts, call: tuple[str, dict[str, Any]]) -> Iterator[Finding]:
    """Reports a function that does not accept the arguments of the tool's description."""
    name, arguments = call
    tool = parts.registry.get(name)
    try:
        inspect.signature(tool.execute if tool else lambda **_: "").bind(**arguments)
    except TypeError as error:
        yield Finding(
            subject=name,
            observation=f"every call of {name!r} fails: the parameters of its definition are {', '.join(arguments)}, and its "
            f"execute has others ({error})",
            causes=("a parameter was renamed in one of the two places",),
            action="give execute the parameters of the definition, or make the tool from the function (@tool)",
        )
    except ValueError:  # a function of C has no signature
        return


def _not_read(parts: PolicyParts, call: tuple[str, dict[str, Any]], error: Exception) -> Finding:
    name, arguments = call
    text = parts.call_format.render_call(name, arguments)
    scanner = parts.call_format.scanner(in_thought=True)
    scanner.feed(text)
    whole = [(each.tool_name, dict(each.parameters)) for each in scanner.take()]
    if whole == [call]:
        return Finding(
            subject=name,
            observation=f"a call of {name!r} is found in its whole text and not token by token, so sampling does not stop at it: "
            f"{text[:80]!r}",
            causes=("the call format waits for a piece of text that this tokenizer splits into several tokens",),
            action="let the scanner collect text over pieces (StreamingCallFormat does), or add the marker to the tokenizer",
        )
    return Finding(
        subject=name,
        observation=f"a call of {name!r} cannot be read back in the call format {parts.call_format.name!r}: {error}",
        causes=("the format cannot write these arguments: names or types of its parameters",),
        action="rename the parameters or give them simpler types, or choose another call_format (docs/chat_templates.md)",
    )


def _differences(
    parts: PolicyParts, call: tuple[str, dict[str, Any]], script: Trajectory, episode: Trajectory
) -> Iterator[Finding]:
    name = call[0]
    run = [(event.call.tool_name, dict(event.call.parameters)) for event in episode.tool_events]
    if run != [call] or episode.tool_events[0].outcome is not ToolOutcome.OK:
        said = episode.error or (episode.tool_events[0].call.result if episode.tool_events else "no call was found")
        yield Finding(
            subject=name,
            observation=f"an episode that calls {name!r} with {call[1]!r:.80} runs {run!r:.120} ({said!s:.120})",
            causes=("the call format reads a call in another way than it writes it",),
            action="compare render_call and the scanner of the call format, or choose another call_format",
        )
    elif episode.token_ids != script.token_ids:
        yield Finding(
            subject=name,
            observation=f"an episode with a call of {name!r} has other tokens than its demonstration: sampling stops at another "
            "position, or the result is written differently",
            causes=("the call ends inside a token that also holds the text after it",),
            action="choose another call_format, or end the call with a control token",
        )
