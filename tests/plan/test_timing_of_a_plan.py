"""Seconds worked by hand for a GPU that does 100 operations and reads 10 bytes a second, so to say."""

from __future__ import annotations

import pytest

from midthought.plan.memory import Memory
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape
from midthought.plan.timing import Timing

PERFECT = {"mfu": 1.0, "bandwidth_share": 1.0}
LAYERS, HIDDEN, QUERY = 36, 4096, 4096


def timing(**words) -> Timing:
    settings = PlanSettings(**{"model": "Qwen/Qwen3-8B", "gpu": "h100", **words})
    return Timing(Memory(find_shape(settings), settings))


def seconds(found: Timing) -> dict[str, float]:
    return {part.name: part.expected for part in found.parts}


def test_one_sequence_waits_for_the_weights_to_be_read():
    """15.1 GB of weights (the embedding is looked up) and 1 to 2 k tokens of 144 KiB, 1,000 times, at 3.35 TB/s."""
    found = timing(batch_size=1, group_size=1, prompt_tokens=1000, response_tokens=1000, **PERFECT)
    weights = 2 * (8_190_735_360 - 151_936 * HIDDEN - HIDDEN)
    assert found.decoding.bound == "bandwidth"
    assert found.decoding.floor == pytest.approx(1000 * (weights + 1500 * 147_456) / 3.35e12, rel=1e-6)


def test_many_sequences_wait_for_compute_where_the_memory_is_quick():
    found = timing(batch_size=64, prompt_tokens=10, response_tokens=10, gpu_bandwidth_gbs=1e6, **PERFECT)
    parameters = 8_190_735_360 - 151_936 * HIDDEN - HIDDEN
    operations = 640 * (2 * parameters + 4 * LAYERS * QUERY * 15)
    assert found.decoding.bound == "compute"
    assert found.decoding.floor == pytest.approx(operations / 989e12, rel=1e-6)


def test_an_update_costs_three_forward_passes_and_a_fourth_where_layers_are_computed_again():
    plain, again = seconds(timing()), seconds(timing(gradient_checkpointing=True))
    name, scored = "forward and backward passes", "log-probabilities and values"
    assert plain[name] == pytest.approx(3 * plain[scored])
    assert again[name] == pytest.approx(4 * again[scored])
    assert seconds(timing(lora_rank=8))[name] == pytest.approx(2 * plain[scored])
    assert seconds(timing(critic="separate"))[name] == pytest.approx(6 * plain[scored])


def test_a_token_costs_six_operations_a_parameter_in_the_update_and_attention():
    """Kaplan et al.: 6 P, and 6 L Q s for attention over half of 1,024 tokens."""
    found = timing(batch_size=1, group_size=1, prompt_tokens=512, response_tokens=512, **PERFECT)
    parameters = 8_190_735_360 - 151_936 * HIDDEN - HIDDEN
    assert found.updating.floor == pytest.approx(1024 * 6 * (parameters + LAYERS * QUERY * 1024) / 989e12, rel=1e-6)


def test_twice_the_gpus_halve_learning_where_it_computes():
    one, two = timing(gpus=1).updating, timing(gpus=2).updating
    assert one.bound == two.bound == "compute"
    assert two.floor == pytest.approx(one.floor / 2)


def test_small_passes_over_many_nodes_wait_for_the_link():
    found = timing(gpus=64, micro_batch_tokens=1, batch_size=256).updating
    assert found.bound == "link"
    assert timing(gpus=64, micro_batch_tokens=1, batch_size=256, node_link_gbs=5000.0).updating.bound == "compute"


def test_a_floor_is_never_above_what_is_expected():
    for words in ({}, {"gpus": 64}, {"gpus": 8, "tensor_parallel": 8}, {"gpus": 16, "engine_gpus": 8, "lora_rank": 16}):
        assert all(0 <= part.floor <= part.expected for part in timing(**words).parts)


def test_the_local_engine_has_the_learners_weights_and_waits_for_none():
    assert "weights to the engine" not in seconds(timing(engine="local"))
    assert seconds(timing(lora_rank=8))["weights to the engine"] < 0.01 * seconds(timing())["weights to the engine"]
