"""Creates a trainer's engine and rollout sources: the prompt of each episode, and the sources that run the episodes."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from midthought.config import InferenceConfig, RayConfig, RecipeConfig
from midthought.engines.engine import TrainedEngine
from midthought.engines.policy_engine import check_backend, policy_engine
from midthought.env.environment import EpisodeError
from midthought.errors import SettingsError
from midthought.models.memory import max_positions
from midthought.rollout.episode import EpisodeEnvironment, RolloutParts
from midthought.rollout.episode_source import EpisodeSource, LocalEpisodeSource
from midthought.rollout.groups import Pace
from midthought.rollout.in_flight import InFlightEpisodes
from midthought.rollout.resuming import Journal
from midthought.tokenization import Renderer
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.call_formats import ActionParser, ToolCallFormat
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.trainer.tasks import TrainingTasks
from midthought.types import Task

MAX_LENGTH = 4096
"""Maximum tokens of a sequence if the model does not define it, and of a small model that is created here."""


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Builds the prompt of every episode: the system prompt, the tool instructions, then the task.

    If the chat template describes the tools, there are no instructions.
    """

    system_prompt: str
    registry: ToolRegistry
    call_format: ToolCallFormat
    describes_tools: bool = True
    is_native: bool = False
    """Whether `in_model_format` replaces `call_format` if there are tools."""

    def instructions(self) -> str:
        """Returns the tool descriptions and call instructions; empty if the prompt does not describe tools."""
        return self.call_format.instructions(self.registry.definitions()) if self.describes_tools else ""

    def messages(self, task: Task) -> list[Mapping[str, str]]:
        """Returns the messages before the policy's first token."""
        return task.messages(self.system_prompt, self.instructions())


AUTO_CALL_FORMAT = "auto"
"""The model's own call format, if its chat template has one; otherwise `#call` in the thought."""


def as_call_format(given: str | ActionParser) -> ToolCallFormat:
    """Returns the call format of a name or a parser, or the given call format; for `auto`, what is used until the tokenizer is
    known (`in_model_format`). Raises SettingsError for anything else."""
    if given == AUTO_CALL_FORMAT:
        return InThoughtFormat()
    if isinstance(given, str):
        return find_call_format(given)
    if not isinstance(given, ActionParser):
        raise SettingsError(
            f"call_format={given!r}: give a name, an ActionParser or a ToolCallFormat (an object, not a class)"
        )
    return given.call_format


def in_model_format(prompts: PromptBuilder, renderer: Renderer) -> tuple[PromptBuilder, Renderer, str]:
    """Returns the prompts in the model's own call format, the renderer that describes the tools, and a line for the user; both
    unchanged and no line unless `is_native`, and without tools."""
    definitions = prompts.registry.definitions()
    if not prompts.is_native or not definitions:
        return prompts, renderer, ""
    chosen = choose_call_format(renderer, definitions, describe_tools=prompts.describes_tools)
    return dataclasses.replace(prompts, call_format=chosen.call_format), chosen.renderer, chosen.reason


@dataclass(frozen=True, slots=True)
class EpisodeFactory:
    """Creates the environment of every episode. Raises EpisodeError if the prompt is too long for the model, unless an agent
    writes it."""

    renderer: Renderer
    prompts: PromptBuilder
    max_seq_len: int
    episode: Callable[[Task], EpisodeEnvironment]

    def __call__(self, task: Task) -> EpisodeEnvironment:
        environment = self.episode(task)
        num_tokens = len(self.renderer.prompt(self.prompts.messages(task)))
        if num_tokens >= self.max_seq_len and not hasattr(environment, "play"):
            raise EpisodeError(
                f"the prompt of task {task.task_id!r} has {num_tokens} tokens, and a sequence may have {self.max_seq_len}; "
                "shorten it, set inference.max_seq_len, or take a model with more positions"
            )
        return environment


def longest_sequence(longest_prompt: int | None, inference: InferenceConfig, model_config: Any) -> int:
    """Returns `inference.max_seq_len`; if it is `auto`, what the tasks need, at most what the model allows.

    `longest_prompt` None: unknown before the episodes run. An engine outside this process reserves memory for the longest
    sequence, so it then gets room for prompts of `MAX_LENGTH` tokens only.
    """
    allowed = max_positions(model_config)
    if inference.max_seq_len != "auto":
        if allowed is not None and inference.max_seq_len > allowed:
            raise SettingsError(
                f"inference.max_seq_len={inference.max_seq_len}: the model has {allowed} positions; set at most that "
                "(a model with LongRoPE is used up to the length before its extension)"
            )
        return inference.max_seq_len
    if longest_prompt is not None:
        return min(longest_prompt + inference.max_tokens, allowed or sys.maxsize)
    if inference.engine == "local":
        return allowed or MAX_LENGTH
    return min(allowed or MAX_LENGTH, MAX_LENGTH + inference.max_tokens)


