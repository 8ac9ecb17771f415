"""Our rollout loop as an agent loop of verl. `agent_loop.yaml` names this module, and verl imports it.

Our `Renderer` tokenizes prompts, calls and results, so verl trains on the same token ids that its servers saw.
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

from midthought.cluster.verl.engine import VerlEngine, call_end_token_ids
from midthought.cluster.verl.job import EpisodeSetup
from midthought.cluster.verl.record import RECORD, record_of, response_of, task_of
from midthought.cluster.verl.settings import LoopOptions
from midthought.cluster.verl.tools import tool_of
from midthought.config.references import load
from midthought.errors import DataError, EpisodeError
from midthought.rollout.episode import RolloutParts, run_episode
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.types import StopReason, Trajectory


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
