"""The checks before a run find each mistake of a table, made as users make them, and nothing in runs that look like one."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from check_runs import (
    COLOURS,
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
from midthought.checks.examination import Report, examine
from midthought.env.game import SimpleGameEnvironment
from midthought.tools.call_formats import ToolCallFormat
from midthought.types import ParsedAction

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
Make = Callable[[Arguments, Path], Arguments]
"""Returns the trainer's arguments, given the taught model's and an empty folder."""


def asked(form: str) -> list[dict[str, str]]:
    """Returns the rows with other prompts."""
    return [{**row, "question": form.format(**row)} for row in ROWS]


def is_right(trajectory: Trajectory) -> bool:
    return answer_of(trajectory) == trajectory.task.answer


def noisy(size: float, answer: Callable[[Trajectory], float] = lambda trajectory: 0.0) -> Callable[[Trajectory], float]:
    draw = random.Random(0)
    return lambda trajectory: answer(trajectory) + size * draw.random()


def template(change: Callable[[str], str]) -> Callable[[Any], None]:
    def apply(tokenizer: Any) -> None:
        tokenizer.chat_template = change(tokenizer.chat_template)

    return apply


def in_boxes(arguments: Arguments, environment: Any = Boxes, **changes: Any) -> Arguments:
    return {**arguments, "dataset": None, "rewards": [], "environment": environment, **changes}


# -- mistakes ----------------------------------------------------------------------------------------------------


def some_answers_missing(taught: Arguments, folder: Path) -> Arguments:
    tasks = [Task(task_id=f"{n}", prompt=q, answer="" if n % 3 == 0 else "red") for n, q in enumerate(QUESTIONS)]
    return rewarded(taught, is_right, dataset=tasks)


def long_answers(taught: Arguments, folder: Path) -> Arguments:
    rows = [{**row, "answer": f"{row['answer']}, because I looked into box {n}" * 3} for n, row in enumerate(ROWS)]
    return run(taught, dataset=rows)


def reads_results(trajectory: Trajectory) -> float:
    results = " ".join(event.call.result or "" for event in trajectory.tool_events)
    return float(trajectory.task.answer in results + answer_of(trajectory))


def reads_the_text(trajectory: Trajectory) -> float:
    return float(is_right(trajectory)) + float("#lookup_result" in trajectory.turns[-1].model_output)


def no_end(tokenizer: Any) -> None:
    tokenizer.eos_token = None
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "").replace("<|im_start|>", "")


def end_of_thought(tokenizer: Any) -> None:
    tokenizer.eos_token = "</think>"


def pad_as_end(tokenizer: Any) -> None:
    tokenizer.eos_token = "<|pad|>"
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "")


def lower_case(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase

    tokenizer.backend_tokenizer.normalizer = Lowercase()


def with_own_end(taught: Arguments, folder: Path) -> Arguments:
    model = copy.deepcopy(taught["model"])
    model.generation_config.eos_token_id = taught["tokenizer"].eos_token_id
    return with_tokenizer({**taught, "model": model}, pad_as_end)


def drops_thoughts(text: str) -> str:
    last = "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}"
    return text.replace("{{ message['role'] }}\n{{ message['content'] }}", "{{ message['role'] }}\n" + last)


def with_head_only(taught: Arguments, folder: Path) -> Arguments:
    """Freezes the model and adds a trainable part that the forward pass does not use."""
    arguments = run(taught)
    arguments["model"] = copy.deepcopy(arguments["model"]).requires_grad_(False)
    arguments["model"].score = torch.nn.Linear(64, 1)
    return arguments


class Fly(Tool):
    definition = ToolDefinition("fly", "Books a flight.", [ToolParameter("from", "string", "airport")])

    def execute(self, **parameters: Any) -> str:
        return "booked"


def unwritable(taught: Arguments, folder: Path) -> Arguments:
    text = (Path(__file__).parents[1] / "chat_templates" / "lfm2.jinja").read_text("utf-8")
    return with_tokenizer(taught, template(lambda before: text), tools=[Fly()])


class Renamed(Tool):
    """Its description names another parameter than its function."""

    definition = ToolDefinition("look", "Looks a word up.", [ToolParameter("word", "string", "the word")])

    def execute(self, query: str) -> str:
        return query


class Flexible(Renamed):
    def execute(self, **parameters: Any) -> str:
        return str(parameters)


class Angled(ToolCallFormat):
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


class Broken(Boxes):
    def step(self, action: str) -> Any:
        raise RuntimeError("the door is locked")


class Endless(Boxes):
    """Forgets to say that it is over."""

    def step(self, action: str) -> Any:
        return "And the next one?", float(action == "red"), False, {}


class OtherStart(Boxes):
    """Draws its question from the global generator."""

    def reset(self, seed: int = 0) -> str:
        return super().reset(random.randrange(12))


class Remembering(Boxes):
    """Keeps what was said in a list of the class."""

    said: list[str] = []  # noqa: RUF012  (the mistake)

    def step(self, action: str) -> Any:
        self.said.append(action)
        _, reward, done, info = super().step(action)
        return f"{len(self.said)} words", reward, done, info


class Solved(Boxes):
    """Is solved for all episodes as soon as one has solved it."""

    is_solved: dict[str, bool] = {}  # noqa: RUF012  (the mistake)

    def step(self, action: str) -> Any:
        observation, reward, done, info = super().step(action)
        observation = "Solved." if self.is_solved else "Not yet."
        self.is_solved["now"] = True
        return observation, reward, done, info


class Rolling(Boxes):
    """Draws in its steps, from the seed."""

    def reset(self, seed: int = 0) -> str:
        self.rng = random.Random(seed)
        return super().reset(seed)

    def step(self, action: str) -> Any:
        _, reward, done, info = super().step(action)
        return f"You rolled {self.rng.randrange(100)}.", reward, done, info


def saying(function: Callable[[str], Any]) -> Tool:
    """Returns a function of one word as the tool that the model calls."""

    def lookup(word: str) -> str:
        """Looks a word up.

        Args:
            word: the word
        """
        return function(word)

    return tool(lookup)


def with_tool(function: Callable[[str], Any]) -> Make:
    return lambda caller, folder: run(caller, tools=[saying(function)], max_tokens=64, temperature=0.3)


def raises(word: str) -> str:
    raise ConnectionError("no service")


def settings(**changes: Any) -> Make:
    return lambda taught, folder: run(taught, **changes)


def paid(function: Callable[[Trajectory], float], **changes: Any) -> Make:
    return lambda taught, folder: rewarded(taught, function, **changes)


def tokenized(change: Callable[[Any], Any], **changes: Any) -> Make:
    return lambda taught, folder: with_tokenizer(taught, change, **changes)


def played(environment: Any, **changes: Any) -> Make:
    return lambda taught, folder: in_boxes(run(taught), environment, **changes)


SWAPPED = [{"question": row["answer"], "answer": row["question"]} for row in ROWS]
ONE_PROMPT = [{"question": QUESTIONS[0], "answer": colour} for colour in COLOURS] * 2
MISNAMED = [{"question": row["question"], "anwser": row["answer"]} for row in ROWS]
RED = [{"question": question, "answer": "red"} for question in QUESTIONS]
KEPT = {"keep_last_n": 10**8, "save_interval": 1, "num_train_iters": 10**8}
MISTAKES: dict[str, tuple[Make, str, str]] = {
    "a misnamed answer column": (settings(dataset=MISNAMED), "setup", "ground truth"),
    "some rows without an answer": (some_answers_missing, "tasks", "4 of 12 tasks"),
    "every gold answer is the same": (settings(dataset=GREEN), "tasks", "all 12 gold answers are 'green'"),
    "columns that are swapped": (settings(dataset=SWAPPED), "tasks", "12 of 12 gold answers end with '?'"),
    "one prompt, repeated": (settings(dataset=[ROWS[0]] * 12), "tasks", "12 tasks have 1 different prompt"),
    "a prompt with several gold answers": (settings(dataset=ONE_PROMPT), "tasks", "1 of 1 prompts have several"),
    "validation on training data": (settings(validation=ROWS[:3]), "tasks", "3 of 3 held-out prompts"),
    "prompts that are longer than a sequence": (settings(max_seq_len=16), "lengths", "12 of 12 prompts"),
    "gold answers that are longer than an episode": (long_answers, "lengths", "max_tokens=24"),
    "a template that drops history": (
        lambda taught, folder: in_boxes(
            with_tokenizer(
                taught, template(lambda text: text.replace("in messages %}", "in messages[-1:] %}")), tools=[]
            )
        ),
        "tokens",
        "cannot add a turn",
    ),
    "a template that drops earlier thoughts": (
        lambda taught, folder: in_boxes(with_tokenizer(taught, template(drops_thoughts))),
        "tokens",
        "changes earlier turns",
    ),
    "a template that does not start an answer": (
        tokenized(template(lambda text: text.split("{% if add_generation_prompt")[0])),
        "tokens",
        "no answer is started",
    ),
    "no eos token": (tokenized(no_end), "tokens", "no token ends an answer"),
    "an eos token that is part of answers": (tokenized(end_of_thought), "tokens", "'</think>' ends an answer"),
    "a pad token as eos token": (with_own_end, "tokens", "the model ends an answer with"),
    "tokens that the model does not have": (
        tokenized(lambda tokenizer: tokenizer.add_tokens(["<call>", "</call>"]) and None),
        "tokens",
        "embeddings",
    ),
    "a tokenizer that lower-cases": (tokenized(lower_case), "tokens", "becomes"),
    "a tool whose parameter the format cannot write": (unwritable, "calls", "'fly' is not read back"),
    "a tool whose function has another parameter": (settings(tools=[Renamed()]), "calls", "does not take ['word']"),
    "a call format whose end the tokenizer splits": (settings(call_format=Angled()), "calls", "'lookup'"),
    "a learning rate that was mistyped": (settings(learning_rate=1e-12), "movement", "training.learning_rate=1e-12"),
    "clipping meant as none": (settings(max_grad_norm=1e-9), "movement", "training.max_grad_norm=1e-09"),
    "a warm-up that is longer than the run": (
        settings(warmup_steps=20_000, num_train_iters=12),
        "movement",
        "training.warmup_steps=20000",
    ),
    "a frozen model with a new head": (with_head_only, "movement", "65 of the"),
    "a KL penalty of 20": (settings(kl_coef=20.0), "movement", "training.kl_coef=20"),
    "dynamic sampling without groups": (
        settings(max_dynamic_batches=3, adv_estimator="gae", group_size=1),
        "movement",
        "training.max_dynamic_batches=3",
    ),
    "no disk space for the checkpoints": (
        lambda taught, folder: run(taught, run_path=folder / "run", **KEPT),
        "machine",
        "checkpoints of this run",
    ),
    "a reward that is constant": (paid(lambda trajectory: 1.0), "reward", "'red' earns 1, and the wrong answer"),
    "a weight with the wrong sign": (settings(rewards=[("correct", -1.0)]), "reward", "'red' earns -1"),
    "a reward that compares all tasks with one answer": (
        paid(lambda t: float(answer_of(t) == "red")),
        "reward",
        "the gold answer",
    ),
    "a reward that raises": (paid(lambda trajectory: {}["score"]), "reward", "KeyError"),
    "a random reward": (paid(noisy(1.0)), "reward", "the same episode differs by"),
    "a reward for length": (paid(lambda t: t.num_sampled / 10 + is_right(t)), "reward", "a longer thought earns"),
    "a reward that pays the empty answer": (
        paid(lambda t: float(answer_of(t) in t.task.answer)),
        "reward",
        "the empty answer earns 1",
    ),
    "a reward that pays copied tool output": (
        paid(lambda t: float(t.task.answer in answer_of(t))),
        "reward",
        "a copy of a tool result earns 1",
    ),
    "a reward that reads tool results, too": (paid(reads_results), "reward", "an empty answer after a tool result"),
    "a reward that accepts a forged tool result": (paid(reads_the_text), "reward", "that the policy writes earns 1"),
    "a reward that pays calls more than answers": (
        paid(lambda t: is_right(t) + 2.0 * t.num_calls),
        "reward",
        "a call without a result earns 2",
    ),
    "a reward that pays any call like the answer": (
        paid(lambda t: float(is_right(t) or t.num_calls > 0)),
        "reward",
        "a call without a result earns 1",
    ),
    "the same start gets other prompts": (played(OtherStart), "isolation", "with the same seed"),
    "a list of the class": (played(Remembering), "isolation", "step 1 of the same actions"),
    "a flag of the class": (played(Solved), "isolation", "step 1 of the same actions"),
}
SAMPLED: dict[str, tuple[Make, str, str]] = {
    "prompts that are all solved already": (
        paid(lambda trajectory: float(answer_of(trajectory) in ("red", "blue")), dataset=RED),
        "reward_variance",
        "all 16 prompts are solved",
    ),
    "prompts that are never solved": (settings(dataset=GREEN), "reward_variance", "none of 16 prompts"),
    "a temperature at which rewards never differ": (
        played(Boxes, temperature=1e-4),
        "reward_variance",
        "rewards of each of 16 prompts are equal",
    ),
    "an environment that raises": (played(Broken), "episodes", "the door is locked"),
    "an environment that does not end": (played(Endless, max_tokens=400), "episodes", "end at inference.max_turns=5"),
    "the same at its own limit": (
        played(Endless, max_tokens=400, max_steps=2),
        "episodes",
        "end at environment.max_steps=2",
    ),
}
CALLED: dict[str, tuple[Make, str, str]] = {
    "a tool that raises": (with_tool(raises), "episodes", "calls of 'lookup' fail, for example: "),
    "a tool that forgets to return its result": (with_tool(lambda word: None), "episodes", "'lookup' return nothing"),
}


def assert_found(report: Report, check: str, part: str) -> None:
    found = [finding for finding in report.findings if finding.check == check and part in finding.observation]
    assert found, [f"{finding.check}: {finding.observation}" for finding in report.findings]
    assert all(finding.action for finding in report.findings)


@pytest.mark.parametrize("description", MISTAKES)
def test_a_mistake_is_found_without_samples(description, taught, tmp_path):
    make, check, part = MISTAKES[description]
    arguments = make(taught, tmp_path)
    assert_found(examined(lambda: Trainer(**arguments), samples=False), check, part)


@pytest.mark.parametrize("description", SAMPLED)
def test_a_mistake_is_found_in_samples(description, taught, tmp_path):
    make, check, part = SAMPLED[description]
    assert_found(examined(lambda: Trainer(**make(taught, tmp_path))), check, part)


@pytest.mark.parametrize("description", CALLED)
def test_a_mistake_is_found_in_sampled_calls(description, caller, tmp_path):
    make, check, part = CALLED[description]
    assert_found(examined(lambda: Trainer(**make(caller, tmp_path))), check, part)


OTHER_ROWS = [{"question": f"Which colour has cup {n}?", "answer": "red"} for n in range(20)]
LIKE_MISTAKES: dict[str, Make] = {
    "a cost of length": paid(lambda t: is_right(t) - t.num_sampled / 1000),
    "a small bonus for a call": paid(lambda t: is_right(t) + 0.2 * min(t.num_calls, 1)),
    "a judge that varies a little": paid(noisy(0.05, is_right)),
    "options in the prompt": settings(dataset=asked("{question}\nA: red\nB: blue\nC: green")),
    "a few repeated prompts and held-out ones": settings(dataset=[*ROWS, ROWS[0]], validation=OTHER_ROWS + ROWS[:1]),
    "a tool with a variable number of parameters": settings(tools=[Flexible()]),
    "an environment": played(Boxes, tools=[]),
    "an environment that draws from its seed": played(Rolling, tools=[]),
    "the game": played(SimpleGameEnvironment, tools=[]),
}


@pytest.mark.parametrize("description", LIKE_MISTAKES)
def test_nothing_is_found_in(description, taught, tmp_path):
    report = examined(lambda: Trainer(**LIKE_MISTAKES[description](taught, tmp_path)), samples=False)
    assert report.is_healthy, report.to_lines()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from fake_server import FakeServer

    with FakeServer(model="tiny", logits=[0.0] * 300, records="model") as running:
        yield running


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"served_model_name": "llama"}, "does not serve 'llama' but 'tiny'"),
        ({"served_model_name": "tiny", "temperature": 0.7}, "does not return the log-probabilities of what it samples"),
    ],
)
def test_a_server_is_checked_with_the_settings_of_the_run(changes, part, taught, server):
    """As `midthought doctor RECIPE` does, with a policy that samples here."""
    with Trainer(**run(taught)) as trainer:
        settings = trainer.config.merged({"inference": {"backend": "vllm", "base_url": [server.url], **changes}})
        report = examine(dataclasses.replace(trainer.setup, config=settings, why_not_sampled="another test"))
    assert_found(report, "servers", part)
