"""Memory by part: worked by hand where it is simple, against a real learner's where it is not."""

from __future__ import annotations

import pytest

from midthought.errors import SettingsError
from midthought.plan.hardware import GIB
from midthought.plan.measures import MEASURES, remedy
from midthought.plan.memory import Memory
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape
from midthought.plan.table import to_lines

QWEN = 8_190_735_360


def plan(**words) -> Memory:
    settings = PlanSettings(**{"model": "Qwen/Qwen3-8B", **words})
    return Memory(find_shape(settings), settings)


def test_bfloat16_with_masters_holds_18_bytes_a_parameter():
    """Weights 2, masters 4, gradients 4, two moments of 4."""
    held = plan().held
    assert (held.weights, held.masters, held.gradients, held.moments) == (2 * QWEN, 4 * QWEN, 4 * QWEN, 8 * QWEN)


def test_float32_holds_16_bytes():
    assert plan(dtype="float32").held.total == 16 * QWEN


def test_moments_of_8_bits_take_2_bytes_and_two_scales_per_256_numbers():
    """Weights 2, masters 4, gradients 4, and 2 × (1 + 4 / 256) instead of 8."""
    held = plan(optimizer="adamw_8bit").held
    assert held.moments == 2 * QWEN + 8 * -(-QWEN // 256)
    assert held.total == pytest.approx((2 + 4 + 4 + 2.03125) * QWEN, rel=1e-9)
    adapters = plan().shape.adapter_parameters(32)
    assert plan(lora_rank=32, optimizer="adamw_8bit").held.moments == pytest.approx(2.03125 * adapters, rel=1e-6)


def test_an_optimizer_in_main_memory_leaves_weights_and_gradients_on_the_gpu():
    memory = plan(offload_optimizer=True)
    assert (memory.held.total, memory.in_main_memory) == (2 * QWEN, 16 * QWEN)
    assert memory.moments["end of the backward pass"]["temporary gradient"] >= 2 * QWEN, (
        "gradients of one backward pass"
    )
    assert plan(offload_optimizer=True, device="cpu").held.total == 18 * QWEN
    whole = plan(offload_optimizer=True, dtype="float32")
    assert (whole.held.total, whole.in_main_memory) == (4 * QWEN, 16 * QWEN)
    assert f"The optimizer takes {16 * QWEN / GIB:.1f} GiB of CPU memory" in "\n".join(to_lines(memory))


def test_shards_divide_what_is_held_and_gather_two_layers_and_what_is_outside_of_layers():
    memory = plan(gpus=8)
    assert memory.held.total == pytest.approx(18 * QWEN / 8, rel=1e-9)
    assert memory.gathered == 2 * (2 * memory.shape.layer_parameters + 2 * 151_936 * 4096 + 4096)


def test_a_separate_critic_doubles_what_is_held_but_for_the_output_layer():
    head = 151_936 * 4096
    assert plan(critic="separate").held.total == 18 * (2 * QWEN - head)
    assert plan(critic="shared").held.total == 18 * QWEN


def test_adapters_learn_and_the_weights_are_only_held():
    memory = plan(lora_rank=32, reference=True)
    adapters = memory.shape.adapter_parameters(32)
    assert memory.held.total == 2 * QWEN + 16 * adapters
    assert memory.reference == 0


def test_the_local_engines_merged_copies_count_if_they_fit():
    layers = 2 * 36 * plan().shape.layer_parameters
    engine = plan(lora_rank=32, engine="local", gpu="h200").engine
    assert (engine["merged adapters"], engine["merging one layer"]) == (layers, 28 * 4096 * 12288)
    assert plan(lora_rank=32, engine="local", gpu="a100-40").merged_adapters == 0, "a quarter of what is free is less"
    assert plan(lora_rank=32, engine="local", gpu="h200", merge_adapters=False).merged_adapters == 0
    assert plan(lora_rank=32, engine="vllm", gpu="h200").merged_adapters == 0, "it loads adapters by themselves"
    assert plan(engine="local", gpu="h200").merged_adapters == 0


def test_gradient_checkpointing_leaves_the_layers_inputs_and_one_layer():
    plain, recomputed = (
        plan(gradient_checkpointing=recomputed).moments["output layer's backward pass"]["activations"]
        for recomputed in (False, True)
    )
    inputs = 36 * 16_384 * 4096 * 2
    assert inputs < recomputed < inputs + 2 * plain / 36


def test_logits_are_as_many_as_are_let():
    """16,384 tokens, two thirds of them policy tokens, × 151,936 × 4 bytes; or blocks of 64 MiB."""
    assert plan(logits_mib=0).head.block == 10_922 * 151_936 * 4
    assert 60 * 2**20 < plan().head.block <= 64 * 2**20


def test_what_an_engine_leaves_beside_its_weights_is_its_cache():
    memory = plan(gpus=8, gpu_memory_utilization=0.5)
    assert memory.kv_cache == round(0.5 * 79.2 * GIB) - 2 * QWEN
    assert memory.num_sequences == 32  # 256 episodes over 8 engines
    assert plan(gpus=8, tensor_parallel=2).engine_weights == QWEN


def test_engines_apart_leave_the_learners_gpus_alone():
    memory = plan(gpus=8, engine_gpus=4)
    assert memory.phases.keys() == {"learning", "sampling"}
    assert not memory.phases["learning"].keys() & {"engine's weights", "engine's KV cache"}
    assert memory.settings.num_shards == 4


def test_an_engine_that_sleeps_is_not_added_to_what_learning_takes():
    awake, asleep = plan(gpus=8), plan(gpus=8, engine_sleeps=True)
    engine = sum(awake.engine.values())
    assert asleep.totals["learning"] == awake.totals["learning"] - engine
    assert plan(gpus=8, engine_sleeps=True, offload=True).totals["sampling"] == engine


def with_measures(memory: Memory, names: set[str]) -> Memory:
    """The plan with these measures in their order, each until it changes nothing or the plan fits."""
    for measure in MEASURES:
        while measure.setting in names and not memory.fits and (changes := measure.changes(memory)) is not None:
            tried = memory.changed(changes)
            if tried.excess >= memory.excess:
                break
            memory = tried
    return memory


def test_the_first_setting_with_which_a_plan_fits_is_named():
    memory = plan(gpus=8)
    assert not memory.fits and [*remedy(memory).values()] == ["training.gradient_checkpointing=true"]
    assert "It fits with training.gradient_checkpointing=true." in "\n".join(to_lines(memory))
    assert "Does not fit" in [*to_lines(plan(gpu_memory_gib=8))][-1] and remedy(plan(gpu_memory_gib=8)) == {}
    assert "\nFits: " in "\n".join(to_lines(plan(gpus=8, gradient_checkpointing=True)))


def test_if_no_setting_suffices_alone_those_are_named_that_do_together_and_none_more():
    memory = plan(engine="local", gpu="l40s")
    names = {*remedy(memory)}
    assert len(names) > 1 and with_measures(memory, names).fits
    for left_out in names:
        assert not with_measures(memory, names - {left_out}).fits


def test_the_weights_are_given_up_only_if_nothing_milder_helps():
    assert "model.lora_rank" not in remedy(plan(engine="local", gpu="l40s"))
    assert "model.lora_rank" in remedy(plan(engine="local", gpu="l4"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu": "h10"}, "Did you mean 'h100'"),
        ({"gpus": 8, "tensor_parallel": 3}, "does not divide"),
        ({"gpus": 8, "shard": 3}, "set a divisor"),
        ({"gpus": 8, "engine_gpus": 8}, "leaves none to learn"),
    ],
)
def test_words_that_contradict_each_other_are_refused(words, message):
    with pytest.raises(SettingsError, match=message):
        PlanSettings(**words)
