"""Divergences over the vocabulary: in blocks as from all logits, and in the learner's step as written out from all logits."""

import copy

import pytest
import torch
from training_settings import training

from midthought.algo.divergence import generalized_jsd, with_rest
from midthought.learning.adapters import add_adapters
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.logprobs import BlockedHead, LogitShape
from midthought.learning.model import frozen_copy
from midthought.learning.ppo import improve
from midthought.learning.vocabulary import FrozenLogits, blocked_divergence, divergence

TOKENS, WIDTH, VOCABULARY, BLOCK = 11, 5, 13, 8
SHAPES = {"plain": LogitShape(), "capped": LogitShape(scale=2.0, cap=1.5)}
TEMPERATURES = torch.linspace(0.5, 2.0, TOKENS, dtype=torch.float64)
STEP = training(
    adv_estimator="zero",
    teacher="a folder",
    entropy_coef=0.0,
    kl_coef=0.0,
    mini_batch_size=100,
    max_grad_norm=float("inf"),
)
BLOCKS = {"logits_mib": 48 * 4 * 8 / 2**20}
"""Blocks of 8 tokens, and of 2 for divergences: the vocabulary is 48."""


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def head_of(shape: LogitShape, size: int = VOCABULARY, seed: int = 0) -> BlockedHead:
    weight, bias = draw(size, WIDTH, seed=seed).requires_grad_(), draw(size, seed=seed + 1).requires_grad_()
    return BlockedHead(weight, bias, shape, BLOCK)


def other_of(size: int, temperatures: torch.Tensor | None) -> FrozenLogits:
    """A model with another width of its hidden states would be as good: only its logits are compared."""
    head = head_of(LogitShape(), size, seed=7).held("cpu", False)
    return FrozenLogits(draw(TOKENS, WIDTH, seed=5), head, temperatures)