# -- where episodes run ----------------------------------------------------------------------------------------


def check_source(inference: InferenceConfig, ray: RayConfig, max_staleness: int = 0) -> None:
    """Raises SettingsError if the settings request unsupported rollouts, MissingExtraError if a package is missing."""
    check_backend(inference)
    if ray.use_ray or ray.num_learners > 1:
        from midthought.cluster.ray.ray_cluster import check_ray

        check_ray(ray, inference)
    if max_staleness and (ray.use_ray or ray.num_learners > 1):
        raise SettingsError(
            f"training.max_staleness={max_staleness} with Ray: on Ray no episode outlives its iteration; set it "
            "to 0, or ray.use_ray to false and ray.num_learners to 1"
        )
    if max_staleness and inference.deterministic and inference.overlap is True:
        raise SettingsError(
            "inference.overlap=true with inference.deterministic: what overlaps depends on time; set one of the two to false"
        )


def _checksum(policy: Any) -> int:
    """Returns the sum of the trained weights, read as integers of 16 bits. It does not depend on the order of summation."""
    trained = [weights.data for weights in policy.parameters() if weights.requires_grad]
    return sum(int(weights.flatten().view(torch.int16).sum(dtype=torch.int64)) for weights in trained)


def open_sources(
    policy: Any,
    learned: Any,
    renderer: Renderer,
    prompts: PromptBuilder,
    tasks: TrainingTasks,
    config: RecipeConfig,
    *,
    model_path: str = "",
    longest_prompt: int | None = None,
    journal: Journal | None = None,
) -> tuple[TrainedEngine, EpisodeSource, EpisodeSource]:
    """Creates an engine, and the sources of training and of held-out episodes, which share it. Close one of them after use.

    `learned`: what the learner trains, the policy itself or the policy with adapters; None: the policy is not trained here.
    `model_path`: folder with the weights of `policy`, if any. `longest_prompt`: its tokens, if they were counted before.
    `journal`: of the training episodes (`InFlightEpisodes`).
    """
    inference, ray, seed = config.inference, config.ray, config.training.seed
    longest = longest_prompt or tasks.longest_prompt(lambda task: len(renderer.prompt(prompts.messages(task))))
    max_seq_len = longest_sequence(longest, inference, policy.config)
    sampling = inference.changed(backend="local") if ray.use_ray else inference
    engine = policy_engine(policy, learned, renderer, sampling, model_path=model_path, max_seq_len=max_seq_len)
    workers = None
    if ray.use_ray:
        from midthought.cluster.ray.ray_rollouts import RayEpisodeSource, RolloutWorkerGroup

        given: dict[str, Any] = {"renderer": renderer, "inference": inference, "max_seq_len": max_seq_len}
        of_worker = functools.partial(policy_engine, trained=None, model_path="", **given)
        workers = RolloutWorkerGroup(ray, policy, of_worker, is_deterministic=inference.deterministic)
    loop = BackgroundLoop("midthought-rollout")
    # servers have own limits
    silence_seconds = ray.silence_timeout_seconds if inference.engine == "local" else math.inf

    def source(episode: Callable[[Task], EpisodeEnvironment], *, is_stream: bool) -> EpisodeSource:
        parts = RolloutParts(
            engine=engine,
            renderer=renderer,
            call_format=prompts.call_format,
            executor=ToolExecutor(prompts.registry, timeout_seconds=inference.tool_timeout_seconds),
            messages=prompts.messages,
            environment=EpisodeFactory(renderer, prompts, engine.max_seq_len, episode),
            inference=inference.changed(max_seq_len=engine.max_seq_len),
        )
        if workers is not None:
            return RayEpisodeSource(parts, engine, workers, seed=seed)
        stream = None
        if is_stream:
            options: dict[str, Any] = {"deterministic": inference.deterministic, "journal": journal}
            options |= {"checksum": functools.partial(_checksum, learned), "silence_seconds": silence_seconds}
            stream = InFlightEpisodes(parts, loop, Pace.of(config), seed=seed, **options)
        return LocalEpisodeSource(parts, engine, seed=seed, stream=stream, loop=loop, silence_seconds=silence_seconds)

    is_stream = learned is not None and config.training.max_staleness > 0
    # held-out episodes end with their evaluation; the journal holds training episodes only
    return engine, source(tasks.episode, is_stream=is_stream), source(tasks.held_out_episode, is_stream=False)
