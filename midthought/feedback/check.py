"""`midthought feedback check CONFIG`: tests whether the feedback servers do what the settings ask; every failure has a remedy.

`check_feedback` returns the findings as records, `run_check` prints them.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.errors import near_names
from midthought.feedback.critics.model import THOUGHT_END, feedback_prompt, request_body
from midthought.feedback.critics.registry import make_critic
from midthought.feedback.critics.settings import FeedbackSettings, read_feedback_settings
from midthought.feedback.masking import mask_answer
from midthought.network import is_local, read_key, tls_context
from midthought.types import Task

if TYPE_CHECKING:
    import httpx

REACH_SECONDS = 5.0
"""Time limit of requests that do not need the model."""
NUM_REPEATED_TOKENS = 48
"""Length of the feedback that is requested twice."""
NUM_FEW_TOKENS = 4

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
    """`reachable`, `model`, `stop_token_ids`, `feedback`, `same words`, `max_tokens`."""
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
    """The findings of one server. Stops if it cannot be reached, does not serve the model or gives no feedback."""
    asking = _Asking(url, settings)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("reachable", asking.is_reachable),
        ("model", asking.serves_model),
        ("stop_token_ids", asking.stop_tokens_are_special),
        ("feedback", asking.gives_feedback),
        ("same words", asking.says_the_same_again),
        ("max_tokens", asking.keeps_to_max_tokens),
    ]
    findings: list[Finding] = []
    with asking.client:
        for what, check in checks:
            started = time.monotonic()
            try:
                words, remedy, found = check(), "", Found.GOOD
            except _Problem as problem:
                words, remedy, found = str(problem), problem.remedy, problem.found
            seconds = time.monotonic() - started
            findings.append(Finding(server=url, what=what, found=found, words=words, remedy=remedy, seconds=seconds))
            if found is Found.BAD and what in ("reachable", "model", "feedback"):
                break
    return findings


class _Asking:
    """The checks of one server."""

    def __init__(self, url: str, settings: FeedbackSettings) -> None:
        import httpx

        self.url = url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self.settings = settings
        self._key = key = read_key(settings.api_key_env, url)
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=not is_local(url),
            verify=tls_context(trust_env=not is_local(url)),
        )
        self._served: list[str] = []
        self._prompt = feedback_prompt(
            SAMPLE, SAMPLE_ANSWER, SAMPLE_REASONING, shows_solution=settings.process_feedback
        )

    def is_reachable(self) -> str:
        response = self._send("GET", f"{self.url}/models", None, REACH_SECONDS)
        if response.status_code in (401, 403):
            raise _Problem(
                f"status {response.status_code}: the key is missing or wrong",
                "put the key into an environment variable and name it with api_key_env",
            )
        if response.status_code != 200:
            raise _Problem(
                f"status {response.status_code} at {self.url}/models",
                "give the address up to and with /v1 of an OpenAI-compatible server",
            )
        try:
            self._served = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _Problem(
                f"{self.url}/models is no list of models", "give the address of an OpenAI-compatible server"
            ) from None
        return "it answers"

    def serves_model(self) -> str:
        model = self.settings.model
        if model not in self._served:
            raise _Problem(
                f"it does not serve {model!r}. {near_names(model, self._served)}",
                "set model to a served name, or start the server with --served-model-name",
            )
        return model

    def stop_tokens_are_special(self) -> str:
        """Every stop id must be a control token of the served tokenizer; otherwise feedback would end at an ordinary word."""
        ids = self.settings.stop_token_ids
        for token_id in ids:
            text = self._text_of(token_id)
            if not _CONTROL_TOKEN.fullmatch(text) or self._ids_of(text) != [token_id]:
                what = f"the ordinary token {text!r}" if text else "no token"
                raise _Problem(
                    f"token {token_id} is {what} in the served tokenizer: it would cut feedback without notice",
                    f"set stop_token_ids to [] ({_LLAMA_3}; the model's own end token ends feedback anyway), or to this "
                    "tokenizer's",
                )
        return f"{ids} are control tokens" if ids else "none; the model's own end token ends feedback"

    def gives_feedback(self) -> str:
        started = time.monotonic()
        reply = self._complete({}, self.settings.timeout_seconds)
        seconds = time.monotonic() - started
        text = reply.text.rpartition(THOUGHT_END)[2].strip()
        if not text:
            raise _Problem(
                f"the feedback is empty (it ended with {reply.finish_reason!r})",
                "check stop_token_ids, raise max_tokens, or use an instruction-tuned model",
            )
        beginning = " ".join(mask_answer(text, SAMPLE).split())[:120]
        if reply.finish_reason == "length":
            raise _Problem(
                f"cut after max_tokens={self.settings.max_tokens}: {beginning}", "raise max_tokens", Found.UNKNOWN
            )
        return f"in {seconds:.1f} of {self.settings.timeout_seconds:g} s: {beginning}"

    def says_the_same_again(self) -> str:
        """At temperature 0 the seed must not matter; above 0, the same seed must give the same words."""
        few = {"max_tokens": min(NUM_REPEATED_TOKENS, self.settings.max_tokens)}
        other_seed = self.settings.seed + (1 if self.settings.temperature == 0 else 0)
        replies = [
            self._complete({**few, "seed": seed}, self.settings.timeout_seconds).text
            for seed in (self.settings.seed, other_seed)
        ]
        if replies[0] != replies[1]:
            raise _Problem(
                f"temperature={self.settings.temperature:g} and seed={self.settings.seed} gave two different texts",
                "the server ignores temperature or seed: check its version and the proxies in front of it (a busy server "
                "can also differ by rounding; a run keeps the first feedback)",
            )
        return f"temperature {self.settings.temperature:g}: the same words twice"

    def keeps_to_max_tokens(self) -> str:
        reply = self._complete({"max_tokens": NUM_FEW_TOKENS}, self.settings.timeout_seconds)
        if reply.num_tokens is None:
            raise _Problem("the server does not count its tokens (`usage`)", "", Found.UNKNOWN)
        if reply.num_tokens > NUM_FEW_TOKENS:
            raise _Problem(
                f"{reply.num_tokens} tokens came, {NUM_FEW_TOKENS} were allowed",
                "the server ignores max_tokens: check its version and the proxies in front of it",
            )
        return f"{reply.num_tokens} tokens of at most {NUM_FEW_TOKENS}"

    def _complete(self, changes: dict[str, Any], timeout_seconds: float) -> _Reply:
        body = {**request_body(self.settings, self._prompt), **changes}
        response = self._send("POST", f"{self.url}/chat/completions", body, timeout_seconds)
        if response.status_code != 200:
            text = response.text.replace(self._key, "…") if self._key else response.text
            words = " ".join(text.split())[:200]
            raise _Problem(f"status {response.status_code}: {words}", _remedy_for(response.status_code))
        try:
            content = response.json()
            choice = content["choices"][0]
            usage = content.get("usage") or {}
            return _Reply(
                text=str(choice["message"]["content"] or ""),
                finish_reason=str(choice.get("finish_reason")),
                num_tokens=usage.get("completion_tokens"),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _Problem(
                "the reply is no chat completion", "give the address of an OpenAI-compatible server"
            ) from None

    def _text_of(self, token_id: int) -> str:
        content = self._tokenizer("detokenize", {"tokens": [token_id]})
        return str(content.get("prompt", "")) if content is not None else ""

    def _ids_of(self, text: str) -> Sequence[int]:
        content = self._tokenizer("tokenize", {"prompt": text, "add_special_tokens": False})
        return content.get("tokens", []) if content is not None else []

    def _tokenizer(self, route: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The reply of vLLM's route; None if it refuses (an id outside the vocabulary)."""
        body = {"model": self.settings.model, **body}
        response = self._send("POST", f"{self.root}/{route}", body, REACH_SECONDS)
        if response.status_code in (404, 405):
            raise _Problem(
                f"the server has no /{route}, so {self.settings.stop_token_ids} cannot be checked",
                f"set stop_token_ids to [] unless the model is a Llama 3 ({_LLAMA_3})",
                Found.UNKNOWN,
            )
        try:
            content = response.json() if response.status_code == 200 else None
        except ValueError:
            content = None
        return content if isinstance(content, dict) else None

    def _send(self, method: str, url: str, body: dict[str, Any] | None, timeout_seconds: float) -> httpx.Response:
        import httpx

        try:
            return self.client.request(method, url, json=body, timeout=timeout_seconds)
        except httpx.TimeoutException:
            raise _Problem(
                f"no reply within {timeout_seconds:g} seconds",
                "check the server's load and log, raise timeout_seconds, or lower max_tokens",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _Problem(
                f"{type(error).__name__}: {error}"[:200],
                f"start the server (vllm serve {self.settings.model}), or correct its address",
            ) from None


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    finish_reason: str
    num_tokens: int | None


def _remedy_for(status: int) -> str:
    if status == 429:
        return "the server is busy or limits its clients: lower max_concurrency, or add servers"
    if status >= 500:
        return "read the server's log; the error is on its side"
    return "the server rejects the request: check that it supports every parameter (stop_token_ids and seed are vLLM's)"
