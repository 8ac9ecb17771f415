"""Attention of packed rows in one kernel. A CPU has no such kernel: a function with the documented behavior of torch's takes its
place, and what is tested is how it is called, and that a wrong one is not used."""

import asyncio
from typing import Any

import pytest
import torch
from small_decoders import SIZES, small_model
from torch import Tensor

from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.learning.attention import attending_by_rows, row_arguments
from midthought.models import varlen_attention
from midthought.models.varlen_attention import (
    CachedRows,
    RowBounds,
    attend_cache,
    attend_rows,
    is_cache_usable,
    is_usable,
    no_cudnn_attention,
)

CPU = torch.device("cpu")


def attended(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scale: float | None) -> Tensor:
    """Attention of one row; `hidden` [queries, keys]."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1).double() for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * (query.shape[2] ** -0.5 if scale is None else scale)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value).to(query.dtype)


class Kernel:
    """`varlen_attn` as its documentation describes it: causal with `(-1, 0)`, `(W, 0)` for a window of W tokens to the left, and
    the last query of a row belongs to its last key."""

    def __init__(self, *, top_left: bool = False, ignores_window: bool = False, fails: bool = False) -> None:
        self.num_calls = 0
        self.num_keys: list[int] = []
        self._top_left, self._ignores_window, self._fails = top_left, ignores_window, fails

    def __call__(
        self, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
    ):
        if self._fails:
            raise RuntimeError("no kernel image is available for execution on the device")
        self.num_calls += 1
        self.num_keys.append(len(key))
        for offsets, longest, tokens in ((cu_seq_q, max_q, query), (cu_seq_k, max_k, key)):
            assert offsets.dtype == torch.int32
            assert int(offsets[0]) == 0 and int(offsets[-1]) == len(tokens)
            assert int(offsets.diff().max()) == longest
        assert enable_gqa == (query.shape[1] != key.shape[1])
        left, right = window_size
        assert right == 0
        outs = []
        for row in range(len(cu_seq_q) - 1):
            its_query = query[cu_seq_q[row] : cu_seq_q[row + 1]]
            its_key, its_value = (each[cu_seq_k[row] : cu_seq_k[row + 1]] for each in (key, value))
            shift = 0 if self._top_left else len(its_key) - len(its_query)
            distance = torch.arange(len(its_query))[:, None] + shift - torch.arange(len(its_key))
            hidden = distance < 0
            if left >= 0 and not self._ignores_window:
                hidden |= distance > left
            outs.append(attended(its_query, its_key, its_value, hidden, scale))
        return torch.cat(outs)


def flash_attention(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale, seqused_k
):
    """PyTorch's operation for one query per row: row i has the keys from `cu_seq_k[i]` on, `seqused_k[i]` of them."""
    assert not (dropout_p or is_causal or return_debug_mask) and max_q == 1
    assert cu_seq_q.tolist() == list(range(len(query) + 1)) and len(cu_seq_k) == len(query) + 1
    assert {each.dtype for each in (cu_seq_q, cu_seq_k, seqused_k)} == {torch.int32}
    assert int(seqused_k.max()) <= max_k
    outs = []
    for one, start, length in zip(query, cu_seq_k.tolist(), seqused_k.tolist(), strict=False):
        its_key, its_value = (each[start : start + length] for each in (key, value))
        outs.append(attended(one[None], its_key, its_value, torch.zeros(1, length, dtype=torch.bool), scale))
    return (torch.cat(outs),)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    """Installs a kernel for every float type on the CPU."""

    def install(kernel: Kernel, flash: Any = flash_attention) -> Kernel:
        monkeypatch.setattr(varlen_attention, "varlen_attn", kernel)
        monkeypatch.setattr(varlen_attention, "DEVICES", {"cpu"})
        monkeypatch.setattr(varlen_attention, "HALF", (torch.bfloat16, torch.float32, torch.float64))
        monkeypatch.setattr(varlen_attention, "flash_attention", flash)
        varlen_attention.is_right.cache_clear()
        varlen_attention.is_cache_right.cache_clear()
        return kernel

    yield install
    varlen_attention.is_right.cache_clear()
    varlen_attention.is_cache_right.cache_clear()


def make_model(**changes: Any) -> Any:
    return small_model(num_hidden_layers=2, **changes)


WINDOWS = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}


def test_a_row_of_one_head_by_hand(install):
    """Row 1: two tokens, the second sees both with scores 0 and ln 3, so weights 1/4 and 3/4. Row 2: one token after one in
    the cache, outside its window of 1."""
    install(Kernel())
    query = torch.tensor([[[0.0]], [[1.0]], [[1.0]]], dtype=torch.float64)
    key = torch.tensor([0.0, 3.0, 5.0, 7.0], dtype=torch.float64).log1p()[:, None, None]
    key[1] = torch.tensor(3.0).double().log()
    value = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)[:, None, None]
    queries, keys = RowBounds.of([2, 1], CPU), RowBounds.of([2, 2], CPU)
    assert attend_rows(query, key, value, queries, keys, scale=1.0)[:2].flatten().tolist() == pytest.approx([8.0, 5.0])
    assert attend_rows(query, key, value, queries, keys, scale=1.0, window=1).flatten().tolist() == [8.0, 4.0, 1.0]


