"""What learns and what samples in a trainer: the learner, the engine, and the sources of training and held-out episodes.

They follow the settings of `fit`, and are saved to checkpoints and restored. Does not decide when a step is taken.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from midthought.config import RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.learner import Learner
from midthought.learning.model import Models, has_adapters
from midthought.learning.optimizer import TrainingSchedule
from midthought.learning.remote_learner import AnyLearner, RemoteLearner
from midthought.learning.stopping import StopRequest
from midthought.models.peft_folders import merge
from midthought.models.pretrained import load_model, load_tokenizer, policy_folder, use_float32_head
from midthought.plan.choices import word
from midthought.rollout.groups import Pace
from midthought.rollout.in_flight import NOTHING_OPEN
from midthought.rollout.selection import task_of_group
from midthought.trainer.checkpoint import CheckpointManager, vocabulary_digest
from midthought.trainer.initial_policy import TrainedPolicy
from midthought.trainer.overlapping import Stages, beside_engine
from midthought.trainer.run import Run
from midthought.trainer.sources import open_sources
from midthought.trainer.tasks import TrainingTasks

_log = logging.getLogger(__name__)


class Workers:
    """The learner of a policy, and the sources that run its episodes. `settings`: `config`, frozen. `longest_prompt`: its tokens,
    if they are known."""

    def __init__(
        self,
        config: RecipeConfig,
        settings: RecipeConfig,
        policy: TrainedPolicy,
        tasks: TrainingTasks,
        run: Run,
        *,
        num_iters: int,
        longest_prompt: int | None,
    ) -> None:
        self._policy, self._place = policy, beside_engine(policy.model, settings)
        self.learner = make_learner(policy.model, policy.tokenizer, config, num_iters, apart=self._place == "apart")
        """Computes the updates."""
        given = policy.model, self.learner.policy, policy.renderer, policy.prompts, tasks, settings
        options: dict[str, Any] = {"model_path": policy.path, "longest_prompt": longest_prompt, "journal": run.journal}
        try:
            self._engine, self.source, self.held_out = open_sources(*given, **options)
            """`source` runs training episodes, `held_out` those on held-out tasks."""
        except BaseException:
            self.learner.close()
            raise
        self._stream, self._draw = self.source.stream, functools.partial(task_of_group, tasks.stream)
        if self._stream is not None:
            self._stages = Stages(self._stream, self.learner, self._overlaps(settings), run.console.note)

    def _overlaps(self, settings: RecipeConfig) -> bool | Literal["auto"]:
        return settings.inference.overlap if self._place is not None else False

    # -- fit -------------------------------------------------------------------------------------------------------

    def follow(self, settings: RecipeConfig, *, is_new: bool) -> None:
        """Follows settings that were assigned since. `is_new`: no iteration is done. Raises SettingsError for those that cannot
        be followed."""
        stream, staleness = self._stream, settings.training.max_staleness
        late = "inference.overlap=true" if settings.inference.overlap is True and self._place is None else ""
        if (stream is not None) != (staleness > 0):
            late = f"training.max_staleness={staleness}"
        if late:
            raise SettingsError(f"{late} was assigned after the trainer was made; give it to the constructor")
        if stream is not None:
            stream.pace = Pace.of(settings)
            self._stages.follow(self._overlaps(settings))
            if is_new and not stream.next_position:  # a kill may have come before the first checkpoint
                self._restore_stream({"stream": NOTHING_OPEN})

    def start(self, stop: StopRequest) -> None:
        """Starts to measure batches. While a stop is requested, no batch waits for episodes."""
        if self._stream is not None:
            self._stream.is_stopping = lambda: stop.requested
            self._stages.start()

    def end_batch(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns what is measured of a batch with these metrics (`Stages.end_batch`); nothing without a stream."""
        return {} if self._stream is None else self._stages.end_batch(metrics)

    def pause(self) -> None:
        """Interrupts the episodes that outlive a batch."""
        if self._stream is not None:
            self._stream.pause()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def needs_checkpoint(self) -> bool:
        """Whether finished episodes would be lost with the process until there is a checkpoint."""
        return self._stream is not None and self._stream.journal.needs_checkpoint

    def state(self, *, with_taken: bool, in_run: bool) -> dict[str, Any]:
        """Returns what a checkpoint needs beside the learner (`InFlightEpisodes.state`)."""
        state: dict[str, Any] = {"policy_version": self._engine.policy_version}
        if self._stream is not None:
            state["stream"] = self._stream.state(with_taken=with_taken, in_run=in_run)
        return state

    def keep(self, state: Mapping[str, Any]) -> None:
        """Removes what the journal has of earlier checkpoints than the one with this state."""
        if self._stream is not None:
            self._stream.journal.keep(state["stream"]["journal"])

    @contextmanager
    def restored(self, checkpoints: CheckpointManager, path: str | Path) -> Iterator[dict[str, Any]]:
        """Restores the learner, and yields the trainer's state; after the block, the engine and the stream follow."""
        self.pause()  # nothing is sampled while weights change
        state = checkpoints.restore(self.learner, self._policy.tokenizer, path, "metrics_history")
        yield state
        if self._stream is not None:
            self._stream.drop()
        self.source.update_weights()
        self._engine.policy_version = int(state.get("policy_version", state["iteration"]))
        self._restore_stream(state)

    def _restore_stream(self, state: Mapping[str, Any]) -> None:
        """Continues the episodes in a checkpoint's state. Without a stream they are dropped, with a warning."""
        found = state.get("stream") or {**NOTHING_OPEN, "journal": None}
        if self._stream is None:
            number = sum(len(group["episodes"]) for group in found["groups"])
            what = "episodes of the checkpoint that are not trained on yet are dropped; training.max_staleness continues them"
        else:
            number = self._stream.restore(found, self._draw)
            what = "groups of the checkpoint start again: they are too old for this training.max_staleness"
        if number:
            _log.warning("%d %s", number, what)

    def close(self) -> None:
        """Ends servers and workers. Adapters, which change no output yet, leave the model."""
        try:
            self.source.close()
        finally:
            if has_adapters(self.learner.policy) and not has_adapters(self._policy.model):
                merge(self.learner.policy)
            self.learner.close()


