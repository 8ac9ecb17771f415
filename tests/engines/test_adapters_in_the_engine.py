"""The engine samples from the policy with its adapters, of whatever kind, whenever they appear, change or go."""

import asyncio
import logging
import warnings
from typing import Any

import pytest
import torch
from representatives import representatives
from small_decoders import SIZES, decoders_in, off_by, random_model
from transformers import Gemma2Config, PhiConfig, Qwen3Config

from midthought.engines.engine import Sampling
from midthought.engines.local import weight_copies
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.engine import LocalEngine
from midthought.errors import EngineError

peft = pytest.importorskip("peft")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "LoRA on two projections": {"target_modules": ["q_proj", "v_proj"]},
    "rsLoRA": {"use_rslora": True, "lora_alpha": 3},
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head", "embed_tokens", "norm"]},
    "LoRA on the embedding": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "trainable tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 4]},
    "DoRA, Phi": {"use_dora": True},
    "DoRA, Gemma 2": {"use_dora": True},
}
CONFIGS: dict[str, Any] = {
    "DoRA, Phi": PhiConfig(**{key: value for key, value in SIZES.items() if key != "num_key_value_heads"}),
    "DoRA, Gemma 2": Gemma2Config(**SIZES, head_dim=16),
}
WITHOUT_DECODER = {"LoRA on the embedding", "trainable tokens", *CONFIGS}
"""Kinds of adapters and architectures that the fused decoder does not compute."""


def make(config: Any = None, dtype: torch.dtype = torch.float32) -> Any:
    return random_model(config or Qwen3Config(**{**SIZES, "num_hidden_layers": 2}, head_dim=16), dtype)


def with_adapters(model: Any, *, std: float = 0.3, **options: Any) -> Any:
    """A PEFT model whose adapters do something."""
    options = {"target_modules": "all-linear", "r": 4, **options}
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    move(adapted, std)
    return adapted.eval()


def move(adapted: Any, std: float = 0.3) -> None:
    """Change everything that learns, as a learner's step would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_((std * torch.randn(parameter.shape, generator=generator)).to(parameter))


def difference(engine: LocalEngine, policy: Any) -> float:
    completion = asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=12, seed=1)))
    engine.close(0)
    return off_by(policy, PROMPT, completion)


def engine_of(policy: Any) -> LocalEngine:
    return LocalEngine(policy, eos_token_ids=[], max_seq_len=64)


def decoder_of(engine: LocalEngine) -> Decoder | None:
    """The fused decoder of an engine that has sampled; None if it has none."""
    used = decoders_in(lambda: asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=1))))
    engine.close(0)
    return used[0] if used else None


@pytest.mark.parametrize(
    "kind", representatives(KINDS, "LoRA", "DoRA", "modules_to_save", "LoRA on the embedding", *CONFIGS)
)
def test_what_is_sampled_is_what_the_policy_computes(kind):
    adapted = with_adapters(make(CONFIGS.get(kind)), **KINDS[kind])
    for policy in (adapted, adapted.get_base_model()):
        engine = engine_of(policy)
        assert difference(engine, adapted) < 1e-4
        assert (decoder_of(engine) is None) is (kind in WITHOUT_DECODER)
        move(adapted)
        engine.update_weights()
        assert difference(engine, adapted) < 1e-4


def use_a_second_adapter(adapted: Any) -> None:
    adapted.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    adapted.set_adapter("second")


def use_both(adapted: Any) -> None:
    adapted.base_model.set_adapter(["default", "second"])


def scale(adapted: Any) -> None:
    for module in adapted.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 3.0)


def test_adapters_that_come_switch_and_go_after_the_engine_take_effect_announced_or_not():
    model = make()
    engine = engine_of(model)
    assert difference(engine, model) < 1e-4
    adapted = with_adapters(model)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    assert difference(engine, adapted) < 1e-4, "added"
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())
    for event in (use_a_second_adapter, use_both, scale, lambda adapted: adapted.merge_adapter()):
        event(adapted)
        assert difference(engine, adapted) < 1e-4, event
        engine.update_weights()
        assert difference(engine, adapted) < 1e-4, f"{event}, announced"
    adapted.unmerge_adapter()
    move(adapted)
    engine.update_weights()
    assert difference(engine, adapted) < 1e-4, "unmerged"
    with adapted.disable_adapter():
        assert difference(engine, adapted) < 1e-4, "disabled for a while"
    assert difference(engine, adapted) < 1e-4, "enabled again"
    plain = adapted.unload()
    assert difference(engine, plain) < 1e-4, "unloaded"


def test_without_memory_for_merged_copies_the_adapters_are_computed_beside_the_weights(monkeypatch, caplog):
    monkeypatch.setattr(weight_copies, "MAX_COPIED_BYTES", 0)
    merging = engine_of(adapted := with_adapters(make()))
    assert difference(merging, adapted) < 1e-4
    assert (decoder := decoder_of(merging)) is not None and decoder.copies.addresses()
    monkeypatch.setattr(weight_copies, "MERGED_SHARE", 0.0)
    with caplog.at_level(logging.WARNING):
        engine = engine_of(adapted)
        assert difference(engine, adapted) < 1e-4
    assert (decoder := decoder_of(engine)) is not None and not decoder.copies.addresses()
    assert "adapters are computed beside the base weights" in caplog.text
    move(adapted)
    engine.update_weights()
    assert difference(engine, adapted) < 1e-4


def test_adapters_are_not_merged_if_the_settings_say_so():
    adapted = with_adapters(make(), target_modules=["q_proj", "down_proj"])
    engine = LocalEngine(adapted, eos_token_ids=[], max_seq_len=64, merge_adapters=False)
    assert difference(engine, adapted) < 1e-4
    layers = adapted.get_base_model().model.layers
    decoder = decoder_of(engine)
    assert decoder is not None
    copies = set(decoder.copies.addresses()) - {tensor.data_ptr() for tensor in adapted.parameters()}
    assert len(copies) == 2 * len(layers), "gate and up, and the norms of the heads"


def test_small_adapters_of_a_bfloat16_model_are_not_rounded_away():
    """An update of a tenth of a unit in the last place of every weight, all in one direction."""
    model = make(dtype=torch.bfloat16)
    layer = model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.weight.fill_(1.0)
    adapted = with_adapters(model, target_modules=["q_proj"], r=1, lora_alpha=1, std=0.0)
    lora: Any = adapted.get_base_model().model.layers[0].self_attn.q_proj
    with torch.no_grad():
        lora.lora_A.default.weight.fill_(1.0)
        lora.lora_B.default.weight.fill_(2**-7 / 10)
    projection = weight_copies.Projection(lora)
    projection.copy()
    weight = projection.copies[0]
    assert weight is not None
    assert weight.float().mean().item() == pytest.approx(1 + 2**-7 / 10, abs=2**-7 / 30)
    assert set(weight.float().unique().tolist()) == {1.0, 1 + 2**-7}


def test_a_model_that_learns_a_prompt_is_refused():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prompted = peft.get_peft_model(make(), config)
    with pytest.raises(EngineError, match="learns a prompt"):
        difference(engine_of(prompted), prompted)
