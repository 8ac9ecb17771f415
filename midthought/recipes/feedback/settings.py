"""Settings of the feedback recipe: the library's sections and the recipe's own."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from midthought.config import InferenceConfig, RecipeConfig, Section
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.recipes.feedback.reward import FeedbackRewardConfig, broken_order
from midthought.recipes.supervised import ShownEpisodes, SupervisedSection

ArmCritic = Literal["none", "wrong", "generic", "outcome"]
DEFAULT_ARMS: tuple[ArmCritic, ...] = ("none", "wrong")


class ProblemsSection(Section):
    """The problems."""

    dataset: str = "arithmetic"
    """`arithmetic`: sums and products made here; else a data set of docs/feedback.md: `math`, `gsm8k`, …"""
    source: str | None = None
    """Where that data set lies: a file, a folder, a name on the hub. None: its own place."""
    split: str | None = None
    """One of the hub's splits."""
    test_dataset: str | None = None
    """The data set of validation and test. None: problems of the same one, kept apart."""
    test_source: str | None = None
    """Where it lies."""
    test_split: str | None = None
    """One of its splits."""
    num_train: int = Field(4000, ge=1)
    """Training problems, at most."""
    num_validation: int = Field(100, ge=1)
    """Problems of each validation, at most."""
    num_test: int = Field(800, ge=1)
    """Test problems, at most."""
    hard_share: float = Field(0.5, ge=0, le=1)
    """Share of hard problems among those made here."""
    system_prompt: bool | None = None
    """Tell the policy what the tool is and how it is called. None: where a model is given by `model.local_path`."""


class SftSection(SupervisedSection):
    """Supervised warm-up on demonstrations of mixed habits, or on conversations that `feedback convert` wrote."""

    source: str | None = None
    """Parquet file of `midthought feedback convert`. None: demonstrations are written by rule, for `arithmetic` alone."""
    num_steps: int = Field(400, ge=0)
    """Optimizer steps."""
    ask_hard: float = Field(0.45, ge=0, le=1)
    """Share of hard problems after whose first answer the demonstration asks."""
    ask_easy: float = Field(0.2, ge=0, le=1)
    """The same of easy ones."""
    ask_again: float = Field(0.45, ge=0, le=1)
    """Share that ask once more after the first feedback."""
    practice_share: float = Field(0.4, ge=0, le=1)
    """Share of demonstrations that begin after a first answer to a hard problem was asked about, so that reading feedback is
    learned more often than asking for it."""
    retry_share: float = Field(0.2, ge=0, le=1)
    """Share of demonstrations in which feedback only says that the answer is wrong, so that retrying is learned as well."""


class EvaluationSection(ShownEpisodes):
    """Before and after."""

    arms: list[ArmCritic] = Field(default_factory=lambda: list(DEFAULT_ARMS))
    """Critics that the trained policy is also evaluated with; `none` is the retry-only arm."""
    sampled: bool = False
    """Also evaluate sampled at temperature 1."""


class FeedbackRecipeConfig(RecipeConfig):
    """Settings of `midthought train feedback`."""

    inference: InferenceConfig = Field(
        default_factory=lambda: InferenceConfig(max_turns=3, max_tool_calls_per_cot=3, max_tokens=320)
    )
    feedback: FeedbackSettings = Field(default_factory=lambda: FeedbackSettings(critic="hints"))
    problems: ProblemsSection = Field(default_factory=ProblemsSection)
    sft: SftSection = Field(default_factory=SftSection)
    reward: FeedbackRewardConfig = Field(default_factory=FeedbackRewardConfig)  # type: ignore[assignment]
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)

    @model_validator(mode="after")
    def _reward_keeps_the_order(self) -> Self:
        flaw = broken_order(self.reward, max_asks=max(self.inference.max_turns - 1, 1))
        if flaw is not None and self.reward.preset == "ordered":
            raise ValueError(flaw)
        return self

    @model_validator(mode="after")
    def _problems_and_demonstrations_agree(self) -> Self:
        if self.feedback.critic == "hints" and self.problems.dataset not in ("arithmetic", "multiplication", "hex"):
            raise ValueError(
                f"feedback.critic='hints' calculates, and problems.dataset={self.problems.dataset!r} holds no calculations; "
                "set feedback.critic to process or model"
            )
        return self
