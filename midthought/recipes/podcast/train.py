"""The podcast recipe: memory, questions, demonstrations, evaluation arms, control arms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from midthought.checks.registry import Finding
from midthought.env.rewards import correct
from midthought.errors import SettingsError
from midthought.memory.transcripts import Transcript
from midthought.recipes.arms import EvaluationArm
from midthought.recipes.control_arms import RFT_ARMS, clean_arm
from midthought.recipes.podcast.demonstrations import Demonstrator
from midthought.recipes.podcast.evaluation import AFTER_ONLY, arm_metrics, arms, task_metrics
from midthought.recipes.podcast.policy import instruction, make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import PodcastData, PodcastTasks, prepare_data, read_recipe_transcripts
from midthought.recipes.run import RecipeRun
from midthought.rollout.local_rollouts import Rollouts


@dataclass
class PodcastRun(RecipeRun):
    """One run of the podcast recipe."""

    config: PodcastConfig
    transcripts: tuple[Transcript, ...] = field(init=False)
    data: PodcastData = field(init=False)
    tasks: PodcastTasks = field(init=False)
    arms: list[EvaluationArm] = field(init=False)
    """The arms of the evaluation after training."""

    sft_section, rl_stage = "warmup", "ppo"
    num_data_stages = 1
    control_arms = (*RFT_ARMS, clean_arm("warmup", {"habits": "clean"}))

    # -- data and demonstrations -------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.stage == "rl" and self.from_path is None and not self.resume:
            raise SettingsError("--stage rl needs a finished warm-up: give --from with a run folder or a checkpoint")
        self.transcripts = read_recipe_transcripts(self.config)
        self.data = prepare_data(self.config, self.transcripts, self.path)
        if self.stage != "sft":
            sampled, seed = self.config.evaluation.sampled, self.config.training.seed
            self.arms, left_out = arms(self.data, sampled=sampled, seed=seed)
            for reason in left_out:
                self.console.note(f"  Left out of the evaluation: {reason}")

    def make_tasks(self, config: PodcastConfig) -> PodcastTasks:  # type: ignore[override]
        return PodcastTasks(config, self.data)

    def build_data(self) -> None:
        with (
            self.progress.timed("memory"),
            self.console.stage("Memory and questions", unit="texts embedded") as bar,
        ):
            report = self.data.build(self.path, bar.follow)
        self.folder.findings.append(
            Finding(
                "; ".join(each.doubts),
                "look at it with 'midthought memory inspect'",
                subject=str(each.path),
                check="doubtful transcript",
            ).to_dict()
            for each in self.transcripts
            if each.is_doubtful
        )
        tasks = self.data.tasks
        self.console.note(
            f"  {sum(map(len, self.data.chunks.values())):,} chunks of the episodes "
            f"({report.num_added:,} new); questions: {len(tasks['train']):,} for training, "
            f"{len(tasks['test']):,} that need the memory and {len(tasks['test_no_memory']):,} that do not for the test"
        )

    def make_policy(self) -> tuple[Any, Any]:
        return make_small_policy(self.config, self.data.chunks["train"], may_abstain=self.data.may_abstain)

    def demonstrations(self, config: PodcastConfig) -> Demonstrator:  # type: ignore[override]
        return Demonstrator(
            chunks=self.data.chunks["train"],
            renderer=self.tasks.renderer,
            plan=self.data.plan,
            settings=config.warmup,
            num_results=config.memory.k,
            max_result_tokens=config.inference.max_result_tokens,
            instruction=instruction(config, may_abstain=self.data.may_abstain),
            own=self.data.with_evidence(self.data.tasks["train"]) if config.questions.path else (),
            names=self.data.names,
            seed=config.training.seed,
        )

    # -- evaluation --------------------------------------------------------------------------------------------

    def evaluate(self, when: str, source: Rollouts) -> dict[str, Any]:
        chosen = [arm for arm in self.arms if when != "before" or arm.name not in AFTER_ONLY]
        found = self.run_arms(when, source, chosen, lambda arm, done: arm_metrics(arm, done, correct))
        is_first = when == "before" or self.stage == "evaluate"
        return found | (task_metrics(self.data) if is_first else {})
