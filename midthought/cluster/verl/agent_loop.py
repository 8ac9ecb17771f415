"""Our rollout loop as an agent loop of verl, and our tools for verl. `agent_loop.yaml` and `tools.yaml` name this module, and
verl imports it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from midthought.cluster.verl.engine import VerlEngine, call_end_token_ids
from midthought.cluster.verl.job import EpisodeSetup
from midthought.cluster.verl.record import RECORD, record_of, response_of, task_of
from midthought.cluster.verl.settings import LoopOptions
from midthought.config.references import load
from midthought.errors import DataError, EpisodeError, SettingsError
from midthought.rollout.episode import RolloutParts, run_episode
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.definition import Tool, ToolEpisode
from midthought.tools.executor import EpisodeTools, ToolExecutor
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, StopReason, Task, Trajectory

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


@dataclass(frozen=True)
class _Shared:
    """Objects that all episodes of a worker share."""

    parts: RolloutParts
    options: LoopOptions
    stop_token_ids: list[int]
    sources: tuple[Any, ...]
    """Tokenizer and tools. Kept alive because their `id`s are part of the cache key."""


_shared: dict[tuple[Any, ...], _Shared] = {}
"""Cache: verl creates an agent loop per episode, and reading a tokenizer takes about a second."""


class MidthoughtAgentLoop(AgentLoopBase):
    """Runs one episode: sample, run each call when it ends, insert its result, continue sampling, score.

    `options`: the fields of `LoopOptions`; `tools` come from verl's tool configuration.
    """

    def __init__(self, *args: Any, tools: Any = None, options: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given, template = _plain(options or {}), _plain(self.apply_chat_template_kwargs)
        self._shared = _share(self.tokenizer, tuple(tools.tools) if tools else (), given, template)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Runs the episode of one row of the data.

        Raises `DataError` if the prompt is not plain text or too long, `EpisodeError` if the episode failed: verl then counts
        its group as failed.
        """
        shared, rollout = self._shared, self.rollout_config
        prompt_ids = _prompt_ids(shared.parts.renderer, kwargs, rollout.prompt_length)
        engine = VerlEngine(
            self.server_manager,
            sampling_params,
            eos_token_ids=shared.parts.renderer.eos_token_ids,
            stop_token_ids=shared.stop_token_ids,
            request_id=f"det-{int(priority)}" if rollout.get("full_determinism") else uuid4().hex,
            priority=int(priority),
        )
        inference = shared.options.inference(
            max_tokens=rollout.response_length,
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params["top_p"]),
        )
        trajectory = Trajectory(task_of(kwargs), prompt_ids)
        await run_episode(dataclasses.replace(shared.parts, engine=engine, inference=inference), trajectory, 0)
        if trajectory.stop_reason is StopReason.FAILED:
            raise EpisodeError(f"task {trajectory.task.task_id!r}: {trajectory.error}")
        return _output(trajectory, engine, with_logprobs=bool(sampling_params.get("logprobs")))


def _plain(values: Any) -> dict[str, Any]:
    return dict(OmegaConf.to_container(values, resolve=True) if isinstance(values, DictConfig) else values)


def _output(trajectory: Trajectory, engine: VerlEngine, *, with_logprobs: bool) -> AgentLoopOutput:
    response = response_of(trajectory, with_logprobs=with_logprobs)
    metrics = {"generate_sequences": trajectory.engine_seconds, "tool_calls": trajectory.tool_seconds}
    if engine.num_preempted is not None:
        metrics["num_preempted"] = engine.num_preempted
    return AgentLoopOutput(
        prompt_ids=response.prompt_ids,
        response_ids=response.response_ids,
        response_mask=response.response_mask,
        response_logprobs=response.response_logprobs,
        num_turns=len(trajectory.spans),
        metrics=AgentLoopMetrics(**metrics),
        extra_fields={**engine.extra_fields, "turn_scores": [], "tool_rewards": [], RECORD: record_of(trajectory)},
    )


def _prompt_ids(renderer: Renderer, row: Mapping[str, Any], max_length: int) -> list[int]:
    messages = [dict(message) for message in row["raw_prompt"]]
    where = f"row {row.get('index', '?')}"
    if strange := next((message for message in messages if not isinstance(message.get("content"), str)), None):
        raise DataError(
            f"{where}: the content of a message is {strange.get('content')!r:.60}; only plain text is supported"
        )
    token_ids = renderer.prompt(messages)
    if len(token_ids) > max_length:
        raise DataError(
            f"{where}: its prompt has {len(token_ids)} tokens, actor_rollout_ref.rollout.prompt_length is {max_length}; "
            "raise it, or exclude such rows with a lower data.max_prompt_length and data.filter_overlong_prompts=true"
        )
    return token_ids


def _share(tokenizer: Any, tools: tuple[Any, ...], given: Mapping[str, Any], template: Mapping[str, Any]) -> _Shared:
    """Returns the shared objects for these arguments; created once per worker."""
    words = json.dumps([given, template], sort_keys=True, default=str)
    key = (id(tokenizer), *map(id, tools), words)
    if key not in _shared:
        _shared[key] = _make(tokenizer, tools, LoopOptions(**given), template)
    return _shared[key]


def _make(tokenizer: Any, tools: tuple[Any, ...], options: LoopOptions, template: Mapping[str, Any]) -> _Shared:
    renderer = Renderer(tokenizer, template)
    ours = [tool_of(tool) for tool in tools]
    supply = load(options.supply)(renderer, ours, options.supply_options) if options.supply else EpisodeSetup()
    registry = ToolRegistry(ours)
    if supply.call_format is None and options.call_format == "auto":
        chosen = choose_call_format(renderer, registry.definitions())
        call_format, renderer = chosen.call_format, chosen.renderer
    else:
        call_format = supply.call_format or find_call_format(options.call_format)
    parts = RolloutParts(
        engine=None,  # type: ignore[arg-type]  # every episode's own
        renderer=renderer,
        call_format=call_format,
        executor=supply.executor or ToolExecutor(registry, timeout_seconds=options.tool_timeout_seconds),
        messages=lambda task: task.messages(),
        environment=supply.environment,
    )
    ends = options.call_ends_with if call_format.stops_at_call else ""
    stop_token_ids = call_end_token_ids(tokenizer.get_vocab(), ends)
    return _Shared(parts, options, stop_token_ids, (tokenizer, *tools))
