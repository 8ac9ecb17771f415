"""The embedded engine, on small random models of several architectures."""

import asyncio
import random
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import small_decoders
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import logit_tolerance
from representatives import representatives
from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, MambaConfig, MistralConfig, Qwen3Config

from midthought.engines.engine import Sampling
from midthought.engines.local import engine as local
from midthought.engines.local import forward_pass, kv_cache_manager, sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.runner import CachedRunner, Row
from midthought.engines.local.slot_batch import MIN_GROUP_ROWS, MIN_PREFIX_TOKENS, find_groups
from midthought.errors import EngineError
from midthought.types import Completion, Finish

VOCAB = 97
SIZES = {**small_decoders.SIZES, "vocab_size": VOCAB, "num_hidden_layers": 2, "head_dim": 8}
"""Weights far from uniform, so that a wrong cache shows."""
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=7),
    "gemma2": lambda: Gemma2Config(**SIZES, sliding_window=6, query_pre_attn_scalar=8),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, sliding_window=6, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def make_model(name: str = "qwen3", seed: int = 0) -> Any:
    return small_decoders.random_model(CONFIGS[name](), seed=seed)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_exact(model: Any, context: Sequence[int], completion: Completion, num_tokens: int = 64) -> None:
    assert small_decoders.off_by(model, context, completion) <= logit_tolerance(model, num_tokens)


BOTH_SCHEDULES = pytest.mark.parametrize("is_later", [False, True], ids=["tokens read at once", "one pass later"])


