"""Log-probabilities block by block: figures and gradients of all logits at once."""

from types import SimpleNamespace

import pytest
import torch

from midthought.learning.logprobs import BlockedHead, LogitShape

TOKENS, WIDTH, VOCABULARY = 23, 7, 31
SHAPES = {"plain": LogitShape(), "scaled": LogitShape(scale=0.3), "capped": LogitShape(scale=2.0, cap=1.5)}


def given(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    return hidden, weight, bias, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


def plain(hidden, weight, bias, targets, shape: LogitShape, temperatures=None) -> tuple[torch.Tensor, torch.Tensor]:
    logits = shape.scale * torch.nn.functional.linear(hidden, weight, bias)
    logits = logits if shape.cap is None else shape.cap * torch.tanh(logits / shape.cap)
    logits = logits if temperatures is None else logits / temperatures[:, None]
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(targets), distribution.entropy()


def some_loss(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """Not linear in either."""
    factors = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    return (factors * (logprobs + 1).exp()).sum() + (factors * entropies**2).sum()


@pytest.mark.parametrize("temperatures", [None, torch.linspace(0.5, 2.0, TOKENS, dtype=torch.float64)])
@pytest.mark.parametrize("num_tokens", [1, 4, 22, 23, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_figures_and_gradients_are_those_of_all_logits(shape, num_tokens, temperatures):
    found = []
    for is_blocked in (True, False):
        hidden, weight, bias, targets = given()
        if is_blocked:
            head = BlockedHead(weight, bias, SHAPES[shape], num_tokens)
            figures = head.outputs(hidden, targets, temperatures, entropy=True)
        else:
            figures = plain(hidden, weight, bias, targets, SHAPES[shape], temperatures)
        some_loss(*figures).backward()
        found.append((*figures, hidden.grad, weight.grad, bias.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_without_entropy_or_bias_and_with_a_frozen_weight_only_the_states_get_a_gradient():
    hidden, weight, _, targets = given()
    frozen = weight.detach()
    logprobs, entropies = BlockedHead(frozen, None, LogitShape(), 4).outputs(hidden, targets)
    assert not entropies.requires_grad and not entropies.any()
    logprobs.exp().sum().backward()
    mine, hidden.grad = hidden.grad, None
    plain(hidden, frozen, None, targets, LogitShape())[0].exp().sum().backward()
    torch.testing.assert_close(mine, hidden.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_is_as_near_to_the_truth_as_all_logits_at_once(autocast):
    """Under autocast the product is in bfloat16, as in `nn.Linear`; all else is in float32 either way."""
    found = {}
    for name in ("blocked", "plain", "exact"):
        hidden, weight, bias, targets = given(torch.float32 if autocast else torch.bfloat16)
        if name == "exact":
            hidden, weight, bias = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast and name != "exact"):
            if name == "blocked":
                logprobs, _ = BlockedHead(weight, bias, LogitShape(), 5).outputs(hidden, targets)
            else:
                logits = torch.nn.functional.linear(hidden, weight, bias)
                logits = logits if name == "exact" else logits.float()
                logprobs = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        logprobs.exp().sum().backward()
        found[name] = [tensor.double() for tensor in (logprobs.detach(), hidden.grad, weight.grad, bias.grad)]
    for blocked, at_once, exact in zip(*found.values(), strict=True):
        assert (blocked - exact).norm() <= 1.5 * (at_once - exact).norm() + 1e-6 * exact.norm()
    torch.testing.assert_close(found["blocked"][0], found["plain"][0], rtol=1e-6, atol=1e-6)


def test_an_impossible_token_adds_nothing():
    hidden, weight, bias, targets = given()
    with torch.no_grad():
        bias[5] = -torch.inf
    targets[targets == 5] = 6
    logprobs, entropies = BlockedHead(weight, bias, LogitShape(), 4).outputs(hidden, targets, entropy=True)
    some_loss(logprobs, entropies).backward()
    keep = torch.arange(VOCABULARY) != 5
    expected = plain(hidden, weight[keep], bias[keep], targets - (targets > 5).long(), LogitShape())
    torch.testing.assert_close((logprobs, entropies), expected)
    assert all(tensor.grad.isfinite().all() for tensor in (hidden, weight, bias))


def test_no_more_logits_exist_than_a_block_holds(monkeypatch):
    seen = []
    own, functions = torch.nn.functional.linear, torch.nn.functional
    monkeypatch.setattr(functions, "linear", lambda hidden, *rest: seen.append(len(hidden)) or own(hidden, *rest))
    hidden, weight, bias, targets = given()
    BlockedHead(weight, bias, LogitShape(), 5).outputs(hidden, targets)[0].sum().backward()
    assert sum(seen) == 2 * TOKENS and max(seen) <= 5


def test_the_shape_of_logits_is_read_from_the_architectures_own_keys():
    assert LogitShape.of(SimpleNamespace()) == LogitShape()
    assert LogitShape.of(SimpleNamespace(final_logit_softcapping=30.0)) == LogitShape(cap=30.0)
    assert LogitShape.of(SimpleNamespace(logit_scale=0.25)) == LogitShape(scale=0.25)
    assert LogitShape.of(SimpleNamespace(logits_scaling=8.0)) == LogitShape(scale=0.125)
