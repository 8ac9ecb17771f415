"""Unmodified agents of real frameworks against the gateway: every turn continues exactly the tokens that were sampled.

Runs in an environment of its own (`tests/env/ecosystems/clients.txt`), which `make test-all` makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="needs the agent frameworks: make test-all")

import anthropic
import openai
from agent_programs import PROGRAMS, openai_agents, openai_client, pydantic_ai_anthropic
from pydantic import BaseModel
from random_sessions import policy_of

from midthought.config import InferenceConfig
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.serve.gateway import Gateway
from midthought.serve.sessions import Session
from midthought.types import Task, Trajectory

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks another host for prices
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
        yield gateway.open_session(policy, seed=0, start=engine.start), core
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


EMPTY = (turn("I add.", "", CALLS[0]), turn("No word.", ""), *[turn("", "end")] * 3)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_after_an_answer_without_a_word_an_agent_goes_on_and_all_is_trained_once(program):
    """Some clients send the empty answer back, some leave it out or write another text for it, Pydantic AI asks again."""
    with opened("native", EMPTY) as (session, engine):
        program(session.client, QUESTIONS, stream=False)
        segments = trained(session).segments
    assert Counter(run for segment in segments for run in map(tuple, segment.sampled_runs())) == Counter(
        answer for _, answer in engine.sampled
    )
    assert session.counts["continued"] >= 2


@pytest.mark.parametrize("program", [openai_client, openai_agents, pydantic_ai_anthropic])
def test_without_earlier_thoughts_each_question_of_a_user_starts_a_segment(program):
    with opened("native", TURNS, keep_thoughts=False) as (session, engine):
        program(session.client, QUESTIONS, stream=False)
        segments = trained(session).segments
    assert [len(segment.sampled_runs()) for segment in segments] == [3, 2]
    assert [tuple(segment.token_ids) for segment in segments] == [
        prompt + answer for prompt, answer in (engine.sampled[2], engine.sampled[4])
    ]


# -- structured outputs ------------------------------------------------------------------------------------------


class Sum(BaseModel):
    """The sum."""

    total: int


def by_pydantic_ai(client: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=client.base_url, api_key=client.api_key)
    return Agent(OpenAIChatModel(client.model, provider=provider), output_type=Sum).run_sync("3 + 4?").output


def by_openai_agents(client: Any) -> Any:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(
        client.model, openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key)
    )
    return Runner.run_sync(Agent("calculator", model=model, output_type=Sum), "3 + 4?").final_output


def by_langchain(client: Any) -> Any:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model=client.model, base_url=client.anthropic_base_url, api_key=client.api_key)
    return model.with_structured_output(Sum).invoke("3 + 4?")


def by_anthropics_client(client: Any) -> Any:
    anthropics = anthropic.Anthropic(base_url=client.anthropic_base_url, api_key=client.api_key)
    asked = [{"role": "user", "content": "3 + 4?"}]
    return anthropics.messages.parse(
        model=client.model, max_tokens=100, messages=asked, output_format=Sum
    ).parsed_output


def call_of(name: str) -> str:
    return turn("", "", '{"total": 7}').replace('"add"', f'"{name}"')


STRUCTURED = [
    (
        by_pydantic_ai,
        [turn("", "Seven."), call_of("final_result")],
        {"required": 2, "required_missed": 1, "continued": 1},
    ),
    (by_langchain, [call_of("Sum")], {"required": 1, "required_missed": 0}),
    (by_openai_agents, [turn("", '{"total": 7}')], {"response_format": 1}),
    (by_anthropics_client, [turn("", '{"total": 7}')], {"response_format": 1}),
]


@pytest.mark.parametrize(("program", "texts", "counts"), STRUCTURED, ids=lambda given: getattr(given, "__name__", ""))
def test_structured_outputs_are_a_required_call_or_a_format_and_are_counted(program, texts, counts, strict):
    with opened("native", texts) as (session, _):
        assert program(session.client).total == 7
        (segment,) = trained(session).segments
    assert len(segment.sampled_runs()) == len(texts)
    assert {name: session.counts[name] for name in counts} == counts


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
