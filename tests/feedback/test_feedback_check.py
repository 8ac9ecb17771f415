"""`midthought feedback check`: what it finds at servers that work and at servers that do not, and what it advises."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

import pytest
from feedback_server import QWEN, FeedbackServer

from midthought.errors import SettingsError
from midthought.feedback.check import Finding, Found, check_feedback, run_check
from midthought.feedback.critics.settings import FeedbackSettings


def check(server: FeedbackServer, **settings: Any) -> dict[str, Finding]:
    given = {"servers": [server.url], "model": "critic", "timeout_seconds": 5.0, **settings}
    return {finding.what: finding for finding in check_feedback(FeedbackSettings(**given))}


def test_a_server_that_works_passes_every_check() -> None:
    with FeedbackServer() as server:
        findings = check(server)
    assert list(findings) == ["reachable", "model", "stop_token_ids", "feedback", "same words", "max_tokens"]
    assert {finding.found for finding in findings.values()} == {Found.GOOD}
    assert {finding.remedy for finding in findings.values()} == {""}
    assert "Step 2 is wrong" in findings["feedback"].words
    assert [body["max_tokens"] for body in server.requests] == [2000, 48, 48, 4]
    assert [body["seed"] for body in server.requests] == [14, 14, 15, 14]  # at temperature 0 the seed must not matter


def test_the_answer_of_the_sample_is_masked_in_what_is_shown() -> None:
    with FeedbackServer(lambda body: "It is 408.") as server:
        assert "It is [masked]." in check(server)["feedback"].words


def test_a_server_that_is_not_there_is_the_only_finding() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (finding,) = check_feedback(FeedbackSettings(servers=[f"http://127.0.0.1:{port}"], model="critic"))
    assert (finding.what, finding.found) == ("reachable", Found.BAD)
    assert "Connect" in finding.words and "start the server" in finding.remedy


def test_another_model_is_named_with_those_that_are_served() -> None:
    with FeedbackServer(model="meta-llama/Llama-3.3-70B-Instruct") as server:
        findings = check(server, model="meta-llama/Llama-3.1-70B-Instruct")
    assert findings["model"].found is Found.BAD and "feedback" not in findings
    assert "Did you mean 'meta-llama/Llama-3.3-70B-Instruct'" in findings["model"].words
    assert "--served-model-name" in findings["model"].remedy


@pytest.mark.parametrize(
    ("tokens", "words"), [(QWEN, "the ordinary token ' Ordnung'"), ({}, "is no token in the served")]
)
def test_llama_3s_stop_ids_are_refused_with_another_tokenizer(tokens: dict[int, str], words: str) -> None:
    with FeedbackServer(tokens=tokens) as server:
        finding = check(server)["stop_token_ids"]
        assert finding.found is Found.BAD and words in finding.words and "set stop_token_ids to []" in finding.remedy
        assert check(server, stop_token_ids=[])["stop_token_ids"].found is Found.GOOD


def test_a_text_that_only_looks_like_a_control_token_is_no_control_token() -> None:
    with FeedbackServer(tokens={128001: "<|end_of_text|>", 5: "<|end_of_text|>", 128009: "<|eot_id|>"}) as server:
        assert check(server)["stop_token_ids"].found is Found.BAD


def test_a_server_without_a_tokenizer_leaves_the_stop_ids_open() -> None:
    with FeedbackServer(tokens=None) as server:
        finding = check(server)["stop_token_ids"]
    assert finding.found is Found.UNKNOWN and "unless the model is a Llama 3" in finding.remedy


@pytest.mark.parametrize(
    ("fault", "words", "remedy"),
    [
        (500, "status 500: .*out of order", "server's log"),
        (429, "status 429", "lower max_concurrency"),
        (400, "status 400", "rejects the request"),
        ("half", "no chat completion", "OpenAI-compatible"),
        ("no_choice", "no chat completion", "OpenAI-compatible"),
        ("cut", "Error", "start the server"),
        ("stall", "no reply within 0.3 seconds", "raise timeout_seconds"),
    ],
)
def test_a_server_that_gives_no_feedback_is_told_with_its_remedy(fault: int | str, words: str, remedy: str) -> None:
    import re

    with FeedbackServer() as server:
        server.always = fault
        finding = check(server, timeout_seconds=0.3)["feedback"]
    assert finding.found is Found.BAD and re.search(words, finding.words) and remedy in finding.remedy


def test_empty_feedback_fails_and_feedback_that_is_cut_is_told() -> None:
    with FeedbackServer(lambda body: "") as server:
        finding = check(server)["feedback"]
        assert finding.found is Found.BAD and "stop_token_ids" in finding.remedy
        server.words, server.finish_reason = (lambda body: "Step 2 is"), "length"
        finding = check(server)["feedback"]
        assert finding.found is Found.UNKNOWN and finding.remedy == "raise max_tokens"


def test_a_server_that_ignores_temperature_or_max_tokens_is_found_out() -> None:
    numbers = itertools.count()
    with FeedbackServer(lambda body: f"Hint {next(numbers)}: look again at the second of your steps") as server:
        assert check(server)["same words"].found is Found.BAD
        server.honours_max_tokens = False
        finding = check(server)["max_tokens"]
    assert finding.found is Found.BAD and "4 were allowed" in finding.words


def test_with_a_temperature_the_seed_must_give_the_same_words() -> None:
    with FeedbackServer(lambda body: f"drawn with {body['seed']}") as server:
        assert check(server, temperature=0.7)["same words"].found is Found.GOOD
        assert check(server, temperature=0.0)["same words"].found is Found.BAD


def test_the_command_prints_a_line_each_and_its_status_says_whether_all_is_well(tmp_path: Path) -> None:
    lines: list[str] = []
    with FeedbackServer() as good, FeedbackServer(tokens=QWEN) as bad:
        path = tmp_path / "feedback.yaml"
        path.write_text(f"servers: [{good.url}]\nmodel: critic\n")
        assert run_check(path, lines.append) == 0
        assert lines[0] == good.url and lines[-1] == "6 checks, none failed."
        assert all(line.startswith("  ok ") for line in lines[1:-1]) and len(lines) == 8
        lines.clear()
        path.write_text(f"servers: [{good.url}, {bad.url}]\nmodel: critic\n")
        assert run_check(path, lines.append) == 1
    failed = next(number for number, line in enumerate(lines) if line.startswith("  FAILED stop_token_ids"))
    assert "set stop_token_ids to []" in lines[failed + 1] and lines[-1] == "12 checks, 1 failed."


def test_a_critic_without_a_server_needs_no_check(tmp_path: Path) -> None:
    path = tmp_path / "feedback.yaml"
    path.write_text("critic: hints\n")
    lines: list[str] = []
    assert run_check(path, lines.append) == 0 and "uses no server" in lines[0]
    path.write_text("critic: hint\n")
    with pytest.raises(SettingsError, match="Did you mean 'hints'"):
        run_check(path, lines.append)
