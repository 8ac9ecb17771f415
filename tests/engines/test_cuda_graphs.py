"""Recorded passes of decoding give what plain ones give. Here a tape of tensor operations stands for a CUDA graph: like it,
it replays the same operations on the same memory, and knows nothing of the Python around them."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from precision import logit_tolerance
from representatives import representatives
from small_decoders import SIZES, random_model
from test_local_engine import play
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from midthought.engines.engine import Sampling
from midthought.engines.local import cuda_graphs as recorded
from midthought.engines.local import kv_cache_manager
from midthought.engines.local.cuda_graphs import MIN_PASSES, MIN_PASSES_OF_SEVERAL, MIN_REPLAYS, Pass, cuda_graphs
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner import CachedRunner, Row
from midthought.engines.local.runner_selection import make_runner

CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, attention_bias=True),
    "mistral, windows": lambda: MistralConfig(**SIZES, sliding_window=7),
    "gpt2, its own forward pass": lambda: GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=2, n_positions=96, initializer_range=0.3, bos_token_id=None
    ),
}


class Tape:
    """Records like a CUDA graph; counts replays. What a graph refuses, to look at a number, it refuses."""

    def __init__(self) -> None:
        self.num_recordings = 0
        self.num_replays = 0

    def __call__(self, compute: Pass) -> Pass:
        calls: list[tuple[Any, Any, Any, Any]] = []

        class Recording(TorchDispatchMode):
            def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if operation in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
                    raise RuntimeError(f"{operation} looks at numbers, which are not there while recording")
                result = operation(*args, **(kwargs or {}))
                calls.append((operation, args, kwargs or {}, result))
                return result

        compute()  # as `cuda_graphs` does; what it has kept from this pass must not be read when the recording is replayed
        with Recording():
            last = compute()
        self.num_recordings += 1

        def replay() -> torch.Tensor:
            self.num_replays += 1
            for operation, args, kwargs, result in calls:
                anew = operation(*args, **kwargs)
                for there, new in zip(tree_leaves(result), tree_leaves(anew), strict=True):
                    if isinstance(there, torch.Tensor) and there.data_ptr() != new.data_ptr():
                        there.copy_(new)
            return last

        return torch.inference_mode()(replay)


def make(name: str) -> Any:
    return random_model(CONFIGS[name]())


def runners(model: Any, record: Any) -> tuple[CachedRunner, CachedRunner]:
    """One that computes, one that replays where it can."""
    plain, replaying = make_runner(model), make_runner(model, new_record=lambda: record)
    assert isinstance(plain, CachedRunner)
    assert isinstance(replaying, CachedRunner)
    return plain, replaying


def keys_of(runner: CachedRunner) -> list[torch.Tensor]:
    """The cached keys of every layer, in place."""
    unused = torch.empty(0)  # the layers have their memory
    return [runner.cache.layer(index, unused, unused)[0] for index in sorted(runner.cache.windows)]


class Sequences:
    """Sequences in slots, carried on by the same tokens in both runners."""

    def __init__(self, both: Sequence[CachedRunner], lengths: dict[int, int], room_for: int = 0) -> None:
        self.both = both
        self.rounding = logit_tolerance(both[0].model, 120)
        self.draw = random.Random(0)
        self.tokens = {slot: [self.draw.randrange(61) for _ in range(length)] for slot, length in lengths.items()}
        for runner in both:
            runner.forward([Row(tokens[:-1], 0, slot) for slot, tokens in self.tokens.items()], room_for=room_for)

    def go_on(self, slots: Sequence[int], num_steps: int) -> float:
        """The largest difference of their logits."""
        rows = [Row(list(self.tokens[slot]), len(self.tokens[slot]) - 1, slot) for slot in slots]
        steps = [runner.steps(rows) for runner in self.both]
        largest = 0.0
        for _ in range(num_steps):
            last = [self.tokens[slot][-1] for slot in slots]
            one, other = (step(last) for step in steps)
            largest = max(largest, float((one - other).abs().max()))
            for slot in slots:
                self.tokens[slot].append(self.draw.randrange(61))
        return largest

    def read(self, num_new: dict[int, int]) -> float:
        """The largest difference of the logits after several new tokens, by slot, in one pass."""
        rows = []
        for slot, number in num_new.items():
            num_cached = len(self.tokens[slot]) - 1
            self.tokens[slot] += [self.draw.randrange(61) for _ in range(number - 1)]
            rows.append(Row(list(self.tokens[slot]), num_cached, slot))
        one, other = (runner.forward(rows) for runner in self.both)
        for slot in num_new:
            self.tokens[slot].append(self.draw.randrange(61))
        return float((one - other).abs().max())


@pytest.fixture
def reads_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kernels on a GPU. Here masks hide the other keys."""
    monkeypatch.setattr(Decoder, "reads_own_keys", True)


