"""The doctor finds each mistake of a table, made as users make them: in data, rewards, tools, tokenizers, settings."""

from __future__ import annotations

import copy
import dataclasses
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_runs import (
    GREEN,
    QUESTIONS,
    ROWS,
    Arguments,
    Boxes,
    answer_of,
    examined,
    rewarded,
    run,
    with_tokenizer,
)

from midthought import Task, Tool, ToolDefinition, ToolParameter, Trainer, Trajectory, tool
from midthought.doctor.examination import Report, examine
from midthought.tools.call_formats.streaming import StreamingCallFormat
from midthought.types import ParsedAction

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

Mistake = Callable[[Arguments, Path], Arguments]
"""Returns the trainer's arguments, given the taught model's and an empty folder."""
SAMPLING = ("episodes", "reward_variance", "never_solved", "always_solved")
MISTAKES: dict[str, tuple[str, str, Mistake]] = {}
"""By description: the check that finds it, a part of the finding, and the mistake."""


def mistake(description: str, check: str, part: str) -> Callable[[Mistake], Mistake]:
    def add(make: Mistake) -> Mistake:
        MISTAKES[description] = (check, part, make)
        return make

    return add


# -- rewards -----------------------------------------------------------------------------------------------------


@mistake("a reward that is constant", "gold_answer", "all earn 1")
def _(taught: Arguments, folder: Path) -> Arguments:
    return rewarded(taught, lambda trajectory: 1.0)


@mistake("a weight with the wrong sign", "gold_answer", "wrong answer 'blue'")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, rewards=[("correct", -1.0)])


@mistake("a reward that raises", "gold_answer", "KeyError")
def _(taught: Arguments, folder: Path) -> Arguments:
    return rewarded(taught, lambda trajectory: {}["score"])


@mistake("a reward that pays the empty answer", "shortcuts", "the empty answer earns 1")
def _(taught: Arguments, folder: Path) -> Arguments:
    return rewarded(taught, lambda trajectory: float(answer_of(trajectory) in trajectory.task.answer))


@mistake("a reward that pays copied tool output", "shortcuts", "a copy of a whole tool result")
def _(taught: Arguments, folder: Path) -> Arguments:
    return rewarded(taught, lambda trajectory: float(trajectory.task.answer in answer_of(trajectory)))


@mistake("a reward that reads tool results, too", "shortcuts", "an empty answer after a tool result")
def _(taught: Arguments, folder: Path) -> Arguments:
    def found(trajectory: Trajectory) -> float:
        results = " ".join(event.call.result or "" for event in trajectory.tool_events)
        return float(trajectory.task.answer in results + answer_of(trajectory))

    return rewarded(taught, found)


@mistake("a reward that accepts a forged tool result", "shortcuts", "writes by itself, without a call")
def _(taught: Arguments, folder: Path) -> Arguments:
    def searched(trajectory: Trajectory) -> float:
        is_right = answer_of(trajectory) == trajectory.task.answer
        return float(is_right) + float("#lookup_result" in trajectory.turns[-1].model_output)

    return rewarded(taught, searched)


# -- data --------------------------------------------------------------------------------------------------------


@mistake("a misnamed answer column", "setup", "answer")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, dataset=[{"question": row["question"], "anwser": row["answer"]} for row in ROWS])


@mistake("some rows without an answer", "gold_answers", "4 of 12 tasks have an empty gold answer")
def _(taught: Arguments, folder: Path) -> Arguments:
    tasks = [Task(task_id=f"{n}", prompt=q, answer="" if n % 3 == 0 else "red") for n, q in enumerate(QUESTIONS)]
    return rewarded(taught, lambda t: float(answer_of(t) == t.task.answer), dataset=tasks)


@mistake("the gold answer in the prompt", "answer_in_prompt", "state the gold answer")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, dataset=[{**row, "question": f"{row['question']} Answer: {row['answer']}"} for row in ROWS])


@mistake("prompts that are longer than a sequence", "prompt_length", "12 of 12 prompts")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, max_seq_len=16)


@mistake("a tool with a description as long as a book", "prompt_length", "the tool 'recall' alone has about")
def _(taught: Arguments, folder: Path) -> Arguments:
    @tool(description="Recalls what was said. " * 2000)
    def recall(about: str) -> str:
        return about

    return run(taught, tools=[recall])


