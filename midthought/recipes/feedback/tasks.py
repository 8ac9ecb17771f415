"""Tasks of the recipe: the problems with the feedback tool, and the metrics of episodes, computed from their rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from midthought.env.math_worker_pool import NUM_WORKERS
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.evaluation import RecipeTasks, share_of, with_interval
from midthought.recipes.feedback.problems import Parts
from midthought.recipes.feedback.reward import CALL_FORMAT, FeedbackEnvironment, Round, rounds_of
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.trainer.rollouts import PromptBuilder
from midthought.types import Trajectory

RETRY_ONLY = "none"
"""The critic of the retry-only arm."""
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
        prompts = PromptBuilder(system, tools_of_run(config), CALL_FORMAT, describes_tools=False)
        super().__init__(config, problems, prompts, FeedbackEnvironment(config.reward))

    def rounds(self, done: Sequence[Trajectory]) -> list[list[Round]]:
        """Returns the rounds of every episode. Answers not yet judged in this process (Ray workers) are judged in parallel."""
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            return list(pool.map(rounds_of, done))

    def is_right(self, trajectory: Trajectory) -> bool:
        """Whether the last answer is right."""
        return _is_right(rounds_of(trajectory))

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        metrics = feedback_metrics(self.rounds(done), self.config.inference.max_turns)
        return {key: metrics[key] for key in _VALIDATION_METRICS if metrics[key] == metrics[key]}

    def executor(self, critic: str) -> ToolExecutor:
        """Returns an executor of the tool with this critic instead of the one in the settings."""
        tool = FeedbackTool.from_settings(self.config.feedback.changed(critic=critic))
        return ToolExecutor(ToolRegistry([tool]), timeout_seconds=self.config.inference.tool_timeout_seconds)


def tools_of_run(config: FeedbackRecipeConfig, run_path: Path | None = None) -> ToolRegistry:
    """Returns the tool of a run."""
    return ToolRegistry([FeedbackTool.from_settings(config.feedback)])


# -- metrics -------------------------------------------------------------------------------------------------------


def feedback_metrics(episodes: Sequence[Sequence[Round]], max_rounds: int) -> dict[str, float]:
    """Returns the metrics of one arm: shares of all episodes unless noted otherwise, NaN if there is no case.

    | key | share |
    | --- | --- |
    | exact_match, first_try | right at the end; at the first try |
    | feedback_used | at least one call |
    | call_rate_needed, call_rate_needless | of first answers that were wrong (right): with a call about it |
    | goes_on_after_right | of episodes with an answer confirmed as right: another call after it |
    | calls_after_right | calls per episode in turns after an answer was confirmed as right |
    | wrong_to_right, right_to_wrong, still_wrong | with a call: change from the first to the last answer |
    | wrong_unasked | wrong at the end without a call |
    | accuracy_at.K | right if the episode had ended with round K |
    """
    changes = Counter(
        (any(r.num_asks for r in rounds), _is_right(rounds[:1]), _is_right(rounds)) for rounds in episodes
    )
    by_first = {
        was_right: [
            bool(rounds) and rounds[0].num_asks > 0 for rounds in episodes if _is_right(rounds[:1]) is was_right
        ]
        for was_right in (False, True)
    }
    confirmed = [_calls_after_right(rounds) for rounds in episodes if any(each.told_right for each in rounds)]
    metrics = {
        "exact_match": _mean(map(_is_right, episodes)),
        "first_try": _mean(_is_right(rounds[:1]) for rounds in episodes),
        "feedback_used": share_of(sum(n for (asked, *_), n in changes.items() if asked), len(episodes)),
        "call_rate_needed": _mean(by_first[False]),
        "call_rate_needless": _mean(by_first[True]),
        "goes_on_after_right": _mean(calls > 0 for calls in confirmed),
        "calls_after_right": share_of(sum(confirmed), len(episodes)),
        "wrong_to_right": share_of(changes[True, False, True], len(episodes)),
        "right_to_wrong": share_of(changes[True, True, False], len(episodes)),
        "still_wrong": share_of(changes[True, False, False], len(episodes)),
        "wrong_unasked": share_of(changes[False, False, False] + changes[False, True, False], len(episodes)),
        "calls_per_question": _mean(sum(each.num_asks for each in rounds) for rounds in episodes),
    }
    for number in range(1, max_rounds + 1):
        metrics[f"accuracy_at.{number}"] = _mean(_is_right(rounds[:number]) for rounds in episodes)
    for key in ("exact_match", "first_try"):
        metrics |= with_interval(key, metrics[key], len(episodes))
    return metrics


def _is_right(rounds: Sequence[Round]) -> bool:
    return bool(rounds) and rounds[-1].is_right


def _calls_after_right(rounds: Sequence[Round]) -> int:
    told = next(place for place, each in enumerate(rounds) if each.told_right)
    return sum(each.num_asks for each in rounds[told + 1 :])


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return share_of(sum(known), len(known))