@pytest.mark.usefixtures("reads_own_keys")
@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral, windows"])
def test_replayed_passes_of_several_tokens_give_what_plain_ones_give(name, monkeypatch):
    monkeypatch.setattr(recorded, "NUMBERS_OF_TOKENS", (4, 8, 16))
    tape = Tape()
    both = runners(make(name), tape)
    sequences = Sequences(both, {0: 5, 1: 17, 2: 3, 3: 9, 4: 2}, room_for=120)
    for _ in range(MIN_PASSES_OF_SEVERAL):
        assert sequences.read({0: 1, 1: 1, 2: 4, 3: 1}) < sequences.rounding
    assert tape.num_recordings == 1
    before = tape.num_replays
    untouched = [keys[4].clone() for keys in keys_of(both[1])]
    assert sequences.read({2: 1, 0: 3, 3: 2, 1: 2}) < sequences.rounding, "of any rows, in any order"
    assert sequences.read({1: 7}) < sequences.rounding
    assert sequences.go_on([0, 1, 2, 3], 5) < sequences.rounding, "what was read is in the cache"
    assert sequences.read({0: 2, 1: 2, 2: 2, 3: 2}) < sequences.rounding
    assert tape.num_replays == before + 3
    assert all(torch.equal(old, keys[4]) for old, keys in zip(untouched, keys_of(both[1]), strict=True))


@pytest.mark.parametrize(
    ("limit", "lengths", "num_new", "num_recordings"),
    [
        ((recorded, "NUMBERS_OF_TOKENS", (4,)), {0: 5, 1: 17}, {0: 1, 1: 4}, 0),
        ((recorded, "MAX_LAST_TOKENS", 1), {0: 5, 1: 17}, {0: 1, 1: 4}, 0),
        ((recorded, "MAX_KEYS_READ", 30), {0: 5, 1: 17}, {0: 1, 1: 4}, 0),
        ((recorded, "MAX_KEYS_READ", 20), {0: 3, 1: 40}, {0: 2, 1: 1}, 1),  # keys of rows with one token do not count
        ((Decoder, "reads_own_keys", False), {0: 5, 1: 17}, {0: 1, 1: 4}, 0),  # attention reads all keys
    ],
)
@pytest.mark.usefixtures("reads_own_keys")
def test_passes_of_several_tokens_beyond_a_limit_are_computed(limit, lengths, num_new, num_recordings, monkeypatch):
    monkeypatch.setattr(*limit)
    tape = Tape()
    sequences = Sequences(runners(make("qwen3"), tape), lengths, room_for=60)
    for _ in range(2 * MIN_PASSES_OF_SEVERAL):
        assert sequences.read(num_new) < sequences.rounding
    assert tape.num_recordings == num_recordings


