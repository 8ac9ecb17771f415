"""What the policy and the feedback tool say to each other: the tool's definition, the system prompt, the results' words.

Demonstrations (convert) and episodes (tool) both take them from here, so what was learned is what is met. Knows no critic.
"""

from __future__ import annotations

from midthought.tools.definition import ToolDefinition, ToolParameter

TOOL_NAME = "get_feedback"

DEFINITION = ToolDefinition(
    TOOL_NAME,
    "Ask an expert for feedback on your current answer. The expert says what is wrong and how to go on, not the answer.",
    [
        ToolParameter("current_answer", "string", "Your whole current solution, the final answer in its asked form."),
        ToolParameter("reasoning", "string", "How you came to it, where current_answer does not say.", required=False),
    ],
)

SYSTEM_PROMPT = f"""\
You solve problems, and you may ask an expert for feedback with the tool {TOOL_NAME}. Ask only where you doubt your answer.
When feedback comes back:
1. Read it carefully.
2. Solve the whole problem again from the beginning.
3. Show all of your reasoning again, not only what changed.
4. Mend what the feedback points at.
5. Give the complete revised solution, with the final answer in the form that was asked for.
The feedback helps you to reason; it does not tell you the answer. Once your answer is right, stop asking."""

RIGHT_ANSWER = "Your answer is correct! No further feedback is needed."
"""The whole result where the answer was right."""

RETRY_ONLY = "Your answer was incorrect."
"""The whole of the feedback where an experiment gives none."""

SOLVE_AGAIN = (
    "IMPORTANT: solve the problem again from the beginning with this feedback in mind. Show every step; do not just give "
    "another answer."
)


def wrong_answer_result(feedback: str) -> str:
    """What the model reads after a wrong answer: the feedback, then the request to solve the problem anew."""
    return f"{feedback.strip()}\n\n{SOLVE_AGAIN}"
