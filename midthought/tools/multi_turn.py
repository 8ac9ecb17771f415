"""A conversation with tools, turn by turn: runs the calls in each model output and records them.

Does not depend on engines, tokens or chat templates; of an environment it only uses `is_done`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.call_formats import ActionParser
from midthought.tools.definition import ToolEpisode
from midthought.tools.executor import EpisodeTools, ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome, Turn

_loop = BackgroundLoop("midthought-turns")
"""Runs the calls of all conversations: not the tools' event loop, which a tool may block."""


class MultiTurnManager:
    """Records the turns of a conversation and runs the calls in them. The caller samples the text.

    Examples:
        >>> from midthought.tools.builtin.calculate import CalculateTool
        >>> from midthought.tools.parsers import HermesParser
        >>> manager = MultiTurnManager(ToolRegistry([CalculateTool()]), HermesParser())
        >>> asked = '<tool_call>{"name": "calculate", "arguments": {"expression": "6 * 7"}}</tool_call>'
        >>> manager.step(asked).tool_call.result, manager.step("It is 42.").tool_call.result
        ('42', None)

    Args:
        tool_registry: the tools, or a ToolExecutor with other deadlines and limits than the defaults.
        action_parser: finds the calls in a text.
        environment: any object; if it has `is_done()`, the conversation ends when that returns True.
        max_turns: number of turns after which `should_continue` returns False.

    Raises:
        SettingsError: if an argument has another type, or `max_turns` is below 1.
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
            remedy = "give an ActionParser, for example HermesParser()"
            raise SettingsError(f"action_parser={action_parser!r:.80}: {remedy}")
        if max_turns < 1:
            raise SettingsError(f"max_turns={max_turns}: a conversation has at least one turn")
        self.executor = tool_registry if isinstance(tool_registry, ToolExecutor) else ToolExecutor(tool_registry)
        self.action_parser = action_parser
        self.environment = environment
        self.max_turns = max_turns
        self._tools: EpisodeTools | None = None
        self.reset()

    @property
    def tool_registry(self) -> ToolRegistry:
        """The tools."""
        return self.executor.registry

    def reset(self) -> None:
        """Starts a new conversation: removes the turns and closes stateful tools. The environment is not changed."""
        if self._tools is not None:
            _loop.run(self._tools.close())
            self._tools = None
        self.turns: list[Turn] = []
        self.tool_events: list[ToolEvent] = []
        """Every call of the conversation, in order, with its outcome."""
        self._num_new_events = 0

    def step(self, model_output: str, environment_obs: str | None = None) -> Turn:
        """Records the next turn: finds its calls and runs them concurrently, each under the tool executor's deadline.

        `Turn.tool_call` is the first call; it is falsy and has no result if there was no call. The result of a failed call
        is an error message for the model. `Turn.observation` holds the results of the calls, one per line; without a call it is
        `environment_obs`. Never refuses a turn: ask `should_continue` when to stop. Works inside running event loops; blocks
        until the last call has ended.
        """
        actions = list(self.action_parser.parse_all(model_output))
        events = self._run(actions, environment_obs or "") if actions else []
        turn = Turn(
            turn_number=len(self.turns) + 1,
            model_output=model_output,
            parsed_action=actions[0] if actions else None,
            tool_call=events[0].call if events else ToolCall(),
            observation="\n".join(event.call.result or "" for event in events) if events else environment_obs,
        )
        if actions:
            turn.answer = None
        self.turns.append(turn)
        self.tool_events += events
        self._num_new_events = len(events)
        return turn

    def follow(self, turns: Iterable[Turn], tool_events: Iterable[ToolEvent]) -> None:
        """Copies the state of a conversation that is driven elsewhere (by `MultiTurnInferenceEngine`)."""
        self.reset()
        self.turns.extend(turns)
        self.tool_events.extend(tool_events)

    def should_continue(self) -> bool:
        """Returns whether another turn is allowed: fewer than `max_turns` so far, and the environment is not done."""
        is_done = getattr(self.environment, "is_done", None)
        return len(self.turns) < self.max_turns and not (callable(is_done) and is_done())

    def get_system_prompt(self) -> str:
        """Returns the description of the tools and of the syntax of a call; empty without tools."""
        return self.action_parser.call_format.instructions(self.executor.registry.definitions())

    def get_tool_results(self) -> str:
        """Returns the results of all calls of the last `step` in the call format; empty without calls."""
        events = self.tool_events[len(self.tool_events) - self._num_new_events :]
        call_format = self.action_parser.call_format
        if not events or call_format.stops_at_call:
            return call_format.render_results(events) if events else ""
        return "\n".join(call_format.render_results([event]) for event in events)

    def get_episode_summary(self) -> dict[str, Any]:
        """Returns `num_turns`, the values of `tool_metrics`, and `turns` (a list)."""
        return {"num_turns": len(self.turns), **tool_metrics(self.tool_events), "turns": list(self.turns)}

    def _run(self, actions: Sequence[ParsedAction], prompt: str) -> list[ToolEvent]:
        task = Task(task_id=f"turn-{len(self.turns)}", prompt=prompt, answer="")
        if self._tools is None:
            self._tools = self.executor.for_episode(ToolEpisode(task=task, environment=self.environment))
        return _loop.run(self.executor.run(actions, task, tools=self._tools))


def tool_metrics(events: Sequence[ToolEvent]) -> dict[str, Any]:
    """Returns `num_tool_calls` (with any outcome), `successful_tool_calls`, and `tools_used`: the names of the tools that
    were called, each once, in order."""
    used = dict.fromkeys(event.call.tool_name for event in events if event.outcome.is_of_tool)
    return {
        "num_tool_calls": len(events),
        "successful_tool_calls": sum(event.outcome is ToolOutcome.OK for event in events),
        "tools_used": list(used),
    }
