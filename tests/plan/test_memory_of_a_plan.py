"""Memory by part: worked by hand where it is simple, against a real learner's where it is not."""

from __future__ import annotations

import pytest

from benchmarks.plan import PLAIN
from midthought.config import ConfigStore, create_default_config
from midthought.errors import SettingsError
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.activations import Head
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.measures import measures, remedy, taken
from midthought.plan.memory import Memory
from midthought.plan.settings import PlanSettings, plan_settings
from midthought.plan.shape import find_shape, small_shape

QWEN = 8_190_735_360


def plan(**words) -> Memory:
    return Memory(find_shape("Qwen/Qwen3-8B"), PlanSettings(**{**PLAIN, **words}))


def test_bfloat16_with_masters_holds_18_bytes_a_parameter():
    """Weights 2, masters 4, gradients 4, two moments of 4."""
    held = plan().held
    assert (held.weights, held.masters, held.gradients, held.moments) == (2 * QWEN, 4 * QWEN, 4 * QWEN, 8 * QWEN)


def test_float32_holds_16_bytes():
    assert sum(plan(dtype="float32").held) == 16 * QWEN


def test_moments_of_8_bits_take_2_bytes_and_two_scales_per_256_numbers():
    """Weights 2, masters 4, gradients 4, and 2 × (1 + 4 / 256) instead of 8."""
    held = plan(optimizer="adamw_8bit").held
    assert held.moments == 2 * QWEN + 8 * -(-QWEN // 256)
    assert sum(held) == pytest.approx((2 + 4 + 4 + 2.03125) * QWEN, rel=1e-9)
    adapters = plan().shape.adapter_parameters(32)
    assert plan(lora_rank=32, optimizer="adamw_8bit").held.moments == pytest.approx(2.03125 * adapters, rel=1e-6)


def test_an_optimizer_in_main_memory_leaves_weights_and_gradients_on_the_gpu():
    memory = plan(offload_optimizer=True)
    assert sum(memory.held) == 2 * QWEN
    assert memory.moments["end of the backward pass"]["temporary gradient"] >= 2 * QWEN, (
        "gradients of one backward pass"
    )
    assert sum(plan(offload_optimizer=True, device="cpu").held) == 18 * QWEN
    assert sum(plan(offload_optimizer=True, dtype="float32").held) == 4 * QWEN


def test_a_separate_critic_doubles_what_is_held_but_for_the_output_layer():
    head = 151_936 * 4096
    assert sum(plan(critic="separate").held) == 18 * (2 * QWEN - head)
    assert sum(plan(critic="shared").held) == 18 * QWEN


def test_adapters_learn_and_the_weights_are_only_held():
    memory = plan(lora_rank=32, reference=True)
    adapters = memory.shape.adapter_parameters(32)
    assert sum(memory.held) == 2 * QWEN + 16 * adapters
    assert memory.reference == 0


def test_the_local_engines_merged_copies_count_if_they_fit():
    layers = 2 * 36 * plan().shape.layer_parameters
    engine = plan(lora_rank=32, memory_gib=140).engine
    assert (engine["copied weights"], engine["merging one layer"]) == (layers, 28 * 4096 * 12288)
    assert plan(lora_rank=32, memory_gib=40).copied_weights == 0, "a quarter of what is free is less"
    assert plan(lora_rank=32, memory_gib=140, merge_adapters=False).copied_weights == 0
    assert plan(lora_rank=32, memory_gib=140, backend="vllm").copied_weights == 0, "it loads adapters by themselves"
    assert plan(memory_gib=140).copied_weights == 0


def test_gradient_checkpointing_leaves_the_layers_inputs_and_one_layer():
    plain, recomputed = (
        plan(gradient_checkpointing=recomputed).moments["output layer's backward pass"]["activations"]
        for recomputed in (False, True)
    )
    inputs = 36 * 16_384 * 4096 * 2
    assert inputs < recomputed < inputs + 2 * plain / 36


def test_logits_are_as_many_as_are_let():
    """16,384 tokens, two thirds of them policy tokens, × 151,936 × 4 bytes; or blocks of 64 MiB."""
    one, blocks = (Head(plan().shape, plan(logits_mib=mib).settings) for mib in (0, 64))
    assert one.block == 10_922 * 151_936 * 4
    assert 60 * 2**20 < blocks.block <= 64 * 2**20


def test_what_vllm_leaves_beside_its_weights_is_its_cache():
    memory = plan(backend="vllm", gpu_memory_utilization=0.5)
    assert memory.kv_cache == 40 * GIB - 2 * QWEN
    assert memory.num_sequences == 58  # 147,456 bytes a token, 3,072 tokens each


def test_vllm_releases_its_memory_while_the_learner_works():
    memory = plan(backend="vllm")
    assert memory.totals["learning"] == sum(memory.learner.values())
    assert memory.totals["sampling"] == 18 * QWEN + sum(memory.engine.values()), "gradients stay"


def test_an_engine_apart_leaves_the_learners_memory_alone():
    assert plan(backend="apart").phases == {"learning": plan(backend="apart").learner}


def test_the_settings_of_a_run_are_read():
    cpu = Hardware("cpu", "a CPU", 16.0)
    for training, expected in (({}, False), ({"kl_loss_coef": 0.1}, True)):
        config = create_default_config(training={**training, "micro_batch_tokens": 64})
        assert plan_settings(config, cpu).reference is expected, "a KL term needs a reference"
    config = create_default_config(ray={"use_ray": True})
    assert plan_settings(config, cpu).backend == "apart"
    with pytest.raises(SettingsError, match="dtype='float16' is not counted here; float32 and bfloat16 are"):
        plan_settings(config, cpu, dtype="float16")


def test_a_made_model_is_counted_as_it_is_made():
    tokenizer = make_tokenizer(["a few words to make a vocabulary of"], ConfigStore().model.vocab_size)
    policy = make_policy(tokenizer, hidden_size=128, num_layers=4, num_heads=2, max_length=64, seed=0)
    model = ConfigStore().model.model_copy(update={"vocab_size": len(tokenizer)})
    assert small_shape(model).parameters == sum(parameter.numel() for parameter in policy.parameters())


def with_measures(memory: Memory, names: set[str]) -> Memory:
    """The plan with these measures in their order, each until it changes nothing or the plan fits."""
    for number, (name, *_) in enumerate(measures(memory)):
        while name in names and not memory.fits and (tried := taken(memory, number)) is not None:
            if tried.lack >= memory.lack:
                break
            memory = tried
    return memory


def test_the_first_setting_with_which_a_plan_fits_is_named():
    assert remedy(plan(memory_gib=80, lora_rank=32)) == {"training.gradient_checkpointing": True}
    assert remedy(plan(memory_gib=8)) == {}


def test_if_no_setting_suffices_alone_those_are_named_that_do_together_and_none_more():
    memory = plan(memory_gib=44.4)
    names = {*remedy(memory)}
    assert len(names) > 1 and with_measures(memory, names).fits
    for left_out in names:
        assert not with_measures(memory, names - {left_out}).fits


def test_the_weights_are_given_up_only_if_nothing_milder_helps():
    assert "model.lora_rank" not in remedy(plan(memory_gib=44.4))
    assert "model.lora_rank" in remedy(plan(memory_gib=22))