@mistake("gold answers that are longer than an episode", "answer_length", "inference.max_tokens=24")
def _(taught: Arguments, folder: Path) -> Arguments:
    rows = [
        {**row, "answer": f"{row['answer']}, because I looked into box number {n}" * 3} for n, row in enumerate(ROWS)
    ]
    return run(taught, dataset=rows)


@mistake("prompts that are all solved already", "always_solved", "all 16 prompts are solved")
def _(taught: Arguments, folder: Path) -> Arguments:
    return rewarded(
        taught,
        lambda trajectory: float(answer_of(trajectory) in ("red", "blue")),
        dataset=[{"question": question, "answer": "red"} for question in QUESTIONS],
    )


@mistake("prompts that are never solved", "never_solved", "none of")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, dataset=GREEN)


# -- environments ------------------------------------------------------------------------------------------------


class Broken(Boxes):
    def step(self, action: str) -> Any:
        raise RuntimeError("the door is locked")


def in_boxes(arguments: Arguments, environment: Any = Boxes) -> Arguments:
    return {**arguments, "dataset": None, "rewards": [], "environment": environment}


@mistake("an environment that raises", "episodes", "the door is locked")
def _(taught: Arguments, folder: Path) -> Arguments:
    return in_boxes(run(taught), Broken)


@mistake("a temperature at which rewards never differ", "reward_variance", "are equal in all")
def _(taught: Arguments, folder: Path) -> Arguments:
    return in_boxes(run(taught, temperature=1e-4))


# -- tokenizer and template --------------------------------------------------------------------------------------


@mistake("a template that drops history", "chat_template", "cannot add a turn")
def _(taught: Arguments, folder: Path) -> Arguments:
    def change(tokenizer: Any) -> None:
        tokenizer.chat_template = tokenizer.chat_template.replace("in messages %}", "in messages[-1:] %}")

    return in_boxes(with_tokenizer(taught, change, tools=[]))


@mistake("a template that drops earlier thoughts", "chat_template", "changes earlier turns")
def _(taught: Arguments, folder: Path) -> Arguments:
    def change(tokenizer: Any) -> None:
        last = "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}"
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "{{ message['role'] }}\n{{ message['content'] }}", "{{ message['role'] }}\n" + last
        )

    return in_boxes(with_tokenizer(taught, change))


@mistake("no eos token", "end_of_answer", "no token ends an answer")
def _(taught: Arguments, folder: Path) -> Arguments:
    def change(tokenizer: Any) -> None:
        tokenizer.eos_token = None
        tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "").replace("<|im_start|>", "")

    return with_tokenizer(taught, change)


@mistake("an eos token that is part of answers", "end_of_answer", "</think>")
def _(taught: Arguments, folder: Path) -> Arguments:
    def change(tokenizer: Any) -> None:
        tokenizer.eos_token = "</think>"

    return with_tokenizer(taught, change)


@mistake("a pad token as eos token", "end_of_answer", "the model's own settings end an answer with")
def _(taught: Arguments, folder: Path) -> Arguments:
    def change(tokenizer: Any) -> None:
        tokenizer.eos_token = "<|pad|>"
        tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "")

    model = copy.deepcopy(taught["model"])
    model.generation_config.eos_token_id = taught["tokenizer"].eos_token_id
    return with_tokenizer({**taught, "model": model}, change)


@mistake("tokens that the model does not have", "tokenizer", "embeddings")
def _(taught: Arguments, folder: Path) -> Arguments:
    return with_tokenizer(taught, lambda tokenizer: tokenizer.add_tokens(["<call>", "</call>"]) and None)


@mistake("a tokenizer that lower-cases", "tokenizer", "becomes")
def _(taught: Arguments, folder: Path) -> Arguments:
    from tokenizers.normalizers import Lowercase

    def change(tokenizer: Any) -> None:
        tokenizer.backend_tokenizer.normalizer = Lowercase()

    return with_tokenizer(taught, change)


# -- calls -------------------------------------------------------------------------------------------------------


class Fly(Tool):
    definition = ToolDefinition("fly", "Books a flight.", [ToolParameter("from", "string", "airport")])

    def execute(self, **parameters: Any) -> str:
        return "booked"


