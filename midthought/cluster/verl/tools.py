"""Wraps our tools for verl and verl's tools for us. `tools.yaml` names this module, and verl imports it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from midthought.config.references import load
from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.executor import ToolExecutor
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


def as_midthought_tool(tool: Any) -> Tool:
    """Returns a tool of verl's tool configuration for our loop: our own tool, or a wrapper of one of verl's tools."""
    return tool.tool if isinstance(tool, VerlTool) else _WrappedVerlTool(tool)


class _WrappedVerlTool(Tool):
    """A tool that was written for verl: a `BaseTool`, or a function registered with `@function_tool`.

    A `BaseTool` gets one instance per episode (`create`, `release`), created by its first call. Its step rewards are ignored:
    rewards are computed from the record.
    """

    def __init__(self, tool: Any) -> None:
        schema = tool.tool_schema.model_dump(exclude_none=True)["function"]
        arguments = copy.deepcopy(schema["parameters"])
        required = arguments.get("required", [])
        parameters = [
            ToolParameter(name, _type_of(each), each.get("description", ""), required=name in required, schema=each)
            for name, each in arguments.get("properties", {}).items()
        ]
        self.definition = ToolDefinition(schema["name"], schema["description"], parameters, arguments)
        self._tool = tool
        self._instance_id: str | None = None

    @property
    def is_stateful(self) -> bool:
        return isinstance(self._tool, BaseTool)

    async def open(self, episode: ToolEpisode) -> _WrappedVerlTool:
        """Returns a copy with its own instance."""
        opened = copy.copy(self)
        opened._instance_id, _ = await self._tool.create(uuid4().hex)
        return opened

    async def close(self) -> None:
        """Releases the instance."""
        await self._tool.release(self._instance_id)

    async def execute(self, **parameters: Any) -> ToolOutput:
        """Runs the call like verl's own agent loop; outside of an episode, with an instance for this call only."""
        if not isinstance(self._tool, BaseTool):
            return ToolOutput(str(await self._tool.call(parameters)))
        if self._instance_id is None:
            opened = await self.open(ToolEpisode(task=Task(task_id="", prompt="", answer="")))
            try:
                return await opened.execute(**parameters)
            finally:
                await opened.close()
        response, step_reward, _ = await self._tool.execute(self._instance_id, parameters)
        return ToolOutput(response.text or "", {"step_reward": float(step_reward or 0.0)})


def _type_of(schema: Mapping[str, Any]) -> str:
    said = schema["type"]
    return str(said) if isinstance(said, str) else str(said[0])
