"""`conversation.json` of a run folder: how the run's conversations are written, so that its policy can be talked to later, and
what it learns from, so that a resumed run is the same one.

Tools are code: a file names them, and only tools of this library are made from it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from midthought.config import Change
from midthought.data.tasks import DATASET_LABEL
from midthought.env.reward_functions import bare_name, without_partial
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import CheckpointError
from midthought.files.output_folder import kind_of
from midthought.files.regular import read_json_object
from midthought.report.run_folder import CONVERSATION, PROGRESS, RunFolder
from midthought.rollout.selection import ShuffledTasks
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.parsers import call_format_names, find_call_format
from midthought.trainer.sources import PromptBuilder
from midthought.trainer.tasks import TrainingTasks

NATIVE = "native"
"""Name of the format that the model's own chat template has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRecord:
    """How the prompts of a run are written."""

    system_prompt: str = ""
    describes_tools: bool = True
    call_format: str = NATIVE
    """The name of a built-in call format, or `native`; empty: a format of the user's."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON Schema (`definition`) and `module:name` (`source`, may be empty) of each tool."""
    recipe: str = ""
    """The recipe that makes the tools; empty: none."""
    call_instructions: str = ""
    """Class of the call format, and its instructions for a tool `f`."""
    learned_from: Mapping[str, Any] = field(default_factory=dict)
    """Number and digest of the rows, weights of the rewards by name, class of the environment (`learned_from`)."""

    @classmethod
    def of(cls, prompts: PromptBuilder, learned_from: Mapping[str, Any], recipe: str = "") -> Self:
        tools = [prompts.registry.get(name) for name in prompts.registry.names()]
        call_class, _ = _class_and_values(prompts.call_format)
        return cls(
            system_prompt=prompts.system_prompt,
            describes_tools=prompts.describes_tools,
            call_format=_name_of(prompts.call_format),
            tools=[{"definition": tool.definition.json_schema(), "source": source_of(tool)} for tool in tools if tool],
            recipe=recipe,
            call_instructions=f"{call_class.__name__}: {prompts.call_format.instructions([ToolDefinition('f', '')])}",
            learned_from=learned_from,
        )

    def changes(self, run: Path) -> list[Change]:
        """Returns the differences from the record of a run's start; empty if there is none. The order of the tools, and where
        they are defined, do not count."""
        before, now = (record._compared() for record in (self.read(run) or self, self))
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return [Change(name, before.get(name), now.get(name), False) for name in names]

    def _compared(self) -> dict[str, Any]:
        values = dict(json.loads(json.dumps(asdict(self))))
        tools = {f"tools.{tool['definition']['function']['name']}": tool["definition"] for tool in values.pop("tools")}
        return {**values.pop("learned_from"), **values, **tools}

    def write(self, run: RunFolder) -> None:
        """Writes the file, which the manifest of the run folder lists."""
        run.write_file(CONVERSATION, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Returns the record of a run; None if the file was deleted. Raises `CheckpointError`."""
        file = run / CONVERSATION
        if not file.is_file():
            return None
        try:
            return cls(**read_json_object(file))
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{file} cannot be read ({reason}); restore it, or delete it and give --tools"
            ) from None


def run_folder_of(path: Path) -> Path | None:
    """Returns the run folder that a path is, or is in; None if there is none."""
    for folder in (path.resolve(), *path.resolve().parents[:5]):
        if kind_of(folder) == "run" or (folder / PROGRESS).is_file():
            return folder
    return None


def learned_from(tasks: TrainingTasks, env: Any = None, reward_fn: Any = None, rewards: Any = ()) -> dict[str, Any]:
    """Returns what a resumed run must have again; other arguments than `tasks` are the trainer's."""
    rows, digest = tasks.stream.tasks if isinstance(tasks.stream, ShuffledTasks) else (), hashlib.sha256()
    for task in rows:
        rules = [*task.aliases, task.labels.get(DATASET_LABEL)]
        learned = [task.task_id, task.prompt, task.answer, rules, *map(dict, task.before)]
        digest.update(json.dumps(learned, default=str).encode())
    functions = [weighted(reward_fn, 1.0, name=bare_name(reward_fn))] if reward_fn else rewards
    parts = combine_rewards(functions).parts if functions else {}
    made = without_partial(env)
    return {
        "dataset": f"{len(rows)} rows, {digest.hexdigest()[:16]} (SHA-256 of ids, prompts, answers, and how these are judged)",
        "rewards": {name: float(weight) for name, (weight, _) in parts.items()},
        "environment": "" if env is None else str(getattr(made, "__name__", type(made).__name__)),
    }


def source_of(tool: Tool) -> str:
    """Returns `module:name` of a tool, or of its class, if it is found there; else an empty text."""
    name = str(getattr(getattr(tool, "__wrapped__", type(tool)), "__module__", ""))
    values = vars(sys.modules[name]) if name in sys.modules and name != "__main__" else {}
    found = {key: value for key, value in values.items() if value is tool or value is type(tool)}
    keys = sorted(found, key=lambda key: found[key] is not tool)
    return f"{name}:{keys[0]}" if keys else ""


def _name_of(call_format: ToolCallFormat) -> str:
    if isinstance(call_format, NativeCallFormat):
        return NATIVE
    named = _class_and_values(call_format)
    return next((name for name in call_format_names() if _class_and_values(find_call_format(name)) == named), "")


def _class_and_values(call_format: ToolCallFormat) -> tuple[type, dict[str, Any]]:
    """Returns what distinguishes a call format, or the parser that it is made of, from others."""
    made_of = getattr(call_format, "parser", call_format)
    return type(made_of), vars(made_of)
