"""System messages and call format of the recipe's conversations, shared by demonstrations, episodes and verl."""

from __future__ import annotations

from midthought.feedback.prompts import DEFINITION, SYSTEM_PROMPT
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.tools.call_formats.tagged import HermesFormat

CALL_FORMAT = HermesFormat()


def system_messages(config: FeedbackRecipeConfig) -> tuple[str, ...]:
    """Returns the messages that describe the tool and its call format, for models that the run did not create."""
    says = config.problems.system_prompt
    is_told = bool(config.model.local_path) if says is None else says
    return (SYSTEM_PROMPT, CALL_FORMAT.instructions([DEFINITION])) if is_told else ()
