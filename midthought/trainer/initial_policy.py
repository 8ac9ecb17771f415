"""The model that a trainer starts from, and its tokenizer: given, loaded from a folder, or randomly initialized."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from midthought.config import ModelConfig, RecipeConfig, with_tiny
from midthought.config.store import TINY
from midthought.errors import SettingsError
from midthought.models.pretrained import load_model, load_tokenizer, placed
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.choices import Choice, choose, plan_of_loaded, resolve
from midthought.plan.hardware import GIB, find_hardware, require_device
from midthought.trainer.rollouts import MAX_LENGTH

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
    `training.seed`. Unless given, its tokenizer is trained on `texts`, or loaded from `tokenizer_path` if the run is resumed.

    Raises SettingsError for a model without its tokenizer, ModelPathError for a path without a model.
    """
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
    return make_policy(
        tokenizer,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        max_length=max_length,
        seed=seed,
    )


def choose_preset(config: RecipeConfig, model: Any) -> tuple[RecipeConfig, str]:
    """Returns the settings, and a line for the user. If no model is given, the preset `tiny` gives the settings that were not
    set, and the line names them; otherwise nothing changes and the line is empty."""
    if model is not None or config.model.local_path:
        return config, ""
    chosen, given = with_tiny(config), config.given()
    values = " ".join(
        f"{section}.{key}={value}"
        for section, values in TINY.items()
        for key, value in values.items()
        if key not in given[section]
    )
    note = f"No model is given, so a small one with random weights is created. Preset tiny: {values}"
    return chosen, note if values else ""


def choose_settings(config: RecipeConfig, model: Any) -> Choice:
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
        return _choose_for_loaded(config, model)
    source = settings.local_path
    if source:
        require_device(settings.device)
    hardware = find_hardware(settings.device if source else settings.device_of_made)
    choice = resolve(config, hardware, source=source, is_given=bool(source))
    choice.require_possible()
    for line in choice.table() if source else ():
        _log.info(line)
    return choice


def _choose_for_loaded(config: RecipeConfig, model: Any) -> Choice:
    if config.model.lora_rank == "auto":
        config = config.merged({"model": {"lora_rank": 0}})
    if not config.model.lora_rank and not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingsError(
            "no parameter of the given model requires a gradient: load its adapters with PeftModel.from_pretrained(…, "
            "is_trainable=True), or, without any, set model.lora_rank or call model.requires_grad_(True)"
        )
    weight = next(model.parameters())
    hardware = find_hardware(str(weight.device))
    on_gpu = hardware.kind == "gpu" and hardware.memory_gib is not None  # it is not known of other accelerators
    if on_gpu:
        num_held = sum(parameter.nbytes for parameter in model.parameters() if parameter.device == weight.device)
        hardware = replace(hardware, memory_gib=hardware.memory_gib + num_held / GIB)  # the plan counts these weights
    settled = choose(config, on_gpu=on_gpu, has_vllm=False)
    if not hasattr(model, "config"):
        return Choice(settled, hardware, (), None, f"a {type(model).__name__} has no config that gives its size")
    adapters = [] if not hasattr(model, "peft_config") else [*model.peft_config.values()]
    if len(adapters) > 1:
        return Choice(settled, hardware, (), None, "the given model has several adapters, which are not planned")
    given = (
        {key: getattr(adapters[0], name, 0) for key, name in (("lora_rank", "r"), ("use_dora", "use_dora"))}
        if adapters
        else {}
    )
    words = {"dtype": str(weight.dtype).removeprefix("torch."), **given}
    found = plan_of_loaded(config, settled, hardware, model.config.to_dict(), words)
    if not adapters:
        return found
    num_learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if found.plan is None or found.plan.adapter_parameters == num_learning:
        return found
    unknown = f"the given model's adapters learn {num_learning:,} parameters; only LoRA on all linear layers is planned"
    return Choice(settled, hardware, (), None, unknown)


def vocabulary_digest(tokenizer: Any) -> str:
    """Returns a hash of a tokenizer's tokens and ids, to distinguish tokenizers."""
    words = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
