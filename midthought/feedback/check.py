"""`midthought feedback check CONFIG`: tests whether the feedback servers do what the settings ask; every failure has a remedy.

`check_feedback` returns the findings as records, `run_check` prints them.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import near_names
from midthought.feedback.critics.model import THOUGHT_END, feedback_prompt, request_body
from midthought.feedback.critics.registry import make_critic
from midthought.feedback.critics.settings import FeedbackSettings, read_feedback_settings
from midthought.feedback.masking import mask_answer
from midthought.http.json_requests import hidden, reply_of
from midthought.http.network import client_options, read_key
from midthought.types import Task

REACH_SECONDS = 5.0
"""Time limit of requests that do not need the model."""
SAMPLE = Task(
    task_id="feedback-check",
    prompt="What is 17 * 24? Put the result into \\boxed{}.",
    answer="408",
    labels={"solution": "17 * 20 = 340 and 17 * 4 = 68, so 17 * 24 = 340 + 68 = 408."},
)
SAMPLE_REASONING = "17 * 20 = 340 and 17 * 4 = 58, so 17 * 24 = 340 + 58 = 398."
SAMPLE_ANSWER = "\\boxed{398}"

_CONTROL_TOKEN = re.compile(r"<[|｜]?[^\s<>]{1,60}>|\[/?[A-Z_]{2,40}\]")
_LLAMA_3 = "128001 and 128009 are Llama 3's"


class Found(enum.StrEnum):
    """Result of one check."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"
    """The server does not give the information that is needed."""


