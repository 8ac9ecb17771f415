"""The commands of `midthought feedback`: what they write and what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import QWEN, ChatServer
from typer.testing import CliRunner

from midthought.cli import app
from midthought.data.problem_sets import load_problems
from midthought.data.tasks import load_tasks
from midthought.engines.servers.process import free_port
from midthought.env.answers import task_is_right
from midthought.errors import DataError
from midthought.feedback.commands import Finding, check_feedback, run_check, write_problems, write_verl_rows
from midthought.feedback.settings import SYSTEM_PROMPT, FeedbackSettings

pytest.importorskip("pyarrow")


def test_converting_says_what_was_bad_then_the_counts(tmp_path):
    row = {"unique_id": "a", "original_question": "?", "iteration": 0, "is_correct": True}
    row |= {"full_response": ["5"], "feedback": ""}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n{{}}\n", "utf-8")
    out = tmp_path / "new" / "sft.parquet"
    told = CliRunner().invoke(app, ["feedback", "convert", str(tmp_path / "log.jsonl"), str(out)])
    assert told.stdout.splitlines() == [
        "log.jsonl, line 2: iteration is None; input should be a valid integer; skipped",
        "1 conversations = 1 right at once + 0 one feedback + 0 two feedbacks",
        "1 bad rows skipped",
        f"written to {out}",
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_problems_are_written_as_tasks_or_as_verls_rows(tmp_path, suffix):
    told: list[str] = []
    out = tmp_path / "new" / f"made{suffix}"
    write_problems("multiplication", out, limit=3, seed=1, tell=told.append)
    assert told == [f"3 problems of multiplication written to {out}"]
    tasks, read = load_problems("multiplication", limit=3, seed=1), load_tasks(out)
    assert [(task.prompt, task.answer) for task in read] == [(task.prompt, task.answer) for task in tasks]
    assert all(task_is_right(task, f"So \\boxed{{{task.answer}}}.") for task in read)
    if suffix == ".parquet":
        assert read[0].before == ({"role": "system", "content": SYSTEM_PROMPT},)
        with pytest.raises(DataError, match="nothing to write"):
            write_verl_rows([], tmp_path / "none.parquet")


def test_rows_that_are_left_out_are_told(tmp_path):
    rows = [{"question": "?", "answer": "#### 5"}, {"question": "?", "answer": "#### many"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    told: list[str] = []
    source = str(tmp_path / "rows.jsonl")
    write_problems("gsm8k", tmp_path / "out.jsonl", source=source, tell=told.append)
    assert told[0].startswith("rows.jsonl, line 2: ") and told[0].endswith("; skipped")
    with pytest.raises(DataError, match="line 2"):
        write_problems("gsm8k", tmp_path / "out.jsonl", source=source, strict=True, tell=told.append)
    with pytest.raises(DataError, match=r"use \.parquet .* or \.jsonl"):
        write_problems("gsm8k", tmp_path / "out.csv", tell=told.append)


# -- check -----------------------------------------------------------------------------------------------------------


def check(server: ChatServer, **settings: Any) -> dict[str, Finding]:
    given = {"servers": [server.url], "model": "critic", "timeout_seconds": 5.0, **settings}
    return {finding.what: finding for finding in check_feedback(FeedbackSettings(**given))}


def test_a_server_that_works_passes_every_check() -> None:
    with ChatServer() as server:
        findings = check(server)
    assert list(findings) == ["reachable", "model", "feedback"]
    assert {finding.remedy for finding in findings.values()} == {""}
    assert "Step 2 is wrong" in findings["feedback"].words
    (body,) = server.requests
    assert (body["max_tokens"], body["seed"], body["temperature"]) == (2000, 14, 0.0)


def test_a_server_that_is_not_there_is_the_only_finding() -> None:
    (finding,) = check_feedback(FeedbackSettings(servers=[f"http://127.0.0.1:{free_port()}"], model="critic"))
    assert finding.what == "reachable"
    assert "Connect" in finding.words and "start the server" in finding.remedy


def test_another_model_is_named_with_those_that_are_served() -> None:
    with ChatServer(model="meta-llama/Llama-3.3-70B-Instruct") as server:
        findings = check(server, model="meta-llama/Llama-3.1-70B-Instruct")
    assert "feedback" not in findings
    assert "Did you mean 'meta-llama/Llama-3.3-70B-Instruct'" in findings["model"].words
    assert "--served-model-name" in findings["model"].remedy


def test_stop_ids_that_are_no_control_tokens_of_the_served_tokenizer_are_refused() -> None:
    for tokens, words in ((QWEN, "the ordinary token ' Ordnung'"), ({}, "128001 is no token in the served")):
        with ChatServer(tokens=tokens) as server:
            finding = check(server)["stop_token_ids"]
            assert words in finding.words and "set stop_token_ids to []" in finding.remedy
            assert "stop_token_ids" not in check(server, stop_token_ids=[])
    with ChatServer(tokens=None) as server:
        assert "stop_token_ids" not in check(server)


@pytest.mark.parametrize(
    ("fault", "words", "remedy"),
    [
        (500, "status 500: .*out of order", "server's log"),
        ("half", "not what was asked for", "server's log"),
        ("no_choice", "no chat completion", "server's log"),
        ("cut", "Error", "server's log"),
        ("stall", "no reply within 0.3 seconds", "raise timeout_seconds"),
    ],
)
def test_a_server_that_gives_no_feedback_is_told_with_a_remedy(
    fault: int | str, words: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midthought.feedback.model.BACKOFF_SECONDS", 0.01)
    with ChatServer() as server:
        server.always = fault
        finding = check(server, timeout_seconds=0.3 if fault == "stall" else 5.0)["feedback"]
    assert re.search(words, finding.words) and remedy in finding.remedy


def test_empty_feedback_fails_and_feedback_is_told_masked() -> None:
    with ChatServer(lambda body: "") as server:
        finding = check(server)["feedback"]
        assert "the feedback was empty" in finding.words and "stop_token_ids" in finding.remedy
        server.words = lambda body: "It is 408"
        assert check(server)["feedback"].words == "It is [masked]"


def test_the_command_prints_a_line_each_and_its_status_says_whether_all_is_well(tmp_path: Path) -> None:
    lines: list[str] = []
    with ChatServer() as good, ChatServer(model="another") as bad:
        path = tmp_path / "feedback.yaml"
        path.write_text(f"servers: [{good.url}]\nmodel: critic\n")
        assert run_check(path, lines.append) == 0
        assert lines[0] == good.url and lines[-1] == "3 checks, none failed."
        assert all(line.startswith("  ok ") for line in lines[1:-1]) and len(lines) == 5
        lines.clear()
        path.write_text(f"servers: [{good.url}, {bad.url}]\nmodel: critic\n")
        assert run_check(path, lines.append) == 1
    failed = next(number for number, line in enumerate(lines) if line.startswith("  FAILED model"))
    assert "set model to a served name" in lines[failed + 1] and lines[-1] == "5 checks, 1 failed."


def test_a_critic_without_a_server_needs_no_check(tmp_path: Path) -> None:
    path = tmp_path / "feedback.yaml"
    path.write_text("critic: hints\n")
    lines: list[str] = []
    assert run_check(path, lines.append) == 0 and "uses no server" in lines[0]
