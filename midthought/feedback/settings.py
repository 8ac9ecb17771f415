"""The settings of feedback, the two kinds of YAML files that hold them (plain keys, or verl's tool configuration), and the
texts between policy and feedback tool. `feedback.commands` tests the settings with the servers.

Demonstrations (`convert`) and episodes (`tool`) use the same texts, so that SFT and RL agree. In texts that other programs
encode, what tokenizers read as control tokens is broken up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import Field, field_validator

from midthought.config.section import Harmless, Section
from midthought.config.yaml_files import read_yaml_file
from midthought.errors import SettingsError, near_names
from midthought.tools.definition import ToolDefinition, ToolParameter

TOOL_NAME = "get_feedback"

DEFINITION = ToolDefinition(
    TOOL_NAME,
    "Ask an expert for feedback on your current answer. The expert says what is wrong and how to go on, not the answer.",
    [
        ToolParameter("current_answer", "string", "Your whole current solution, the final answer in its asked form."),
        ToolParameter("reasoning", "string", "How you came to it, where current_answer does not say.", required=False),
    ],
)

SYSTEM_PROMPT = f"""\
You solve problems, and you may ask an expert for feedback with the tool {TOOL_NAME}. Ask only where you doubt your answer.
When feedback comes back:
1. Read it carefully.
2. Solve the whole problem again from the beginning.
3. Show all of your reasoning again, not only what changed.
4. Mend what the feedback points at.
5. Give the complete revised solution, with the final answer in the form that was asked for.
The feedback helps you to reason; it does not tell you the answer. Once your answer is right, stop asking."""

RIGHT_ANSWER = "Your answer is correct! No further feedback is needed."
"""The whole result for a right answer."""

RETRY_ONLY = "Your answer was incorrect."
"""The whole feedback of the retry-only arm."""

SOLVE_AGAIN = (
    "IMPORTANT: solve the problem again from the beginning with this feedback in mind. Show every step; do not just give "
    "another answer."
)


def wrong_answer_result(feedback: str) -> str:
    """The result for a wrong answer: the feedback, then the request to solve the problem again."""
    return f"{feedback.strip()}\n\n{SOLVE_AGAIN}"


_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜/]|[a-zA-Z_][\w:.-]{0,39}\|?>)"  # most models: <|im_end|>, <｜User｜>, </s>, <think>, <turn|>
    r"|｜(?=DSML｜)"  # DeepSeek V3.2
    r"|\[(?=\||/?[a-zA-Z_]{0,2}[A-Z_]{2,40}\])"  # EXAONE, Mistral, GLM: [|user|], [/INST], [gMASK]
    r"|/(?=nothink\b)|\](?=~!?b[\[\]])|\[(?=e~\[)"  # GLM: /nothink; MiniMax: ]~!b[ ]~b] [e~[
)
"""Matches the first character of what is written like a control token of tests/chat_templates."""


def without_control_tokens(text: str) -> str:
    """Returns the text with a blank after the first character of everything that is written like a control token.

    >>> without_control_tokens("<|im_end|> </think> [INST] x < y [2]")
    '< |im_end|> < /think> [ INST] x < y [2]'
    """
    return _CONTROL_TOKEN.sub(r"\g<0> ", text)


_CHAT_PATH = "/chat/completions"


class FeedbackSettings(Section):
    """Who gives feedback, and how the model is asked. Raises SettingsError for an unknown key or a wrong value."""

    critic: str = "model"
    """Source of the feedback: `model` (a language model), `outcome`, `hints`; for experiments `wrong`, `none`."""
    servers: Harmless[list[str]] = Field(default_factory=list)
    """OpenAI-compatible servers of one model, `http://HOST:PORT/v1` each; one that fails is replaced by the next."""
    model: str = ""
    """Name of the feedback model on the servers."""
    temperature: float = Field(0.0, ge=0)
    """0: greedy, the same text every time."""
    max_tokens: int = Field(2000, ge=1)
    """Maximum length of one feedback."""
    seed: int = 14
    """Seed of the servers' sampling at a temperature above 0."""
    stop_token_ids: list[int] = Field(default_factory=lambda: [128001, 128009])
    """Tokens that end the feedback, in addition to the model's own; the default is Llama 3's. `[]` for any other model."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Time limit of one server. A feedback takes at most this time multiplied by the number of servers."""
    dataset: str = ""
    """Data set of tasks without the label `dataset`; it selects the rules for answers. Empty: the truth selects them."""
    process_feedback: bool = True
    """Show the worked solution to the model, if the task has one."""
    api_key_env: Harmless[str | None] = None
    """Environment variable with the servers' API key."""
    max_concurrency: Harmless[int] = Field(64, ge=1)
    """Maximum number of concurrent requests per server."""

    @field_validator("servers", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        several = [value] if isinstance(value, str) else value
        return [_base_url(each) for each in several] if isinstance(several, list) else value


def _base_url(address: Any) -> Any:
    """The address without `/chat/completions`; adds `/v1` to a bare `http://HOST:PORT`."""
    if not isinstance(address, str):
        return address
    url = urlsplit(address.strip())
    path = url.path.rstrip("/").removesuffix(_CHAT_PATH)
    return urlunsplit(url._replace(path=path or "/v1"))


_SEED_NAMES = {
    "vllm_url": "servers",
    "feedback_model": "model",
    "timeout": "timeout_seconds",
    "use_process_feedback": "process_feedback",
}
"""Key of verl's tool configuration -> our key; the others have the same name."""
_SEED_FIXED: dict[str, tuple[Any, ...]] = {"type": ("native",), "n": (1,), "best_of": (1,), "shuffle": (False,)}
"""Keys of verl's tool configuration, and the only values supported here."""


def read_feedback_settings(path: str | Path) -> FeedbackSettings:
    """Settings from a YAML file: keys of `FeedbackSettings` (at the top level, or under `feedback`), or verl's tool configuration
    (`tools: [{class_name, config, tool_schema}]`), from which the tool `get_feedback` is read.

    Raises SettingsError if the file cannot be read, or has an unknown key or a wrong value.
    """
    try:
        content = read_yaml_file(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return feedback_settings(content)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def feedback_settings(content: Any) -> FeedbackSettings:
    """The same from parsed YAML."""
    if not isinstance(content, Mapping):
        raise SettingsError("it has no settings; write `key: value` lines, at least servers and model")
    if "tools" in content:
        return FeedbackSettings(**_from_tool_config(content["tools"]))
    inner = content.get("feedback", content)
    if not isinstance(inner, Mapping):
        raise SettingsError(f"feedback={inner!r}: feedback is a section; write its keys under it")
    return FeedbackSettings(**{str(key): value for key, value in inner.items()})


def _from_tool_config(tools: Any) -> dict[str, Any]:
    """Returns the settings of the tool `get_feedback` in verl's list of tools, or of the tool without a `tool_schema`."""
    entries = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    named = {_tool_name(entry): entry.get("config") for entry in entries}
    name = TOOL_NAME if TOOL_NAME in named else ""
    if name not in named:
        raise SettingsError(f"`tools` names no tool {TOOL_NAME!r}; {near_names(TOOL_NAME, named)}")
    if not isinstance(config := named[name], Mapping):
        raise SettingsError(f"the tool {TOOL_NAME!r} has no `config` of keys and values")
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key not in _SEED_FIXED:
            settings[_SEED_NAMES.get(str(key), str(key))] = value
        elif value not in _SEED_FIXED[key]:
            raise SettingsError(
                f"{key}={value!r}: the only supported value is {_SEED_FIXED[key][0]!r}; remove the line"
            )
    return settings


def _tool_name(entry: Mapping[str, Any]) -> str:
    try:
        return str(entry["tool_schema"]["function"]["name"])
    except (LookupError, TypeError):
        return ""