@pytest.mark.parametrize("changes", [{}, WINDOWS], ids=["full", "windows"])
def test_a_learners_packed_rows_and_their_gradients_are_the_same(changes, install):
    model = make_model(**changes).double()
    lengths = (3, 17, 1, 9)
    token_ids = torch.randint(SIZES["vocab_size"], (1, sum(lengths)), generator=torch.Generator().manual_seed(1))

    def results() -> list[Tensor]:
        model.zero_grad()
        with attending_by_rows(model):
            logits = model(token_ids, use_cache=False, **row_arguments(lengths, CPU)).logits
        logits.log_softmax(-1)[0, ::2, 5].sum().backward()
        return [logits.detach(), *[parameter.grad.clone() for parameter in model.parameters()]]

    plain = results()
    install(Kernel(top_left=True))
    assert all(map(torch.equal, results(), plain)), "a wrong kernel changes nothing"
    kernel = install(Kernel())
    for ours, theirs in zip(results(), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    assert kernel.num_calls >= 2


@pytest.mark.parametrize("changes", [{}, WINDOWS], ids=["full", "windows"])
def test_an_engine_computes_prompts_in_one_call_per_layer_and_samples_the_same(changes, install):
    """The second requests continue cached tokens: results of several tokens after what was sampled."""
    prompts = [list(range(2, 2 + length)) for length in (4, 23, 9, 9)]

    def sampled() -> list[Any]:
        engine = LocalEngine(make_model(**changes), eos_token_ids=[0], max_num_seqs=4, share_prefixes=False)

        async def play(episode: int) -> list[Any]:
            sampling = Sampling(max_tokens=4, seed=episode)
            first = await engine.sample(episode, prompts[episode], sampling)
            known = [*prompts[episode], *first.token_ids, 7, 8, 9]
            return [first, await engine.sample(episode, known, sampling)]

        async def play_all() -> list[Any]:
            return [each for pair in await asyncio.gather(*map(play, range(len(prompts)))) for each in pair]

        return asyncio.run(play_all())

    plain = sampled()
    kernel = install(Kernel())
    for ours, theirs in zip(sampled(), plain, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.sampled_logprobs == pytest.approx(theirs.sampled_logprobs, abs=1e-5)
    assert sum(map(len, prompts)) in kernel.num_keys, "all prompts in one call"
    assert max(kernel.num_keys[-4:]) > 12, "keys of cached tokens are included"


@pytest.mark.parametrize(
    ("wrong", "window", "reason"),
    [
        ({"top_left": True}, None, "differ"),
        ({"ignores_window": True}, 5, "differ"),
        ({"fails": True}, None, "no kernel image"),
    ],
)
def test_a_kernel_that_is_wrong_or_fails_is_not_used_and_the_log_says_why(wrong, window, reason, install, caplog):
    query, key = torch.zeros(3, 4, 8), torch.zeros(3, 2, 8)
    for dtype in (torch.float32, torch.bfloat16):
        assert not is_usable(query.to(dtype), key.to(dtype), key.to(dtype), None), "not on a CPU"
    install(Kernel())
    assert is_usable(query, key, key, window)
    assert not is_usable(query, key, key[..., :6], window), "heads of values are shorter, as DeepSeek's"
    install(Kernel(**wrong))
    assert not is_usable(query, key, key, window)
    assert not is_usable(query, key, key, window)
    assert reason in caplog.text and len(caplog.records) == 1


def test_cudnn_attention_is_off_within_the_context_on_a_gpu_only():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with no_cudnn_attention(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    with no_cudnn_attention(CPU):
        assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_rows_of_a_cache_by_hand(install):
    """Slot 1: scores 0 and ln 3 of its first two keys, so weights 1/4 and 3/4; slot 0: one key."""
    install(Kernel())
    keys, values = torch.full((2, 1, 3, 1), 9.0), torch.full((2, 1, 3, 1), 90.0)
    keys[1, 0, :2, 0], values[1, 0, :2, 0] = (torch.tensor([1.0, 3.0]).log(), torch.tensor([8.0, 4.0]))
    values[0, 0, 0, 0] = 2.0
    query = torch.ones(2, 1, 1)
    rows = CachedRows.of(torch.tensor([1, 0]), torch.tensor([2, 1]), 2, keys)
    assert is_cache_usable(query, keys, values)
    assert attend_cache(query, keys, values, rows, scale=1.0).flatten().tolist() == pytest.approx([5.0, 2.0])


def test_a_wrong_attention_to_the_cache_is_not_used(install, caplog):
    query, keys = torch.zeros(2, 4, 8), torch.zeros(3, 2, 5, 8)

    def wrong(*arguments: Any, seqused_k: Tensor, **options: Any) -> tuple[Tensor]:
        return flash_attention(*arguments, seqused_k=torch.full_like(seqused_k, int(seqused_k.max())), **options)

    def fails(*arguments: Any, **options: Any) -> tuple[Tensor]:
        raise RuntimeError("no kernel image is available")

    install(Kernel())
    assert is_cache_usable(query, keys, keys)
    assert not is_cache_usable(query, keys.transpose(1, 2), keys.transpose(1, 2))
    for flash, reason in ((wrong, "results differ"), (fails, "no kernel image")):
        install(Kernel(), flash)
        assert not is_cache_usable(query, keys, keys)
        assert reason in caplog.text
