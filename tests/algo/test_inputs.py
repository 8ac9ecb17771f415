"""What the public functions take and refuse: masks of any type, groups by name, shapes that agree, finite figures."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from token_rows import rows_of
from torch import Tensor

from midthought.algo.advantages import compute_advantage, compute_gae_advantage_return, compute_grpo_advantage
from midthought.algo.losses import compute_policy_loss, compute_value_loss, loss_weights, masked_average
from midthought.algo.shaping import KLController, apply_kl_penalty, kl_divergence, rollout_weights

generator = torch.Generator().manual_seed(0)
A, B, C = torch.randn(3, 3, 5, generator=generator, dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
GROUPS = torch.tensor([4, 7, 4])

MASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "gae": lambda mask: compute_gae_advantage_return(A, B, mask)[0],
    "grpo": lambda mask: compute_grpo_advantage(A, mask, GROUPS)[0],
    "by name": lambda mask: compute_advantage("rloo", A, mask, index=GROUPS)[0],
    "policy loss": lambda mask: compute_policy_loss(A, B, C, mask)[0],
    "gspo": lambda mask: compute_policy_loss(A, B, C, mask, kind="gspo")[0],
    "value loss": lambda mask: compute_value_loss(vpreds=A, old_values=B, returns=C, response_mask=mask)[0],
    "kl penalty": lambda mask: apply_kl_penalty(A, B, C, mask, 0.1)[0],
    "average": lambda mask: masked_average(A, mask),
    "weights": lambda mask: loss_weights(mask, rows_of(mask), "seq-mean-token-mean")[0],
    "correction": lambda mask: rollout_weights(A, B, mask, "truncated", episodes=rows_of(mask))[0],
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_any_type_is_the_same_mask(name: str, dtype: torch.dtype) -> None:
    assert torch.equal(MASKED[name](MASK.to(dtype)), MASKED[name](MASK))


@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: compute_gae_advantage_return(wrong, B, MASK),
        lambda wrong: compute_gae_advantage_return(A, wrong, MASK),
        lambda wrong: compute_grpo_advantage(wrong, MASK, GROUPS),
        lambda wrong: compute_policy_loss(A, B, wrong, MASK),
        lambda wrong: compute_value_loss(vpreds=wrong, old_values=B, returns=C, response_mask=MASK),
        lambda wrong: compute_value_loss(vpreds=A, old_values=B, returns=wrong, response_mask=MASK),
        lambda wrong: apply_kl_penalty(wrong, B, C, MASK, 0.1),
        lambda wrong: apply_kl_penalty(A, B, wrong, MASK, 0.1),
        lambda wrong: kl_divergence(A, wrong),
        lambda wrong: rollout_weights(A, wrong, MASK, "masked", episodes=rows_of(MASK)),
        lambda wrong: rollout_weights(A, B, MASK, "sequence_masked", episodes=wrong),
        lambda wrong: loss_weights(MASK, wrong, "seq-mean-token-mean"),
    ],
)
@pytest.mark.parametrize("wrong", [A[:, :1], A[:1], A[0], A[:, :4]], ids=["[3, 1]", "[1, 5]", "[5]", "[3, 4]"])
def test_nothing_is_broadcast(call: Callable[[Tensor], object], wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"have the shape \[") as caught:
        call(wrong)
    assert str(list(wrong.shape)) in str(caught.value)


@pytest.mark.parametrize("groups", [["a", "b", "a"], [4, 7, 4], np.array(["x", "y", "x"], dtype=object)])
def test_groups_may_be_named(groups: object) -> None:
    expected = compute_grpo_advantage(A, MASK, GROUPS)[0]
    assert torch.equal(compute_grpo_advantage(A, MASK, groups)[0], expected)  # type: ignore[arg-type]
    assert torch.equal(compute_advantage("grpo", A, MASK, index=groups)[0], expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_told_with_its_place(value: float) -> None:
    rewards = A.clone()
    rewards[2, 3] = value
    for call in (
        lambda: compute_gae_advantage_return(rewards, B, MASK),
        lambda: compute_grpo_advantage(rewards, MASK, GROUPS),
    ):
        with pytest.raises(ValueError, match=rf"the reward of episode 2 at token 3 is {value}"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compute_advantage("gea", A, MASK), "advantage estimator 'gea'. Did you mean 'gae'"),
        (lambda: compute_policy_loss(A, B, C, MASK, kind="gpso"), "policy loss 'gpso'. Did you mean 'gspo'"),
        (lambda: kl_divergence(A, B, "k4"), "KL estimator 'k4'. Did you mean 'k"),
    ],
)
def test_unknown_kinds_are_told_with_the_near_names(call, message):
    with pytest.raises(ValueError, match=re.escape(f"unknown {message}")):
        call()


def test_the_penalty_s_coefficient_stays_a_number() -> None:
    for coef in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"coef must be a finite number of 0 or more, got {coef}"):
            KLController(coef)
    controller = KLController(0.1, target_kl=0.1)
    with pytest.raises(ValueError, match="the mean KL is nan"):
        controller.update(math.nan, 32)
    assert controller.coef == 0.1


NO_TENSORS: dict[str, Callable[[], object]] = {
    "token_level_rewards": lambda: compute_grpo_advantage([[1.0, 0.0]], MASK, GROUPS),
    "response_mask": lambda: compute_gae_advantage_return(A, B, MASK.numpy()),
    "values": lambda: compute_advantage("gae", A, MASK, values=B.numpy()),
    "advantages": lambda: compute_policy_loss(A, B, C.tolist(), MASK),
    "sampled_logprobs": lambda: compute_policy_loss(A, B, C, MASK, kind="dppo_tv", sampled_logprobs=C.numpy()),
    "returns": lambda: compute_value_loss(vpreds=A, old_values=B, returns=C.numpy(), response_mask=MASK),
    "ref_log_probs": lambda: kl_divergence(A, B.numpy()),
    "mask": lambda: rollout_weights(A, B, MASK.tolist(), "truncated", episodes=rows_of(MASK)),
    "episodes": lambda: loss_weights(MASK, rows_of(MASK).numpy(), "seq-mean-token-mean"),
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_is_no_tensor_is_named(name: str) -> None:
    with pytest.raises(
        TypeError, match=rf"{name} is of the type (list|ndarray); give a tensor: torch.as_tensor\({name}"
    ):
        NO_TENSORS[name]()


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "zero"])
def test_rewards_may_be_whole_numbers(name: str) -> None:
    whole = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 3]])
    found, expected = (compute_advantage(name, r, torch.ones(3, 3), index=[0, 0, 0])[0] for r in (whole, whole.float()))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": -0.2}, "clip_low must be 0 or more .*, got -0.2"),
        ({"clip_high": math.nan}, "clip_high must be 0 or more .*, got nan"),
        ({"dual_clip": 0.5}, "dual_clip must be above 1 or None .*, got 0.5"),
    ],
)
def test_a_loss_names_a_bound_or_an_option_that_makes_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_policy_loss(A, B, C, MASK, **settings)
