"""How the recipe's conversations begin, and how calls stand in them: the same in demonstrations, in episodes and for verl."""

from __future__ import annotations

from midthought.feedback.prompts import DEFINITION, SYSTEM_PROMPT
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.tools.call_formats.hermes import HermesFormat

CALL_FORMAT = HermesFormat()


def system_messages(config: FeedbackRecipeConfig) -> tuple[str, ...]:
    """What is said before the task: what the tool is and how it is called, to models that were not made by the run."""
    says = config.problems.system_prompt
    is_told = bool(config.model.local_path) if says is None else says
    return (SYSTEM_PROMPT, CALL_FORMAT.instructions([DEFINITION])) if is_told else ()
