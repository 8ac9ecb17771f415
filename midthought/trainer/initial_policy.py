"""The model that a trainer starts from, its tokenizer, and how its prompts and calls are written."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from midthought.config import ModelConfig, RecipeConfig, load, settled
from midthought.config.store import TINY
from midthought.errors import CheckpointError, SettingsError
from midthought.models.pretrained import (
    allow_sampling_options,
    load_model,
    load_tokenizer,
    load_weights,
    placed,
    require_finite,
    use_float32_head,
    warn_without_template,
)
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.choices import Choice, resolve
from midthought.plan.hardware import GIB, find_hardware, require_device
from midthought.tokenization import Renderer
from midthought.trainer.demonstrations import demonstrated_words
from midthought.trainer.run import Run
from midthought.trainer.sources import MAX_LENGTH, PromptBuilder, in_model_format
from midthought.trainer.tasks import TrainingTasks

_log = logging.getLogger(__name__)


def find_policy(
    config: RecipeConfig,
    model: Any,
    tokenizer: Any,
    *,
    texts: Callable[[], Iterable[str]],
    tokenizer_path: Path | None = None,
) -> tuple[Any, Any]:
    """Returns the given model and tokenizer, else the ones in `model.local_path`, else a small Qwen3 initialized with
    `training.seed`. Unless given, its tokenizer is trained on `texts`, or loaded from `tokenizer_path` if the run is resumed."""
    settings = config.model
    if model is not None:
        if tokenizer is None:
            raise SettingsError(
                "a loaded model needs its tokenizer: RayPPOTrainer(…, model=model, tokenizer=tokenizer)"
            )
        return model, tokenizer
    if settings.local_path:
        loaded = load_model(settings.local_path, settings.weights_dtype, settings.attn_implementation)
        policy = placed(loaded, settings.device)
        return policy, tokenizer or load_tokenizer(settings.local_path)
    if tokenizer is None and tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path)
    tokenizer = tokenizer or make_tokenizer(texts(), settings.vocab_size)
    made = make_policy_of(settings, tokenizer, max_length=MAX_LENGTH, seed=config.training.seed)
    return placed(made, settings.device_of_made), tokenizer


def make_policy_of(model: ModelConfig, tokenizer: Any, *, max_length: int, seed: int) -> Any:
    """Returns a randomly initialized policy of the sizes in the section `model`."""
    sizes = model.model_dump(include={"hidden_size", "num_layers", "num_heads"})
    return make_policy(tokenizer, **sizes, max_length=max_length, seed=seed)


def choose_preset(config: RecipeConfig, model: Any) -> tuple[RecipeConfig, str]:
    """Returns a validated copy of the settings, and a line for the user. If no model is given, the preset `tiny` gives the
    settings that were not set, and the line names them; otherwise nothing changes and the line is empty."""
    if model is not None or config.model.local_path:
        return config.merged({}), ""
    chosen, given = load(type(config), TINY, dict(config)), config.given()
    values = " ".join(
        f"{section}.{key}={value}"
        for section, values in TINY.items()
        for key, value in values.items()
        if key not in given[section]
    )
    note = f"No model is given, so a small one with random weights is created. Preset tiny: {values}"
    return chosen, note if values else ""


def longest_prompt(config: RecipeConfig, tokenizer: Any, prompts: PromptBuilder, tasks: TrainingTasks) -> int | None:
    """Returns the tokens of the longest prompt. None: the tasks do not know it, or there is no tokenizer yet."""
    if tokenizer is None:
        return None
    day = {"strftime_now": settled(config.model.chat_template_date, date.today())}
    renderer = Renderer(tokenizer, {**config.model.template_arguments, **day})
    prompts, renderer, _ = in_model_format(prompts, renderer)
    return tasks.longest_prompt(lambda task: len(renderer.prompt(prompts.messages(task))))


def choose_settings(config: RecipeConfig, model: Any, longest_prompt: int | None = None) -> Choice:
    """Replaces every `auto` in the settings, for the device of `model`, or of the model that will be loaded or created, and
    plans the run.

    `auto` adds adapters only to a model from `model.local_path`; the weights of a given `model` learn as they are, and `local`
    samples from them. Raises SettingsError if the plan says that a model from `model.local_path` does not fit.
    """
    settings = config.model
    if model is not None and not hasattr(model, "parameters"):
        raise SettingsError(
            f"model={model!r:.80}: give a folder, a Hugging Face name, or a loaded causal LM with its tokenizer"
        )
    if model is not None:
        return _choose_for_loaded(config, model, longest_prompt)
    source = settings.local_path
    if source:
        require_device(settings.device)
    hardware = find_hardware(settings.device if source else settings.device_of_made)
    choice = resolve(config, hardware, source=source, is_given=bool(source), prompt_tokens=longest_prompt)
    choice.require_possible()
    for line in choice.table() if source else ():
        _log.info(line)
    return choice


def _choose_for_loaded(config: RecipeConfig, model: Any, longest_prompt: int | None) -> Choice:
    if config.model.lora_rank == "auto":
        config = config.merged({"model": {"lora_rank": 0}})
    if not config.model.lora_rank and not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingsError(
            "no parameter of the given model requires a gradient: load its adapters with PeftModel.from_pretrained(…, "
            "is_trainable=True), or, without any, set model.lora_rank or call model.requires_grad_(True)"
        )
    weight = next(model.parameters())
    hardware = find_hardware(str(weight.device))
    if hardware.memory_gib is None:  # another kind of accelerator
        hardware = replace(hardware, kind="cpu")
    elif hardware.kind == "gpu":
        num_held = sum(parameter.nbytes for parameter in model.parameters() if parameter.device == weight.device)
        hardware = replace(hardware, memory_gib=hardware.memory_gib + num_held / GIB)  # the plan counts these weights
    has_size, adapters = hasattr(model, "config"), [*getattr(model, "peft_config", {}).values()]
    known: dict[str, Any] = {"model": model.config.to_dict() if has_size else {}, "source": "", "has_vllm": False}
    known["prompt_tokens"] = longest_prompt
    known |= {"lora_rank": getattr(adapters[0], "r", 0)} if adapters else {}
    planned = functools.partial(resolve, config, hardware, dtype=str(weight.dtype).removeprefix("torch."), **known)
    found = planned(unknown="" if has_size else f"a {type(model).__name__} has no config that gives its size")
    if not adapters or found.plan is None:
        return found
    num_learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if found.plan.adapter_parameters == num_learning:
        return found
    return planned(
        unknown=f"the given model's adapters learn {num_learning:,} parameters; only LoRA on all linear layers is planned"
    )


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
    config: RecipeConfig,
    model: Any,
    tokenizer: Any,
    prompts: PromptBuilder,
    *,
    tasks: TrainingTasks,
    demonstrations: Any,
    run: Run,
) -> TrainedPolicy:
    """Loads or creates the model that a run starts from, or the one that supervised steps of an earlier process have left. A new
    tokenizer is trained on texts of `tasks`, `prompts` and `demonstrations`."""
    settings = config.model

    def texts() -> list[str]:
        return [*tasks.texts(), prompts.instructions(), *demonstrated_words(demonstrations, tasks.stream, prompts)]

    path = settings.local_path if model is None else ""
    model, tokenizer = find_policy(config, model, tokenizer, texts=texts, tokenizer_path=run.tokenizer_path)
    if run.has_sft and (saved := run.sft_policy_path) is not None:
        if not run.is_shared or model.name_or_path != str(saved):  # else the recipe loaded just these weights
            take_over(model, saved)
        path = ""
    allow_sampling_options(model)
    if settings.float32_head:
        use_float32_head(model)
    require_finite(model, "the model that the run starts from", "Give a model whose weights are finite")
    warn_without_template(tokenizer, "the model")
    renderer = Renderer(tokenizer, settings.template_arguments)
    prompts, renderer, reason = in_model_format(prompts, renderer)
    if reason:
        run.console.note(f"Call format: {reason}")
    return TrainedPolicy(model=model, tokenizer=tokenizer, renderer=renderer, prompts=prompts, path=path)


def generation_values(renderer: Renderer) -> dict[str, Any]:
    """Returns what `generation_config.json` does not have from the base model: padding, and the tokens that end an answer."""
    pad_id = renderer.tokenizer.pad_token_id
    return {"eos_token_id": sorted(renderer.eos_token_ids), **({} if pad_id is None else {"pad_token_id": pad_id})}


def take_over(policy: Any, folder: Path) -> None:
    """Gives the policy the weights that an earlier process saved after its supervised steps, so that a resumed run has the same
    reference. Raises `CheckpointError` if they belong to another model."""
    try:
        load_weights(policy, folder)
    except RuntimeError:
        raise CheckpointError(
            f"{folder} holds another model than the trainer was given; give the one that the run started with"
        ) from None
    policy.name_or_path = str(folder)
