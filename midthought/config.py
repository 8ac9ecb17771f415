"""Settings: one store of named sections, checked on every assignment, read from YAML and from `key=value` words.

A section is a pydantic model; the docstring under a field is its documentation. Recipes add sections of their own by
subclassing `ConfigStore`. Every key here is read by some room; a key that nothing reads does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from midthought.errors import SettingsError, near_names


class Section(BaseModel):
    """A named group of settings; an unknown key or a wrong value is an error at the line that wrote it."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        validate_default=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_explain(type(self), error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise SettingsError(_explain(type(self), error)) from None


class ModelConfig(Section):
    """The policy, and its critic."""

    local_path: str = ""
    """Folder or hub name of any Hugging Face causal LM. Empty: the run makes a small Qwen3 with its own tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights. Log-probabilities are exact to 1e-4 in float32 only."""
    critic: Literal["separate", "shared"] = "separate"
    """`separate`: a copy of the same base with a value head; `shared`: a value head on the policy's own trunk."""
    hidden_size: int = Field(128, ge=16)
    """Width of the small model that the run makes (unused with `local_path`)."""
    num_layers: int = Field(4, ge=1)
    """Its number of layers."""
    num_heads: int = Field(2, ge=2)
    """Its number of attention heads, of 64 dimensions each; the key/value heads are as many."""
    vocab_size: int = Field(1024, ge=300)
    """Its vocabulary: byte-level BPE, trained on the recipe's training episodes."""


class InferenceConfig(Section):
    """The rollout loop and its engine."""

    max_tokens: int = Field(256, ge=1)
    """Most tokens after the prompt in one episode, tool results included."""
    max_segment_length: int = Field(256, ge=1)
    """Most tokens sampled in one go; generation stops earlier where a call ends."""
    max_tool_calls_per_cot: int = Field(5, ge=0)
    """Calls beyond this number are answered with an error that says so."""
    max_result_tokens: int = Field(192, ge=8)
    """A longer tool result is cut."""
    tool_timeout_seconds: float = Field(10.0, gt=0)
    """Deadline of one tool call."""
    temperature: float = Field(1.0, ge=0)
    """Temperature of training rollouts."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Must stay 1.0 in training: see `TrainingConfig`."""
    max_num_seqs: int = Field(128, ge=1)
    """Episodes that the local engine holds in its cache at once."""
    deterministic: bool = False
    """Fix the composition of every batch, so that a run can be repeated to the bit. Slower where tools are slow."""


class RewardConfig(Section):
    """Weights of the reward's named parts. All are judged from the record's events and the ground truth."""

    correct: float = 1.0
    """Paid where the answer is right."""
    thought: float = 0.1
    """Paid for a well-formed thought: opened once, closed once, an answer after it."""
    call_cost: float = Field(0.1, ge=0)
    """Taken for every call, whether it was needed or not."""


