"""The fused decoder with Triton kernels. Without a GPU, Triton's interpreter runs them on the CPU."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from small_decoders import decoders_in, random_model
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from midthought.engines.engine import Sampling
from midthought.engines.local import device, layer_products
from midthought.engines.local.decoder import MIN_TILE_ROWS, Decoder
from midthought.engines.local.device import kernels_of
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner import CachedRunner, Row, share_tensors
from midthought.engines.local.sampling import SamplingBatch, draw_tokens

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs with TRITON_INTERPRET=1 and Triton, as `make test-all` does", allow_module_level=True)
pytest.importorskip("triton")
CPU = torch.device("cpu")
SIZES = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
PRODUCTS = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
MODELS = {
    "norms of the heads": Qwen3Config(**SIZES, **HEADS, head_dim=24, initializer_range=0.3),
    "biases": Qwen2Config(**SIZES, **HEADS, initializer_range=0.3),
    "a sliding window": Qwen3Config(**SIZES, **HEADS, **WINDOWS, head_dim=16, initializer_range=0.3),
    "neither": LlamaConfig(**SIZES, **HEADS, head_dim=16, initializer_range=0.3),
}


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "DEVICES", {"cpu"})
    kernels = kernels_of(CPU, "triton_decoder")
    monkeypatch.setattr(kernels, "HALF", (torch.float32,))
    monkeypatch.setattr(kernels, "MIN_PROGRAMS", 1)
    monkeypatch.setattr("midthought.engines.local.decoder.DTYPES", ())


def make_model(config: PreTrainedConfig) -> Any:
    model = random_model(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            parameter.data.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_passes_of_new_and_of_cached_rows_are_those_of_the_models_layers(config):
    model = make_model(config)
    plain, fused = CachedRunner(share_tensors(model)), CachedRunner(share_tensors(model), decoder=Decoder.of(model))
    draw = torch.Generator().manual_seed(1)
    one, two, three = (torch.randint(61, (length,), generator=draw).tolist() for length in (9, 4, 6))
    passes = [
        [Row(one[:5], 0, 2), Row(two[:3], 0, 0)],
        [Row(one[:6], 5, 2), Row(two, 3, 0), Row(three[:4], 0, 1)],
        [Row(one, 6, 2), Row(three[:5], 4, 1)],
    ]
    for rows in passes:
        torch.testing.assert_close(fused.forward(rows), plain.forward(rows), atol=2e-5, rtol=2e-5)


def test_an_engine_samples_the_same_tokens():
    model = make_model(MODELS["norms of the heads"])

    def sample() -> list[tuple[int, ...]]:
        engine = LocalEngine(model, eos_token_ids=(), max_seq_len=64)

        async def all_of_them() -> list[tuple[int, ...]]:
            ways = [Sampling(max_tokens=6, seed=seed) for seed in range(3)]
            found = await asyncio.gather(*(engine.sample(each.seed, [5, each.seed, 7], each) for each in ways))
            return [completion.token_ids for completion in found]

        return asyncio.run(all_of_them())

    used: list[list[tuple[int, ...]]] = []
    [*_, decoder] = decoders_in(lambda: used.append(sample()))
    assert decoder.uses_kernels
    device.DEVICES.clear()
    assert used == [sample()]


@pytest.mark.parametrize("window", [None, 65])
def test_attention_to_keys_of_several_blocks(window):
    kernels = kernels_of(CPU, "triton_decoder")
    zeros = torch.zeros(3, 8, 16), torch.zeros(4, 2, 30, 16)
    assert kernels.can_attend(*zeros, zeros[1])
    with pytest.MonkeyPatch.context() as patch:  # attention that is wrong is not used
        patch.setattr(kernels, "attend", lambda query, *_, **__: query)
        assert not kernels.can_attend(zeros[0][:, :2], zeros[1], zeros[1])
    draw = torch.Generator().manual_seed(2)
    query, keys, values = (torch.randn(size, generator=draw) for size in ((3, 6, 24), (4, 2, 150, 24), (4, 2, 150, 24)))
    slots, lengths = torch.tensor([3, 0, 1]), torch.tensor([150, 1, 64])
    found = kernels.attend(query, keys, values, lengths - 1, slots, scale=0.2, window=window)
    for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        seen = slice(max(0, length - (window or length)), length)
        its_keys, its_values = (each[slot, :, seen].repeat_interleave(3, 0) for each in (keys, values))
        scores = torch.einsum("hd,hkd->hk", query[row], its_keys) * 0.2
        expected = torch.einsum("hk,hkd->hd", scores.softmax(-1), its_values)
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


def drawn(
    logits: torch.Tensor, uniforms: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[list[int], torch.Tensor]:
    tokens, logprobs = kernels_of(CPU, "triton_sampling").draw(logits, temperatures, uniforms)
    assert tokens.shape == logprobs.shape == (len(logits), 1)
    return tokens[:, 0].tolist(), logprobs[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_those_that_pytorch_samples(dtype, monkeypatch):
    draw = torch.Generator().manual_seed(3)
    logits = (4.0 * torch.randn(40, 3000, generator=draw)).to(dtype)
    uniforms = torch.rand(40, generator=draw, dtype=torch.float64)
    samplings = [Sampling(max_tokens=1, temperature=0.5 + row / 40) for row in range(40)]
    ways = SamplingBatch(samplings)
    found = draw_tokens(logits, uniforms, ways).read()
    assert kernels_of(CPU, "triton_sampling").can_draw(logits)
    device.DEVICES.clear()
    token_ids, logprobs = draw_tokens(logits, uniforms, ways).read()
    assert found[0] == token_ids
    assert found[1] == pytest.approx(logprobs, abs=1e-5)


def test_tokens_that_are_left_out_are_never_sampled():
    logits = torch.full((3, 2500), -torch.inf)
    logits[:, [700, 2100]] = torch.tensor([0.0, 3.0]).log1p()  # 1/5 and 4/5
    uniforms = torch.tensor([0.0, 0.2 - 1e-9, 1.0 - 2.0**-53], dtype=torch.float64)
    token_ids, logprobs = drawn(logits, uniforms, None)
    assert token_ids == [700, 700, 2100]
    torch.testing.assert_close(logprobs, torch.tensor([0.2, 0.2, 0.8], dtype=torch.float64).log(), atol=1e-6, rtol=0)
    logits = torch.zeros(2, 2)  # a temperature divides the logits
    logits[:, 1] = torch.tensor(3.0).log()
    token_ids, logprobs = drawn(logits, torch.tensor([0.2, 0.2], dtype=torch.float64), torch.tensor([[1.0], [0.5]]))
    assert token_ids == [0, 1]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.25, 0.9], dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [slice(None), slice(5, 6)])
def test_logits_that_are_not_finite_give_a_token_of_the_vocabulary_and_no_logprob(number, place):
    logits = torch.zeros(1, 2500)
    logits[:, place] = number
    [token_id], logprobs = drawn(logits, torch.tensor([0.5], dtype=torch.float64), None)
    assert 0 <= token_id < 2500
    assert logprobs.isnan().all()


def fuse_products(monkeypatch: pytest.MonkeyPatch, *tiles: Any, seconds_per_call: float = 0.0) -> None:
    """Offers these tiles for every product. There is no clock of a GPU: a call of one takes so many seconds, and all others
    take none."""
    products = kernels_of(CPU, "triton_products")
    monkeypatch.setattr("midthought.engines.local.decoder.DTYPES", (torch.float32,))
    kinds = ("after_norm", "gated", "added")
    monkeypatch.setattr(products, "TILES", {(kind, MIN_TILE_ROWS): tiles for kind in kinds})
    num_calls = 0

    def counted(compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any, **options: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            return compute(*inputs, **options)

        return call

    for name in ("after_norm", "added"):
        monkeypatch.setattr(products, name, counted(getattr(products, name)))

    def seconds(calls: Sequence[Callable[[], object]]) -> float:
        before = num_calls
        for call in calls[:1]:
            call()
        return 1.0 + (num_calls - before) * seconds_per_call

    monkeypatch.setattr(layer_products, "seconds_of", seconds)


FUSED = {
    "norms of the heads": (Qwen3Config(**PRODUCTS, **HEADS, head_dim=16), True),
    "a sliding window": (Qwen3Config(**PRODUCTS, **HEADS, **WINDOWS, head_dim=32), True),
    "heads of another size": (Qwen3Config(**PRODUCTS, **HEADS, head_dim=24), True),
    "no norms of the heads": (LlamaConfig(**PRODUCTS, **HEADS, head_dim=16), True),
    "an output layer of another size": (LlamaConfig(**PRODUCTS | {"vocab_size": 61}, **HEADS, head_dim=16), True),
    "biases": (Qwen2Config(**PRODUCTS, **HEADS), False),
}


@pytest.mark.parametrize("tiles", [(32, 16, 16), (32, 16, 16, 2, 2, 1, True)], ids=["one", "split and swapped"])
@pytest.mark.parametrize("config, is_used", FUSED.values(), ids=FUSED.keys())
def test_fused_products_give_the_passes_of_the_models_layers(config, is_used, tiles, monkeypatch):
    fuse_products(monkeypatch, kernels_of(CPU, "triton_products").Tiles(*tiles))
    model = make_model(config)
    decoder = Decoder.of(model)
    plain, fused = CachedRunner(share_tensors(model)), CachedRunner(share_tensors(model), decoder=decoder)
    draw = torch.Generator().manual_seed(1)
    sequences = [torch.randint(61, (9,), generator=draw).tolist() for _ in range(3)]
    num_prompt_tokens = (1, 5, 3)
    for num_more in range(4):
        cuts = [number + num_more for number in num_prompt_tokens]
        parts = enumerate(zip(sequences, cuts, strict=True))
        rows = [Row(ids[:cut], cut - 1 if num_more else 0, slot) for slot, (ids, cut) in parts]
        torch.testing.assert_close(fused.forward(rows), plain.forward(rows), atol=5e-5, rtol=5e-5)
    assert decoder.fuses_products == is_used


@pytest.mark.parametrize("seconds_per_call, is_wrong", [(0.0, False), (0.1, False), (0.0, True)])
def test_fused_products_that_are_slower_or_wrong_are_not_used(seconds_per_call, is_wrong, monkeypatch):
    products = kernels_of(CPU, "triton_products")
    if is_wrong:

        def zeros(hidden: Any, weights: Sequence[torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
            return hidden.numbers.new_zeros(len(hidden.numbers), sum(map(len, weights)))

        monkeypatch.setattr(products, "after_norm", zeros)
        monkeypatch.setattr(products, "added", lambda inputs, weight, hidden, *_: hidden)
    fuse_products(monkeypatch, products.Tiles(32, 16, 16), seconds_per_call=seconds_per_call)
    model = make_model(FUSED["norms of the heads"][0])
    decoder = Decoder.of(model)
    CachedRunner(share_tensors(model), decoder=decoder).forward([Row([3], 0, 0)])
    assert decoder.fuses_products == (not is_wrong and not seconds_per_call)


@pytest.mark.parametrize("decodes_first", [False, True], ids=["separate kernels", "fused products"])
@pytest.mark.parametrize("name", ["norms of the heads", "no norms of the heads"])
def test_a_recorded_pass_of_several_tokens_per_row_is_that_of_the_models_layers(name, decodes_first, monkeypatch):
    fuse_products(monkeypatch, kernels_of(CPU, "triton_products").Tiles(32, 16, 16))
    monkeypatch.setattr(Decoder, "reads_own_keys", True)
    attention = kernels_of(CPU, "triton_attention")
    attend_new = attention.attend_new

    def attend_one_token_per_row(*inputs: Any, **options: Any) -> torch.Tensor:
        """On a GPU, `attend_new` may read a row's keys before another of its programs has written the last one."""
        slots, keys = inputs[6], inputs[7]
        used = slots[slots < len(keys) - 1]  # the last slot is for tokens that are not there
        assert len(used.unique()) == len(used)
        return attend_new(*inputs, **options)

    monkeypatch.setattr(attention, "attend_new", attend_one_token_per_row)
    model = make_model(FUSED[name][0])
    decoder = Decoder.of(model)
    plain, fused = CachedRunner(share_tensors(model)), CachedRunner(share_tensors(model), decoder=decoder)
    num_replays = 0

    def record(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def replay() -> torch.Tensor:
            nonlocal num_replays
            num_replays += 1
            return compute()

        return replay

    fused.record_steps(lambda: record, tolerance=1e-3)
    draw = torch.Generator().manual_seed(1)
    sequences = [torch.randint(61, (30,), generator=draw).tolist() for _ in range(3)]
    lengths = [0, 0, 0]
    numbers = [(4, 2, 9), (1, 5, 3), (3, 1, 1), (6, 4, 2)]
    for new in [(1, 1, 1), *numbers] if decodes_first else numbers:
        rows = [Row(sequences[slot][: lengths[slot] + new[slot]], lengths[slot], slot) for slot in (2, 0, 1)]
        lengths = [length + number for length, number in zip(lengths, new, strict=True)]
        torch.testing.assert_close(fused.forward(rows), plain.forward(rows), atol=5e-5, rtol=5e-5)
    assert num_replays == 3, "one to compare, and two passes"
    assert decoder.fuses_products == decodes_first
