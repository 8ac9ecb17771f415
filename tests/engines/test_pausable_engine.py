"""Pausing interrupts between tokens and loses none; episodes that wait go on with `resume`, in the order of their numbers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from midthought.engines.engine import Sampling
from midthought.engines.pausable_engine import FIRST_NUMBER, PausableEngine
from midthought.types import Completion, Finish


class Counter:
    """Writes 0, 1, 2, … by place, one token a turn of the event loop; `patience` turns pass before the first. 99 ends."""

    policy_version = 0
    eos_token_ids = frozenset({99})

    def __init__(self, *, ends_at: int = 99, patience: int = 0) -> None:
        self.ends_at = ends_at
        self.patience = patience
        self.log: list[tuple[str, int]] = []
        self.num_written = 0

    def open(self, episode):
        self.log.append(("open", episode - FIRST_NUMBER))

    def close(self, episode):
        self.log.append(("close", episode - FIRST_NUMBER))

    async def sample(self, episode, token_ids, sampling, *, stopper=None):
        self.log.append(("sample", episode - FIRST_NUMBER))
        for _ in range(self.patience):
            await asyncio.sleep(0)
        written, finish = [], Finish.LENGTH
        for place in range(len(token_ids), len(token_ids) + sampling.max_tokens):
            await asyncio.sleep(0)
            written.append(99 if place == self.ends_at else place)
            self.num_written += 1
            if place == self.ends_at:
                finish = Finish.END
                break
            if stopper is not None and stopper.feed(place):
                finish = Finish.CALL
                break
        logprobs = tuple(-float(token) for token in written)
        return Completion(
            token_ids=tuple(written), sampled_logprobs=logprobs, finish=finish, policy_version=self.policy_version
        )


def stops_at(token_id):
    return SimpleNamespace(feed=lambda each: each == token_id)


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


async def until_done(pausable, episode, num_tokens, stopper=None):
    """Sample until so many tokens stand there; the completions."""
    token_ids, done = [0], []
    while len(token_ids) < num_tokens:
        sampling = Sampling(max_tokens=num_tokens - len(token_ids))
        done.append(await pausable.sample(episode, token_ids, sampling, stopper=stopper))
        token_ids += done[-1].token_ids
    return token_ids, done


@pytest.mark.parametrize("num_turns", range(1, 40))
async def test_wherever_it_interrupts_no_token_is_lost_or_written_twice(num_turns):
    engine = Counter(patience=3)
    pausable = PausableEngine(engine)
    running = [asyncio.ensure_future(until_done(pausable, episode, 12)) for episode in range(3)]
    pausable.resume()
    for version in range(1, 6):
        await turns(num_turns)
        await pausable.pause()
        written = engine.num_written
        await turns(20)
        assert engine.num_written == written
        engine.policy_version = version
        pausable.resume()
    for token_ids, done in await asyncio.gather(*running):
        assert token_ids == list(range(12))
        assert [logprob for part in done for logprob in part.sampled_logprobs] == [-float(n) for n in range(1, 12)]
        assert {part.finish for part in done} == {Finish.LENGTH}
        versions = [part.policy_version for part in done]
        assert versions == sorted(versions)


async def test_a_token_that_a_cancelled_sample_still_feeds_from_its_thread_does_not_reach_the_stopper():
    """In-process vLLM feeds on its own event loop, which hears of the cancellation later."""

    class Late(Counter):
        async def sample(self, episode, token_ids, sampling, *, stopper=None):
            try:
                await asyncio.sleep(0 if self.patience else 60)
            except asyncio.CancelledError:
                stopper.feed(1)
                raise
            return await super().sample(episode, token_ids, sampling, stopper=stopper)

    class Recorder(list):
        def feed(self, token_id):
            self.append(token_id)

    engine, fed = Late(), Recorder()
    pausable = PausableEngine(engine)
    pausable.resume()
    running = asyncio.ensure_future(until_done(pausable, 0, 4, fed))
    await turns(3)
    await pausable.pause()
    engine.patience = 1
    pausable.resume()
    assert (await running)[0] == [0, 1, 2, 3] and fed == [1, 2, 3]


async def test_what_the_episodes_own_stopper_and_the_end_of_sequence_say_is_kept():
    engine = Counter(ends_at=6)
    pausable = PausableEngine(engine)
    pausable.resume()
    call = await pausable.sample(0, [0], Sampling(max_tokens=50), stopper=stops_at(3))
    assert (call.token_ids, call.finish) == ((1, 2, 3), Finish.CALL)
    running = asyncio.ensure_future(pausable.sample(0, [0, 1, 2, 3], Sampling(max_tokens=50), stopper=stops_at(5)))
    await turns(3)
    await pausable.pause()
    cut = await running
    assert (cut.token_ids, cut.finish) == ((4, 5), Finish.CALL)  # interrupted with the token that ends a call
    pausable.resume()
    end = await pausable.sample(0, [0, 1, 2, 3, 4, 5], Sampling(max_tokens=50))
    assert (end.token_ids, end.finish) == ((99,), Finish.END)
    engine.policy_version = 4
    assert (pausable.policy_version, pausable.eos_token_ids) == (4, frozenset({99}))
    engine.sample = None
    with pytest.raises(TypeError, match="not callable"):  # an engine that fails fails its episode
        await pausable.sample(0, [0], Sampling(max_tokens=3))
    await pausable.pause()


async def test_nothing_is_sampled_before_it_resumes_and_a_sample_without_a_token_yet_is_called_off_and_asked_for_again():
    engine = Counter(patience=1000)
    pausable = PausableEngine(engine)
    running = asyncio.ensure_future(until_done(pausable, 0, 3))
    await turns(10)
    assert (pausable.num_waiting, engine.log) == (1, [])
    pausable.resume()
    assert pausable.num_waiting == 0
    await turns(5)
    await pausable.pause()
    assert not running.done() and engine.num_written == 0
    assert engine.log == [("open", 0), ("sample", 0), ("close", 0)]
    engine.patience = 0
    pausable.resume()
    assert (await running)[0] == [0, 1, 2]


async def test_episodes_that_pass_together_get_new_numbers_in_their_own_order():
    engine = Counter()
    pausable = PausableEngine(engine)
    running = [asyncio.ensure_future(until_done(pausable, episode, 30)) for episode in (8, 2, 5)]
    await turns(2)
    pausable.resume()
    assert engine.log == [("open", 0), ("open", 1), ("open", 2)]
    await turns(6)
    await pausable.pause()
    assert sorted(engine.log[-3:]) == [("close", 0), ("close", 1), ("close", 2)]
    await turns(2)
    pausable.resume()
    assert engine.log[-3:] == [("open", 3), ("open", 4), ("open", 5)]
    await turns(3)
    assert ("sample", 3) in engine.log
    pausable.close(2)
    assert engine.log[-1] == ("close", 3)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_in_rounds_every_episode_samples_so_many_tokens_and_then_is_closed():
    engine = Counter()
    pausable = PausableEngine(engine, tokens_per_round=4)
    running = [asyncio.ensure_future(until_done(pausable, e, 11, stops_at(3))) for e in range(2)]
    await turns(2)
    lengths = []
    while pausable.num_waiting:
        pausable.resume()
        await turns(40)
        lengths.append(engine.num_written / 2)
    assert lengths == [4, 8, 10]  # the call at token 3 cuts a completion, not the round
    assert [len(part.token_ids) for part in (await running[0])[1]] == [3, 1, 4, 2]
    assert (await running[1])[0] == list(range(11))


@pytest.mark.parametrize("num_turns", range(1, 8))
@pytest.mark.parametrize("opens", [False, True])
async def test_cancelling_an_episode_goes_through_wherever_it_is(opens, num_turns):
    engine = Counter(patience=2)
    pausable = PausableEngine(engine)
    running = asyncio.ensure_future(until_done(pausable, 0, 100))
    if opens:
        pausable.resume()
    await turns(num_turns)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pausable.num_waiting == 0
    written = engine.num_written
    await turns(10)
    assert engine.num_written == written
    await asyncio.wait_for(pausable.pause(), 5)
