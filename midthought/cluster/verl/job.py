"""What a recipe provides for verl: a `VerlJob` when the bundle is written, an `EpisodeSetup` on verl's workers.

Does not depend on a recipe or on verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.env.episode import QuestionEnvironment
from midthought.rollout.episode import EpisodeEnvironment
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import DEFAULT_CALL_FORMAT
from midthought.types import Task


@dataclass(frozen=True, kw_only=True)
class EpisodeSetup:
    """What episodes on a worker need besides tools and limits. None: the agent loop creates its default."""

    environment: Callable[[Task], EpisodeEnvironment] = field(default=lambda task: QuestionEnvironment())
    """Creates the environment of one episode: its replies and its reward."""
    executor: ToolExecutor | None = None
    """Runs calls instead of the tools in verl's tool configuration."""
    call_format: ToolCallFormat | None = None
    """Overrides the call format of the options."""


@dataclass(frozen=True, kw_only=True)
class ToolPlan:
    """A tool in `tools.yaml`. Workers create it from `reference` and `options`."""

    reference: str
    """`module:name` of a `midthought` tool, its class, or a function that creates it."""
    definition: ToolDefinition
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments; JSON values. `{bundle}` in a string is replaced by the path of the bundle's folder."""


@dataclass(frozen=True, kw_only=True)
class VerlJob:
    """Input of a bundle for reinforcement learning."""

    recipe: str
    config: RecipeConfig
    """The settings, written to `config.yaml` and translated into verl's."""
    data_source: str
    """verl's name of the data set, by which it groups its metrics."""
    validation_source: str = ""
    """The same for validation, if it differs."""
    ability: str
    tasks: Mapping[str, Sequence[Task]]
    """Tasks of `train` and `validation`."""
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """Returns the initial conversation of a task."""
    tools: Sequence[ToolPlan]
    call_format: str = DEFAULT_CALL_FORMAT
    """Name of the call format."""
    supply: str
    """`module:name` of the function that creates the workers' `EpisodeSetup`."""
    supply_options: Mapping[str, Any]
    extras: Sequence[str]
    """Install extras of this package that the workers need."""
    write_files: Callable[[Path], object] = field(default=lambda folder: None)
    """Writes files that the tools need into the bundle."""
