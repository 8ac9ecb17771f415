"""The turns of one conversation with tools: what a model wrote goes in, its calls are run, what came of them is kept.

Knows parsers and tools; knows nothing of engines, tokens or chat templates, and of an environment only whether it is done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from midthought.errors import SettingsError
from midthought.tools.definition import ToolEpisode
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome, Turn

T = TypeVar("T")

_NOT_A_TOOL = (ToolOutcome.MALFORMED, ToolOutcome.UNKNOWN_TOOL)


class MultiTurnManager:
    """Keeps the turns of a conversation and runs the calls in them, whoever samples the text.

    >>> from midthought.tools.builtin.calculate import CalculateTool
    >>> from midthought.tools.parsers import HermesParser
    >>> manager = MultiTurnManager(ToolRegistry([CalculateTool()]), HermesParser())
    >>> asked = '<tool_call>{"name": "calculate", "arguments": {"expression": "6 * 7"}}</tool_call>'
    >>> manager.step(asked).tool_call.result, manager.step("It is 42.").tool_call.result
    ('42', None)

    Args:
        tool_registry: the tools; a ToolExecutor where deadlines and limits are to be others than its defaults.
        action_parser: finds the calls in a text.
        environment: anything; where it has `is_done()`, the conversation ends when that is true.
        max_turns: turns after which `should_continue` says no.

    Raises:
        SettingsError: an argument of another type, or `max_turns` below 1.
    """

    def __init__(
        self,
        tool_registry: ToolRegistry | ToolExecutor,
        action_parser: ActionParser,
        environment: Any = None,
        max_turns: int = 5,
    ) -> None:
        if not isinstance(tool_registry, ToolRegistry | ToolExecutor):
            raise SettingsError(f"tool_registry={tool_registry!r:.80}: give a ToolRegistry, or a ToolExecutor of one")
        if not isinstance(action_parser, ActionParser):
            raise SettingsError(
                f"action_parser={action_parser!r:.80}: give an ActionParser, for example HermesParser()"
            )
        if max_turns < 1:
            raise SettingsError(f"max_turns={max_turns}: a conversation has at least one turn")
        self.executor = tool_registry if isinstance(tool_registry, ToolExecutor) else ToolExecutor(tool_registry)
        self.parser = action_parser
        self.environment = environment
        self.max_turns = max_turns
        self._tools: EpisodeTools | None = None
        self.reset()

    def reset(self) -> None:
        """Begin another conversation: forget the turns, close stateful tools. The environment is left alone."""
        if self._tools is not None:
            _wait_for(self._tools.close())
            self._tools = None
        self.turns: list[Turn] = []
        self.tool_events: list[ToolEvent] = []
        """Every call of the conversation, in order, with what became of it."""
        self._num_new_events = 0

    def step(self, model_output: str, environment_obs: str | None = None) -> Turn:
        """Take the next turn: find its calls and run them, all at once, each under the tool executor's deadline.

        `Turn.tool_call` is the first of them, falsy and without a result where nothing was called; what went wrong is
        its result, in words for the model. `environment_obs` is kept as the turn's observation. It never refuses a turn:
        `should_continue` says when to stop. Works inside running event loops; it blocks until the last call has ended.
        """
        actions = self.parser.parse_all(model_output)
        events = self._run(actions, environment_obs or "") if actions else []
        turn = Turn(
            turn_number=len(self.turns),
            model_output=model_output,
            parsed_action=actions[0] if actions else None,
            tool_call=events[0].call if events else ToolCall(),
            observation=environment_obs,
        )
        self.turns.append(turn)
        self.tool_events += events
        self._num_new_events = len(events)
        return turn

    def follow(self, turns: Iterable[Turn], tool_events: Iterable[ToolEvent]) -> None:
        """Stand where a conversation stands that somebody else drives (`MultiTurnInferenceEngine` does)."""
        self.reset()
        self.turns.extend(turns)
        self.tool_events.extend(tool_events)

    def should_continue(self) -> bool:
        """Whether another turn may be taken: fewer than `max_turns` so far, and the environment is not done."""
        is_done = getattr(self.environment, "is_done", None)
        return len(self.turns) < self.max_turns and not (callable(is_done) and is_done())

    def get_system_prompt(self) -> str:
        """What the tools are, and how to call them; empty without tools."""
        return self.parser.call_format.instructions(self.executor.registry.definitions())

    def get_tool_results(self) -> str:
        """What the model is to read of all calls of the last `step`, as the call format writes it; empty without calls."""
        events = self.tool_events[len(self.tool_events) - self._num_new_events :]
        call_format = self.parser.call_format
        if not events or call_format.stops_at_call:
            return call_format.render_results(events) if events else ""
        return "\n".join(call_format.render_results([event]) for event in events)

    def get_episode_summary(self) -> dict[str, Any]:
        """`num_turns`, the figures of `tool_figures`, and `turns`, the list of them."""
        return {"num_turns": len(self.turns), **tool_figures(self.tool_events), "turns": list(self.turns)}

    def _run(self, actions: Sequence[ParsedAction], prompt: str) -> list[ToolEvent]:
        task = Task(task_id=f"turn-{len(self.turns)}", prompt=prompt, answer="")
        if self._tools is None:
            self._tools = self.executor.for_episode(ToolEpisode(task=task, environment=self.environment))
        return _wait_for(self.executor.run(actions, task, tools=self._tools))


def tool_figures(events: Sequence[ToolEvent]) -> dict[str, Any]:
    """`num_tool_calls` (whatever became of them), `successful_tool_calls`, and `tools_used`: the names of the tools that
    were called, each once, in order."""
    used = dict.fromkeys(event.call.tool_name for event in events if event.outcome not in _NOT_A_TOOL)
    return {
        "num_tool_calls": len(events),
        "successful_tool_calls": sum(event.outcome is ToolOutcome.OK for event in events),
        "tools_used": list(used),
    }


def _wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine on an event loop of its own, in a thread: the caller may stand in a running loop.

    A call that would not be cancelled may keep that thread, but not the caller.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def settle() -> None:
        try:
            future.set_result(await coroutine)
        except BaseException as error:
            future.set_exception(error)

    def work() -> None:
        asyncio.run(settle())

    threading.Thread(target=work, name="midthought-turn", daemon=True).start()
    return future.result()
