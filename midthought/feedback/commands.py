"""Implements the commands of `midthought feedback`, without the command line: writes problems, and tests whether the feedback
servers do what the settings ask.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.config.references import optional
from midthought.data.problem_sets import SEED, load_problems
from midthought.data.tasks import DATASET_LABEL
from midthought.errors import DataError, NoReplyError, near_names
from midthought.feedback.convert import write_parquet
from midthought.feedback.critics import make_critic, masked_feedback
from midthought.feedback.model import ModelCritic, endpoint_settings
from midthought.feedback.settings import SYSTEM_PROMPT, TOOL_NAME, FeedbackSettings, read_feedback_settings
from midthought.files.regular import atomic_path
from midthought.http.json_requests import JsonEndpoint
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Task

Tell = Callable[[str], None]


def write_problems(
    dataset: str,
    out: Path,
    *,
    source: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    strict: bool = False,
    tell: Tell,
) -> None:
    """`midthought feedback problems`: writes a data set as verl's rows (.parquet) or as tasks (.jsonl)."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"{out}: the suffix selects the format; use .parquet (verl's rows) or .jsonl (tasks)")
    tasks = load_problems(dataset, source, split=split, limit=limit, seed=seed, strict=strict)
    for words in tasks.skipped:
        tell(f"{words}; skipped")
    if out.suffix == ".parquet":
        write_verl_rows(tasks, out, split=split or "train")
    else:
        with atomic_path(out) as partial:
            partial.write_text("".join(f"{json.dumps(task.to_dict())}\n" for task in tasks), "utf-8")
    tell(f"{len(tasks)} problems of {dataset} written to {out}")


def write_verl_rows(tasks: Iterable[Task], path: str | Path, *, split: str = "train") -> None:
    """Writes tasks to a Parquet file that verl's RLHF data set loads unchanged.

    `extra_info` holds `split`, `index` and the whole `task` as JSON for our reward and tool; verl's agent loop reads it from
    `tools_kwargs`. Raises DataError if there is no task, MissingExtraError without pyarrow.
    """
    pa = optional("pyarrow", "data")
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    told = pa.struct([(TOOL_NAME, pa.struct([("create_kwargs", pa.struct([("task", pa.string())]))]))])
    extra_info = [("split", pa.string()), ("index", pa.int64()), ("task", pa.string()), ("tools_kwargs", told)]
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct(extra_info)),
        ]
    )
    write_parquet(Path(path), schema, _rows(tasks, split))


def _rows(tasks: Iterable[Task], split: str) -> Iterator[dict[str, Any]]:
    for index, task in enumerate(tasks):
        dataset, written = str(task.labels.get(DATASET_LABEL, "unknown")), json.dumps(task.to_dict())
        yield {
            "data_source": dataset,
            "prompt": [dict(each) for each in task.messages(SYSTEM_PROMPT)],
            "ability": dataset.upper(),
            "reward_model": {"style": "rule", "ground_truth": task.answer},
            "extra_info": {
                "split": split,
                "index": index,
                "task": written,
                "tools_kwargs": {TOOL_NAME: {"create_kwargs": {"task": written}}},
            },
        }


# -- checking the servers ------------------------------------------------------------------------------------------

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


def run_check(path: str | Path, tell: Tell = print) -> int:
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
