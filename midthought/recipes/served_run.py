"""Opens the policy of a run, or a model folder, to talk to it: engine, tools, and how its conversations are written."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig, read_yaml, settled
from midthought.config.references import load_from_here
from midthought.config.store import load as load_settings
from midthought.engines.inference_engines import LocalInferenceEngine
from midthought.errors import SettingsError
from midthought.models.memory import max_positions
from midthought.models.pretrained import load_model, load_tokenizer, placed, policy_folder, use_float32_head
from midthought.recipes import find_recipe, recipe_names
from midthought.recipes.recipe import require_no_programs
from midthought.report.run_folder import CONVERSATION, require_intact_run
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.definition import Tool
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import call_format_names, find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.trainer.prompt_record import NATIVE, PromptRecord, run_folder_of
from midthought.trainer.sources import as_call_format


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRun:
    """An open policy. Shut the engine down after use."""

    name: str
    engine: LocalInferenceEngine
    policy: ChatPolicy


def open_run(
    path: Path,
    *,
    recipe: str | None = None,
    tools: Sequence[str] | None = None,
    system_prompt: str | None = None,
    call_format: str | None = None,
    device: str | None = None,
    max_num_seqs: int | None = None,
) -> ServedRun:
    """Opens the policy of a run folder or a checkpoint, or a model folder, after its files were compared with their manifests.

    Other arguments replace what the run recorded. Raises `ModelPathError`, `CheckpointError` if a file is missing or not as it
    was written, `SettingsError` if the tools of the run cannot be made.

    Args:
        recipe: name of the recipe that makes the tools.
        tools: `module:name` of tools, or of classes or functions without arguments that make one.
        call_format: name, or `module:name` of a call format or an `ActionParser`: an object, or its class.
    """
    folder, run = policy_folder(path), run_folder_of(path)
    if run is not None:
        require_intact_run(run)
    config = _config(run)
    recorded = PromptRecord.read(run) if run is not None else None
    registry = _registry(run, recorded, tools, recipe)
    model = placed(load_model(folder, config.model.weights_dtype), device or config.model.device)
    if config.model.float32_head:
        use_float32_head(model)
    tokenizer = load_tokenizer(folder)
    renderer = Renderer(tokenizer, config.model.template_arguments)
    record, inference = recorded or PromptRecord(), config.inference
    if (call_format or record.call_format) == NATIVE:
        chosen = choose_call_format(renderer, registry.definitions(), describe_tools=record.describes_tools)
        written, renderer = chosen.call_format, chosen.renderer
    else:
        written = _call_format(run, record.call_format, call_format)
    longest = max_positions(model.config)
    limit = longest if inference.max_seq_len == "auto" else inference.max_seq_len
    max_num_seqs = max_num_seqs or settled(inference.max_num_seqs, 128)
    limits: dict[str, Any] = {"max_seq_len": limit} if limit else {}
    engine = LocalInferenceEngine(model, tokenizer, max_num_seqs=max_num_seqs, **limits)
    policy = ChatPolicy(
        engine=engine.core,
        renderer=renderer,
        call_format=written,
        executor=ToolExecutor(registry, timeout_seconds=inference.tool_timeout_seconds),
        max_seq_len=engine.core.max_seq_len,  # type: ignore[attr-defined]
        system_prompt=record.system_prompt if system_prompt is None else system_prompt,
        describes_tools=record.describes_tools,
        inference=inference,
    )
    return ServedRun(name=(run or (path if path.is_file() else folder)).resolve().name, engine=engine, policy=policy)


def _config(run: Path | None) -> RecipeConfig:
    """Returns the sections `model` and `inference` of a run's settings."""
    values = read_yaml(run / "config.yaml") if run and (run / "config.yaml").is_file() else {}
    return load_settings(RecipeConfig, {name: values[name] for name in ("model", "inference") if values.get(name)})


def _call_format(run: Path | None, recorded: str, given: str | None) -> ToolCallFormat:
    """Returns the call format that is given, by name or as `module:name`, or else the recorded one, by name only: a run folder
    imports no module."""
    if given is None and recorded not in call_format_names():
        named = f" {recorded!r}" if recorded else ""
        raise SettingsError(f"{run} was trained with a call format of your own{named}; add --call-format MODULE:NAME")
    if given is None or ":" not in given:
        return find_call_format(given or recorded)
    found = load_from_here(given)
    return as_call_format(found() if isinstance(found, type) else found)


# -- tools ---------------------------------------------------------------------------------------------------------


def _registry(
    run: Path | None, record: PromptRecord | None, tools: Sequence[str] | None, recipe: str | None
) -> ToolRegistry:
    if tools is not None:
        return ToolRegistry(map(_tool, tools))
    if run is None:
        if recipe:
            remedy = "give the run, not a model folder"
            raise SettingsError(f"--recipe {recipe}: its tools need the folder of a run; {remedy}")
        return ToolRegistry()
    if record is None and not recipe:
        raise SettingsError(
            f"{run} has no {CONVERSATION}, the record of its tools: restore it, or add --recipe {recipe_names()[0]} (or another "
            "recipe), or --tools MODULE:NAME for each tool, or --no-tools"
        )
    if name := recipe or (record.recipe if record else ""):
        found = find_recipe(name)
        if not recipe:
            require_no_programs(run, remedy=f"add --recipe {name}")
        config, _ = found.begin(run, words=[], stage="evaluate", from_path=run)
        made: ToolRegistry = found.load("tasks:tools_of_run")(config, run)
        return made
    assert record is not None
    return _recorded_tools(run, record)


def _recorded_tools(run: Path, record: PromptRecord) -> ToolRegistry:
    """Returns the recorded tools, which are made only if they are of this library."""
    sources = [str(tool.get("source") or "") for tool in record.tools]
    if all(source.startswith("midthought.") for source in sources):
        with contextlib.suppress(SettingsError):
            return ToolRegistry(map(_tool, sources))
    names = ", ".join(str(each["definition"]["function"]["name"]) for each in record.tools)
    words = " ".join(f"--tools {source or 'MODULE:NAME'}" for source in sources)
    raise SettingsError(
        f"{run} was trained with the tools {names}. A run folder does not start code by itself: if you "
        f"trust it, add {words}, or leave the tools out with --no-tools"
    )


def _tool(reference: str) -> Tool:
    """Returns the tool that `module:name` names; the working directory is searched, too."""
    found = load_from_here(reference)
    if not isinstance(found, Tool) and callable(found):
        try:
            found = found()
        except TypeError as error:
            raise SettingsError(
                f"--tools {reference}: it cannot be made without arguments ({error}); name a tool that is ready, or a function "
                "that returns it"
            ) from None
    if not isinstance(found, Tool):
        remedy = "@tool makes one from a function"
        raise SettingsError(f"--tools {reference} is no Tool but a {type(found).__name__}; {remedy}")
    return found
