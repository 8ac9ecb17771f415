"""What each critic says, that none of them says the answer, and how a model behind servers is asked."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from chat_server import FEEDBACK, ChatServer
from fresh_module import fresh_module
from hypothesis import given
from hypothesis import strategies as st

from midthought.data.problem_sets import load_problems
from midthought.engines.servers.process import free_port
from midthought.errors import DataError, NoReplyError, SettingsError
from midthought.feedback import critics
from midthought.feedback.critics import Critic, Hints, calculation_of, equations, make_critic, masked_feedback
from midthought.feedback.masking import MASK
from midthought.feedback.settings import RETRY_ONLY, FeedbackSettings
from midthought.types import Task


def task(prompt: str, answer: str, **labels: Any) -> Task:
    return Task(task_id="p", prompt=prompt, answer=answer, labels=labels)


PRODUCT = task("What is 123 * 45?", "5535", solution="123 * 5 = 615. 123 * 4 = 492.")
JUDGED = task("What is 123 * 45?", "5535", dataset="multiplication")
"""With a data set, whose rules find the final answer in a text."""


def say(critic: Critic, answer: str, reasoning: str = "", task: Task = PRODUCT) -> str:
    return asyncio.run(masked_feedback(critic, task, answer, reasoning))


def named(name: str, **settings: Any) -> Critic:
    return make_critic(FeedbackSettings(critic=name, **settings))


class Blabber:
    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return f"It is {task.answer}."


def test_a_critic_of_ones_own_gets_a_name_and_the_mask() -> None:
    again = fresh_module(critics)
    again.register_critic("blabber", lambda settings: Blabber())
    assert say(again.make_critic(FeedbackSettings(critic="blabber")), "5") == f"It is {MASK}."
    with pytest.raises(SettingsError, match="taken"):
        again.register_critic("blabber", lambda settings: Blabber())


def test_no_critic_says_the_answer_and_each_says_the_same_again() -> None:
    answers = ["5525", "\\boxed{5545}", "123 * 45 = 5535 + 1", "5535 is my first idea, 7 is the answer", ""]
    for name, answer in itertools.product(("outcome", "hints", "wrong", "none"), answers):
        first, second = (say(named(name), answer, "123 * 5 = 615, 123 * 4 = 482") for _ in range(2))
        assert first == second and first.startswith(RETRY_ONLY) and "5535" not in first
    assert first == RETRY_ONLY  # `none`
    candidates = " + ".join(str(number) for number in range(5530, 5540))
    for name in ("outcome", "hints", "wrong"):
        for answer in (candidates, f"{candidates} = 1", f"Is it one of {candidates}? I say 7."):
            assert MASK not in say(named(name), answer), "a list in which one is masked"


def test_outcome_says_what_was_judged() -> None:
    assert say(named("outcome"), "it is\n 7", task=JUDGED) == f"{RETRY_ONLY} This was judged: 7"
    assert say(named("outcome"), "no idea", task=JUDGED) == f"{RETRY_ONLY} No final answer was found in it."
    assert say(named("outcome"), "7") == RETRY_ONLY  # without a data set nobody knows how answers are found


def test_the_wrong_critic_blames_a_step_that_is_right() -> None:
    words = say(named("wrong"), "so 12", "3 * 4 = 12 and 2 + 2 = 5")
    assert "3 * 4 = 12" in words and "2 + 2 = 5" not in words
    assert "You go wrong here: Well" in say(named("wrong"), "Well.")


# -- equations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "are_true"),
    [
        ("7 * 4 = 28", [True]),
        ("7 * 4 = 27", [False]),
        ("2 + 3 * 4 = 14", [True]),
        ("7 / 2 = 3.5 and 1 / 3 = 0.33", [True, True]),
        ("5 / 0 = 0", []),
        ("12 * 20 = 12 * 2 * 10", []),
        ("2^3 + 1 = 9", []),
        ("1 + 1 = 2 = 3", [True]),
    ],
)
def test_statements_of_arithmetic_are_found_and_judged(text: str, are_true: list[bool]) -> None:
    assert [each.is_true for each in equations(text)] == are_true


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(-3, 3), st.sampled_from("*+-"))
def test_a_statement_is_true_where_python_says_so(first: int, second: int, error: int, sign: str) -> None:
    value = {"*": first * second, "+": first + second, "-": first - second}[sign] + error
    assert [each.is_true for each in equations(f"{first} {sign} {second} = {value}")] == [error == 0]


def test_searching_for_statements_takes_time_that_grows_with_the_text_only() -> None:
    for hostile in ("1 + " * 20_000, "1 " * 40_000, "1,111" * 20_000, "=" * 80_000, "1" * 80_000):
        began = time.process_time()
        list(equations(hostile))
        assert time.process_time() - began < 5  # a quadratic search takes minutes


# -- hints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answer", "reasoning", "hint"),
    [
        (PRODUCT, "5525", "123 * 5 = 605 and 123 * 40 = 4920", "This step is wrong: 123 * 5 = 605."),
        (PRODUCT, "5525", "123 * 40 = 4920", "Your steps hold no right value for 123 × 5."),
        (PRODUCT, "5525", "123 * 5 = 615 and 123 * 4 = 492", "it is their sum that goes wrong"),
        (PRODUCT, "5525", "", "The digit at the tens place is wrong; what is to its right is right."),
        (PRODUCT, "5534", "", "The digit at the ones place is wrong."),
        (PRODUCT, "535", "", "The answer has too few digits."),
        (PRODUCT, "-5535", "", "The sign is wrong."),
        (PRODUCT, "I do not know", "", "There is no whole number in the answer."),
        (JUDGED, "\\boxed{35} is not 5535", "", "The answer has too few digits."),
        (JUDGED, "\\boxed{5525}, see line 3", "", "The digit at the tens place is wrong"),
        (JUDGED, "no idea", "", "There is no whole number in the answer."),
        (task("Compute 58 + 67.", "125"), "115", "", "the tens place"),
        (task("Compute 58 - 67.", "-9"), "9", "", "The sign is wrong"),
        (task("Compute 100000000 + 1.", "100000001"), "200000001", "", "place 9 from the right is wrong"),
    ],
)
def test_hints_say_where_the_answer_that_was_judged_goes_wrong(
    asked: Task, answer: str, reasoning: str, hint: str
) -> None:
    assert hint in say(Hints(), answer, reasoning, asked)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Who found it?", "Ada"),
        ("What is 2 * 3 * 4?", "24"),
        ("Calculate 12 345 * 2.", "24690"),
        ("On 2020-12-01 Ann had 5 apples, and got 7.", "12"),
    ],
)
def test_hints_refuse_a_problem_that_is_no_calculation_or_not_only_one(prompt: str, answer: str) -> None:
    """The policy reads the error, so it does not state the answer."""
    with pytest.raises(DataError, match="'p' asks for no product") as refused:
        say(Hints(), "7", task=task(prompt, answer))
    assert answer not in str(refused.value)
    assert "ones place" in say(Hints(), "13", task=task("In 1999 - 2001 Ann had 5 + 7 apples. How many?", "12"))


def test_hints_for_real_products_never_hold_the_answer(real_data: Path) -> None:
    source = real_data / "feedback/multiplication/multiplication_questions_5d.every15th.jsonl"
    for problem in load_problems("multiplication", source):
        truth = int(problem.answer)
        assert calculation_of(problem).result == truth
        for wrong in (truth + 1, truth + 1000, truth // 10, truth * 10):
            words = asyncio.run(Hints().feedback(problem, f"\\boxed{{{wrong}}}", ""))
            assert problem.answer not in words.replace(str(wrong), "") and len(words) > len(RETRY_ONLY) + 10


# -- the model ---------------------------------------------------------------------------------------------------


def model(*servers: ChatServer, **settings: Any) -> Critic:
    return named("model", servers=[server.url for server in servers], model="critic", **settings)


def test_the_model_is_asked_with_the_published_parameters_and_the_seeds_material() -> None:
    with ChatServer() as server:
        assert say(model(server), "\\boxed{5525}", "123 * 4 = 482") == FEEDBACK
        say(model(server, process_feedback=False, stop_token_ids=[]), "1")
    body, without_solution = server.requests
    (message,) = body.pop("messages")
    values = {"model": "critic", "temperature": 0.0, "max_tokens": 2000, "seed": 14, "stop_token_ids": [128001, 128009]}
    assert body == values and message["role"] == "user"
    said = ("What is 123 * 45?", "123 * 4 = 482\n\n\\boxed{5525}", "secret\n5535", "Never state the right")
    for part in (*said, "123 * 5 = 615"):
        assert part in message["content"], part
    assert "123 * 5 = 615" not in json.dumps(without_solution) and "stop_token_ids" not in without_solution


def test_of_a_multiple_choice_the_option_is_the_secret() -> None:
    with ChatServer(lambda body: "It is (B), the blue one.") as server:
        words = say(model(server), "A", task=task("Which?", "B", options=["red", "blue"]))
    assert words == f"It is ({MASK}), the {MASK} one."
    content = server.requests[0]["messages"][0]["content"]
    assert "Never say which option is right" in content and "(B) blue" in content


def test_control_tokens_in_what_the_policy_wrote_are_taken_apart() -> None:
    with ChatServer() as server:
        say(model(server), "<|eot_id|><|start_header_id|>system [/INST] </s> <think> x < y \ud800")
    content = server.requests[0]["messages"][0]["content"]
    assert "< |eot_id|>" in content and "x < y" in content
    assert not any(token in content for token in ("<|", "[/INST]", "</s>", "<think>"))


def test_a_thought_before_the_feedback_is_left_out_and_the_answer_masked() -> None:
    with ChatServer(lambda body: "<think>It is 5535.</think>\nGo on, 5535 is near.") as server:
        assert say(model(server), "1") == f"Go on, {MASK} is near."
    with (
        ChatServer(lambda body: "<think>It is five thousand, and then") as server,
        pytest.raises(NoReplyError, match="feedback was empty"),
    ):
        say(model(server), "1")


@pytest.mark.parametrize("fault", [500, 429, 404, "half", "no_choice", "cut"])
def test_the_next_server_answers_where_one_fails(fault: int | str) -> None:
    with ChatServer() as broken, ChatServer(lambda body: "from the other") as whole:
        broken.always = fault
        critic = model(broken, whole)
        assert [say(critic, str(number)) for number in range(4)] == ["from the other"] * 4
        assert len(broken.requests) <= 1  # it is asked last for a while
        assert len(whole.requests) == 4


def test_a_stalled_server_and_one_that_is_not_there_cost_their_time_once() -> None:
    with ChatServer() as stalled, ChatServer() as whole:
        stalled.always = "stall"
        servers = [f"http://127.0.0.1:{free_port()}/v1", stalled.url, whole.url]
        critic = named("model", servers=servers, model="critic", timeout_seconds=0.4)
        begun = time.monotonic()
        assert [say(critic, str(number)) for number in range(5)] == [FEEDBACK] * 5
        assert time.monotonic() - begun < 3


def test_requests_are_spread_over_the_servers() -> None:
    with ChatServer() as one, ChatServer() as other:
        critic = model(one, other)
        for number in range(6):
            say(critic, str(number))
        assert (len(one.requests), len(other.requests)) == (3, 3)


def test_what_may_pass_is_asked_again_and_what_will_not_is_told_at_once() -> None:
    with ChatServer() as server:
        server.faults = [429, 500]
        assert say(model(server), "1") == FEEDBACK
        assert len(server.requests) == 3
        server.always = 400
        with pytest.raises(NoReplyError, match=r"status 400.*out of order"):
            say(model(server), "1")
        assert len(server.requests) == 4
        server.replies = [(429, {"Retry-After": "20"}, b"busy")]  # later than the critic's deadline
        begun = time.monotonic()
        with pytest.raises(NoReplyError, match="status 429: busy"):
            say(model(server, timeout_seconds=5.0), "1")
        assert time.monotonic() - begun < 3


def test_the_deadline_holds_for_all_servers_together() -> None:
    with ChatServer() as one, ChatServer() as other:
        one.always = other.always = "stall"
        begun = time.monotonic()
        with pytest.raises(ConnectionError, match="no server gave feedback"):
            say(model(one, other, timeout_seconds=0.3), "1")
        assert time.monotonic() - begun < 2


SECRET_IN_URL = "^the base_url of h has more than scheme, host, port and path; write"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "hint"}, r"critic='hint' is unknown\. Did you mean 'hints'\?"),
        ({"servers": []}, "no server"),
        ({"model": ""}, "set model"),
        ({"servers": ["ftp://x"]}, "no address"),
        ({"servers": ["http://h/v1?key=secret"]}, SECRET_IN_URL),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_critic(FeedbackSettings(**{"servers": ["http://127.0.0.1:1/v1"], "model": "critic", **settings}))
