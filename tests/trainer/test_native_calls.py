"""A trainer finds the model's own call format in its chat template."""

from typing import Any

import pytest
from published_templates import PUBLISHED
from small_environments import QUESTIONS, settings, twice

from midthought import RayPPOTrainer
from midthought.models.small_model import make_policy
from midthought.types import SpanKind

QWEN3, GEMMA3 = (next(each for each in PUBLISHED if each.name == name) for name in ("qwen3", "gemma_3"))


def trainer_of(published: Any, *, arguments: dict[str, Any] | None = None, **options: Any) -> RayPPOTrainer:
    tokenizer = published.tokenizer()
    policy = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=2048, seed=0)
    config = settings("grpo", max_tokens=4).merged({"model": {"chat_template_kwargs": arguments or {}}})
    return RayPPOTrainer(config, dataset=QUESTIONS, tools=[twice], model=policy, tokenizer=tokenizer, **options)


def prompt_of(trainer: RayPPOTrainer) -> str:
    segment = trainer.rollout().trajectories[0].segments[0]
    assert segment.spans[0].kind is SpanKind.PROMPT
    return trainer.renderer.decode(segment.token_ids[: segment.spans[0].end])


def test_by_default_the_template_describes_the_tools_and_calls_have_its_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with trainer_of(QWEN3) as trainer:
        assert trainer.call_format.name == "native"
        prompt = prompt_of(trainer)
        assert prompt.count('"name": "twice"') == 1
        assert "#call" not in prompt
    assert "Call format: the chat template writes calls and describes the tools" in capsys.readouterr().out


def test_a_template_without_calls_has_calls_in_the_thought() -> None:
    with trainer_of(GEMMA3) as trainer:
        assert trainer.call_format.name == "in_thought"
        assert '#call twice {"word": "..."}' in prompt_of(trainer)


def test_a_call_format_that_is_named_is_used() -> None:
    with trainer_of(QWEN3, call_format="react") as trainer:
        assert trainer.call_format.name == "react"
        assert "Action Input:" in prompt_of(trainer)


def test_without_descriptions_the_template_describes_no_tools() -> None:
    with trainer_of(QWEN3, describe_tools=False) as trainer:
        assert trainer.call_format.name == "native"
        assert "twice" not in prompt_of(trainer)
