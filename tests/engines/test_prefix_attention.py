"""Rows that begin alike: attended together they get what each gets alone."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_engine import assert_exact, make_model, prompt

from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner import CachedRunner
from midthought.engines.local.slot_batch import MIN_GROUP_ROWS, MIN_PREFIX_TOKENS, find_groups
from midthought.types import Completion


@given(st.lists(st.sampled_from([0, 5, MIN_PREFIX_TOKENS, MIN_PREFIX_TOKENS + 9]), min_size=1, max_size=20))
@settings(max_examples=200)
def test_groups_cover_every_row_once_and_share_no_more_than_neighbours_do(common):
    common[0] = 0
    groups = find_groups(common)
    if not groups:
        longest = run = 1
        for shared in common[1:]:
            run = run + 1 if shared >= MIN_PREFIX_TOKENS else 1
            longest = max(longest, run)
        assert longest < MIN_GROUP_ROWS
        return
    assert [group.start for group in groups] == [0, *[group.end for group in groups[:-1]]]
    assert groups[-1].end == len(common)
    for start, end, num_tokens in groups:
        if num_tokens:
            assert end - start >= MIN_GROUP_ROWS and num_tokens == min(common[start + 1 : end]) >= MIN_PREFIX_TOKENS


def test_samples_of_one_long_prompt_are_those_of_a_plain_forward_pass_whoever_leaves_first(monkeypatch):
    model = make_model("llama")
    prompts = (
        [prompt(MIN_PREFIX_TOKENS + 20, seed=1)] * 6 + [prompt(30, seed=2)] + [prompt(MIN_PREFIX_TOKENS, seed=3)] * 4
    )

    async def sample(engine: LocalEngine) -> list[Completion]:
        ways = [Sampling(max_tokens=6 + 3 * number % 7, seed=number) for number in range(len(prompts))]
        return await asyncio.gather(*map(engine.sample, range(len(prompts)), prompts, ways))

    seen: list[int] = []
    steps = CachedRunner.steps

    def observed(self: CachedRunner, rows: Any, *, groups: Any = ()) -> Any:
        seen.append(len(groups))
        return steps(self, rows, groups=groups)

    monkeypatch.setattr(CachedRunner, "steps", observed)
    shared, alone = (
        asyncio.run(sample(LocalEngine(model, eos_token_ids=[], max_seq_len=600, share_prefixes=is_shared)))
        for is_shared in (True, False)
    )
    assert max(seen) >= 2, "no pass treated samples of one prompt together"
    for ids, ours, theirs in zip(prompts, shared, alone, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert_exact(model, ids, ours, MIN_PREFIX_TOKENS)
