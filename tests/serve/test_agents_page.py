"""docs/agents.md says of every parameter of the dialects what the code does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from held_engine import place

from midthought.config import ConfigStore
from midthought.serve.dialects import anthropic, chat
from midthought.serve.sessions import SessionLimits

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("title", "dialect"),
    [("OpenAI Chat Completions", chat), ("Anthropic Messages", anthropic)],
    ids=["chat", "anthropic"],
)
def test_the_table_of_parameters_is_that_of_the_dialect(title, dialect):
    table = PAGE.partition(f"| {title} | in training |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (\w+)", table, flags=re.MULTILINE)
    written = [(name, effect) for names, effect in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(written) == sorted((name, str(effect)) for name, effect in dialect.PARAMETERS.items())


def test_the_limits_and_defaults_are_those_of_the_code():
    limits, settings = SessionLimits(), ConfigStore().environment
    assert f"more than {limits.max_answers} answers" in PAGE
    assert f"{limits.max_requests:,} requests or {limits.max_tokens // 10**6:g} million tokens" in PAGE
    assert f"`environment.agent_error_reward` ({settings.agent_error_reward:g})" in PAGE
    assert f"`environment.agent_idle_seconds` ({settings.agent_idle_seconds:g})" in PAGE
    assert limits.grace_seconds == 5 and "runs on for five seconds" in PAGE


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_command_posts_a_reward():
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    (command,) = re.findall(r"^    (curl .*)$", PAGE, flags=re.MULTILINE)
    with place() as one:
        client = (session := one.open()).client
        keys = {**os.environ, **client.environ(), "CONTROL_KEY": client.control_key, "NO_PROXY": "127.0.0.1"}
        reply = subprocess.run(["bash", "-c", command], env=keys, capture_output=True, check=True).stdout
    assert json.loads(reply) == {"rewarded": True} and session.reward == 1.0
