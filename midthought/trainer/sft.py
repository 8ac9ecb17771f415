"""The supervised stage of a trainer's run (`Trainer.sft`): what it starts from, what it saves, and how it continues."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from midthought.config import SupervisedSection
from midthought.errors import SettingsError, near_names
from midthought.learning.adapters import has_adapters
from midthought.learning.learner import Learner
from midthought.learning.run_checks import require_finite
from midthought.learning.sft import run_sft
from midthought.learning.stopping import StopRequest
from midthought.models.peft_folders import merge
from midthought.models.precision import PrecisionChoice
from midthought.models.pretrained import save_model
from midthought.plan.choices import ADAPTER_RATES, supervised_rate
from midthought.report.console import Console
from midthought.rollout.rollout_batch import TaskStream
from midthought.trainer.arguments import TrainerSettings
from midthought.trainer.demonstrations import DemonstrationReader, ShuffledDemonstrations
from midthought.trainer.result import SupervisedResult
from midthought.trainer.run_writer import RunWriter
from midthought.trainer.supervised import Demonstrate, cut_off_note, is_mixed, saving, shown_steps, supervised_learner
from midthought.trainer.trained_policy import TrainedPolicy

_log = logging.getLogger(__name__)

STAGE = "sft"
SMALL_MODEL_RATE = 3e-3
"""Learning rate of a small model with random weights, as in the recipes' preset `tiny`."""


class SftStage:
    """The supervised steps of a trainer, in its run folder if it has one.

    A resumed run continues the steps, or returns their result if they are done.
    """

    def __init__(
        self, given: TrainerSettings, tokenizer: Any, demonstrations: Any, console: Console, writer: RunWriter | None
    ) -> None:
        """`demonstrations`: what `read` returns if it is given none."""
        self._config, self._tokenizer, self._console, self._writer = given.config, tokenizer, console, writer
        self._demonstrations, self._is_created = demonstrations, given.is_model_created
        self._precision: str | None = None
        self.is_done = writer is not None and writer.has_sft
        """Whether all steps were taken, by this process or an earlier one."""
        self._rows = writer.sft_rows() if writer is not None and self.is_done else []

    @property
    def result(self) -> SupervisedResult:
        """The metrics of every step."""
        return SupervisedResult(self._rows, self._writer.sft_policy_path if self._writer is not None else None)

    def settings(self, values: Mapping[str, Any], policy: Any) -> SupervisedSection:
        """Returns the settings with these values. The default learning rate depends on what learns: adapters, all weights (by
        their number), or a small model that was created here. Raises `SettingsError` for an unknown name or a wrong value."""
        for name in values:
            if name not in SupervisedSection.model_fields:
                raise SettingsError(
                    f"sft: unknown setting {name!r}. {near_names(name, SupervisedSection.model_fields)}"
                )
        num_parameters = sum(weights.numel() for weights in policy.parameters())
        given = ADAPTER_RATES[1] if self._config.model.adapter_rank else supervised_rate(num_parameters)
        rate = SMALL_MODEL_RATE if self._is_created else given
        section = SupervisedSection(**{"learning_rate": rate, **values})
        return section.changed(learning_rate=rate) if section.learning_rate == "auto" else section

    def require_finished(self) -> None:
        """Raises SettingsError if an earlier process was interrupted in these steps and they were not continued."""
        if self._writer is not None and self._writer.newest_sft is not None and not self.is_done:
            raise SettingsError("the run was interrupted in its supervised steps; call sft(demonstrations) first")

    def read(
        self, given: Any, policy: TrainedPolicy, settings: SupervisedSection, stream: TaskStream
    ) -> ShuffledDemonstrations:
        """Returns the demonstrations of each step. `given`: as in `Trainer.sft`; a function is called with the tasks of `stream`.

        Raises SettingsError without demonstrations and for a policy with adapters of its own, DataError for what cannot be read.
        """
        if has_adapters(policy.model):
            raise SettingsError(
                "sft() of a model with adapters of its own: merge them (model.merge_and_unload()) and set lora_rank, or train "
                "the adapters on the demonstrations before"
            )
        given = self._demonstrations if given is None else given
        if given is None:
            raise SettingsError("sft() has no demonstrations: give sft(demonstrations) or Trainer(demonstrations=…)")
        longest = getattr(policy.model.config, "max_position_embeddings", None) or sys.maxsize
        reader = DemonstrationReader(policy.prompts, policy.renderer, longest)
        read = reader.read(given, stream)
        return ShuffledDemonstrations(read, settings.batch_tokens, f"sft-{self._config.training.seed}")

    def run(self, policy: Any, settings: SupervisedSection, demonstrate: Demonstrate) -> None:
        """Trains the policy in place; adapters are merged into its weights."""
        self._rows, self._precision = [], None
        learner = supervised_learner(policy, self._config, settings, settings.num_steps)
        try:
            self._take_steps(learner, settings, demonstrate)
        finally:
            if has_adapters(learner.policy):
                merge(learner.policy)
        require_finite(policy, "the model after the supervised steps")
        if self._writer is not None:
            save_model(policy, self._tokenizer, self._writer.sft_policy_path, in_run=True)
            self._writer.note_sft()
            policy.name_or_path = str(self._writer.sft_policy_path)  # the base model that new adapters name
        self.is_done = True

    def _take_steps(self, learner: Learner, settings: SupervisedSection, demonstrate: Demonstrate) -> None:
        start, stop = self._restored(learner, settings), StopRequest()
        steps = {"start": start, "num_steps": settings.num_steps}
        save = self._saving(learner, settings, stop)
        if start < settings.num_steps and (note := cut_off_note(demonstrate(start), self._config.inference.max_tokens)):
            _log.warning(note)
        with stop, shown_steps("Supervised steps (SFT)", self._console, stop, self._log, save, **steps) as on_step:
            run_sft(
                learner,
                demonstrate,
                **steps,
                mixed_precision=is_mixed(settings, self._config, self._precision),
                on_step=on_step,
                on_precision=self._note_precision,
            )

    def _saving(self, learner: Learner, settings: SupervisedSection, stop: StopRequest) -> Callable[[int], None]:
        if self._writer is None:
            return lambda step: None

        def state() -> dict[str, Any]:
            return {"stage": STAGE, "settings": settings.model_dump(), "precision": self._precision}

        return saving(self._writer.sft_checkpoints, learner, self._tokenizer, stop, state)

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
            self._writer.run.log(STAGE, step, metrics)

    def _note_precision(self, choice: PrecisionChoice) -> None:
        self._precision = choice.precision
        self._console.note(f"  Supervised steps are computed in {choice}")
