"""Weights in half precision learn in float32 copies, in main memory if requested; 8-bit moments; states that are restored."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from training_settings import training

from midthought.errors import CheckpointError, MissingExtraError
from midthought.learning.optimizer import ADAM_BETA1, ADAM_EPSILON, NUM_MATRICES, Movement, Optimizer

SMALL = training(learning_rate=1e-4, max_grad_norm=1e9)


def module(dtype: torch.dtype = torch.bfloat16, *, shape: tuple[int, int] = (4, 3)) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(*shape).to(dtype)


def wide_module(dtype: torch.dtype = torch.float32) -> nn.Linear:
    """Has more than 4,096 weights: below that bitsandbytes stores moments in float32."""
    return module(dtype, shape=(96, 64))


def learn(made: nn.Linear, optimizer: Optimizer, steps: range) -> None:
    for number in steps:
        optimizer.zero_grad()
        inputs = torch.randn(8, made.in_features, generator=torch.Generator().manual_seed(number))
        made(inputs.to(made.weight.dtype)).square().mean().backward()
        optimizer.gather()
        optimizer.step({"policy": number})


def test_steps_too_small_for_bfloat16_add_up_in_the_copies():
    """A weight near 0.3 is known to 2^-10 in bfloat16: steps of 1e-4 vanish in rounding, one by one."""
    made = module()
    before = made.weight.detach().float()
    optimizer = Optimizer({"policy": made}, SMALL)
    for number in range(30):
        optimizer.zero_grad()
        made(torch.ones(2, 4, dtype=made.weight.dtype)).sum().backward()
        optimizer.gather()
        optimizer.step({"policy": number})
    moved = (before - made.weight.detach().float())[before.abs() > 0.25]
    assert (moved - 30 * 1e-4).abs().max() < 2**-9


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offloaded_optimizer_learns_bit_by_bit_the_same(dtype):
    """In both cases AdamW runs on this CPU; only who owns the updated copy differs."""
    weights = {}
    for offload in ("none", "optimizer"):
        made = wide_module(dtype)
        optimizer = Optimizer({"policy": made}, training(learning_rate=1e-3, offload=offload))
        learn(made, optimizer, range(5))
        weights[offload] = made.weight.detach().clone()
        is_here, owned = offload == "none", {id(each) for group in optimizer.param_groups for each in group["params"]}
        own = {id(made.weight), id(made.bias)}
        assert owned & own == (owned if is_here and dtype == torch.float32 else set())
        assert is_here or made.weight.grad is None
    assert torch.equal(weights["none"], weights["optimizer"])


PLAIN, OFFLOADED, IN_8_BITS = {}, {"offload": "optimizer"}, {"optimizer": "adamw_8bit"}


@pytest.mark.parametrize(
    ("dtype", "before", "after"),
    [
        (torch.bfloat16, PLAIN, PLAIN),
        (torch.float32, OFFLOADED, PLAIN),  # offloading may change when a run resumes
        (torch.float32, IN_8_BITS, IN_8_BITS),
        (torch.bfloat16, IN_8_BITS, IN_8_BITS),
        (torch.bfloat16, IN_8_BITS | OFFLOADED, IN_8_BITS | OFFLOADED),
    ],
)
def test_a_restored_state_continues_bit_by_bit(dtype, before, after, tmp_path):
    if "optimizer" in before:
        pytest.importorskip("bitsandbytes", reason="pip install 'midthought[adamw-8bit]'")
    one, two = wide_module(dtype), wide_module(dtype)
    first, second = (
        Optimizer({"policy": made}, training(learning_rate=1e-3, **changes))
        for made, changes in ((one, before), (two, after))
    )
    learn(one, first, range(4))
    save_file(first.state_dict(), tmp_path / "state.safetensors")
    two.load_state_dict(one.state_dict())
    second.load_state_dict(load_file(tmp_path / "state.safetensors"))
    learn(one, first, range(4, 12))
    learn(two, second, range(4, 12))
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    assert dtype is torch.float32 or first.state_dict()["policy.weight/master"].dtype is torch.float32
    for key, tensor in second.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[key]), key


class TestMomentsIn8Bits:
    """The package itself runs, on this CPU."""

    @pytest.fixture(autouse=True)
    def _has_bitsandbytes(self):
        pytest.importorskip("bitsandbytes", reason="pip install 'midthought[adamw-8bit]'")

    def test_they_take_a_quarter_of_the_memory_and_the_same_steps_up_to_rounding(self):
        made = {kind: wide_module() for kind in ("adamw", "adamw_8bit")}
        num_bytes = {}
        for kind, each in made.items():
            optimizer = Optimizer({"policy": each}, training(learning_rate=1e-3, optimizer=kind))
            learn(each, optimizer, range(20))
            fields = [tensor for key, tensor in optimizer.state_dict().items() if key.startswith("policy.weight/")]
            num_bytes[kind] = sum(tensor.numel() * tensor.element_size() for tensor in fields)
        assert num_bytes["adamw_8bit"] < 0.27 * num_bytes["adamw"]
        moved = (made["adamw"].weight - wide_module().weight).abs().mean()
        difference = (made["adamw"].weight - made["adamw_8bit"].weight).abs().mean()
        assert 0 < difference < 0.1 * moved

    @pytest.mark.parametrize(("wrote", "reads"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw")])
    def test_the_state_of_the_other_optimizer_is_refused(self, wrote, reads):
        one, two = wide_module(), wide_module()
        first = Optimizer({"policy": one}, training(optimizer=wrote))
        learn(one, first, range(1))
        second = Optimizer({"policy": two}, training(optimizer=reads))
        with pytest.raises(CheckpointError, match=f"not of training.optimizer={reads}"):
            second.load_state_dict(first.state_dict())


def test_8_bits_without_the_package_are_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'midthought\[adamw-8bit\]'"):
        Optimizer({"policy": wide_module()}, training(optimizer="adamw_8bit"))


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
def test_one_step_with_another_beta_and_weight_decay_by_hand(kind):
    """AdamW (1711.05101): w ← w (1 - lr λ) - lr m̂ / (√v̂ + ε), with m̂ = g and √v̂ = |g| at the first step."""
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    made = module(torch.float32)
    before = {name: tensor.detach().clone() for name, tensor in made.named_parameters()}
    options = {"adam_beta2": 0.8, "weight_decay": 0.1, "max_grad_norm": 1e9}
    optimizer = Optimizer({"critic": made}, training(critic_learning_rate=0.1, optimizer=kind, **options))
    optimizer.zero_grad()
    (made(torch.ones(1, 4)).sum() * 2.0).backward()  # every gradient is 2
    optimizer.step({"critic": 0})
    step = 0.1 * 2.0 / (2.0 + ADAM_EPSILON)
    torch.testing.assert_close(made.weight.detach(), before["weight"] * (1 - 0.1 * 0.1) - step)
    torch.testing.assert_close(made.bias.detach(), before["bias"] - step)
    moment, square = ("exp_avg", "exp_avg_sq") if kind == "adamw" else ("state1", "state2")
    state = optimizer.state_dict()
    torch.testing.assert_close(state[f"critic.weight/{moment}"], torch.full((3, 4), 2.0 * (1 - ADAM_BETA1)))
    torch.testing.assert_close(state[f"critic.weight/{square}"], torch.full((3, 4), 4.0 * (1 - 0.8)))


@pytest.mark.parametrize(
    ("values", "change", "rates", "weight_change", "step_size"),
    [
        ([[3.0, 4.0]], 0.05, (0.1, 0.0), 0.05 / (25 / 2) ** 0.5, 0.5),
        ([[3.0, 4.0]], 0.0, (0.1, 0.25), 0.0, 0.0),  # weight decay is no change
        ([[1.0]], 0.0, (0.0, 0.0), 0.0, 0.0),
        ([1.0] * 4, 0.01, (0.1, 0.0), 0.01, 0.1),  # there is no matrix: vectors are compared
    ],
)
def test_the_change_relative_to_the_weights_and_to_the_learning_rate(values, change, rates, weight_change, step_size):
    weights = nn.Parameter(torch.tensor(values))
    movement, (peak, decay) = Movement([weights]), rates
    movement.begin()
    with torch.no_grad():
        weights.mul_(1 - decay).add_(change)
    found = {"weight_change": weight_change, "step_size": step_size}
    assert movement.end(peak, decay) == pytest.approx(found, rel=1e-4, abs=1e-7 if peak == 0 else 1e-6)


def test_large_matrices_are_left_out_and_their_change_does_not_count():
    small = [nn.Parameter(torch.ones(1, 2)) for _ in range(3 * NUM_MATRICES)]
    large = nn.Parameter(torch.ones(100, 100))
    movement = Movement([*small, large])
    movement.begin()
    with torch.no_grad():
        large.add_(1.0)
    assert movement.end(0.1, 0.0)["weight_change"] == 0.0
