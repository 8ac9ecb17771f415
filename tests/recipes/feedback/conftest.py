"""The recipe's own tokenizer, and episodes played by the scripted engine through the real rollout loop and the real tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.feedback.settings import FeedbackSettings
from midthought.feedback.tool import FeedbackTool
from midthought.models.small_model import make_tokenizer
from midthought.recipes.feedback.demonstrations import CHAT_TEMPLATE, corpus
from midthought.recipes.feedback.reward import FeedbackEnvironment, FeedbackRewardConfig
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Task, Trajectory

Policy = Callable[[Task, int, str], str]
"""(task, turns so far, the last feedback) -> the turn's words."""


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    tokenizer = make_tokenizer(corpus(), 512)
    tokenizer.chat_template = CHAT_TEMPLATE
    return Renderer(tokenizer)


@pytest.fixture
def play(renderer: Renderer):
    """Episodes of a planted policy, scored."""

    def run(
        policy: Policy,
        tasks: Sequence[Task],
        *,
        critic: str = "hints",
        weights: FeedbackRewardConfig | None = None,
        max_turns: int = 3,
    ) -> list[Trajectory]:
        def script(episode: int, token_ids: Sequence[int]) -> str | None:
            said = renderer.decode(token_ids)
            begun = said.split("<|im_start|>assistant\n")
            if begun[-1]:
                return None
            feedback = said.rpartition("<|im_start|>tool\n")[2].partition("<|im_end|>")[0]
            return policy(tasks[episode], len(begun) - 2, feedback)

        registry = ToolRegistry()
        registry.register(FeedbackTool.from_settings(FeedbackSettings(critic=critic)))
        environment = FeedbackEnvironment(weights or FeedbackRewardConfig())
        parts = RolloutParts(
            engine=ScriptedEngine(script, renderer),
            renderer=renderer,
            call_format=HermesFormat(),
            executor=ToolExecutor(registry),
            messages=Task.messages,
            environment=lambda task: environment,
            inference=InferenceConfig(max_tokens=2000, max_turns=max_turns, max_tool_calls_per_cot=3),
        )
        return asyncio.run(run_episodes(parts, [EpisodeStart(task=task, seed=0) for task in tasks]))

    return run