@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_passes_give_what_plain_ones_give(name, monkeypatch):
    monkeypatch.setattr(recorded, "KEYS_PER_STEP", 16)
    tape = Tape()
    both = runners(make(name), tape)
    sequences = Sequences(both, {0: 5, 1: 17, 2: 3, 3: 9, 4: 2, 5: 12}, room_for=90)
    assert sequences.go_on([0, 1, 2, 3, 4, 5], 30) < sequences.rounding
    assert sequences.go_on([1, 4, 5], 12) < sequences.rounding, "others have left"
    assert sequences.go_on([3, 0, 2], 9) < sequences.rounding, "in any order"
    assert sequences.go_on([0, 1, 2, 3, 4, 5], 20) < sequences.rounding
    assert tape.num_replays > 30
    assert tape.num_recordings <= 5


def test_a_cache_that_grows_is_recorded_anew():
    tape = Tape()
    sequences = Sequences(runners(make("llama"), tape), {0: 5, 1: 7})
    assert sequences.go_on([0, 1], 50) < sequences.rounding
    num_before = tape.num_recordings
    assert sequences.go_on([0, 1], 60) < sequences.rounding, "beyond the 64 tokens that there was room for"
    assert tape.num_recordings > num_before
    assert sequences.both[1].cache.length > 64


def test_a_size_that_was_rarely_replayed_has_to_occur_again_before_it_is_recorded():
    tape = Tape()
    both = runners(make("qwen3"), tape)

    def num_recordings_after(num_steps: int) -> int:
        sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
        assert sequences.go_on([0, 1], num_steps) < sequences.rounding
        for runner in both:
            runner.clear()
        return tape.num_recordings

    assert num_recordings_after(MIN_PASSES + 2) == 1
    assert num_recordings_after(MIN_PASSES - 1) == 1
    assert num_recordings_after(MIN_REPLAYS + 2) == 2, "after one more pass"
    assert num_recordings_after(2) == 3, "it was replayed often"


@pytest.mark.parametrize("name", ["qwen3", "gpt2, its own forward pass"])
def test_weights_are_replayed_as_they_are_in_place_and_recorded_anew_elsewhere(name):
    model, tape = make(name), Tape()
    both = runners(model, tape)
    sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
    sequences.go_on([0, 1], 12)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    for runner in both:
        runner.update_weights()
    num_recordings, num_replays = tape.num_recordings, tape.num_replays
    assert sequences.go_on([0, 1], 12) < sequences.rounding
    assert tape.num_replays == num_replays + 12
    assert tape.num_recordings == num_recordings
    for parameter in model.parameters():
        parameter.data = 1.1 * parameter.data
    assert sequences.go_on([0, 1], 12) < sequences.rounding
    assert tape.num_recordings > num_recordings


def test_after_all_recordings_were_discarded_new_memory_is_used():
    """PyTorch frees the memory pool of CUDA graphs with the last of them and fails if it is used again."""
    tapes: list[Tape] = []

    def new_record() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    model = make("qwen3")
    both = make_runner(model), make_runner(model, new_record=new_record)
    sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
    sequences.go_on([0, 1], 12)
    sequences.go_on([0], 12)
    both[1].clear()
    sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
    assert sequences.go_on([0, 1], 12) < sequences.rounding
    assert [tape.num_recordings for tape in tapes] == [2, 1]


def test_a_recording_that_gives_other_logits_or_cannot_be_made_is_noticed_and_not_used(caplog):
    def wrong(compute: Pass) -> Pass:
        return lambda: compute() + torch.linspace(0, 1, 61)

    sequences = Sequences(runners(make("qwen3"), wrong), {0: 5, 1: 7}, room_for=60)
    assert sequences.go_on([0, 1], 20) < sequences.rounding
    about = ("off by", "not recorded any more")
    (message,) = [record.message for record in caplog.records if any(words in record.message for words in about)]
    assert "not recorded any more" in message and "log-probabilities were off by" in message

    def refuse(compute: Pass) -> Pass:
        raise RuntimeError("operation not permitted when stream is capturing")

    sequences = Sequences(runners(make("qwen3"), refuse), {0: 5, 1: 7}, room_for=60)
    assert sequences.go_on([0, 1], 20) < sequences.rounding
    assert "operation not permitted" in caplog.text


