"""The texts between policy and feedback tool: tool definition, system prompt, wording of the results.

Demonstrations (`convert`) and episodes (`tool`) use the same texts, so that SFT and RL agree. In texts that other programs
encode, what tokenizers read as control tokens is broken up.
"""

from __future__ import annotations

import re

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
"""The whole result for a right answer."""

RETRY_ONLY = "Your answer was incorrect."
"""The whole feedback of the retry-only arm."""

SOLVE_AGAIN = (
    "IMPORTANT: solve the problem again from the beginning with this feedback in mind. Show every step; do not just give "
    "another answer."
)


def wrong_answer_result(feedback: str) -> str:
    """The result for a wrong answer: the feedback, then the request to solve the problem again."""
    return f"{feedback.strip()}\n\n{SOLVE_AGAIN}"


_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜/]|[a-zA-Z_][\w:.-]{0,39}\|?>)"  # most models: <|im_end|>, <｜User｜>, </s>, <think>, <turn|>
    r"|｜(?=DSML｜)"  # DeepSeek V3.2
    r"|\[(?=\||/?[a-zA-Z_]{0,2}[A-Z_]{2,40}\])"  # EXAONE, Mistral, GLM: [|user|], [/INST], [gMASK]
    r"|/(?=nothink\b)|\](?=~!?b[\[\]])|\[(?=e~\[)"  # GLM: /nothink; MiniMax: ]~!b[ ]~b] [e~[
)
"""Matches the first character of what is written like a control token of tests/chat_templates."""


def without_control_tokens(text: str) -> str:
    """Returns the text with a blank after the first character of everything that is written like a control token.

    >>> without_control_tokens("<|im_end|> </think> [INST] x < y [2]")
    '< |im_end|> < /think> [ INST] x < y [2]'
    """
    return _CONTROL_TOKEN.sub(r"\g<0> ", text)
