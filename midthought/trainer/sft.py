"""The supervised stage of a trainer's run (`Trainer.sft`): what it starts from, what it saves, and how it continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig, SupervisedSection
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.learning.adapters import has_adapters
from midthought.learning.learner import Learner
from midthought.learning.run_checks import require_finite
from midthought.learning.stopping import StopRequest
from midthought.peft_folders import merge
from midthought.plan.choices import ADAPTER_RATES, WEIGHT_RATES
from midthought.precision import PrecisionChoice
from midthought.pretrained import load_model, save_model
from midthought.report.console import Console
from midthought.trainer.run_writer import RunWriter
from midthought.trainer.supervised import Demonstrate, SupervisedStage, is_mixed, saving, supervised_learner

STAGE = "sft"
SMALL_MODEL_RATE = 3e-3
"""Learning rate of a small model with random weights, as in the recipes' preset `tiny`."""


def sft_settings(values: Mapping[str, Any], config: RecipeConfig, *, is_created: bool) -> SupervisedSection:
    """Returns the settings of `Trainer.sft`. The default learning rate depends on what learns: adapters, weights, or the weights
    of a small model that was created here. Raises `SettingsError` for an unknown name or a wrong value."""
    for name in values:
        if name not in SupervisedSection.model_fields:
            raise SettingsError(f"sft: unknown setting {name!r}. {near_names(name, SupervisedSection.model_fields)}")
    given = ADAPTER_RATES if config.model.adapter_rank else WEIGHT_RATES
    rate = SMALL_MODEL_RATE if is_created else given[1]
    section = SupervisedSection(**{"learning_rate": rate, **values})
    return section.changed(learning_rate=rate) if section.learning_rate == "auto" else section


class SftStage:
    """Takes the supervised steps of a trainer, in its run folder if it has one."""

    def __init__(self, config: RecipeConfig, tokenizer: Any, console: Console, writer: RunWriter | None) -> None:
        self._config, self._tokenizer, self._console, self._writer = config, tokenizer, console, writer
        self._rows: list[dict[str, float]] = []
        self._precision: str | None = None

    def run(self, policy: Any, settings: SupervisedSection, demonstrate: Demonstrate) -> list[dict[str, float]]:
        """Trains the policy in place; adapters are merged into its weights. Returns the metrics of every step."""
        learner = supervised_learner(policy, self._config, settings, settings.num_steps)
        try:
            self._take_steps(learner, settings, demonstrate)
        finally:
            if has_adapters(learner.policy):
                merge(learner.policy)
        require_finite(policy, "the model after the supervised steps")
        if self._writer is not None:
            save_model(policy, self._tokenizer, self._writer.sft_policy_path, in_run=True)
            policy.name_or_path = str(self._writer.sft_policy_path)  # the base model that new adapters name
        return self._rows

    def _take_steps(self, learner: Learner, settings: SupervisedSection, demonstrate: Demonstrate) -> None:
        start, stop = self._restored(learner, settings), StopRequest()
        stage = SupervisedStage(
            title="Supervised steps (SFT)",
            console=self._console,
            stop=stop,
            log=self._log,
            on_step=self._saving(learner, settings, stop),
        )
        with stop:
            stage.run(
                learner,
                demonstrate,
                start=start,
                num_steps=settings.num_steps,
                mixed_precision=is_mixed(settings, self._config, self._precision),
                on_precision=self._note_precision,
            )

    def _saving(self, learner: Learner, settings: SupervisedSection, stop: StopRequest) -> Callable[[int], None]:
        if self._writer is None:
            return lambda step: None

        def state() -> dict[str, Any]:
            return {"stage": STAGE, "settings": settings.model_dump(), "precision": self._precision}

        interval = self._config.checkpoint.save_interval
        return saving(self._writer.sft_checkpoints, learner, self._tokenizer, stop, state, interval)

    def _restored(self, learner: Learner, settings: SupervisedSection) -> int:
        """Continues an interrupted stage. Returns the number of steps that are done."""
        writer = self._writer
        if writer is None or writer.newest_sft is None:
            return 0
        state = writer.sft_checkpoints.restore(learner, writer.newest_sft)
        before = state["settings"]
        for name, value in settings.model_dump().items():
            if value != before.get(name):
                raise SettingsError(
                    f"sft({name}={value!r}): the run was interrupted in supervised steps with {name}={before.get(name)!r}; "
                    "give the same value, or another run_path"
                )
        self._precision = state["precision"]
        self._rows = writer.sft_rows()
        return int(state["step"])

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.append({"step": step, **metrics})
        if self._writer is not None:
            self._writer.log(STAGE, step, metrics)

    def _note_precision(self, choice: PrecisionChoice) -> None:
        self._precision = choice.precision
        self._console.note(f"  Supervised steps are computed in {choice}")


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