class TrainingConfig(Section):
    """PPO."""

    seed: int = 0
    """Seed of everything drawn at random: the split, the questions, the weights, the sampling."""
    num_train_iters: int = Field(100, ge=0)
    """Iterations: rollouts of `batch_size` episodes, then the update on them."""
    batch_size: int = Field(32, ge=1)
    """Episodes per iteration."""
    mini_batch_size: int = Field(32, ge=1)
    """Episodes per optimizer step."""
    micro_batch_tokens: int = Field(4096, ge=64)
    """Padded tokens per forward and backward pass; changes memory and speed, not the result."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over an iteration's episodes."""
    group_size: int = Field(1, ge=1)
    """Episodes per task in an iteration."""
    adv_estimator: Literal["gae", "grpo"] = "gae"
    """How advantages are estimated."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token."""
    lam: float = Field(1.0, ge=0, le=1)
    """GAE's lambda, per token."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of the policy (AdamW)."""
    critic_learning_rate: float = Field(1e-5, gt=0)
    """Of the critic (AdamW)."""
    warmup_steps: int = Field(2, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after that, until the last step."""
    critic_warmup_iters: int = Field(0, ge=0)
    """First iterations in which only the critic learns."""
    clip_ratio: float = Field(0.2, gt=0)
    """PPO's clip range of the probability ratio."""
    clip_ratio_low: float | None = None
    """Lower clip range where it differs."""
    clip_ratio_high: float | None = None
    """Upper clip range where it differs."""
    cliprange_value: float = Field(0.2, gt=0)
    """Clip range of the value function's change."""
    value_loss_coef: float = Field(0.5, ge=0)
    """Weight of the value loss where the trunk is shared; a separate critic has an optimizer of its own."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    kl_coef: float = Field(0.01, ge=0)
    """Weight of the KL divergence to the warm-up model, taken from the reward of every policy token."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    validate_every: int = Field(10, ge=0)
    """Iterations between validations on held-out questions; 0: never."""
    num_validation_questions: int = Field(100, ge=1)
    """Questions of each validation."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.adv_estimator == "grpo" and self.group_size < 2:
            raise ValueError(
                f"group_size={self.group_size} with adv_estimator='grpo': a group of one has no spread; "
                "set group_size to 2 or more"
            )
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size={self.batch_size} is not a multiple of group_size={self.group_size}")
        return self


class CheckpointConfig(Section):
    """What is kept of a run on disk."""

    save_interval: int = Field(10, ge=1)
    """PPO iterations between checkpoints; the warm-up saves every `save_interval` × 10 steps."""
    keep_last_n: int = Field(2, ge=1)
    """Newest checkpoints kept, besides the best."""
    keep_best: bool = True
    """Keep the checkpoint with the best validation as well."""


class ConfigStore(Section):
    """All settings of a run. Recipes subclass it and add sections."""

    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    inference: InferenceConfig = Field(default_factory=lambda: InferenceConfig())
    reward: RewardConfig = Field(default_factory=lambda: RewardConfig())
    training: TrainingConfig = Field(default_factory=lambda: TrainingConfig())
    checkpoint: CheckpointConfig = Field(default_factory=lambda: CheckpointConfig())

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.inference.top_p < 1.0:
            raise ValueError(
                f"inference.top_p={self.inference.top_p} in training: tokens outside the nucleus have probability 0 "
                "under the sampled distribution, so importance ratios are wrong; set inference.top_p to 1.0"
            )
        if self.inference.temperature == 0:
            raise ValueError(
                "inference.temperature=0 in training explores nothing; set inference.temperature above 0 (usually 1.0)"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """The settings as nested plain values."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The settings as YAML that `merged` reads back to equal settings."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """A copy in which the keys of `changes` (nested mappings) replace the present values.

        Raises:
            SettingsError: an unknown key or a wrong value, with the near names.
        """
        return type(self)(**merge_configs(self.to_dict(), changes, known=type(self)))


def merge_configs(
    base: Mapping[str, Any], changes: Mapping[str, Any], known: type[Section] | None = None
) -> dict[str, Any]:
    """Deep merge of nested mappings: `changes` wins, key by key; with `known`, an unknown key is an error."""
    merged = dict(base)
    for key, value in changes.items():
        if known is not None and key not in known.model_fields:
            raise SettingsError(_unknown_key(known, str(key)))
        inner = known.model_fields[key].annotation if known is not None else None
        section = inner if isinstance(inner, type) and issubclass(inner, Section) else None
        if section is not None and not isinstance(value, Mapping):
            raise SettingsError(
                f"{key}={value!r}: {key} is a section; set one of its keys, "
                f"for example {key}.{next(iter(section.model_fields))}=…"
            )
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_configs(merged[key], value, section)
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file as nested mappings. Raises SettingsError where it is missing or not a mapping."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"settings file {path} is not there; check the path given to --config") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"settings file {path} holds a {type(values).__name__}, not sections; "
            "write for example 'training:\\n  seed: 1'"
        )
    return dict(values)


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` words as nested mappings; values are read as YAML, so `1e-3`, `true`, `null`, `[a, b]` work;
    nothing after the sign is the empty text."""
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"{word!r} is not a setting; write section.key=value, for example training.seed=1")
        *sections, last = key.split(".")
        inner = changes
        for name in sections:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{word!r}: {name!r} was already given a value")
        inner[last] = _read_value(text)
    return changes


def _read_value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        try:
            return float(value)
        except ValueError:
            return value
    return value if text.strip() else ""


def _unknown_key(section: type[Section], name: str) -> str:
    where = section.__name__.removesuffix("Config").lower() if section.__name__.endswith("Config") else "settings"
    return f"unknown key {name!r} in {where}. {near_names(name, section.model_fields)}"


def _explain(section: type[Section], error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):  # from a section inside this one
            lines.append(f"{key}.{cause}")
            continue
        if problem["type"] in {"extra_forbidden", "no_such_attribute"}:
            lines.append(_unknown_key(section, key))
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "literal_error":
            known = [part.strip(" '") for part in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]
            message = near_names(str(problem["input"]), known)
        shown = f"{key}={problem['input']!r}: " if key else ""
        lines.append(f"{shown}{message}")
    return "; ".join(lines)
