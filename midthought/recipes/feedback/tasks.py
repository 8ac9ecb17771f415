"""Tasks of the recipe: the problems with the feedback tool, and the judging of episodes by round."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from midthought.env.math_worker_pool import NUM_WORKERS
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.evaluation import feedback_metrics
from midthought.recipes.feedback.problems import Parts
from midthought.recipes.feedback.reward import FeedbackEnvironment
from midthought.recipes.feedback.rounds import CALL_FORMAT, Round, rounds_of
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.tasks import RecipeTasks
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.trainer.rollouts import PromptBuilder
from midthought.types import Trajectory

_VALIDATION_METRICS = (
    "exact_match",
    "first_try",
    "call_rate_needed",
    "call_rate_needless",
    "wrong_to_right",
    "right_to_wrong",
)


class FeedbackTasks(RecipeTasks):
    """The problems with the tool `get_feedback`."""

    config: FeedbackRecipeConfig

    def __init__(self, config: FeedbackRecipeConfig, problems: Parts) -> None:
        system = "\n\n".join(config.system_messages)
        prompts = PromptBuilder(system, _registry(config), CALL_FORMAT, describes_tools=False)
        super().__init__(config, problems, prompts)

    def make_environment(self) -> FeedbackEnvironment:
        return FeedbackEnvironment(self.config.reward)

    def rounds(self, done: Sequence[Trajectory]) -> list[list[Round]]:
        """Returns the rounds of every episode. Answers not yet judged in this process (Ray workers) are judged in parallel."""
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            return list(pool.map(rounds_of, done))

    def is_right(self, trajectory: Trajectory) -> bool:
        """Whether the last answer is right."""
        rounds = rounds_of(trajectory)
        return bool(rounds) and rounds[-1].is_right

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        metrics = feedback_metrics(self.rounds(done), self.config.inference.max_turns)
        return {key: metrics[key] for key in _VALIDATION_METRICS if metrics[key] == metrics[key]}

    def executor(self, critic: str | None = None) -> ToolExecutor:
        """Returns an executor of the tool with this critic instead of the one in the settings."""
        return ToolExecutor(_registry(self.config, critic), timeout_seconds=self.config.inference.tool_timeout_seconds)


def tools_of_run(config: FeedbackRecipeConfig, run_path: Path) -> ToolRegistry:
    """Returns the tool of a finished run."""
    return _registry(config)


def _registry(config: FeedbackRecipeConfig, critic: str | None = None) -> ToolRegistry:
    """Returns the tool with the critic of the settings, or another one."""
    changes = {} if critic is None else {"critic": critic}
    return ToolRegistry([FeedbackTool.from_settings(config.feedback.model_copy(update=changes))])
