"""The engine that writes what it is told to."""

import asyncio
from types import SimpleNamespace

import pytest

from midthought.engines.engine import Sampling
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import EngineError
from midthought.types import Finish


def test_it_stops_at_max_tokens_at_the_stopper_and_at_its_end_and_goes_on_after_each(renderer):
    ids = renderer.control("abcdef")
    engine = ScriptedEngine(["abcdef"], renderer)

    async def run() -> list[tuple[tuple[int, ...], Finish]]:
        engine.open(0)
        first = await engine.sample(0, [1], Sampling(max_tokens=2))
        second = await engine.sample(
            0, [1], Sampling(max_tokens=99), stopper=SimpleNamespace(feed=lambda token_id: token_id == ids[3])
        )
        third = await engine.sample(0, [1], Sampling(max_tokens=99))
        return [(completion.token_ids, completion.finish) for completion in (first, second, third)]

    assert asyncio.run(run()) == [
        (tuple(ids[:2]), Finish.LENGTH),
        (tuple(ids[2:4]), Finish.CALL),
        ((*ids[4:], engine.eos_token_id), Finish.END),
    ]


def test_a_function_sees_the_context_each_time_its_last_words_are_written(renderer):
    def script(episode: int, token_ids: object) -> str | None:
        text = renderer.decode(list(token_ids))  # type: ignore[call-overload]
        return None if text.endswith("b") else "b" if text.endswith("a") else "a"

    engine = ScriptedEngine(script, renderer, logprob=-1.5)
    completion = asyncio.run(engine.sample(3, renderer.control("x"), Sampling(max_tokens=9)))
    assert renderer.decode(completion.token_ids) == "ab<|im_end|>"
    assert completion.sampled_logprobs == (-1.5,) * 3


def test_an_episode_without_a_script_or_with_a_list_of_texts_is_an_error(renderer):
    with pytest.raises(EngineError, match="'a' among an episode's token ids"):
        script = [["a", "b"]]
        asyncio.run(ScriptedEngine(script, renderer).sample(0, [1], Sampling(max_tokens=9)))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="1 episodes, episode 4"):
        asyncio.run(ScriptedEngine(["a"], renderer).sample(4, [1], Sampling(max_tokens=9)))
