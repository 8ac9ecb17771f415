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

from midthought.config import RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.model import has_adapters
from midthought.learning.stopping import StopRequest
from midthought.models.peft_folders import merge
from midthought.report.json_lines import json_value
from midthought.rollout.pace import Pace
from midthought.rollout.rollout_batch import task_of_group
from midthought.trainer.checkpoint import CheckpointManager
from midthought.trainer.initial_policy import TrainedPolicy
from midthought.trainer.learners import make_learner
from midthought.trainer.rollouts import open_sources
from midthought.trainer.run import Run
from midthought.trainer.stages import Stages
from midthought.trainer.tasks import TrainingTasks

_log = logging.getLogger(__name__)

NOTHING_OPEN: Mapping[str, Any] = {"next_position": 0, "postponed": [], "groups": [], "journal": 0}
"""State of a stream at the start of a run; what follows is in the journal."""


class Workers:
    """The learner of a policy, and the sources that run its episodes."""

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
        place: Literal["here", "apart"] | None,
    ) -> None:
        """`settings`: `config`, frozen. `longest_prompt`: in tokens, if known. `place`: as `beside_engine` returns."""
        self._policy, self._place = policy, place
        self.learner = make_learner(policy.model, policy.tokenizer, config, num_iters, apart=place == "apart")
        """Computes the updates."""
        self._engine, self.source, self.held_out = open_sources(
            policy.model,
            self.learner.policy,
            policy.renderer,
            policy.prompts,
            tasks,
            settings,
            model_path=policy.path,
            longest_prompt=longest_prompt,
            journal=run.journal,
        )
        """`source` runs training episodes, `held_out` those on held-out tasks."""
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
        if (stream is not None) != (staleness > 0):
            raise SettingsError(
                f"training.max_staleness={staleness} was assigned after the trainer was made; give it to the constructor"
            )
        if settings.inference.overlap is True and self._place is None:
            raise SettingsError(
                "inference.overlap=true was assigned after the trainer was made; give it to the constructor"
            )
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

    def save(
        self,
        checkpoints: CheckpointManager,
        step: int,
        state: dict[str, Any],
        *,
        path: str | Path | None,
        best: int,
        with_taken: bool,
    ) -> Path:
        """Writes a checkpoint with the trainer's `state`, and returns its path. `with_taken`: the last batch is not trained on
        yet. Other arguments as of `CheckpointManager.save`."""
        state["policy_version"] = self._engine.policy_version
        if self._stream is not None:
            state["stream"] = self._stream.state(with_taken=with_taken, in_run=path is None)
        learner, tokenizer = self.learner, self._policy.tokenizer
        target = checkpoints.save(learner, tokenizer, step, json_value(state), path=path, best=best)
        if self._stream is not None:
            self._stream.journal.keep(state["stream"]["journal"])
        return target

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
        self.source.close()
        if has_adapters(self.learner.policy) and not has_adapters(self._policy.model):
            merge(self.learner.policy)
        self.learner.close()
