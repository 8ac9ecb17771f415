"""The policy of a trainer: the model, its tokenizer, and how its prompts and calls are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.learning.run_checks import require_finite
from midthought.models.float32_head import use_float32_head
from midthought.models.pretrained import load_model, warn_without_template
from midthought.report.console import Console
from midthought.tokenization import Renderer
from midthought.trainer.arguments import TrainerSettings
from midthought.trainer.demonstrations import demonstrated_words
from midthought.trainer.initial_policy import find_policy
from midthought.trainer.rollouts import PromptBuilder, native_prompts
from midthought.trainer.run_writer import RunWriter
from midthought.trainer.tasks import TrainingTasks


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPolicy:
    """The model that is trained, with all that writes its prompts."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    prompts: PromptBuilder
    path: str
    """The folder with the weights of `model`; empty: there is none."""


def open_policy(
    given: TrainerSettings,
    tokenizer: Any,
    prompts: PromptBuilder,
    *,
    tasks: TrainingTasks,
    demonstrations: Any,
    writer: RunWriter | None,
    console: Console,
    is_format_auto: bool,
) -> TrainedPolicy:
    """Loads or creates the model that a run starts from, or the one that supervised steps of an earlier process have left.

    A new tokenizer is trained on texts of `tasks`, `prompts` and `demonstrations`. With `is_format_auto`, calls are written in
    the model's own format (`native_prompts`). Raises TrainingStoppedError if a weight is not finite, and as `find_policy` and
    `take_over`.
    """
    settings = given.config.model

    def texts() -> list[str]:
        demonstrated = demonstrated_words(demonstrations, tasks.stream, prompts)
        return [*tasks.texts(), prompts.instructions(), *demonstrated]

    tokenizer_path = writer.tokenizer_path if writer is not None else None
    model, tokenizer = find_policy(given.config, given.model, tokenizer, texts=texts, tokenizer_path=tokenizer_path)
    path = settings.local_path if given.model is None else ""
    if writer is not None and writer.has_sft:
        take_over(model, writer.sft_policy_path)
        path = ""
    if settings.float32_head:
        use_float32_head(model)
    require_finite(model, "the model that the run starts from", "Give a model whose weights are finite")
    warn_without_template(tokenizer, "the model")
    renderer = Renderer(tokenizer, settings.template_arguments)
    if is_format_auto and prompts.registry.definitions():
        native, renderer, reason = native_prompts(prompts, renderer)
        console.note(f"Call format: {reason}")
    else:
        native = prompts
    return TrainedPolicy(model=model, tokenizer=tokenizer, renderer=renderer, prompts=native, path=path)


def generation_values(renderer: Renderer) -> dict[str, Any]:
    """Returns what `generation_config.json` does not have from the base model: padding, and the tokens that end an answer."""
    pad_id = renderer.tokenizer.pad_token_id
    return {"eos_token_id": sorted(renderer.eos_token_ids), **({} if pad_id is None else {"pad_token_id": pad_id})}


def take_over(policy: Any, folder: Path) -> None:
    """Gives the policy the weights that an earlier process saved after its supervised steps, so that a resumed run has the same
    reference. Raises `CheckpointError` if they belong to another model."""
    saved = load_model(folder, policy.dtype)
    try:
        policy.load_state_dict(saved.state_dict())
    except RuntimeError:
        raise CheckpointError(
            f"{folder} holds another model than the trainer was given; give the one that the run started with"
        ) from None
    policy.name_or_path = str(folder)
