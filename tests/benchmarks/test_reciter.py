"""The constructed model samples from real logits, but the same number of tokens and the same calls in every system."""

import pytest
import torch

from benchmarks.reciter import STYLES, Reciter
from benchmarks.work import Shape, Work, prompt_ids

SPAN = 14


def sampled(reciter: Reciter, num_tokens: int, num_rows: int = 3) -> list[list[int]]:
    prompt = prompt_ids(reciter, " ab cd")
    torch.manual_seed(0)
    tokens = reciter.model.generate(
        torch.tensor([prompt] * num_rows),
        attention_mask=torch.ones(num_rows, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        do_sample=True,
        top_k=0,
        eos_token_id=None,
    )
    return tokens[:, len(prompt) :].tolist()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_sampling_gives_the_script_with_a_call_that_its_call_format_reads(size: str, style: str) -> None:
    reciter = Reciter(size, style, num_span=SPAN)
    rows = sampled(reciter, 2 * SPAN)
    for row in rows:
        reciter.check(row)
        actions = reciter.call_format.parse_all(reciter.renderer.decode(row))
        assert [(action.tool_name, action.success) for action in actions] == [("look", True)] * 2
    assert rows[0] != rows[1], "words are drawn, not fixed"


def test_a_token_that_is_not_due_is_found_out() -> None:
    reciter = Reciter("tiny", "in_thought", num_span=SPAN)
    [row] = sampled(reciter, SPAN, num_rows=1)
    with pytest.raises(AssertionError, match="sampled token 1 is"):
        reciter.check([row[0], row[0]])


@pytest.mark.parametrize("style", STYLES)
def test_prompts_and_results_have_exactly_the_tokens_asked_for(style: str) -> None:
    reciter = Reciter("tiny", style, num_span=SPAN)
    shape = Shape(num_episodes=4, num_prompt=77, num_span=SPAN, num_result=61, num_per_prompt=2)
    work = Work(reciter, shape, seed=3)
    assert [len(row) for row in work.prompt_ids(reciter)] == [77] * 4
    assert [len(row) for call in (0, 1) for row in work.result_ids(reciter, call)] == [61] * 8
    assert work.prompts[0] == work.prompts[1] != work.prompts[2] == work.prompts[3]
    assert work.prompts != Work(reciter, shape, seed=4).prompts
    assert (shape.num_sampled, shape.num_response, shape.length) == (42, 164, 241)
