"""Memory by phase: worked by hand where it is simple; test_planned_architectures.py compares with a learner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.plan import TRAINING
from midthought.config import ConfigStore, create_default_config
from midthought.errors import SettingsError
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.measures import remedy
from midthought.plan.memory import Memory
from midthought.plan.shape import find_shape, small_shape

QWEN = 8_190_735_360


def plan(**words) -> Memory:
    return Memory(shape=find_shape("Qwen/Qwen3-8B"), **{**TRAINING, **words})


@pytest.mark.parametrize(
    ("words", "bytes_per_parameter"),
    [
        ({}, 2 + 4 + 4 + 4 + 4),  # weights, masters, two moments, gradients
        ({"dtype": "float32"}, 4 + 4 + 4 + 4),
        ({"optimizer": "adamw_8bit"}, 2 + 4 + 2 * (1 + 4 / 256) + 4),  # moments with a scale per 256 numbers
        ({"critic": "shared"}, 18),
        ({"offload": "optimizer"}, 2),
        ({"offload": "optimizer", "dtype": "float32"}, 4),
        ({"offload": "optimizer", "device": "cpu"}, 18),
    ],
)
def test_a_learner_holds_so_many_bytes_per_parameter(words, bytes_per_parameter):
    assert plan(**words).held == pytest.approx(bytes_per_parameter * QWEN, rel=1e-9 if "optimizer" in words else 0)


def test_an_optimizer_in_main_memory_leaves_gradients_of_one_backward_pass_on_the_gpu():
    assert plan().learned == (2 * QWEN, 4 * QWEN, 8 * QWEN, 4 * QWEN)
    assert plan(offload="optimizer").learner >= 4 * QWEN


def test_a_separate_critic_doubles_what_is_held_but_for_the_output_layer():
    assert plan(critic="separate").held == 18 * (2 * QWEN - 151_936 * 4096)


def test_adapters_learn_and_the_weights_are_only_held():
    memory = plan(lora_rank=32, reference=True)
    assert memory.held == 2 * QWEN + 16 * memory.shape.adapter_parameters(32)
    assert memory.frozen == (0, 0)
    moments = plan(lora_rank=32, optimizer="adamw_8bit").learned.moments
    assert moments == pytest.approx(2.03125 * memory.shape.adapter_parameters(32), rel=1e-9)


def test_a_reference_in_main_memory_comes_back_for_scoring():
    assert plan(reference=True, offload="reference").states == 18 * QWEN
    assert plan(reference=True, offload="reference").learner > 20 * QWEN
    assert plan(reference=True).states == 20 * QWEN


def test_a_teacher_is_held_or_comes_for_scoring_and_its_layers_may_be_the_wider_ones():
    small, large = find_shape("Qwen/Qwen3-0.6B"), find_shape("Qwen/Qwen3-8B")
    given = {**TRAINING, "dtype": "bfloat16", "micro_batch_tokens": 1024}
    alone, taught = (Memory(shape=small, teacher_shape=teacher, **given) for teacher in (None, large))
    assert taught.states - alone.states == 2 * QWEN and taught.learner >= alone.learner + 2 * QWEN
    apart = replace(taught, offload="reference")
    assert apart.states == alone.states
    assert apart.learner > apart.states + 2 * QWEN + 3072 * apart.layer  # an episode, in one of its layers


def test_a_float32_head_is_a_copy_of_the_output_layer():
    plain, wide = (plan(lora_rank=32, logits_mib=10_000, float32_head=wide).learner for wide in (False, True))
    assert wide - plain == 4 * 151_936 * 4096
    assert plan(dtype="float32", float32_head=True).learner == plan(dtype="float32").learner


def test_the_local_engines_merged_copies_count_if_they_fit():
    layers = 2 * 36 * plan().shape.layer_parameters
    memory = plan(lora_rank=32, memory_gib=140)
    assert memory.copied_weights == layers
    assert memory.phases["sampling"] == memory.states + layers + 28 * 4096 * 12288 + memory.kv_cache
    assert plan(lora_rank=32, memory_gib=40).copied_weights == 0, "a quarter of what is free is less"
    assert plan(lora_rank=32, memory_gib=140, merge_adapters=False).copied_weights == 0
    assert plan(lora_rank=32, memory_gib=140, backend="vllm").copied_weights == 0, "it loads adapters by themselves"
    assert plan(memory_gib=140).copied_weights == 0


def test_gradient_checkpointing_leaves_the_layers_inputs_and_one_layer():
    """36 layers of 16,384 tokens; an input has 4,096 numbers of 2 bytes."""
    ways = [plan(gradient_checkpointing=way, lora_rank=32) for way in (False, True, "offload")]
    plain, recomputed, offloaded = (memory.learner for memory in ways)
    layer, inputs = 16_384 * ways[0].layer, 16_384 * 4096 * 2
    assert plain - recomputed == 35 * layer - 36 * inputs
    assert recomputed - offloaded == 35 * inputs


def test_logits_are_as_many_as_are_let():
    """Of 16,384 tokens, two thirds of them policy tokens, × 151,936; or of blocks of 1 GiB in float32."""
    whole, blocks = (plan(logits_mib=mib, lora_rank=32).learner for mib in (10_000, 1024))
    assert whole - blocks == 22 * 10_922 * 151_936 - 14 * 2**28


def test_what_vllm_leaves_beside_its_weights_is_its_cache():
    memory = plan(backend="vllm", gpu_memory_utilization=0.5)
    assert memory.kv_cache == 40 * GIB - 2 * QWEN
    assert memory.num_sequences == 58  # 147,456 bytes a token, 3,072 tokens each


def test_vllm_releases_its_memory_while_the_learner_works():
    memory = plan(backend="vllm")
    engine = 2 * QWEN + memory.kv_cache + 2**28
    assert memory.phases == {"learning": memory.learner, "sampling": 18 * QWEN + engine}, "gradients stay"


def test_an_engine_apart_leaves_the_learners_memory_alone():
    assert plan(backend="apart").phases == {"learning": plan(backend="apart").learner}


def test_the_settings_of_a_run_are_read():
    shape, cpu = find_shape("Qwen/Qwen3-8B"), Hardware("cpu", "a CPU", 16.0)
    for training, expected in (({}, False), ({"kl_loss_coef": 0.1}, True)):
        config = create_default_config(training={**training, "micro_batch_tokens": 64})
        assert Memory.of(shape, config, cpu).reference is expected, "a KL term needs a reference"
    config = create_default_config(ray={"use_ray": True})
    assert Memory.of(shape, config, cpu).backend == "apart"
    with pytest.raises(SettingsError, match="dtype='float16' is not counted here; float32 and bfloat16 are"):
        Memory.of(shape, config, cpu, dtype="float16")


def test_a_made_model_is_counted_as_it_is_made():
    tokenizer = make_tokenizer(["a few words to make a vocabulary of"], ConfigStore().model.vocab_size)
    policy = make_policy(tokenizer, hidden_size=128, num_layers=4, num_heads=2, max_length=64, seed=0)
    model = ConfigStore().model.model_copy(update={"vocab_size": len(tokenizer)})
    assert small_shape(model).parameters == sum(parameter.numel() for parameter in policy.parameters())


def with_values(memory: Memory, values: dict[str, object]) -> Memory:
    return replace(memory, **{name.partition(".")[2]: value for name, value in values.items()})


def test_the_first_setting_with_which_a_plan_fits_is_named():
    assert remedy(plan(memory_gib=80, lora_rank=32)) == {"training.micro_batch_tokens": 4096}
    assert remedy(plan(memory_gib=44.4, lora_rank=32)) == {"training.gradient_checkpointing": True}
    assert remedy(plan(memory_gib=8)) == {}


@pytest.mark.parametrize("memory_gib", [44.4, 22])
def test_if_no_setting_suffices_alone_those_are_named_that_do_together_and_none_more(memory_gib):
    memory = plan(memory_gib=memory_gib)
    values = remedy(memory)
    assert len(values) > 1 and with_values(memory, values).fits
    for left_out in values:
        assert not with_values(memory, {name: values[name] for name in values if name != left_out}).fits


def test_the_weights_are_given_up_only_if_nothing_milder_helps():
    assert "model.lora_rank" not in remedy(plan(memory_gib=60))
    assert "model.lora_rank" in remedy(plan(memory_gib=22))
