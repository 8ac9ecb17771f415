"""`midthought feedback check CONFIG`: tests whether the feedback servers do what the settings ask; every failure has a remedy.

`check_feedback` returns the findings as records, `run_check` prints them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import NoReplyError, near_names
from midthought.feedback.critics.critic import masked_feedback
from midthought.feedback.critics.model import ModelCritic
from midthought.feedback.critics.registry import make_critic
from midthought.feedback.critics.settings import FeedbackSettings, read_feedback_settings
from midthought.http.json_requests import hidden
from midthought.http.network import client_options, read_key
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
    return [finding for url in settings.servers for finding in check_server(url, settings)]


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


def check_server(url: str, settings: FeedbackSettings) -> list[Finding]:
    """Returns the findings of one server. Stops if it cannot be reached or does not serve the model."""
    return list(_findings(url, settings))


def _findings(url: str, settings: FeedbackSettings) -> Iterator[Finding]:
    began = time.monotonic()

    def found(what: str, words: str, remedy: str = "") -> Finding:
        return Finding(server=url, what=what, words=words, remedy=remedy, seconds=time.monotonic() - began)

    try:
        served = _served_models(url, settings)
    except NoReplyError as error:
        remedy = f"start the server (vllm serve {settings.model}), or correct its address (up to and with /v1) or api_key_env"
        yield found("reachable", str(error), remedy)
        return
    yield found("reachable", "it answers")
    if settings.model not in served:
        words = f"it does not serve {settings.model!r}. {near_names(settings.model, served)}"
        yield found("model", words, "set model to a served name, or start the server with --served-model-name")
        return
    yield found("model", settings.model)
    if ordinary := _ordinary_stop_token(url, settings):
        yield found(
            "stop_token_ids",
            f"{ordinary}: it would cut feedback without notice",
            "set stop_token_ids to [] (128001 and 128009 are Llama 3's; the model's own end token ends feedback anyway)",
        )
    critic = ModelCritic(settings.model_copy(update={"servers": [url]}))
    try:
        with contextlib.closing(BackgroundLoop("midthought-feedback-check")) as loop:
            words = loop.run(masked_feedback(critic, SAMPLE, SAMPLE_ANSWER, SAMPLE_REASONING))
    except NoReplyError as error:
        yield found(
            "feedback",
            str(error),
            "read the server's log; raise timeout_seconds or max_tokens, lower max_concurrency, and see that the server supports "
            "every parameter (stop_token_ids and seed are vLLM's)",
        )
    else:
        yield found("feedback", " ".join(words.split())[:120])


def _ordinary_stop_token(url: str, settings: FeedbackSettings) -> str:
    """Describes the first stop token that is no control token of the served tokenizer; empty if there is none, or if the server
    has no routes of a tokenizer (vLLM's)."""
    base = url.rstrip("/").removesuffix("/v1")
    for token_id in settings.stop_token_ids:
        body = {"model": settings.model, "tokens": [token_id]}
        try:
            response = _answer_of("POST", f"{base}/detokenize", settings, body)
        except NoReplyError:  # the next check says so
            return ""
        if response.status_code in (404, 405):
            return ""
        text = str(_values(response).get("prompt", ""))
        if not _CONTROL_TOKEN.fullmatch(text):
            what = f"the ordinary token {text!r}" if text else "no token"
            return f"token {token_id} is {what} in the served tokenizer"
    return ""


def _values(response: Any) -> dict[str, Any]:
    try:
        found = response.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _answer_of(method: str, address: str, settings: FeedbackSettings, body: Any = None) -> Any:
    """Returns a server's response. Raises NoReplyError."""
    import httpx

    key = read_key(settings.api_key_env, address)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(headers=headers, timeout=REACH_SECONDS, **client_options(address)) as client:
            return client.request(method, address, json=body)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoReplyError(hidden(f"{type(error).__name__}: {error}", key), is_passing=False) from None


def _served_models(url: str, settings: FeedbackSettings) -> list[str]:
    address = f"{url.rstrip('/')}/models"
    response = _answer_of("GET", address, settings)
    try:
        return [str(model["id"]) for model in response.json()["data"]]
    except (LookupError, TypeError, ValueError, RecursionError):
        words = f"status {response.status_code}, and no list of models, at {address}"
        raise NoReplyError(words, is_passing=False) from None
