"""Wraps our tools for verl. `tools.yaml` names this module, and verl imports it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from midthought.config.references import load
from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolEpisode
from midthought.tools.executor import EpisodeTools, ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task

DEADLINE_SECONDS = 10.0
"""Default deadline of a call."""


class VerlTool(BaseTool):
    """One of our tools, with argument checks and deadline, for any agent loop of verl.

    `config`: `tool` (`module:name` of a tool, its class, or a function that creates it), its `options`, and
    `timeout_seconds`. The default schema is the tool's own. A tool that depends on the task (`for_task`, `open`) needs it in
    the row: `extra_info.tools_kwargs.NAME.create_kwargs.task`, a task as JSON; our own agent loop always provides it. A
    stateful tool is opened once per instance, from verl's `create` to `release`; it gets no environment.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:
        self.tool = make_tool(config.get("tool", ""), config.get("options") or {})
        own_schema = OpenAIFunctionToolSchema.model_validate(self.tool.definition.json_schema())
        super().__init__(config, tool_schema or own_schema)
        if self.name != self.tool.definition.name:
            raise SettingsError(
                f"tool_schema names {self.name!r}, config.tool creates {self.tool.definition.name!r}; use the same name in both"
            )
        self._executor = ToolExecutor(
            ToolRegistry([self.tool]), timeout_seconds=float(config.get("timeout_seconds", DEADLINE_SECONDS))
        )
        self._instances: dict[str, tuple[Task, EpisodeTools]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Creates an instance for the calls of one row's episode."""
        instance_id = instance_id or uuid4().hex
        written = (kwargs.get("create_kwargs") or {}).get("task")
        task = (
            Task(task_id=instance_id, prompt="", answer="") if written is None else Task.from_dict(json.loads(written))
        )
        self._instances[instance_id] = task, self._executor.for_episode(ToolEpisode(task=task))
        return instance_id, ToolResponse()

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Removes the instance and closes its tools."""
        if instance_id in self._instances:
            _, tools = self._instances.pop(instance_id)
            await tools.close()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Runs one call. Failures are returned as text in the response, as in our loop. The reward is 0."""
        action = ParsedAction(tool_name=self.name, parameters=parameters, raw_text="", success=True)
        task, tools = self._instances[instance_id]
        [event] = await self._executor.run([action], task, tools=tools)
        metrics = {"outcome": str(event.outcome), "seconds": event.seconds}
        return ToolResponse(text=event.call.result), 0.0, metrics


def make_tool(reference: str, options: Mapping[str, Any]) -> Tool:
    """Returns the tool that `module:name` is or creates. Raises `SettingsError` if it is not a tool."""
    named = load(reference)
    made = named if isinstance(named, Tool) else named(**options)
    if not isinstance(made, Tool):
        raise SettingsError(f"{reference!r} creates a {type(made).__name__}, not a midthought tool")
    return made


def tool_of(tool: Any) -> Tool:
    """Returns our tool in an entry of verl's tool configuration. Raises `SettingsError` for a tool that was written for verl."""
    if not isinstance(tool, VerlTool):
        raise SettingsError(
            f"the tool configuration holds the tool {tool.name!r} of verl, and our agent loop runs tools of midthought: write "
            f"it with @tool, and name it in `config.tool` of class_name {__name__}.VerlTool"
        )
    return tool.tool