@pytest.mark.parametrize("temperatures", [None, TEMPERATURES])
@pytest.mark.parametrize("size", [VOCABULARY, VOCABULARY - 2, VOCABULARY + 2])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_have_the_figures_and_gradients_of_all_logits(shape, alpha, size, temperatures):
    found = []
    other = other_of(size, temperatures)
    for is_blocked in (True, False):
        head, hidden = head_of(SHAPES[shape]), draw(TOKENS, WIDTH, seed=4).requires_grad_()
        if is_blocked:
            values = blocked_divergence(head, hidden, temperatures, other, alpha)
        else:
            logits = SHAPES[shape].scale * torch.nn.functional.linear(hidden, head.weight, head.bias)
            cap = SHAPES[shape].cap
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            values = divergence(logits, temperatures, other, alpha)
        (values**2).sum().backward()
        found.append((values, hidden.grad, head.weight.grad, head.bias.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_the_gradient_in_blocks_is_that_of_finite_differences():
    head, other = head_of(SHAPES["capped"]), other_of(VOCABULARY, TEMPERATURES)

    def values(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        made = BlockedHead(weight, bias, head.shape, BLOCK)
        return blocked_divergence(made, hidden, TEMPERATURES, other, 0.5)

    assert torch.autograd.gradcheck(values, (draw(TOKENS, WIDTH, seed=4).requires_grad_(), head.weight, head.bias))


def test_in_bfloat16_only_the_products_are_rounded():
    """A divergence of equal models is 0 and has no gradient; of others it is as exact as from all logits of this type."""
    head, hidden = head_of(LogitShape()), draw(TOKENS, WIDTH, seed=4).bfloat16().requires_grad_()
    half = BlockedHead(head.weight.detach().bfloat16().requires_grad_(), None, LogitShape(), BLOCK)
    own = FrozenLogits(hidden.detach(), half.held("cpu", True), None)
    values = blocked_divergence(half, hidden, None, own, 0.5)
    values.sum().backward()
    assert values.dtype == torch.float32 and values.abs().max() < 1e-6 and hidden.grad.abs().max() < 1e-5
    other = FrozenLogits(draw(TOKENS, WIDTH, seed=5).bfloat16(), half.held("cpu", True), None)
    logits = torch.nn.functional.linear(hidden, half.weight)
    found = blocked_divergence(half, hidden, None, other, 1.0)
    torch.testing.assert_close(found, divergence(logits, None, other, 1.0))


def test_no_more_logits_exist_than_a_block_holds(monkeypatch):
    seen = []
    own = BlockedHead.logits
    monkeypatch.setattr(
        BlockedHead, "logits", lambda self, hidden, *rest: seen.append(len(hidden)) or own(self, hidden, *rest)
    )
    hidden = draw(TOKENS, WIDTH, seed=4).requires_grad_()
    blocked_divergence(head_of(LogitShape()), hidden, None, other_of(VOCABULARY, None), 0.5).sum().backward()
    assert sum(seen) == 4 * TOKENS and max(seen) <= BLOCK // 4


# -- in the learner ------------------------------------------------------------------------------------------------


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    """Six episodes with tool results; the policy tokens of each were sampled at another temperature."""
    trajectories = [make_trajectory(seed, group=seed // 2) for seed in range(6)]
    made = TokenBatch.from_trajectories(trajectories)
    temperatures = torch.where(made.loss_mask, 0.5 + 0.25 * made.token_episodes, 1.0)
    return made.with_fields(temperatures=temperatures)


def all_logprobs(model, batch: TokenBatch) -> torch.Tensor:
    """The distribution before each policy token, row by row: [n, V]."""
    found = []
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        logits = model(input_ids=one.token_ids[None]).logits[0]
        places = one.loss_mask.nonzero()[:, 0]
        found.append((logits[places - 1] / one.temperatures[places][:, None]).log_softmax(-1))
    return torch.cat(found)


def gradient_of(policy) -> torch.Tensor:
    return torch.cat([each.grad.flatten() for each in policy.parameters() if each.requires_grad])


def assert_takes_the_step_of(learner: Learner, batch: TokenBatch, expected, metric: str, **fields) -> None:
    """`expected`: a loss of the learner's policy per policy token, [n]."""
    wanted = copy.deepcopy(learner.policy)
    loss = expected(wanted).mean()
    loss.backward()
    metrics = improve(learner, batch, **fields)
    assert metrics[metric] == pytest.approx(loss.item(), rel=1e-5)
    found, gradient = gradient_of(learner.policy), gradient_of(wanted)
    assert gradient.norm() > 1e-3
    assert float((found - gradient).norm() / gradient.norm()) < 1e-5


WAYS = {
    "padded": {"packing": False},
    "packed": {"packing": True},
    "blocks of micro-batches": {"packing": True, "micro_batch_tokens": 40, **BLOCKS},
    "recomputed": {"packing": True, "gradient_checkpointing": True, **BLOCKS},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_lora", [False, True])
def test_the_exact_kl_is_that_of_both_whole_distributions(make_policy, batch, way, is_lora):
    policy = make_policy(seed=1).double()
    reference = frozen_copy(policy if is_lora else make_policy(seed=2).double())
    if is_lora:
        policy = add_adapters(policy, 4, 8).double()
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                weight.copy_(draw(*weight.shape, seed=len(name)) * 0.2) if "lora_" in name else None
    settings = STEP.model_copy(update={"kl_loss_coef": 1.0, "kl_loss_kind": "full", "teacher": "", **WAYS[way]})
    with torch.no_grad():
        theirs = all_logprobs(reference, batch)

    def kl(model):
        ours = all_logprobs(model, batch)
        return (ours.exp() * (ours - theirs)).sum(-1)

    learner = Learner(policy, None, policy if is_lora else reference, settings)
    assert_takes_the_step_of(learner, batch, kl, "kl_loss")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("mode", "num_top"), [("full_logits", 100), ("topk_logits", 4), ("topk_logits", 100)])
def test_the_divergence_from_a_teacher_is_that_of_the_chosen_tokens_and_the_rest(
    make_policy, batch, way, mode, num_top
):
    """The teacher has two more rows of padding in its vocabulary. A k above the size of the vocabulary takes all of it."""
    policy = make_policy(seed=1).double()
    teacher = frozen_copy(make_policy(seed=2, vocab_size=50).double())
    changes = {"distillation_mode": mode, "distillation_alpha": 0.3, "distillation_topk": num_top, **WAYS[way]}
    with torch.no_grad():
        theirs = all_logprobs(teacher, batch)
        top = all_logprobs(policy, batch).topk(min(num_top, 48)).indices
    if mode == "full_logits":
        theirs = theirs[:, :48].log_softmax(-1)

    def jsd(model):
        ours = all_logprobs(model, batch)
        if mode == "full_logits":
            return generalized_jsd(ours, theirs, 0.3)
        return generalized_jsd(*(with_rest(each.gather(-1, top)) for each in (ours, theirs)), 0.3)

    learner = Learner(policy, None, None, STEP.model_copy(update=changes), teacher=teacher)
    assert_takes_the_step_of(learner, batch, jsd, "distillation_loss")


def test_the_divergence_is_weighted_by_the_ratio_up_to_two_and_by_the_rollout_correction(make_policy, batch):
    policy, teacher = make_policy(seed=1).double(), frozen_copy(make_policy(seed=2).double())
    changes = {"distillation_mode": "full_logits", "teacher_coef": 0.5, "loss_agg": "seq-mean-token-sum"}
    learner = Learner(policy, None, None, STEP.model_copy(update=changes), teacher=teacher)
    scored, _ = learner.score(batch)
    shift = torch.where(batch.token_ids % 2 == 0, -0.5, 1.0) * batch.loss_mask
    weights = torch.where(batch.token_ids % 3 == 0, 0.25, 1.0)
    scored = scored.with_fields(old_logprobs=scored.old_logprobs - shift, rollout_weights=weights)
    metrics = learner.update(learner.credit(scored)[0])
    with torch.no_grad():
        values = generalized_jsd(all_logprobs(make_policy(seed=1).double(), batch), all_logprobs(teacher, batch), 0.5)
    expected = values * weights[batch.loss_mask] * shift[batch.loss_mask].exp().clamp(max=2.0)
    assert metrics["distillation_loss"] == pytest.approx(float(expected.sum()) / 6, rel=1e-5)
    assert metrics["loss"] == pytest.approx(0.5 * float(expected.sum()) / 6, rel=1e-5)


def test_the_divergence_falls_over_steps(make_policy, batch):
    policy, teacher = make_policy(seed=1).double(), frozen_copy(make_policy(seed=2).double())
    changes = {"distillation_mode": "topk_logits", "distillation_topk": 5, "learning_rate": 1e-2, "ppo_epochs": 2}
    learner = Learner(policy, None, None, STEP.model_copy(update=changes), teacher=teacher)
    before = divergence_of(policy, teacher, batch)
    for _ in range(5):
        improve(learner, batch)
    assert divergence_of(policy, teacher, batch) < 0.8 * before


def divergence_of(policy, teacher, batch) -> float:
    with torch.no_grad():
        return float(generalized_jsd(all_logprobs(policy, batch), all_logprobs(teacher, batch), 0.5).mean())


@pytest.mark.parametrize("is_lora", [False, True])
def test_in_bfloat16_a_policy_is_equal_to_its_own_reference(make_policy, batch, is_lora):
    """Also after the blocks and layouts of a learner; a step away from it there is a divergence, and a finite gradient."""
    policy = make_policy(seed=1).bfloat16()
    reference = frozen_copy(policy)
    if is_lora:
        policy = reference = add_adapters(policy, 4, 8)
    changes = {
        "kl_loss_coef": 1.0,
        "kl_loss_kind": "full",
        "adv_estimator": "grpo",
        "teacher": "",
        "learning_rate": 1e-2,
    }
    learner = Learner(policy, None, reference, STEP.model_copy(update={**changes, **BLOCKS}))
    first, second = (improve(learner, batch) for _ in range(2))
    assert abs(first["kl_loss"]) < 1e-5
    assert 1e-4 < second["kl_loss"] < 10 and second["num_skipped_steps"] == 0
