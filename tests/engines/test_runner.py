"""Which models keep a cache and share their weights; the decoder over a model's own tensors gives what the model gives, and keeps
away from models that were changed; a runner is accepted if it is about as close to float32 as the model's own forward pass."""

import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from precision import logit_tolerance, tolerance
from representatives import representatives
from small_decoders import SIZES, decoders_in, random_model
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    Mamba2Config,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    RecurrentGemmaConfig,
)

from midthought.engines.local import slot_batch, weight_copies
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.runner import (
    CachedRunner,
    RecomputingRunner,
    Row,
    Runner,
    share_tensors,
    shares_tensors,
)
from midthought.engines.local.runner_selection import Deviation, float32_logprobs, make_runner

SMALL: dict[str, Any] = {**SIZES, "num_hidden_layers": 2}
OTHERS: dict[str, Any] = {"vocab_size": 61, "n_layer": 2, "n_head": 2, "initializer_range": 0.3, "bos_token_id": None}
"""Of older architectures, with other names."""


def test_models_on_the_attention_interface_keep_a_cache_and_those_that_need_more_do_not():
    for config in (
        GPT2Config(**OTHERS, n_embd=32, eos_token_id=None),  # learned positions
        MistralConfig(**SMALL, sliding_window=7),
        MistralConfig(**SMALL, sliding_window=4096),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make_runner(random_model(config)).keeps_cache
    assert make_runner(random_model(MistralConfig(**SMALL)).to(torch.bfloat16)).keeps_cache
    for config, reason in (
        (
            BloomConfig(**OTHERS, hidden_size=32, eos_token_id=None),
            "wrong by|0 of its 2 layers",
        ),  # positions in attention
        (GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "wrong by"),  # sinks
        (RecurrentGemmaConfig(**SMALL, lru_width=32), "layers of type"),
    ):
        with pytest.warns(UserWarning, match=reason):
            assert not make_runner(random_model(config)).keeps_cache


def test_a_window_that_the_layers_do_not_ask_for_is_noticed():
    """No difference in numbers shows it: the checked sequences are shorter than the window."""
    model = random_model(MistralConfig(**SMALL, sliding_window=4096))
    runner = make_runner(model)
    assert isinstance(runner, CachedRunner)
    assert runner.cache.windows == {0: 4096, 1: 4096}
    for layer in model.model.layers:
        layer.self_attn.forward = _without_window(layer.self_attn)
    with pytest.warns(UserWarning, match=r"ask for windows \[None, None\], its settings say \[4096, 4096\]"):
        assert not make_runner(model).keeps_cache


def _without_window(attention: Any) -> Any:
    """An attention whose config copy names no window; the masks are made elsewhere."""
    plain = type(attention).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.config
        self.config = copy.copy(config)
        self.config.sliding_window = None
        try:
            return plain(self, *args, **kwargs)
        finally:
            self.config = config

    return types.MethodType(forward, attention)


@pytest.mark.parametrize("model", ["full attention", "window", "soft caps"])
@pytest.mark.parametrize("max_joined", [0, 50, 1000], ids=["apart", "two by two", "joined"])
def test_rows_that_bring_equally_many_tokens_are_computed_as_each_alone(model, max_joined, monkeypatch):
    monkeypatch.setattr(slot_batch, "MAX_JOINED_TOKENS", max_joined)
    config = {
        "full attention": MistralConfig(**SMALL, sliding_window=None),
        "window": MistralConfig(**SMALL, sliding_window=5),
        "soft caps": Gemma2Config(**SMALL, head_dim=8, sliding_window=1000),
    }[model]
    policy = random_model(config)
    cached, plain = CachedRunner(share_tensors(policy)), RecomputingRunner(share_tensors(policy))
    ids = torch.randint(61, (5, 40), generator=torch.Generator().manual_seed(1)).tolist()
    for num_cached, length in ((0, 9), (9, 21), (21, 24)):  # all new; fewer cached than new; more cached than new
        rows = [Row(own[:length], num_cached, slot) for slot, own in enumerate(ids)]
        single = Row(ids[0][: num_cached + 1], num_cached, 5)
        if not num_cached:
            rows.insert(2, single)
        torch.testing.assert_close(cached.forward(rows), plain.forward(rows), atol=logit_tolerance(policy), rtol=0)


def test_shared_tensors_are_the_same_objects_until_a_parameter_is_replaced():
    model = random_model(MistralConfig(**SMALL))
    twin = share_tensors(model)
    assert twin is not model
    assert shares_tensors(model, twin)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert not shares_tensors(model, twin)


# -- the fused decoder ---------------------------------------------------------------------------------------------

FUSED: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, scaled positions": lambda: LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}
    ),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=7),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen2, windows": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}