class StopAfter:
    """A stopper that says "a call ended" after so many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.left = num_tokens

    def feed(self, token_id: int) -> bool:
        self.left -= 1
        return self.left == 0


def sample_all(engine: LocalEngine, prompts: Sequence[Sequence[int]], **sampling: float) -> list[Completion]:
    async def run() -> list[Completion]:
        ways = [Sampling(seed=100 + episode, **sampling) for episode in range(len(prompts))]  # type: ignore[arg-type]
        return await asyncio.gather(*map(engine.sample, range(len(prompts)), prompts, ways))

    return asyncio.run(run())


def play(engine: LocalEngine, episode: Callable[[int], Awaitable[Any]], num_episodes: int) -> list[Any]:
    """Opens the episodes and runs the coroutine of each, all at once; what they return."""

    async def run() -> list[Any]:
        for number in range(num_episodes):
            engine.open(number)
        return await asyncio.wait_for(asyncio.gather(*map(episode, range(num_episodes))), 60)

    return asyncio.run(run())


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_of_sampled_tokens_are_those_of_a_plain_forward_pass_across_a_call(name):
    """The last completion is longer than a mask is made ahead for."""
    model = make_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = LocalEngine(model, eos_token_ids=[])

        async def episode(number: int) -> None:
            ids = prompt(4 + 3 * number, seed=number)
            for turn in range(4):
                sampling = Sampling(max_tokens=100, seed=number)
                stopper = StopAfter(3 + number + turn) if turn < 3 else None
                completion = await engine.sample(number, ids, sampling, stopper=stopper)
                assert completion.finish is (Finish.CALL if turn < 3 else Finish.LENGTH)
                assert_exact(model, ids, completion, 150)
                ids = [*ids, *completion.token_ids, *prompt(5 - number, seed=50 + number)]

        play(engine, episode, 4)
    assert engine.stats.num_reused_tokens > 0


def test_only_tokens_that_are_not_in_the_cache_are_computed():
    model, ids = make_model(), prompt(30)
    engine = LocalEngine(model, eos_token_ids=[])
    first = asyncio.run(engine.sample(1, ids, Sampling(max_tokens=40), stopper=StopAfter(12)))
    assert (engine.stats.num_prefilled_tokens, engine.stats.num_reused_tokens) == (30, 0)
    result = prompt(7, seed=9)
    asyncio.run(engine.sample(1, [*ids, *first.token_ids, *result], Sampling(max_tokens=5)))
    # The last sampled token, which had not been fed yet, and the result.
    assert engine.stats.num_prefilled_tokens == 30 + 1 + 7
    assert engine.stats.num_reused_tokens == 30 + 12 - 1
    assert engine.stats.num_sampled_tokens == 12 + 5
    changed = [*ids[:8], (ids[8] + 1) % VOCAB, *ids[9:]]
    completion = asyncio.run(engine.sample(1, changed, Sampling(max_tokens=6)))
    assert engine.stats.num_reused_tokens == 30 + 12 - 1 + 8
    assert_exact(model, changed, completion)


def test_batched_and_alone_give_the_same_tokens():
    model = make_model()
    prompts = [prompt(3 + 2 * number, seed=number) for number in range(9)]
    together = sample_all(LocalEngine(model, eos_token_ids=[0, 1]), prompts, max_tokens=30)
    in_threes = sample_all(LocalEngine(model, eos_token_ids=[0, 1], max_num_seqs=3), prompts, max_tokens=30)
    assert [completion.token_ids for completion in in_threes] == [completion.token_ids for completion in together]
    for number, ids in enumerate(prompts):
        engine = LocalEngine(model, eos_token_ids=[0, 1])
        alone = asyncio.run(engine.sample(7, ids, Sampling(max_tokens=30, seed=100 + number)))
        assert alone.token_ids == together[number].token_ids
        assert alone.sampled_logprobs == pytest.approx(together[number].sampled_logprobs, abs=logit_tolerance(model))
    assert len({completion.token_ids for completion in together}) == len(prompts)


def test_sampling_ends_at_the_end_token_at_max_tokens_and_at_the_slots_length():
    model = make_model()
    ids = prompt(10)
    free = sample_all(LocalEngine(model, eos_token_ids=[]), [ids], max_tokens=25)[0]
    assert (free.finish, len(free.token_ids)) == (Finish.LENGTH, 25)
    end = free.token_ids[9]
    ended = sample_all(LocalEngine(model, eos_token_ids=[end]), [ids], max_tokens=25)[0]
    assert ended.finish is Finish.END
    assert ended.token_ids == free.token_ids[: free.token_ids.index(end) + 1]
    short = LocalEngine(model, eos_token_ids=[], max_seq_len=16)
    assert sample_all(short, [ids], max_tokens=25)[0].token_ids == free.token_ids[:6]
    full = sample_all(short, [prompt(16)], max_tokens=25)[0]
    assert (full.token_ids, full.finish) == ((), Finish.LENGTH)


def test_a_model_that_cannot_keep_a_cache_is_computed_anew_with_one_warning():
    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.3)
    model = small_decoders.random_model(config)
    engine = LocalEngine(model, eos_token_ids=[])
    prompts = [prompt(4 + number % 3, seed=number) for number in range(12)]
    with pytest.warns(UserWarning, match="MambaForCausalLM.*cannot be kept") as caught:
        completions = sample_all(engine, prompts, max_tokens=6)
        asyncio.run(engine.sample(11, prompts[11], Sampling(max_tokens=2)))
    assert len([entry for entry in caught if "cannot be kept" in str(entry.message)]) == 1
    for ids, completion in zip(prompts, completions, strict=True):
        assert_exact(model, ids, completion)
    assert engine.stats.num_reused_tokens == 0


async def until_sampled(engine: LocalEngine, num_tokens: int) -> int:
    num_tokens += engine.stats.num_sampled_tokens
    while engine.stats.num_sampled_tokens < num_tokens:
        await asyncio.sleep(0)
    return engine.stats.num_sampled_tokens


@BOTH_SCHEDULES
async def test_weights_that_change_in_place_in_mid_sample_are_sampled_from_at_once(is_later):
    model, other = make_model(seed=0), make_model(seed=1)
    engine = LocalEngine(model, eos_token_ids=[], async_scheduling=is_later)
    ids = prompt(12)
    pending = asyncio.ensure_future(engine.sample(1, ids, Sampling(max_tokens=12)))
    num_old = await until_sampled(engine, 5)
    model.load_state_dict(other.state_dict())
    engine.update_weights()
    completion = await pending
    old, logprobs = completion.token_ids[:num_old], completion.sampled_logprobs[num_old:]
    rest = replace(completion, token_ids=completion.token_ids[num_old:], sampled_logprobs=logprobs)
    assert_exact(other, [*ids, *old], rest)
    assert completion.policy_version == 1 and len(rest.token_ids) == 12 - num_old > 0


async def test_an_engine_that_sleeps_while_it_samples_computes_the_rest_again(monkeypatch):
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "is_on_gpu", True)
    engine = LocalEngine(make_model(), eos_token_ids=[], async_scheduling=True)
    pending = asyncio.ensure_future(engine.sample(1, prompt(12), Sampling(max_tokens=12)))
    await until_sampled(engine, 5)
    engine.sleep()
    assert not engine.num_cache_bytes
    assert_exact(make_model(), prompt(12), await pending)


def test_the_learners_model_is_left_alone():
    model = make_model().train()
    implementation = model.config._attn_implementation
    sample_all(LocalEngine(model, eos_token_ids=[]), [prompt(5)], max_tokens=3)
    assert model.training
    assert model.config._attn_implementation == implementation
    model(torch.tensor([prompt(5)])).logits.sum().backward()


def test_running_sequences_are_moved_together_when_others_have_ended_or_are_idle(monkeypatch):
    """Most episodes end early or stay idle in their slots, so the last ones are left in the highest slots."""
    model, num_idle, num_short = make_model(), 9, 24
    prompts = [prompt(5 + number % 3, seed=number) for number in range(28)]
    slots_of_passes: list[set[int]] = []
    long_ones_ended = asyncio.Event()
    steps = CachedRunner.steps

    def observed(self: CachedRunner, rows: Sequence[Row], **options: Any) -> Any:
        slots_of_passes.append({row.slot for row in rows})
        return steps(self, rows, **options)

    monkeypatch.setattr(CachedRunner, "steps", observed)
    engine = LocalEngine(model, eos_token_ids=[])

    async def episode(number: int) -> None:
        ids = prompts[number]
        completion = await engine.sample(number, ids, Sampling(max_tokens=3 if number < num_short else 20, seed=number))
        if num_idle <= number < num_short:
            engine.close(number)
        assert_exact(model, ids, completion)
        if number >= num_short:
            long_ones_ended.set()
        if number < num_idle:
            await long_ones_ended.wait()
            ids = [*ids, *completion.token_ids, *prompt(2, seed=number)]
            assert_exact(model, ids, await engine.sample(number, ids, Sampling(max_tokens=5, seed=number)))

    play(engine, episode, len(prompts))
    assert {0, 1, 2, 3} in slots_of_passes, "of the four that sample longest"
    assert engine.stats.num_reused_tokens == sum(len(ids) + 2 for ids in prompts[:num_idle])


def test_an_engine_lives_through_several_event_loops_even_abandoned_ones():
    model = make_model()
    engine = LocalEngine(model, eos_token_ids=[])
    ids = prompt(9)
    expected = sample_all(engine, [ids], max_tokens=10)[0]

    async def abandon() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.sample(0, ids, Sampling(max_tokens=900, seed=100)), timeout=0.05)

    asyncio.run(abandon())
    assert sample_all(engine, [ids], max_tokens=10)[0].token_ids == expected.token_ids


@BOTH_SCHEDULES
async def test_a_failing_pass_fails_every_request_and_a_raising_stopper_its_own_only(is_later):
    class Broken:
        def feed(self, token_id: int) -> bool:
            raise LookupError("no such piece")

    async def outcomes(*requests: Any) -> list[type]:
        return [*map(type, await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), timeout=30))]

    model, few = make_model(), Sampling(max_tokens=3)
    engine = LocalEngine(model, eos_token_ids=[], async_scheduling=is_later)
    unknown = engine.sample(0, [VOCAB + 5], few)  # a token that is not in the embedding
    assert await outcomes(unknown, engine.sample(1, prompt(3), few)) == [EngineError] * 2
    broken = engine.sample(0, prompt(3), few, stopper=Broken())
    assert await outcomes(broken, engine.sample(1, prompt(3), few)) == [LookupError, Completion]
    long = [engine.sample(number, prompt(5), Sampling(max_tokens=50)) for number in range(2)]
    failing = asyncio.create_task(outcomes(*long))
    await until_sampled(engine, 10)
    for parameter in model.parameters():
        parameter.data = parameter.data[:0]
    assert await failing == [EngineError] * 2


def test_when_memory_runs_out_the_error_names_the_remedy(monkeypatch):
    def out_of_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    model = make_model()
    monkeypatch.setattr(model.model, "forward", out_of_memory)
    with pytest.raises(EngineError, match="no memory; lower max_num_seqs"):
        sample_all(LocalEngine(model, eos_token_ids=[]), [prompt(3)], max_tokens=2)


@BOTH_SCHEDULES
async def test_closing_an_episode_cancels_its_sample_and_leaves_the_others_alone(is_later):
    model, prompts = make_model(), [prompt(8, seed=number) for number in range(3)]
    engine = LocalEngine(model, eos_token_ids=[], async_scheduling=is_later)

    ways = [Sampling(max_tokens=30, seed=number) for number in range(3)]
    pending = asyncio.gather(*map(engine.sample, range(3), prompts, ways), return_exceptions=True)
    await until_sampled(engine, 15)
    engine.close(1)
    found = await pending
    assert isinstance(found[1], asyncio.CancelledError)
    for number in (0, 2):
        assert len(found[number].token_ids) == 30
        assert_exact(model, prompts[number], found[number])


def test_deterministic_runs_agree_bit_by_bit_whatever_the_tools_take():
    model = make_model()

    def run(*delays: float) -> Any:
        engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=3, deterministic=True)

        async def episode(number: int) -> list[Completion]:
            ids, done = prompt(4 + number, seed=number), []
            for turn in range(3):
                sampling = Sampling(max_tokens=40, seed=number)
                done.append(await engine.sample(number, ids, sampling, stopper=StopAfter(2 + (number + turn) % 5)))
                ids = [*ids, *done[-1].token_ids, *prompt(3, seed=turn)]
                await asyncio.sleep(delays[(number + turn) % len(delays)])
            engine.close(number)
            return done

        found = play(engine, episode, 7)
        assert engine.stats.num_evicted == 0  # admitted until closed, three at a time
        assert engine.stats.num_reused_tokens > 0
        return found, engine.stats.num_forward_passes, engine.stats.num_reused_tokens

    assert run(0.0) == run(0.02, 0.0, 0.01)


def test_what_an_engine_did_before_does_not_change_a_deterministic_run():
    """A resumed run has a fresh engine; an evaluation has episodes of the same numbers and the same weights."""
    model, head = make_model(), prompt(20)
    used, fresh = (LocalEngine(model, eos_token_ids=[], max_num_seqs=4, deterministic=True) for _ in range(2))

    def play_prompts(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> list[Completion]:
        async def episode(number: int) -> Completion:
            completion = await engine.sample(number, prompts[number], Sampling(max_tokens=20, seed=number))
            engine.close(number)
            return completion

        return play(engine, episode, len(prompts))

    play_prompts(used, [prompt(90, seed=number) for number in range(9)])
    for engine in (used, fresh):
        engine.update_weights()
    play_prompts(used, [[*head, number] for number in range(6)])
    again, first = (play_prompts(engine, [[*head, 7 + n] for n in range(5)]) for engine in (used, fresh))
    assert again == first


# -- shared prefixes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_prompt_of_a_group_is_computed_once(deterministic):
    model = make_model()
    engine = LocalEngine(model, eos_token_ids=[], deterministic=deterministic)
    apart = LocalEngine(model, eos_token_ids=[], deterministic=deterministic, share_prefixes=False)
    prompts = [prompt(60)] * 8
    shared, alone = sample_all(engine, prompts, max_tokens=15), sample_all(apart, prompts, max_tokens=15)
    assert engine.stats.num_prefilled_tokens == 60 + 7 * 1  # of the others the last token, whose logits are wanted
    assert engine.stats.num_shared_tokens == 7 * 59
    assert (apart.stats.num_prefilled_tokens, apart.stats.num_shared_tokens) == (8 * 60, 0)
    assert len({completion.token_ids for completion in shared}) == 8
    for one, other in zip(shared, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=logit_tolerance(model))
        assert_exact(model, prompts[0], one)


def test_prompts_that_only_begin_alike_share_their_beginning():
    engine = LocalEngine(make_model(), eos_token_ids=[])
    prompts = [[*prompt(40), *prompt(3 + number, seed=9 + number)] for number in range(5)]
    for ids, completion in zip(prompts, sample_all(engine, prompts, max_tokens=10), strict=True):
        assert_exact(make_model(), ids, completion)
    assert engine.stats.num_prefilled_tokens == 40 + sum(3 + number for number in range(5))


def test_what_a_closed_episode_left_serves_the_next_one_that_begins_alike():
    model = make_model()
    engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=1)
    for number in range(3):
        completion = asyncio.run(engine.sample(number, prompt(30), Sampling(max_tokens=8, seed=number)))
        engine.close(number)
        assert_exact(model, prompt(30), completion)
    assert engine.stats.num_prefilled_tokens == 30 + 1 + 1
    engine.update_weights()
    sample_all(engine, [prompt(30)], max_tokens=1)
    assert engine.stats.num_prefilled_tokens == 30 + 1 + 1 + 30


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


# -- memory ----------------------------------------------------------------------------------------------------

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head size, fp32


def test_where_memory_is_short_fewer_run_at_once_and_that_is_said(caplog, monkeypatch):
    model = make_model()
    prompts = [prompt(20 + number, seed=number) for number in range(10)]
    monkeypatch.setattr(kv_cache_manager, "memory_bytes", lambda device: 2 * 3 * 64 * BYTES_PER_TOKEN)
    engine = LocalEngine(model, eos_token_ids=[])
    completions = sample_all(engine, prompts, max_tokens=25)
    assert "the key/value cache fits only 3 sequences of 54 tokens" in caplog.text
    assert 0 < engine.num_cache_bytes <= 3 * 64 * BYTES_PER_TOKEN
    engine.shutdown()
    assert engine.num_cache_bytes == 0
    for ids, completion in zip(prompts, completions, strict=True):
        assert len(completion.token_ids) == 25
        assert_exact(model, ids, completion)
    monkeypatch.setattr(kv_cache_manager, "memory_bytes", lambda device: 2)
    least = LocalEngine(model, eos_token_ids=[])
    assert [len(each.token_ids) for each in sample_all(least, prompts[:2], max_tokens=5)] == [5, 5], "one at a time"


@pytest.mark.parametrize("num_sequences", representatives([1, 2], 1))
def test_sequences_that_outgrow_it_in_mid_sample_take_no_more_memory_than_they_may(num_sequences, monkeypatch):
    """The cache is made for some hundred tokens ahead, and these want more."""
    model, taken, layer = make_model(), set(), SlotCache.layer
    max_cache_bytes = 2 * 700 * BYTES_PER_TOKEN
    monkeypatch.setattr(SlotCache, "layer", lambda self, *of: taken.add(self.num_bytes) or layer(self, *of))
    monkeypatch.setattr(kv_cache_manager, "memory_bytes", lambda device: 2 * max_cache_bytes)
    engine = LocalEngine(model, eos_token_ids=[], max_seq_len=2000)
    prompts = [prompt(20, seed=number) for number in range(num_sequences)]
    for ids, completion in zip(prompts, sample_all(engine, prompts, max_tokens=640), strict=True):
        assert_exact(model, ids, completion)
    assert 0 < engine.num_cache_bytes <= max(taken) <= max_cache_bytes
    assert (engine.stats.num_relaid > 0) == (num_sequences > 1)


# -- everything at once ----------------------------------------------------------------------------------------


LITTLE_MEMORY = 20 * 64 * BYTES_PER_TOKEN
SHORT: dict[str, tuple[int, int, dict[str, Any]]] = {
    "of slots and of room in a pass": (32, 2**30, {"max_num_seqs": 2}),
    "of memory": (1024, LITTLE_MEMORY, {}),
    "of memory, deterministic": (1024, LITTLE_MEMORY, {"deterministic": True}),
    "of room in a pass, nothing shared": (200, 2**30, {"share_prefixes": False}),
}
"""Tokens of a pass, bytes of the cache, and options of the engine."""


@pytest.mark.parametrize("short", representatives(SHORT, "of slots and of room in a pass", "of memory"))
def test_whatever_the_engine_is_short_of_every_token_is_the_models_own_and_the_same_in_both_schedules(
    short, monkeypatch
):
    """Episodes of several turns with common beginnings and calls."""
    max_batched_tokens, num_bytes, options = SHORT[short]
    monkeypatch.setitem(forward_pass.MAX_BATCHED_TOKENS, "cpu", max_batched_tokens)
    monkeypatch.setattr(kv_cache_manager, "memory_bytes", lambda device: 2 * num_bytes)
    model = make_model()
    heads = [prompt(length, seed=number) for number, length in enumerate((5, 17, 30, 49))]

    def run(is_later: bool) -> list[Any]:
        engine = LocalEngine(model, eos_token_ids=[0, 1, 2], async_scheduling=is_later, **options)

        async def episode(number: int) -> list[Any]:
            own, found = random.Random(number), []
            ids = [*own.choice(heads), *prompt(own.randrange(1, 6), seed=number % 7)]
            for _ in range(3):
                sampling = Sampling(max_tokens=own.randrange(1, 30), temperature=own.choice([0.0, 1.0]), seed=number)
                stopper = StopAfter(own.randrange(1, 20)) if own.random() < 0.5 else None
                completion = await engine.sample(number, ids, sampling, stopper=stopper)
                assert_exact(model, ids, completion)
                found.append((completion.token_ids, completion.finish))
                ids = [*ids, *completion.token_ids, *prompt(own.randrange(1, 30), seed=own.randrange(5))]
                await asyncio.sleep(0.005 * own.random())
            engine.close(number)
            return found

        return play(engine, episode, 12)

    plain, later = run(False), run(True)
    assert plain == later and {finish for found in plain for _, finish in found} == set(Finish)


def test_prompts_that_wait_for_room_go_first_and_sequences_then_sample_side_by_side(monkeypatch):
    monkeypatch.setitem(forward_pass.MAX_BATCHED_TOKENS, "cpu", 64)
    engine = LocalEngine(make_model(), eos_token_ids=[])
    completions = sample_all(engine, [prompt(30, seed=number) for number in range(7)], max_tokens=5)
    assert [len(completion.token_ids) for completion in completions] == [5] * 7
    assert engine.stats.num_forward_passes == 4 + 4  # two prompts a pass, whose logits give the first token; four more


def test_what_quick_tools_bring_is_computed_together():
    engine, num_episodes = LocalEngine(make_model(), eos_token_ids=[]), 6

    async def episode(number: int) -> None:
        ids = prompt(20, seed=number)
        for _ in range(3):
            completion = await engine.sample(number, ids, Sampling(max_tokens=4, seed=number))
            for _ in range(number + 1):
                await asyncio.sleep(0)
            ids = [*ids, *completion.token_ids, *prompt(5, seed=number)]
        engine.close(number)

    play(engine, episode, num_episodes)
    assert engine.stats.num_sampled_tokens == num_episodes * 3 * 4
    assert engine.stats.num_forward_passes == 3 * 4


@pytest.mark.parametrize(("num_away", "yield_seconds"), [(0, 1e9), (1, 1e9), (0, 0.0)])
async def test_others_have_their_turn_after_every_pass_while_a_result_may_come_and_else_now_and_then(
    num_away, yield_seconds, monkeypatch
):
    monkeypatch.setattr(local, "YIELD_SECONDS", yield_seconds)
    engine = LocalEngine(make_model(), eos_token_ids=[])
    for number in range(2 + num_away):
        engine.open(number)
    ways = Sampling(max_tokens=50)
    requests = [asyncio.ensure_future(engine.sample(n, prompt(3, seed=n), ways)) for n in range(2)]
    num_turns = 0
    while not all(request.done() for request in requests):
        await asyncio.sleep(0)
        num_turns += 1
    assert engine.stats.num_forward_passes == 50
    assert num_turns >= 50 if num_away or not yield_seconds else num_turns < 10


# -- tokens that are read one pass later, so that a GPU does not wait for the host --------------------------------


@pytest.mark.parametrize(
    ("is_later", "expected"), [(False, ["pass", "read"] * 4), (True, ["pass", *["pass", "read"] * 3, "read"])]
)
def test_the_next_pass_begins_before_the_tokens_of_the_last_one_are_read(is_later, expected, monkeypatch):
    order: list[str] = []
    engine = LocalEngine(make_model(), eos_token_ids=[], async_scheduling=is_later)
    sample_all(engine, [prompt(3)], max_tokens=1)
    steps, read = CachedRunner.steps, sampling.DrawnTokens.read

    def noted(self: CachedRunner, *rows: Any, **options: Any) -> Any:
        step = steps(self, *rows, **options)
        return lambda token_ids: order.append("pass") or step(token_ids)

    monkeypatch.setattr(CachedRunner, "steps", noted)
    monkeypatch.setattr(sampling.DrawnTokens, "read", lambda self: order.append("read") or read(self))
    sample_all(engine, [prompt(5)], max_tokens=5)
    assert order[1:] == expected, "the prompt's own pass comes first, and its token is read at once"
