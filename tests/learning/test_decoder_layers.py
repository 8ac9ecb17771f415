"""Layers that are computed again: once forward without remembering, once more on the way back; nothing is left behind."""

import copy

import pytest
import torch

from midthought.learning import passes
from midthought.learning.batch import TokenBatch
from midthought.learning.model import token_outputs
from midthought.learning.passes import RecomputedLayers, decoder_layers


@pytest.fixture
def batch(make_trajectory):
    return TokenBatch.from_trajectories([make_trajectory(seed, num_results=30) for seed in range(6)])


def test_with_offload_the_input_of_each_layer_and_nothing_else_goes_to_main_memory(make_policy, batch, monkeypatch):
    moved = []

    class Watched(passes.save_on_cpu):
        def __init__(self, pin_memory: bool) -> None:
            super().__init__(pin_memory)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: (moved.append(tensor.shape), pack(tensor))[1]

    monkeypatch.setattr(passes, "save_on_cpu", Watched)
    policy = make_policy(num_hidden_layers=6)
    with RecomputedLayers(policy, offload=True).active():
        token_outputs(policy, batch).logprobs.sum().backward()
    assert len(moved) == 6
    assert {shape[-1] for shape in moved} == {policy.config.hidden_size}


def test_each_layer_runs_twice_with_a_gradient_and_once_without(make_policy, batch):
    policy, runs = make_policy(), []
    for layer in decoder_layers(policy):
        layer.self_attn.register_forward_hook(lambda *_: runs.append(1))
    with RecomputedLayers(policy).active():
        token_outputs(policy, batch).logprobs.sum().backward()
        assert len(runs) == 4
        with torch.no_grad():
            token_outputs(policy, batch)
    assert len(runs) == 6


def test_afterwards_the_model_is_as_it_was_and_can_be_copied(make_policy, batch):
    policy = make_policy()
    recomputed = RecomputedLayers(policy)
    with recomputed.active():
        pass
    assert all("forward" not in vars(layer) for layer in decoder_layers(policy))
    copied = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        assert token_outputs(copied, batch).logprobs.std() > 0


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ValueError, match=r"Linear has no layers .* set training.gradient_checkpointing"):
        RecomputedLayers(torch.nn.Linear(2, 2))
