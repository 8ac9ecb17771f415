"""A runner is accepted if it is about as close to float32 as the model's own forward pass, in every precision."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from representatives import representatives
from small_decoders import SIZES, decoders_in, random_model
from transformers import (
    BertConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    Mamba2Config,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
)

from midthought.engines.local.decoder import Decoder
from midthought.engines.local.runner import CachedRunner, RecomputingRunner, Row, Runner, share_tensors
from midthought.engines.local.runner_selection import Deviation, float32_logprobs, make_runner
from midthought.errors import EngineError

WIDER: dict[str, Any] = {
    **SIZES,
    "vocab_size": 997,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "intermediate_size": 256,
}
CONFIGS: dict[str, Any] = {
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


def make(config: Any, dtype: torch.dtype) -> Any:
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
    model = make(CONFIGS[name], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert uses_decoder(make_runner(model))
    if dtype == torch.bfloat16:
        ids = list(range(12))
        with torch.no_grad():
            own = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        assert (own - float32_logprobs(model, [ids])[0]).abs().max() > 0.1, "what the former limit allowed"


def test_a_model_that_sees_later_tokens_is_refused():
    for dtype in (torch.float32, torch.bfloat16):
        model = make(BertConfig(**SIZES), dtype)
        with pytest.raises(EngineError, match=r"BertLMHeadModel is not causal.* is_decoder=true"):
            make_runner(model)
    make_runner(make(BertConfig(**SIZES, is_decoder=True), torch.float32))


class RoundedByLength(Qwen3ForCausalLM):
    """As kernels that split a sequence in chunks: another length is rounded otherwise."""

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        output.logits *= 1 + 0.02 * input_ids.shape[1]
        return output


@pytest.mark.filterwarnings("ignore:RoundedByLength")
def test_a_model_that_rounds_otherwise_at_another_length_does_not_see_later_tokens():
    model = RoundedByLength(Qwen3Config(**SIZES, head_dim=8)).eval()
    assert isinstance(make_runner(model), RecomputingRunner)


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
    model = make(CONFIGS["Llama"], dtype)
    monkeypatch.setattr(Decoder, "of", faulty)
    with pytest.warns(UserWarning, match="the fused decoder is not used .* nats on average"):
        runner = make_runner(model)
    assert isinstance(runner, CachedRunner) and not uses_decoder(runner)


@pytest.mark.parametrize("dtype", representatives(HALF, torch.bfloat16))
@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_is_the_forward_pass_of_a_float32_copy(name, dtype):
    model = make(CONFIGS[name], dtype)
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
    model = make(CONFIGS["Llama"], torch.bfloat16)
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