@mistake("a tool whose parameter the format cannot write", "calls", "'fly'")
def _(taught: Arguments, folder: Path) -> Arguments:
    template = Path(__file__).parents[1] / "chat_templates" / "lfm2.jinja"

    def change(tokenizer: Any) -> None:
        tokenizer.chat_template = template.read_text("utf-8")

    return with_tokenizer(taught, change, tools=[Fly()])


class Angled(StreamingCallFormat):
    """Looks for its end in every single piece, which a tokenizer may split."""

    name = "angled"
    stops_at_call = True

    def render_call(self, tool_name: str, parameters: Any) -> str:
        return f"[[{tool_name} {json.dumps(parameters)}]]<!END!>"

    def explain(self, example: str, definitions: Any) -> str:
        return example

    def scanner(self, *, in_thought: bool) -> Any:
        return AngledScanner()


class AngledScanner:
    def __init__(self) -> None:
        self.text, self.found = "", []

    def feed(self, piece: str) -> bool:
        self.text += piece
        if "<!END!>" not in piece:
            return False
        name, _, arguments = self.text.partition("[[")[2].partition("]]")[0].partition(" ")
        self.found.append(ParsedAction(tool_name=name, parameters=json.loads(arguments)))
        return True

    def take(self) -> list[ParsedAction]:
        taken, self.found = self.found, []
        return taken

    def resume(self) -> None:
        self.text = ""


@mistake("a call format whose end the tokenizer splits", "calls", "not token by token")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, call_format=Angled())


# -- machine and servers -----------------------------------------------------------------------------------------


@mistake("no disk space for the checkpoints", "disk", "checkpoints of")
def _(taught: Arguments, folder: Path) -> Arguments:
    kept = {"keep_last_n": 10**8, "save_interval": 1, "num_train_iters": 10**8}
    return run(taught, run_path=folder / "run", **kept)


@mistake("a model that is too large", "setup", "does not fit")
def _(taught: Arguments, folder: Path) -> Arguments:
    sizes = {"hidden_size": 16384, "num_hidden_layers": 120, "num_attention_heads": 128, "num_key_value_heads": 16}
    config = {"model_type": "qwen3", "vocab_size": 150_000, "intermediate_size": 50_000, "head_dim": 128} | sizes
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], **config}))
    return {**run({}), "model": folder}


@mistake("wandb without a login", "tracker", "no login of Weights & Biases")
def _(taught: Arguments, folder: Path) -> Arguments:
    return run(taught, trackers=["wandb"])


def served(taught: Arguments, url: str, **changes: Any) -> Arguments:
    return run(taught, backend="vllm", base_url=[url], served_model_name="tiny", **changes)


@mistake("an unreachable server", "setup", "no server answers")
def _(taught: Arguments, folder: Path) -> Arguments:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return served(taught, f"http://127.0.0.1:{unused.getsockname()[1]}")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from fake_server import FakeServer

    with FakeServer(model="tiny", logits=[0.0] * 300, records="model") as running:
        yield running


def served_badly(taught: Arguments, url: str, **changes: Any) -> Report:
    """As `midthought doctor RECIPE` checks servers: with the settings of the run, and a policy that samples here."""
    with Trainer(**run(taught)) as trainer:
        settings = trainer.config.merged({"inference": {"backend": "vllm", "base_url": [url], **changes}})
        return examine(dataclasses.replace(trainer.setup, config=settings, why_not_sampled="another test"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"served_model_name": "llama"}, "does not serve 'llama' but 'tiny'"),
        ({"served_model_name": "tiny", "temperature": 0.7}, "does not return the log-probabilities of what it samples"),
    ],
)
def test_the_doctor_finds_a_server_with(changes, part, taught, server):
    found = {finding.guard: finding for finding in served_badly(taught, server.url, **changes).findings}
    assert part in found["servers"].observation and found["servers"].action


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user without a login."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    yield


@pytest.mark.parametrize("description", MISTAKES)
def test_the_doctor_finds(description, taught, tmp_path, environment):
    check, part, make = MISTAKES[description]
    arguments = make(taught, tmp_path)
    found = examined(lambda: Trainer(**arguments), samples=check in SAMPLING).findings
    named = [finding for finding in found if finding.guard == check and part in finding.observation]
    assert named, [f"{finding.guard}: {finding.observation}" for finding in found]
    assert all(finding.action for finding in found)


def test_the_table_has_at_least_20_mistakes():
    assert len(MISTAKES) >= 20