def with_random_norms(config: Any) -> Any:
    model = random_model(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return model


@pytest.mark.parametrize("name", FUSED)
def test_it_gives_the_logits_of_the_models_own_forward_pass(name):
    model = with_random_norms(FUSED[name]())
    twin = share_tensors(model)
    decoder = Decoder.of(twin)
    assert decoder is not None
    runner = CachedRunner(twin, decoder=decoder)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(61, (length,), generator=generator).tolist() for length in (9, 30, 2, 17)]
    for cuts in ([(0, 5), (0, 20), (0, 1), (0, 17)], [(5, 6), (20, 21), (1, 2)], [(6, 9), (21, 30)]):
        rows = [
            Row(ids[:cut], before, slot) for slot, (ids, (before, cut)) in enumerate(zip(sequences, cuts, strict=False))
        ]
        for row, ours in zip(rows, runner.forward(rows), strict=True):
            with torch.no_grad():
                theirs = model(torch.tensor([row.token_ids])).logits[0, -1]
            assert torch.allclose(ours, theirs, atol=logit_tolerance(model))
    chosen = make_runner(model)
    assert decoders_in(lambda: chosen.forward([Row([1, 2], 0, 0)]))


@torch.no_grad()
def change_in_place(model: Any) -> None:
    model.model.layers[1].mlp.down_proj.weight.mul_(2.0)


def change_past_the_version_counters(model: Any) -> None:
    model.model.layers[0].mlp.gate_proj.weight.data.mul_(2.0)
    model.model.layers[1].self_attn.q_norm.weight.data.mul_(2.0)


def give_other_memory(model: Any) -> None:
    weight = model.model.layers[0].self_attn.v_proj.weight
    weight.data = 2.0 * weight.data


