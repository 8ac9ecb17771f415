"""The stages of a run: each is done once, saved on the way, and continued after an interruption.

Does not depend on a particular task, tool or reward: a recipe defines what its stages do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import CheckpointConfig, ModelConfig
from midthought.learning.adapters import has_adapters
from midthought.learning.checkpoint import latest, step_of
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.learning.run_checks import require_finite
from midthought.learning.stopping import StopRequest
from midthought.models.peft_folders import merge
from midthought.models.pretrained import load_model, load_tokenizer, policy_folder, save_model
from midthought.recipes.progress import RunProgress
from midthought.report.run_folder import RunFolder
from midthought.trainer.checkpoint import CheckpointManager


@dataclass
class Stages:
    """The stages of the run in one folder. Each is done once, and continued after an interruption."""

    run: RunFolder
    progress: RunProgress
    checkpoint: CheckpointConfig
    resume: bool
    stop: StopRequest = field(default_factory=StopRequest)

    def once(self, stage: str, work: Callable[[], dict[str, Any]]) -> None:
        """Does a stage unless an earlier process finished it. Lines that an interrupted process wrote are dropped first."""
        if stage in self.progress.done:
            return
        if not self.checkpoints(stage).has_any:  # else the checkpoint stores which lines are its own
            self.run.forget_after(self.progress.log_position)
        try:
            with self.progress.timed(stage):
                metrics = work()
        except BaseException:
            self.progress.save()
            raise
        self.progress.finish(stage, metrics)
        self.stop.check()

    def checkpoints(self, stage: str) -> CheckpointManager:
        """The checkpoints of a stage."""
        return CheckpointManager(self.run, stage, self.checkpoint)

    def newest_step(self, *stages: str) -> tuple[str, int]:
        """Returns stage and step of the newest checkpoint of the first of these stages that has one."""
        for stage in stages:
            if path := latest(self.run.checkpoints_path / stage):
                return stage, step_of(path)
        return "beginning", 0

    def restore(self, learner: AnyLearner, stage: str, tokenizer: Any) -> int:
        """Loads the stage's newest intact checkpoint, if there is one, into the learner. Returns the number of steps done.

        Raises CheckpointError if it has another tokenizer: that of a small model made by another version, or from other texts.
        """
        checkpoints = self.checkpoints(stage)
        newest = checkpoints.newest() if self.resume else None
        if newest is None:
            return 0
        remedy = (
            "the transcripts changed, or another version of midthought began the run: continue with what it began with, or "
            "start a new run"
        )
        return int(checkpoints.restore(learner, tokenizer, newest, "stage", remedy)["step"])

    def export(
        self,
        name: str,
        policy: Any,
        tokenizer: Any,
        learner: AnyLearner | None = None,
        *,
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the policy as a Hugging Face folder in the run folder. Adapters that a stage learned are merged into it.
        `generation`: values of `generation_config.json`."""
        require_finite(policy, f"{self.run.path / name}")
        if learner is not None and has_adapters(learner.policy):
            merge(learner.policy)
        save_model(policy, tokenizer, self.run.path / name, in_run=True, generation=generation)
        self.run.expect_folder(name)
        policy.name_or_path = str(self.run.path / name)  # the base model that adapters of the next stage name


def load_policy_and_tokenizer(path: str, model: ModelConfig) -> tuple[Any, Any]:
    """A Hugging Face causal LM with its tokenizer. Raises ModelPathError naming the path and the remedy."""
    policy = load_model(path, model.weights_dtype, model.attn_implementation)
    return policy, load_tokenizer(path)


def find_policy(path: Path, *, before_rl: bool) -> Path:
    """Returns the Hugging Face folder that `--from PATH` means: PATH itself, or a checkpoint's or a run's policy.

    Of a run's two policies, it takes the one after the warm-up if reinforcement learning starts from it (`before_rl`), else the
    last one.
    """
    return policy_folder(path, ("warmup", "policy") if before_rl else ("policy", "warmup"))
