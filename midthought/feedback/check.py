"""`midthought feedback check CONFIG`: tests whether the feedback servers do what the settings ask; every failure has a remedy.

`check_feedback` returns the findings as records, `run_check` prints them.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import NoReplyError, near_names
from midthought.feedback.critics import make_critic, masked_feedback
from midthought.feedback.model import ModelCritic, endpoint_settings
from midthought.feedback.settings import FeedbackSettings, read_feedback_settings
from midthought.http.json_requests import JsonEndpoint
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Task

REACH_SECONDS = 5.0
"""Time limit of requests that do not need the model."""
_CONTROL_TOKEN = re.compile(r"<[|｜]?[^\s<>]{1,60}>|\[/?[A-Z_]{2,40}\]")
SAMPLE = Task(
    task_id="feedback-check",
    prompt="What is 17 * 24? Put the result into \\boxed{}.",
    answer="408",
    labels={"solution": "17 * 20 = 340 and 17 * 4 = 68, so 17 * 24 = 340 + 68 = 408."},
)
SAMPLE_REASONING = "17 * 20 = 340 and 17 * 4 = 58, so 17 * 24 = 340 + 58 = 398."
SAMPLE_ANSWER = "\\boxed{398}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check of one server."""

    server: str
    what: str
    """`reachable`, `model`, `stop_token_ids` or `feedback`."""
    words: str
    remedy: str = ""
    """What to do; empty if the check passed."""
    seconds: float = 0.0


def check_feedback(settings: FeedbackSettings) -> list[Finding]:
    """Checks the servers one after the other; empty if the critic uses no server. Blocks for some seconds.

    Raises SettingsError if the settings themselves do not work, MissingExtraError if httpx is not installed.
    """
    make_critic(settings)
    if settings.critic != "model":
        return []
    with contextlib.closing(BackgroundLoop("midthought-feedback-check")) as loop:
        return [finding for url in settings.servers for finding in loop.run(_findings(url, settings))]


def run_check(path: str | Path, tell: Callable[[str], None] = print) -> int:
    """Checks the settings in a YAML file and prints one line per check. Returns the exit status: 1 if a check failed, else 0.

    Raises SettingsError if the file cannot be read or its settings do not work.
    """
    settings = read_feedback_settings(path)
    findings = check_feedback(settings)
    if not findings:
        tell(f"The critic {settings.critic!r} uses no server; there is nothing to check.")
        return 0
    for number, finding in enumerate(findings):
        if not number or finding.server != findings[number - 1].server:
            tell(finding.server)
        tell(f"  {'FAILED' if finding.remedy else 'ok    '} {finding.what} ({finding.seconds:.1f} s): {finding.words}")
        if finding.remedy:
            tell(f"         {finding.remedy}")
    num_failed = sum(bool(finding.remedy) for finding in findings)
    tell(f"{len(findings)} checks, {num_failed or 'none'} failed.")
    return 1 if num_failed else 0


async def _findings(url: str, settings: FeedbackSettings) -> list[Finding]:
    """Checks one server. Stops if it cannot be reached or does not serve the model."""
    began, findings = time.monotonic(), list[Finding]()

    def found(what: str, words: str, remedy: str = "") -> None:
        seconds = time.monotonic() - began
        findings.append(Finding(server=url, what=what, words=words, remedy=remedy, seconds=seconds))

    try:
        served = await JsonEndpoint(endpoint_settings(settings, url, REACH_SECONDS), "/models").post(None, _names)
    except NoReplyError as error:
        remedy = f"start the server (vllm serve {settings.model}), or correct its address (up to and with /v1) or api_key_env"
        found("reachable", str(error), remedy)
        return findings
    found("reachable", "it answers")
    if settings.model not in served:
        words = f"it does not serve {settings.model!r}. {near_names(settings.model, served)}"
        found("model", words, "set model to a served name, or start the server with --served-model-name")
        return findings
    found("model", settings.model)
    if ordinary := await _ordinary_stop_token(url, settings):
        found(
            "stop_token_ids",
            f"{ordinary}: it would cut feedback without notice",
            "set stop_token_ids to [] (128001 and 128009 are Llama 3's; the model's own end token ends feedback anyway)",
        )
    critic = ModelCritic(settings.model_copy(update={"servers": [url]}))
    try:
        words = await masked_feedback(critic, SAMPLE, SAMPLE_ANSWER, SAMPLE_REASONING)
    except NoReplyError as error:
        found(
            "feedback",
            str(error),
            "read the server's log; raise timeout_seconds or max_tokens, lower max_concurrency, and see that the server supports "
            "every parameter (stop_token_ids and seed are vLLM's)",
        )
    else:
        found("feedback", " ".join(words.split())[:120])
    return findings


def _names(models: Any) -> list[str]:
    return [str(model["id"]) for model in models["data"]]


async def _ordinary_stop_token(url: str, settings: FeedbackSettings) -> str:
    """Describes the first stop token that is no control token of the served tokenizer; empty if there is none, or if the server
    has no routes of a tokenizer (vLLM's)."""
    base = endpoint_settings(settings, url.rstrip("/").removesuffix("/v1"), REACH_SECONDS)
    for token_id in settings.stop_token_ids:
        body = json.dumps({"model": settings.model, "tokens": [token_id]}).encode()
        try:
            text = await JsonEndpoint(base, "/detokenize").post(body, lambda reply: str(reply.get("prompt", "")))
        except NoReplyError as error:
            status = str(error)[:10]
            if not status.startswith("status") or status in ("status 404", "status 405"):  # no answer, or no such route
                return ""
            text = ""
        if not _CONTROL_TOKEN.fullmatch(text):
            what = f"the ordinary token {text!r}" if text else "no token"
            return f"token {token_id} is {what} in the served tokenizer"
    return ""
