"""How a trainer's episodes are run: what each begins with, the source that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from midthought.config import InferenceConfig
from midthought.env.environment import EpisodeError
from midthought.errors import SettingsError
from midthought.inference.engine import TrainedEngine
from midthought.inference.private_loop import PrivateLoop
from midthought.inference.rollout import EpisodeEnvironment, RolloutParts, RolloutSettings
from midthought.inference.source import LocalSource
from midthought.inference.stream import EpisodeStream
from midthought.text import Renderer
from midthought.tools.notations import Notation
from midthought.tools.notations.find import find_notation
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.tools.schedule import Toolbox
from midthought.types import Task

MAX_LENGTH = 4096
"""Most tokens of a sequence where the model does not say, and of a model that is made here."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What every conversation begins with: the system prompt, the tools and how they are called, then the task."""

    system_prompt: str
    registry: ToolRegistry
    notation: Notation

    def instructions(self) -> str:
        """What the policy is told of its tools."""
        return self.notation.instructions(self.registry.definitions())

    def messages(self, task: Task) -> list[Mapping[str, str]]:
        """The conversation before the policy's first word."""
        return task.messages(self.system_prompt, self.instructions())


def as_notation(given: str | ActionParser | Notation) -> Notation:
    """A notation from its name, a parser or itself. Raises SettingsError for anything else."""
    if isinstance(given, str):
        return find_notation(given)
    if isinstance(given, ActionParser):
        return given.notation
    if isinstance(given, type) or not hasattr(given, "scanner"):
        raise SettingsError(f"notation={given!r}: give a name, an ActionParser or a Notation (an object, not a class)")
    return given


def make_source(
    engine: TrainedEngine,
    renderer: Renderer,
    opening: Opening,
    episode: Callable[[Task], EpisodeEnvironment],
    inference: InferenceConfig,
    *,
    seed: int,
    loop: PrivateLoop | None = None,
) -> LocalSource:
    """A source whose episodes' other side `episode` makes. A prompt that the model has no room for fails its episode.

    With a `loop` it has a stream of episodes that may outlive an iteration.
    """

    def fitting(task: Task) -> EpisodeEnvironment:
        num_tokens = len(renderer.prompt(opening.messages(task)))
        if num_tokens >= engine.max_seq_len:
            raise EpisodeError(
                f"the prompt of task {task.task_id!r} has {num_tokens} tokens, and the model has {engine.max_seq_len} "
                "positions; shorten it, or take a model with more"
            )
        return episode(task)

    parts = RolloutParts(
        engine=engine,
        renderer=renderer,
        notation=opening.notation,
        toolbox=Toolbox(opening.registry, timeout_seconds=inference.tool_timeout_seconds),
        messages=opening.messages,
        environment=fitting,
        settings=RolloutSettings.from_config(inference),
    )
    stream = None if loop is None else EpisodeStream.from_config(parts, loop, inference, seed=seed)
    return LocalSource(parts, engine, seed=seed, stream=stream, loop=loop)
