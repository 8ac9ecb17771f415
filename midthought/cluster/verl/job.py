"""What a recipe gives to verl: on the machine that writes the bundle a `VerlJob`, on verl's workers a `EpisodeSetup`.

Knows no recipe, and nothing of verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.rollout.episode import EpisodeEnvironment
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.types import Reward, Task, Trajectory


class NullEnvironment:
    """An environment that says nothing and pays nothing. Implements the rollout loop's `EpisodeEnvironment`."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Nothing: the answer ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """No part at all: the record then holds no reward, and verl's own function has to give one."""
        return Reward()


@dataclass(frozen=True, kw_only=True)
class EpisodeSetup:
    """What episodes on a worker need beside tools and limits; None stands for what the loop makes itself."""

    environment: Callable[[Task], EpisodeEnvironment] = field(default=lambda task: NullEnvironment())
    """Makes the environment of one episode: what is replied, and what the episode was worth."""
    executor: ToolExecutor | None = None
    """Answers calls in another way than from the tools of verl's tool configuration."""
    call_format: ToolCallFormat | None = None
    """Instead of the one that the options name."""


@dataclass(frozen=True, kw_only=True)
class ToolPlan:
    """A tool as `tools.yaml` names it. Workers make it anew from `reference` and `options`."""

    reference: str
    """`module:name` of a `midthought` tool, its class, or a function that makes it."""
    definition: ToolDefinition
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments; JSON values. `{bundle}` in a text is the bundle's folder where it runs."""


@dataclass(frozen=True, kw_only=True)
class VerlJob:
    """Everything that a bundle is written from."""

    recipe: str
    config: RecipeConfig
    """The settings, written to `config.yaml` and translated into verl's."""
    data_source: str
    """verl's name of the data set: what its metrics are grouped by."""
    validation_source: str = ""
    """The same of the validation's, where it is another."""
    ability: str
    tasks: Mapping[str, Sequence[Task]]
    """Tasks of `train` and `validation`."""
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """The conversation that a task begins with."""
    tools: Sequence[ToolPlan]
    call_format: str = "in_thought"
    """How calls are written, by name."""
    supply: str
    """`module:name` of the function that makes the workers' `EpisodeSetup`."""
    supply_options: Mapping[str, Any]
    extras: Sequence[str]
    """Install extras of this package that the workers need."""
    write_files: Callable[[Path], object] = field(default=lambda folder: None)
    """Write what the tools need into the bundle."""


@dataclass(frozen=True, kw_only=True)
class VerlSftJob:
    """Everything that a bundle for verl's SFT trainer is written from."""

    recipe: str
    config: RecipeConfig
    conversations: Sequence[Sequence[Mapping[str, str]]]
    """Demonstrations as messages (`role`, `content`), calls written out in the content; what the assistant says is learned."""
    num_steps: int
    """Optimizer steps."""
    learning_rate: float
    """Peak (AdamW); it rises over `warmup_steps` and falls along a cosine."""
    warmup_steps: int