@pytest.mark.usefixtures("reads_own_keys")
def test_a_size_without_memory_is_computed_and_others_are_recorded():
    tape, num_refused = Tape(), 0

    def record(compute: Pass) -> Pass:
        nonlocal num_refused
        if compute().shape[0] > 2:  # logits of passes of several tokens
            num_refused += 1
            raise torch.OutOfMemoryError("no memory")
        return tape(compute)

    both = runners(make("qwen3"), record)
    sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
    for _ in range(2 * MIN_PASSES_OF_SEVERAL):
        assert sequences.read({0: 1, 1: 3}) < sequences.rounding
    assert num_refused == 1, "not tried again"
    assert sequences.go_on([0, 1], 2 * MIN_PASSES) < sequences.rounding
    assert tape.num_recordings == 1
    both[1].clear()
    sequences = Sequences(both, {0: 5, 1: 7}, room_for=90)
    for _ in range(MIN_PASSES_OF_SEVERAL):
        assert sequences.read({0: 1, 1: 3}) < sequences.rounding
    assert num_refused == 2, "tried again"


@pytest.mark.parametrize("async_scheduling", representatives([False, True], True))
def test_an_engine_that_replays_samples_the_same(async_scheduling, monkeypatch):
    """Episodes that come and go, more than there are slots, with results between their samples."""
    monkeypatch.setattr(recorded, "KEYS_PER_STEP", 32)
    model, tape = make("qwen3"), Tape()
    options: dict[str, Any] = {"max_num_seqs": 6, "max_seq_len": 256, "async_scheduling": async_scheduling}

    def sampled() -> list[Any]:
        engine = LocalEngine(model, eos_token_ids=(), **options)

        async def episode(number: int) -> list[Any]:
            draw, found = random.Random(number), []
            token_ids = [draw.randrange(61) for _ in range(draw.randint(3, 30))]
            for turn in range(3):
                sampling = Sampling(max_tokens=draw.randint(5, 40), temperature=1.0, seed=10 * number + turn)
                done = await engine.sample(number, token_ids, sampling)
                found += zip(done.token_ids, np.round(done.sampled_logprobs, 3).tolist(), strict=True)
                token_ids = [*token_ids, *done.token_ids, *(draw.randrange(61) for _ in range(4))]
                await asyncio.sleep(0)
            engine.close(number)
            return found

        return play(engine, episode, 20)

    plain = sampled()
    monkeypatch.setattr(kv_cache_manager, "make_runner", lambda model, **_: make_runner(model, new_record=lambda: tape))
    assert sampled() == plain
    assert tape.num_replays > 100


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_cuda_graphs_give_what_plain_passes_give(name, dtype, caplog, monkeypatch):
    monkeypatch.setattr(recorded, "KEYS_PER_STEP", 16)
    replays: list[bool] = []

    def counting() -> recorded.Record:
        record = cuda_graphs()

        def counted(compute: Pass) -> Pass:
            replay = record(compute)
            return lambda: replays.append(True) or replay()

        return counted

    model = make(name).to("cuda", dtype)
    both = make_runner(model), make_runner(model, new_record=counting)
    tolerance = 1e-3 if dtype == torch.float32 else 0.5
    for num_expected in (30, 60):
        sequences = Sequences(both, {0: 5, 1: 17, 2: 3, 3: 9, 4: 2, 5: 12}, room_for=90)
        assert sequences.go_on([0, 1, 2, 3, 4, 5], 30) < tolerance
        assert sequences.go_on([1, 4, 5], 12) < tolerance
        assert sequences.go_on([0, 1, 2, 3, 4, 5], 20) < tolerance
        assert max(sequences.read({0: 1, 2: number, 4: 2}) for number in (3, 4, 7, 2, 12)) < tolerance
        assert sequences.go_on([0, 1, 2, 3, 4, 5], 5) < tolerance
        assert "not recorded" not in caplog.text
        assert len(replays) > num_expected
        for runner in both:
            runner.clear()