_MARKS = {Found.GOOD: "ok     ", Found.BAD: "FAILED ", Found.UNKNOWN: "unsure "}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check of one server."""

    server: str
    what: str
    """`reachable`, `model`, `stop_token_ids` or `feedback`."""
    found: Found
    words: str
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
    seconds: float = 0.0


class _Problem(Exception):
    """A failed check: what is wrong, and the remedy."""

    def __init__(self, words: str, remedy: str, found: Found = Found.BAD) -> None:
        super().__init__(words)
        self.remedy = remedy
        self.found = found


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
    server = None
    for finding in findings:
        if finding.server != server:
            server = finding.server
            tell(server)
        tell(f"  {_MARKS[finding.found]}{finding.what} ({finding.seconds:.1f} s): {finding.words}")
        if finding.remedy:
            tell(f"         {finding.remedy}")
    num_bad = sum(finding.found is Found.BAD for finding in findings)
    tell(f"{len(findings)} checks, {num_bad or 'none'} failed.")
    return 1 if num_bad else 0


def check_server(url: str, settings: FeedbackSettings) -> list[Finding]:
    """The findings of one server. Stops if it cannot be reached or does not serve the model."""
    findings: list[Finding] = []
    server = _Server(url, settings)
    checks: dict[str, Callable[[], str]] = {
        "reachable": server.is_reachable,
        "model": server.serves_model,
        "stop_token_ids": server.stop_tokens_are_special,
        "feedback": server.gives_feedback,
    }
    with server.client:
        for what, check in checks.items():
            started = time.monotonic()
            try:
                words, remedy, found = check(), "", Found.GOOD
            except _Problem as problem:
                words, remedy, found = str(problem), problem.remedy, problem.found
            seconds = time.monotonic() - started
            findings.append(Finding(server=url, what=what, found=found, words=words, remedy=remedy, seconds=seconds))
            if found is Found.BAD and what in ("reachable", "model"):
                break
    return findings


class _Server:
    """One server; each check returns what it found, or raises `_Problem`."""

    def __init__(self, url: str, settings: FeedbackSettings) -> None:
        import httpx

        self._url = url.rstrip("/")
        self._settings = settings
        self._key = read_key(settings.api_key_env, url)
        self._served: list[str] = []
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self.client = httpx.Client(headers=headers, **client_options(url))

    def is_reachable(self) -> str:
        status, document, _ = self._send("GET", f"{self._url}/models", None, REACH_SECONDS)
        if status in (401, 403):
            raise _Problem(
                f"status {status}: the key is missing or wrong",
                "put the key into an environment variable and name it with api_key_env",
            )
        try:
            self._served = [str(model["id"]) for model in document["data"]]
        except (LookupError, TypeError):
            raise _Problem(
                f"status {status}, and no list of models, at {self._url}/models",
                "give the address up to and with /v1 of an OpenAI-compatible server",
            ) from None
        return "it answers"

    def serves_model(self) -> str:
        model = self._settings.model
        if model not in self._served:
            raise _Problem(
                f"it does not serve {model!r}. {near_names(model, self._served)}",
                "set model to a served name, or start the server with --served-model-name",
            )
        return model

    def stop_tokens_are_special(self) -> str:
        """Every stop id must be a control token of the served tokenizer; otherwise feedback would end at an ordinary word."""
        ids = self._settings.stop_token_ids
        for token_id in ids:
            text = str(self._tokenizer("detokenize", {"tokens": [token_id]}).get("prompt", ""))
            own = self._tokenizer("tokenize", {"prompt": text, "add_special_tokens": False}).get("tokens")
            if not _CONTROL_TOKEN.fullmatch(text) or own != [token_id]:
                what = f"the ordinary token {text!r}" if text else "no token"
                raise _Problem(
                    f"token {token_id} is {what} in the served tokenizer: it would cut feedback without notice",
                    f"set stop_token_ids to [] ({_LLAMA_3}; the model's own end token ends feedback anyway), or to this "
                    "tokenizer's",
                )
        return f"{ids} are control tokens" if ids else "none; the model's own end token ends feedback"

    def gives_feedback(self) -> str:
        settings = self._settings
        started = time.monotonic()
        prompt = feedback_prompt(SAMPLE, SAMPLE_ANSWER, SAMPLE_REASONING, shows_solution=settings.process_feedback)
        status, document, text = self._send(
            "POST", f"{self._url}/chat/completions", request_body(settings, prompt), settings.timeout_seconds
        )
        try:
            reply = reply_of(document)
        except ValueError:
            raise _Problem(
                f"status {status}, and no chat completion: {hidden(text, self._key)}",
                "read the server's log; check its address, its load (max_concurrency), and that it supports every parameter "
                "(stop_token_ids and seed are vLLM's)",
            ) from None
        words = " ".join(mask_answer(reply.text.rpartition(THOUGHT_END)[2], SAMPLE).split())[:120]
        if not words:
            raise _Problem(
                f"the feedback is empty (it ended with {reply.finish_reason!r})",
                "check stop_token_ids, raise max_tokens, or use an instruction-tuned model",
            )
        if reply.finish_reason == "length":
            raise _Problem(f"cut after max_tokens={settings.max_tokens}: {words}", "raise max_tokens", Found.UNKNOWN)
        return f"in {time.monotonic() - started:.1f} of {settings.timeout_seconds:g} s: {words}"

    def _tokenizer(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of vLLM's route; empty if it refuses (an id outside the vocabulary)."""
        url = f"{self._url.removesuffix('/v1')}/{route}"
        status, document, _ = self._send("POST", url, {"model": self._settings.model, **body}, REACH_SECONDS)
        if status in (404, 405):
            raise _Problem(
                f"the server has no /{route}, so {self._settings.stop_token_ids} cannot be checked",
                f"set stop_token_ids to [] unless the model is a Llama 3 ({_LLAMA_3})",
                Found.UNKNOWN,
            )
        return document if status == 200 and isinstance(document, dict) else {}

    def _send(self, method: str, url: str, body: Any, timeout_seconds: float) -> tuple[int, Any, str]:
        """Returns the status of a reply, its JSON (None if it is none) and its text."""
        import httpx

        try:
            response = self.client.request(method, url, json=body, timeout=timeout_seconds)
        except httpx.TimeoutException:
            raise _Problem(
                f"no reply within {timeout_seconds:g} seconds",
                "check the server's load and log, raise timeout_seconds, or lower max_tokens",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _Problem(
                f"{type(error).__name__}: {error}"[:200],
                f"start the server (vllm serve {self._settings.model}), or correct its address",
            ) from None
        try:
            return response.status_code, response.json(), response.text
        except (ValueError, RecursionError):
            return response.status_code, None, response.text