@pytest.mark.parametrize("change", [change_in_place, change_past_the_version_counters, give_other_memory])
def test_weights_that_were_changed_are_seen(change):
    model = with_random_norms(FUSED["qwen3"]())
    runner = make_runner(model)
    row = Row([1, 2, 3], 0, 0)
    before = runner.forward([row])
    change(model)
    if change is change_past_the_version_counters:
        runner.update_weights()
    with torch.no_grad():
        expected = model(torch.tensor([row.token_ids])).logits[:, -1]
    assert torch.allclose(runner.forward([row]), expected, atol=logit_tolerance(model))
    assert not torch.allclose(before, expected, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_too_large_to_copy_are_read_where_they_are(monkeypatch, dtype):
    config = FUSED["qwen3"]()
    config.initializer_range = 0.02
    model = random_model(config, dtype)
    rows = [Row([1, 2, 3], 0, 0), Row([4, 5], 0, 1)]
    copied = make_runner(model)
    monkeypatch.setattr(weight_copies, "MAX_COPIED_BYTES", 1000)
    where_they_are = make_runner(model)
    found: list[torch.Tensor] = []
    assert decoders_in(lambda: found.append(where_they_are.forward(rows)))
    assert torch.allclose(found[0], copied.forward(rows), atol=logit_tolerance(model, magnitude=0.1))


class Doubled(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda layers: layers[0].mlp.register_forward_hook(lambda module, inputs, output: 2 * output),
    "another forward": lambda layers: setattr(layers[2].self_attn, "forward", layers[2].self_attn.forward),
    "another layer": lambda layers: setattr(layers[1].self_attn, "o_proj", Doubled(32, 32, bias=False)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_keeps_its_own_forward_pass(change):
    model = with_random_norms(FUSED["llama"]())
    CHANGES[change](model.model.layers)
    assert Decoder.of(model) is None
    row = Row([1, 2, 3], 0, 0)
    with torch.no_grad():
        expected = model(torch.tensor([row.token_ids])).logits[:, -1]
    assert torch.allclose(make_runner(model).forward([row]), expected, atol=logit_tolerance(model))


def test_other_models_and_other_activations_are_left_to_themselves():
    small = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
    assert Decoder.of(with_random_norms(small)) is None
    assert Decoder.of(with_random_norms(LlamaConfig(**SIZES, hidden_act="gelu"))) is None


@pytest.mark.parametrize("shape", [(5, 48), (3, 6, 16)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norms_are_torchs_own(shape, scale):
    torch.manual_seed(0)
    hidden, weight = scale * torch.randn(shape), torch.randn(shape[1:])
    expected = torch.nn.functional.rms_norm(hidden, shape[-1:], None, 1e-6) * weight
    assert torch.allclose(
        weight_copies.rms_normed(hidden, weight, 1e-6),
        expected,
        rtol=tolerance(hidden.dtype, num_operations=shape[-1]),
        atol=0,
    )


# -- the choice ----------------------------------------------------------------------------------------------------

WIDER: dict[str, Any] = {
    **SIZES,
    "vocab_size": 997,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "intermediate_size": 256,
}
WIDER_CONFIGS: dict[str, Any] = {
    "Llama": LlamaConfig(**WIDER),
    "Qwen3, tied": Qwen3Config(**WIDER, head_dim=32, tie_word_embeddings=True),
    "Qwen3-MoE": Qwen3MoeConfig(**WIDER, head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "Gemma 2": Gemma2Config(**WIDER, head_dim=32),
    "GPT-2": GPT2Config(vocab_size=997, n_embd=64, n_layer=4, n_head=2, initializer_range=0.2, bos_token_id=None),
    "Mamba 2": Mamba2Config(
        **{**SIZES, "vocab_size": 997}, num_heads=8, head_dim=8, state_size=8, n_groups=1, chunk_size=8
    ),
    "gpt-oss": GptOssConfig(**WIDER, head_dim=32, num_local_experts=2, num_experts_per_tok=1),
}
HALF = [torch.bfloat16, torch.float16]


def with_sharp_logits(config: Any, dtype: torch.dtype) -> Any:
    """Random weights whose logits are as far apart as in trained models."""
    model = random_model(config)
    with torch.no_grad():
        sample = model(torch.arange(20)[None]).logits
        model.get_output_embeddings().weight.mul_(3.0 / sample.std())
    return model.to(dtype)


def uses_decoder(runner: Runner) -> bool:
    return bool(decoders_in(lambda: runner.forward([Row([1, 2, 3], 0, 0)])))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("name", ["Llama", "Qwen3, tied"])
def test_the_fused_decoder_is_used_in_every_precision(name, dtype):
    model = with_sharp_logits(WIDER_CONFIGS[name], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert uses_decoder(make_runner(model))
    if dtype == torch.bfloat16:
        ids = list(range(12))
        with torch.no_grad():
            own = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        assert (own - float32_logprobs(model, [ids])[0]).abs().max() > 0.1, "what the former limit allowed"


class OtherPositions(Decoder):
    def __call__(self, token_ids: Any, positions: Any, *others: Any) -> torch.Tensor:
        return super().__call__(token_ids, positions + positions.ne(0), *others)


def no_rotation(policy: Any) -> None:
    policy.model.rotary_emb.inv_freq = torch.zeros_like(policy.model.rotary_emb.inv_freq)


def swapped_key_heads(policy: Any) -> None:
    for layer in policy.model.layers:
        keys = layer.self_attn.k_proj.weight
        layer.self_attn.k_proj.weight = torch.nn.Parameter(torch.cat([*keys.detach().chunk(2)][::-1]))


def a_layer_left_out(policy: Any) -> None:
    del policy.model.layers[3]


def sharper_attention(policy: Any) -> None:
    for layer in policy.model.layers:
        layer.self_attn.scaling *= 1.5


def of_another_model(change: Callable[[Any], None]) -> Callable[..., Decoder]:
    """Makes the decoder of a model that was changed, over the same tensors."""

    def make_decoder(policy: Any, **options: Any) -> Decoder:
        other = share_tensors(policy)
        change(other)
        return Decoder(other, **options)

    return make_decoder


@pytest.mark.parametrize("dtype", representatives([torch.bfloat16, torch.float32], torch.bfloat16))
@pytest.mark.parametrize(
    "faulty",
    [OtherPositions, *map(of_another_model, (no_rotation, swapped_key_heads, a_layer_left_out, sharper_attention))],
    ids=["other positions", "no rotation", "swapped key heads", "a layer left out", "sharper attention"],
)
def test_a_decoder_with_a_fault_is_rejected_with_the_deviation(faulty, dtype, monkeypatch):
    model = with_sharp_logits(WIDER_CONFIGS["Llama"], dtype)
    monkeypatch.setattr(Decoder, "of", faulty)
    with pytest.warns(UserWarning, match="the fused decoder is not used .* nats on average"):
        runner = make_runner(model)
    assert isinstance(runner, CachedRunner) and not uses_decoder(runner)


@pytest.mark.parametrize("dtype", representatives(HALF, torch.bfloat16))
@pytest.mark.parametrize("name", WIDER_CONFIGS)
def test_the_reference_is_the_forward_pass_of_a_float32_copy(name, dtype):
    model = with_sharp_logits(WIDER_CONFIGS[name], dtype)
    before = {key: (tensor.data_ptr(), tensor.dtype) for key, tensor in model.state_dict().items()}
    sequences = [list(range(5, 17)), [3, 1, 4]]
    found = float32_logprobs(model, sequences)
    whole = copy.deepcopy(model).float()
    for ids, logprobs in zip(sequences, found, strict=True):
        with torch.no_grad():
            expected = whole(torch.tensor([ids])).logits[0].log_softmax(-1)
        # Mamba 2 casts to the type of its output layer's weight before it calls that layer: one rounding is left.
        rounding = torch.finfo(dtype).eps if name == "Mamba 2" else 1e-5
        assert Deviation.of([*logprobs], [*expected]).largest < rounding
    assert {key: (tensor.data_ptr(), tensor.dtype) for key, tensor in model.state_dict().items()} == before


def test_the_reference_holds_one_layer_in_float32_at_a_time():
    model = with_sharp_logits(WIDER_CONFIGS["Llama"], torch.bfloat16)
    trees: list[Any] = []
    seen: list[int] = []
    model.model.register_forward_pre_hook(lambda tree, _: trees.append(tree))  # the reference's tree: hooks are copied
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(
            lambda module, inputs: seen.append(
                sum(each.mlp.up_proj.weight.dtype == torch.float32 for each in trees[0].layers)
            )
        )
    float32_logprobs(model, [[1, 2, 3]])
    assert trees[0] is not model.model
    assert seen == [1] * len(model.model.layers)


def test_a_deviation_weighs_tokens_by_their_probability():
    reference = torch.tensor([0.75, 0.25]).log()
    found = torch.tensor([0.5, 0.5]).log()
    expected = 0.75 * abs(torch.tensor(0.5 / 0.75).log()) + 0.25 * torch.tensor(0.5 / 0.25).log()
    deviation = Deviation.of([found, reference], [reference, reference])
    assert deviation.largest == pytest.approx(expected.item())
    assert deviation.mean == pytest.approx(expected.item() / 2)
    assert Deviation.of([torch.tensor([float("nan"), 0.0])], [reference]).mean != deviation.mean
