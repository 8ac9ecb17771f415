"""What policy and tool say to each other."""

from midthought.feedback import prompts


def test_the_tool_takes_an_answer_and_perhaps_the_reasoning():
    assert prompts.DEFINITION.name == prompts.TOOL_NAME == "get_feedback"
    schema = prompts.DEFINITION.parameters_schema()
    assert list(schema["properties"]) == ["current_answer", "reasoning"]
    assert schema["required"] == ["current_answer"]


def test_the_system_prompt_names_the_tool():
    assert prompts.TOOL_NAME in prompts.SYSTEM_PROMPT


def test_a_wrong_answers_result_is_the_feedback_then_the_request_to_solve_again():
    result = prompts.wrong_answer_result("  Mind the sign.\n")
    assert result == f"Mind the sign.\n\n{prompts.SOLVE_AGAIN}"
