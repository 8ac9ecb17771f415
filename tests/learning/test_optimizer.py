"""Weights in half precision learn in float32 copies; the state goes on from where it was."""

import torch
from torch import nn
from training_settings import training

from midthought.learning.optimizer import Optimizer

SMALL = training(learning_rate=1e-4, max_grad_norm=1e9)


def module(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3).to(dtype)


def learn(made: nn.Linear, optimizer: Optimizer, number: int, num_passes: int = 1) -> None:
    optimizer.zero_grad()
    for part in range(num_passes):
        (made(torch.ones(2, 4, dtype=made.weight.dtype)).sum() * (part + 1)).backward()
        optimizer.gather()
    optimizer.step({"policy": number})


def test_steps_too_small_for_bfloat16_add_up_in_the_copies():
    """A weight near 0.3 is known to 2^-10 in bfloat16: steps of 1e-4 vanish in rounding, one by one."""
    moved = {}
    for has_masters in (True, False):
        made = module()
        before = made.weight.detach().float()
        settings = training(learning_rate=1e-4, max_grad_norm=1e9, master_weights=has_masters)
        optimizer = Optimizer({"policy": made}, settings)
        for number in range(30):
            learn(made, optimizer, number)
        moved[has_masters] = (before - made.weight.detach().float())[before.abs() > 0.25]
    assert (moved[True] - 30 * 1e-4).abs().max() < 2**-9
    assert moved[False].abs().max() < 1e-3


def test_gradients_of_micro_batches_add_up_in_float32():
    made = module()
    optimizer = Optimizer({"policy": made}, SMALL)
    optimizer.zero_grad()
    for value in (1.0, 2.0**-9):
        made.weight.grad = torch.full_like(made.weight, value)
        made.bias.grad = torch.zeros_like(made.bias)
        optimizer.gather()
    assert made.weight.grad is None
    copied = optimizer.param_groups[0]["params"][0]
    assert torch.equal(copied.grad, torch.full((3, 4), 1.0 + 2.0**-9))


def test_float32_weights_have_no_copies_and_half_ones_have_none_where_not_asked_for():
    for made, settings in ((module(torch.float32), SMALL), (module(), training(master_weights=False))):
        optimizer = Optimizer({"policy": made}, settings)
        learn(made, optimizer, 0)
        assert {key.rpartition("/")[2] for key in optimizer.state_dict()} == {"step", "exp_avg", "exp_avg_sq"}
        assert optimizer.param_groups[0]["params"][0] is made.weight


def test_the_copies_go_on_bit_by_bit_from_the_state():
    one, two = module(), module()
    first, second = Optimizer({"policy": one}, SMALL), Optimizer({"policy": two}, SMALL)
    for number in range(5):
        learn(one, first, number)
    state = {key: tensor.clone() for key, tensor in first.state_dict().items()}
    assert state["policy.weight/master"].dtype == torch.float32
    two.load_state_dict(one.state_dict())
    second.load_state_dict(state)
    for number in range(5, 40):
        learn(one, first, number)
        learn(two, second, number)
    assert torch.equal(one.weight, two.weight)
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[key]), key


def test_a_state_without_copies_begins_them_with_the_weights_as_they_are():
    made = module()
    optimizer = Optimizer({"policy": made}, SMALL)
    with torch.no_grad():
        made.weight.fill_(0.5)
    optimizer.load_state_dict({})
    assert torch.equal(optimizer.state_dict()["policy.weight/master"], torch.full((3, 4), 0.5))


def test_a_module_that_takes_no_step_stays_as_it_is():
    made, critic = module(), module()
    optimizer = Optimizer({"policy": made, "critic": critic}, SMALL)
    before = made.weight.clone()
    optimizer.zero_grad()
    for each in (made, critic):
        each(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.gather()
    figures = optimizer.step({"critic": 0})
    assert "grad_norm" not in figures and "learning_rate" not in figures
    assert figures["critic_grad_norm"] > 0
    assert torch.equal(made.weight, before)
    assert not torch.equal(optimizer.state_dict()["critic.weight/master"], before.float())