ALONE = {"optimizer": "adamw", "offload": "none"}
"""Settings of `training`, and their values on ranks: another value needs a learner in this process."""


def make_learner(
    policy: Any, tokenizer: Any, config: RecipeConfig, num_iters: int, *, apart: bool = False
) -> AnyLearner:
    """Creates a learner for `Models.from_config`: in this process, `apart` in one of its own, or on `ray.num_learners` ranks.
    Close it after use."""
    ray, teacher = config.ray, load_teacher(config, policy, tokenizer)
    models = Models.from_config(policy, config, teacher)
    training = config.frozen().training
    schedule = TrainingSchedule.from_config(config, num_iters)
    if apart:
        from midthought.cluster.child import ChildGroup

        device = next(iter(models.policy.parameters())).device
        place = f"cuda:{((device.index or 0) + 1) % torch.cuda.device_count()}" if device.type == "cuda" else "cpu"
        for model in models[1:]:  # they only wait here for a new process
            if model is not None and model is not models.policy:
                model.to("cpu")
        child = ChildGroup(torch.get_num_threads(), place, ray.silence_timeout_seconds)
        return RemoteLearner(models, training, schedule, child)
    if ray.num_learners == 1:
        return Learner(models.policy, models.critic, models.reference, training, schedule, teacher=models.teacher)
    for name, value in ALONE.items():
        if (given := getattr(config.training, name)) != value:
            raise SettingsError(
                f"ray.num_learners={ray.num_learners} with training.{name}={given!r}: ranks do not do that (each holds only a "
                f"part of the models); set training.{name} to {word(value)}, or leave ray.num_learners as it was"
            )
    from midthought.cluster.ray.learners import RayWorkerGroup

    ranks = RayWorkerGroup(ray, is_deterministic=config.inference.deterministic)
    return RemoteLearner(models, training, schedule, ranks)


def load_teacher(config: RecipeConfig, policy: Any, tokenizer: Any) -> Any | None:
    """Loads `training.teacher` on the policy's device; None without one."""
    source = config.training.teacher
    if not source and config.training.adv_estimator == "zero":
        raise SettingsError(
            "training.adv_estimator='zero' without a teacher: all advantages are 0, so there is nothing to learn; set "
            "training.teacher to a model folder or a run folder, or another training.adv_estimator"
        )
    if not source:
        return None
    folder = policy_folder(Path(source))
    if vocabulary_digest(load_tokenizer(folder)) != vocabulary_digest(tokenizer):
        raise SettingsError(
            f"training.teacher={source!r} has another tokenizer than the policy, so its probabilities are of other tokens; "
            "give a teacher of the same family, or train the policy from a model with the teacher's tokenizer"
        )
    model = config.model
    teacher = load_model(folder, model.weights_dtype, model.attn_implementation)
    if model.float32_head:
        use_float32_head(teacher)
    return teacher.requires_grad_(False).eval().to(next(iter(policy.parameters())).device)
