"""Unmodified agents of real frameworks against the gateway: every turn continues exactly the tokens that were sampled.

Runs in an environment of its own (`tests/env/ecosystems/clients.txt`), which `make test-all` makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="needs the agent frameworks: make test-all")

import anthropic
import openai
from agent_programs import PROGRAMS, openai_agents, openai_client, pydantic_ai_anthropic
from random_sessions import policy_of

from midthought.config import InferenceConfig
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.serve.gateway import Gateway
from midthought.serve.sessions import Session
from midthought.types import Task, Trajectory

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
QUESTIONS = ("What is 3 + 4 and 10 + 20, in all?", "And seven?")
CALLS = ('{"b": 3,  "a": 4}', '{"a":10,"b":20}', '{"a": 7, "b": 30}', '{"a": "seven"}')


def turn(thought: str, text: str, *calls: str) -> str:
    """A turn in the form of Qwen3 and Hermes."""
    blocks = [f'\n<tool_call>\n{{"name": "add", "arguments": {each}}}\n</tool_call>' for each in calls]
    return f"<think>\n{thought}\n</think>\n\n{text}{''.join(blocks)}"


TURNS = (
    turn("Both at once.", "\n Let me compute. \n", *CALLS[:2]),
    turn("Now the sum.", "", CALLS[2]),
    turn("", "The sum is 37."),
    turn("A wrong call.", "", CALLS[3]),
    turn("Good.", "Seven it is."),
)
IN_THOUGHT = (
    f"<think>I add.\n#call add {CALLS[0]}",
    f"Once more.\n#call add {CALLS[1]}",
    "Done.</think> The sum is 37.",
    f"<think>Hm.\n#call add {CALLS[3]}",
    "No.</think> Seven it is.",
)
SCRIPTS = {"native": TURNS, "tagged": TURNS, "in_thought": IN_THOUGHT}


class Engine(ScriptedEngine):
    """Writes one text after the other, and remembers what it wrote on which prompt."""

    def __init__(self, texts: Any, renderer: Any) -> None:
        rest = iter(texts)
        started: set[int] = set()

        def write(episode: int, token_ids: Any) -> str | None:
            if episode in started:
                return None
            started.add(episode)
            return next(rest)

        super().__init__(write, renderer)
        self.sampled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def sample(self, episode: int, token_ids: Any, sampling: Any, *, stopper: Any = None) -> Any:
        completion = await super().sample(episode, token_ids, sampling, stopper=stopper)
        self.sampled.append((tuple(token_ids), tuple(completion.token_ids)))
        return completion


@contextlib.contextmanager
def opened(style: str, texts: Any, **inference: Any) -> Iterator[tuple[Session, Engine]]:
    """A session of a policy that writes these texts."""
    policy = policy_of(style)
    core = Engine(texts, policy.renderer)
    engine = BaseInferenceEngine(core, policy.renderer)
    policy = dataclasses.replace(policy, engine=core, inference=InferenceConfig(max_tokens=2000, **inference))
    gateway = Gateway("policy")
    try:
        yield gateway.open_session(policy, seed=0, sampling={}, start=engine.start), core
    finally:
        gateway.close()
        engine.shutdown()


def trained(session: Session) -> Trajectory:
    asyncio.run(session.close())
    trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [0])
    session.answers.graph.fill(trajectory)
    return trajectory


@pytest.fixture
def strict(monkeypatch):
    """The official clients raise if a body or an event of a stream does not have the types of their models."""
    always = property(lambda self: True, lambda self, given: None)
    for client in (openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic, anthropic.AsyncAnthropic):
        monkeypatch.setattr(client, "_strict_response_validation", always, raising=False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("style", SCRIPTS)
def test_every_turn_of_an_agent_continues_what_was_sampled(style, program, stream, strict):
    with opened(style, SCRIPTS[style]) as (session, engine):
        said = program(session.client, QUESTIONS, stream)
        assert [each.strip() for each in said] == ["The sum is 37.", "Seven it is."]
        (segment,) = trained(session).segments
    assert session.counts["continued"] == session.counts["continuable"] == len(TURNS) - 1
    prompt, answer = engine.sampled[-1]
    assert tuple(segment.token_ids) == prompt + answer
    sampled = [
        token_id for token_id, is_trained in zip(segment.token_ids, segment.loss_mask, strict=True) if is_trained
    ]
    assert sampled == [token_id for _, token_ids in engine.sampled for token_id in token_ids]


@pytest.mark.parametrize("program", [openai_client, openai_agents, pydantic_ai_anthropic])
def test_without_earlier_thoughts_each_question_of_a_user_starts_a_segment(program):
    with opened("native", TURNS, keep_thoughts=False) as (session, engine):
        program(session.client, QUESTIONS, stream=False)
        segments = trained(session).segments
    assert [len(segment.sampled_runs()) for segment in segments] == [3, 2]
    assert [tuple(segment.token_ids) for segment in segments] == [
        prompt + answer for prompt, answer in (engine.sampled[2], engine.sampled[4])
    ]


# -- the page of the documentation -------------------------------------------------------------------------------


FRAMEWORKS = ("openai", "anthropic", "openai-agents", "langgraph", "pydantic-ai", "litellm")


def examples() -> dict[str, str]:
    """The agents of the page, in its order."""
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    return dict(zip(FRAMEWORKS, [block for block in blocks if "def agent(" in block], strict=True))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_example_of_the_page_runs_and_every_turn_continues(name, strict):
    names: dict[str, object] = {"__name__": "page"}
    for block in dict.fromkeys([examples()["openai"], examples()[name]]):
        exec(compile(block, f"agents.md, {name}", "exec", dont_inherit=True), names)
    has_tool = "multiply" in examples()[name]
    arguments = '{"a": 12, "b": 23}'
    turns = [turn("I multiply.", "", arguments).replace('"add"', '"multiply"'), turn("", "It is 276.")]
    with opened("native", turns if has_tool else turns[1:]) as (session, engine):
        reward = names["agent"](Task(task_id="t", prompt="What is 12 times 23?", answer="276"), session.client)
        assert (asyncio.run(reward) if inspect.iscoroutine(reward) else reward) == 1.0
        (segment,) = trained(session).segments
    assert len(segment.sampled_runs()) == len(engine.sampled) == 1 + has_tool
