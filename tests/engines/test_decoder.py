"""The decoder over a model's own tensors gives what the model gives, and keeps away from models that were changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from precision import logit_tolerance, tolerance
from small_decoders import SIZES, decoders_in, random_model
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from midthought.engines.local import weight_copies
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.runner import CachedRunner, Row, share_tensors
from midthought.engines.local.runner_selection import make_runner

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, scaled positions": lambda: LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}
    ),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=7),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen2, windows": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}


def make(config: Any) -> Any:
    model = random_model(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_it_gives_the_logits_of_the_models_own_forward_pass(name):
    model = make(CONFIGS[name]())
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
    model = make(CONFIGS["qwen3"]())
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
    config = CONFIGS["qwen3"]()
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
    model = make(CONFIGS["llama"]())
    CHANGES[change](model.model.layers)
    assert Decoder.of(model) is None
    row = Row([1, 2, 3], 0, 0)
    with torch.no_grad():
        expected = model(torch.tensor([row.token_ids])).logits[:, -1]
    assert torch.allclose(make_runner(model).forward([row]), expected, atol=logit_tolerance(model))


def test_other_models_and_other_activations_are_left_to_themselves():
    small = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
    assert Decoder.of(make(small)) is None
    assert Decoder.of(make(LlamaConfig(**SIZES, hidden_act="gelu"))) is None


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
