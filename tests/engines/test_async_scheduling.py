"""Decoding whose sampled tokens are read one forward pass later, so that a GPU does not wait for the host."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from representatives import representatives
from test_local_engine import StopAfter, make_model, prompt, sample_all

from midthought.engines.engine import Sampling
from midthought.engines.local import kv_cache_manager, sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner_selection import make_runner
from midthought.types import Completion, Finish


def engines(**options: Any) -> tuple[LocalEngine, LocalEngine]:
    """The same engine twice, the second with tokens that are read one pass later."""
    options = {"eos_token_ids": []} | options
    plain, later = (LocalEngine(make_model(), async_scheduling=is_later, **options) for is_later in (False, True))
    return plain, later


def equal(some: Sequence[Completion], others: Sequence[Completion]) -> bool:
    """Whether both have the same tokens, reasons to end and, up to rounding, log-probabilities."""
    return all(
        one.token_ids == other.token_ids
        and one.finish == other.finish
        and one.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=1e-4)
        for one, other in zip(some, others, strict=True)
    )


def test_the_next_pass_begins_before_the_tokens_of_the_last_one_are_read(monkeypatch):
    order: list[str] = []

    class Noted(sampling.DrawnTokens):
        def read(self) -> tuple[list[int], list[float]]:
            order.append("read")
            return super().read()

    def make_noted(*args: Any, **options: Any) -> Any:
        runner = make_runner(*args, **options)
        begin = runner.steps

        def steps(*rows: Any, **more: Any) -> Any:
            step = begin(*rows, **more)

            def noted(token_ids: Any) -> torch.Tensor:
                order.append("pass")
                return step(token_ids)

            return noted

        runner.steps = steps  # type: ignore[method-assign]
        return runner

    monkeypatch.setattr(sampling, "DrawnTokens", Noted)
    monkeypatch.setattr(kv_cache_manager, "make_runner", make_noted)
    for engine, expected in zip(
        engines(), (["pass", "read"] * 4, ["pass", *["pass", "read"] * 3, "read"]), strict=True
    ):
        order.clear()
        sample_all(engine, [prompt(5)], max_tokens=5)
        assert order[1:] == expected, "the prompt's own pass comes first, and its token is read at once"


@pytest.mark.parametrize("seed", representatives([0, 1], 0))
def test_episodes_with_tools_on_a_short_cache_are_the_same(seed):
    async def episode(engine: LocalEngine, number: int) -> list[Completion]:
        own, ids, done = random.Random(f"{seed}-{number}"), prompt(5 + number % 9, seed=number % 4), []
        for _ in range(3):
            options = Sampling(max_tokens=own.randrange(1, 40), temperature=own.choice([0.0, 0.7, 1.0]), seed=number)
            stopper = StopAfter(own.randrange(1, 20)) if own.random() < 0.5 else None
            done.append(await engine.sample(number, ids, options, stopper=stopper))
            ids = [*ids, *done[-1].token_ids, *prompt(own.randrange(1, 30), seed=own.randrange(5))]
            await asyncio.sleep(0.005 * own.random())
        engine.close(number)
        return done

    async def run(engine: LocalEngine) -> list[Completion]:
        for number in range(20):
            engine.open(number)
        found = await asyncio.wait_for(asyncio.gather(*(episode(engine, number) for number in range(20))), 60)
        return [completion for of_episode in found for completion in of_episode]

    draw = random.Random(seed)
    options = {
        "eos_token_ids": [0, 1],
        "max_num_seqs": draw.choice([2, 8, 64]),
        "max_batched_tokens": draw.choice([32, 2048]),
        "max_cache_bytes": draw.choice([None, 100_000]),
    }
    plain, later = (asyncio.run(run(engine)) for engine in engines(**options))
    assert equal(plain, later) and {completion.finish for completion in plain} == set(Finish)
