"""A trainer finds the model's own call format in its chat template."""

from typing import Any

import pytest
from published_templates import PUBLISHED
from small_environments import QUESTIONS, settings, twice

from midthought import RayPPOTrainer
from midthought.models.small_model import make_policy
from midthought.types import SpanKind

QWEN3, GEMMA3 = (next(each for each in PUBLISHED if each.name == name) for name in ("qwen3", "gemma_3"))


def trainer_of(published: Any, **options: Any) -> RayPPOTrainer:
    tokenizer = published.tokenizer()
    policy = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=2048, seed=0)
    given = {"dataset": QUESTIONS, "tools": [twice], "model": policy, "tokenizer": tokenizer}
    return RayPPOTrainer(settings("grpo", max_tokens=4), **given, **options)


def prompt_of(trainer: RayPPOTrainer) -> str:
    segment = trainer.rollout().trajectories[0].segments[0]
    assert segment.spans[0].kind is SpanKind.PROMPT
    return trainer.renderer.decode(segment.token_ids[: segment.spans[0].end])


@pytest.mark.parametrize(
    ("published", "options", "name", "texts"),
    [
        (QWEN3, {}, "native", ['"name": "twice"']),
        (QWEN3, {"describe_tools": False}, "native", []),
        (QWEN3, {"call_format": "react"}, "react", ["Action Input:"]),
        (GEMMA3, {}, "in_thought", ['#call twice {"word": "..."}']),  # its template has no calls
    ],
)
def test_by_default_the_template_describes_the_tools_and_calls_have_its_form(
    published: Any, options: dict[str, Any], name: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = "Call format: the chat template writes calls and describes the tools"
    with trainer_of(published, **options) as trainer:
        assert trainer.call_format.name == name
        prompt = prompt_of(trainer)
    assert ("twice" in prompt) is bool(texts) and all(text in prompt for text in texts)
    assert ("#call" in prompt) is (name == "in_thought")
    assert prompt.count('"name": "twice"') <= 1
    assert name != "native" or not texts or told in capsys.readouterr().out
