"""The feedback run: problems, warm-up, reinforcement learning, evaluation with its arms. Holds no mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midthought.config import settled
from midthought.errors import SettingsError
from midthought.learning.learner import Learner
from midthought.learning.sft import run_sft
from midthought.recipes.feedback.arithmetic import DIFFICULTY_LABEL
from midthought.recipes.feedback.evaluation import feedback_figures, figures_by_label, gains
from midthought.recipes.feedback.policy import make_small_policy
from midthought.recipes.feedback.problems import Parts, prepare_problems
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.workshop import Workshop
from midthought.recipes.pipeline import OnStep, RecipeRun, When, before_and_after
from midthought.recipes.presets import run_of
from midthought.recipes.stages import supervised_learner
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.types import Task

_UNTAUGHT = (
    "Warning: no warm-up came before this. A policy that was never shown the tool does not know that it can call it, and "
    "reinforcement learning can only strengthen what is tried now and then; run --stage sft first, or --stage all."
)

_TABLE = (
    ("right at the end", "exact_match"),
    ("right at the first try", "first_try"),
    ("… with retries only", "none.exact_match"),
    ("… with wrong feedback", "wrong.exact_match"),
    ("asks when wrong", "call_rate_needed"),
    ("asks when right", "call_rate_needless"),
    ("goes on after being told right", "goes_on_after_right"),
    ("wrong → right", "wrong_to_right"),
    ("right → wrong", "right_to_wrong"),
    ("still wrong", "still_wrong"),
)


@dataclass
class FeedbackRun(RecipeRun):
    """One run of the feedback recipe."""

    config: FeedbackRecipeConfig
    problems: Parts = field(init=False)
    workshop: Workshop = field(init=False)

    rl_stage = "rl"
    rl_title = "Reinforcement learning"

    # -- before anything learns --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self.stage in ("sft", "all") and self.config.problems.dataset != "arithmetic" and not self.config.sft.source:
            raise SettingsError(
                f"problems.dataset={self.config.problems.dataset!r} needs demonstrations: set sft.source to a file that "
                "`midthought feedback convert` wrote, or begin with --stage rl"
            )
        self.problems = prepare_problems(self.config.problems, self.config.training.seed)

    def _begin(self) -> tuple[Any, Any]:
        return make_small_policy(self.config.model, self.config.training.seed)

    def _make_workshop(self, policy: Any, renderer: Renderer) -> Workshop:
        return Workshop(self.config, self.problems, policy, renderer)

    @property
    def _train_tasks(self) -> Sequence[Task]:
        return self.problems["train"]

    @property
    def _num_shown(self) -> int:
        return self.config.evaluation.num_shown

    # -- the stages --------------------------------------------------------------------------------------------

    def _num_sft_steps(self) -> int:
        return self.config.sft.num_steps

    def _sft_learner(self, policy: Any, num_steps: int) -> Learner:
        settings = self.config.sft
        return supervised_learner(
            policy,
            self.config.model,
            self.config.training,
            learning_rate=settled(settings.learning_rate),
            warmup_steps=settings.warmup_steps,
            num_steps=num_steps,
        )

    def _teach(self, learner: Learner, start: int, on_step: OnStep) -> None:
        settings = self.config.sft
        run_sft(
            learner,
            self.workshop.demonstrations(),
            start=start,
            num_steps=settings.num_steps,
            pad_token_id=self.workshop.pad_token_id,
            mixed_precision=self._is_mixed(settings.mixed_precision),
            on_step=on_step,
            on_precision=self._note_precision,
        )

    def _take_over(self) -> dict[str, Any]:
        if self.from_path is None or run_of(self.from_path) is None:
            self.console.note(_UNTAUGHT)
        return super()._take_over()

    def _evaluate(self, when: When) -> dict[str, Any]:
        tasks = self.problems["test"]
        figures: dict[str, Any] = {}
        arms: list[tuple[str, str | None, float]] = [("", None, 0.0)]
        if self.config.evaluation.sampled:
            arms.append(("sampled", None, 1.0))
        if when == "after":
            arms += [(critic, critic, 0.0) for critic in self.config.evaluation.arms]
        source = self.workshop.source(self._num_iters if when == "after" else 0)
        with self.console.stage(f"Evaluation {when}", total=len(tasks) * len(arms), unit="episodes") as bar:
            for name, critic, temperature in arms:
                executor = self.workshop.executor(critic)
                done = source.evaluate(
                    tasks, executor=executor, temperature=temperature, on_finished=lambda _: bar.advance(1)
                )
                episodes = self.workshop.rounds(done)
                own = feedback_figures(episodes, self.config.inference.max_turns)
                if not name:
                    own |= figures_by_label(done, episodes, DIFFICULTY_LABEL)
                figures |= {".".join(filter(None, (when, name, key))): value for key, value in own.items()}
                self._keep_trajectories(done, f"{when}.{name}".rstrip("."))
                self.stages.stop.check()
        return {"num_questions": len(tasks), **figures}

    def _validate(self, source: Rollouts, iteration: int) -> bool:
        """Log the held-out figures; True where the final accuracy is the best so far."""
        episodes = self.workshop.rounds(source.evaluate(self.problems["validation"]))
        figures = feedback_figures(episodes, self.config.inference.max_turns)
        shown = (
            "exact_match",
            "first_try",
            "call_rate_needed",
            "call_rate_needless",
            "wrong_to_right",
            "right_to_wrong",
        )
        self.run.log("validation", iteration, {key: figures[key] for key in shown if figures[key] == figures[key]})
        return self.stages.note_validation(figures["exact_match"], iteration)

    # -- what is told at the end -------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        figures = super()._figures()
        return {**figures, **gains(figures)}

    def _last_table(self, summary: Mapping[str, Any]) -> None:
        rows = before_and_after(summary, _TABLE)
        if rows:
            self.console.table("Held-out problems", ("", "before RL", "after RL"), rows)
