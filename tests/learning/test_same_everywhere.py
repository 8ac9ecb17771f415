"""However a step is computed, its loss and its gradients are the same: float64, tool gaps, ragged rows, masked rows."""

import copy
from itertools import product

import pytest
import torch
from precision import compute_in_float64, tolerance
from representatives import representatives
from training_settings import CRITICS, changed, gradients_of, training

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters, frozen_copy

SETTINGS = training(
    mini_batch_size=100,
    kl_coef=0.1,
    kl_loss_coef=0.1,
    packing=False,
    ppo_epochs=1,
    entropy_coef=0.005,
    weight_decay=0.1,
)
WAYS = {
    "packed": {"packing": True},
    "packed, small": {"packing": True, "micro_batch_tokens": 64},
    "shared": {"packing": "shared"},
    "shared, small": {"packing": "shared", "micro_batch_tokens": 64},
    "padded, small": {"micro_batch_tokens": 64},
    "recomputed": {"gradient_checkpointing": True},
    "recomputed from main memory": {"gradient_checkpointing": "offload"},
    "offloaded optimizer": {"offload": "optimizer"},
    "in blocks": {"logits_mib": 48 * 4 * 5 / 2**20},
    "all": {
        "packing": "shared",
        "micro_batch_tokens": 64,
        "gradient_checkpointing": True,
        "logits_mib": 48 * 4 * 3 / 2**20,
        "offload": "reference",
    },
}
"""Blocks of 5 and of 3 tokens: the vocabulary is 48."""
KINDS = {
    "Qwen3": {"tie_word_embeddings": True},
    "Cohere": {"logit_scale": 0.25},
    "Gemma2": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "GPT2": {},
}
"""Gemma2 is never packed."""
OF_FLOAT32 = tolerance(torch.float32, num_operations=4)
"""Of PPO: log-probabilities and values are stored in float32; a ratio and what follows from it round a few times."""


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    """Groups of two with a prompt, results of 1 to 29 tokens; one row without a policy token that counts, one of which only the
    last does."""
    prompts = torch.randint(3, 48, (4, 20), generator=torch.Generator().manual_seed(0)).tolist()
    trajectories = [
        make_trajectory(seed, group=seed // 2, num_results=1 + 4 * seed, prompt=prompts[seed // 2]) for seed in range(8)
    ]
    batch = TokenBatch.from_trajectories(trajectories)
    mask = batch.loss_mask.clone()
    unscored, almost = (batch.tokens_of(torch.tensor([row])) for row in (3, 6))
    mask[unscored] = False
    mask[almost[: int(mask[almost].nonzero()[-1])]] = False
    return batch.with_fields(loss_mask=mask)


def step(policy, critic, way: dict, batch: TokenBatch) -> tuple[dict, torch.Tensor, TokenBatch]:
    """Metrics and gradients of one PPO step by that way, and the scored batch. Without a critic, adapters learn."""
    policy = copy.deepcopy(policy)
    own_critic = CRITICS[critic](policy)
    reference = frozen_copy(policy)
    with torch.no_grad():
        if own_critic is not None:
            own_critic = own_critic.double()
            own_critic.head.linear.weight.copy_(torch.linspace(-1, 1, own_critic.head.linear.weight.numel()))
            for parameter in reference.parameters():
                parameter.mul_(1.05)
        else:
            torch.manual_seed(0)
            policy = reference = add_adapters(policy, 2, 4).double()
            for name, parameter in policy.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
    changes = {"adv_estimator": "gae" if critic else "grpo", **way}
    learner = Learner(policy, own_critic, reference, changed(SETTINGS, **changes))
    scored, _ = learner.score(batch)
    shifted = scored.old_logprobs + 0.1 * torch.sin(torch.arange(batch.num_tokens))
    credited, _ = learner.credit(scored.with_fields(old_logprobs=shifted * scored.loss_mask))
    metrics = learner.update(credited)
    assert learner.is_packed == bool(changes.get("packing"))
    return metrics, gradients_of(learner), scored


@pytest.mark.parametrize(
    ("critic", "way"),
    representatives(
        product(["separate", "shared", None], WAYS),
        *product(["separate"], WAYS), ("shared", "all"), (None, "packed"), (None, "all")
    ),
)  # fmt: skip
def test_loss_and_gradient_do_not_depend_on_how_they_are_computed(critic, way, make_policy, batch):
    policy = make_policy().double()
    plain, plain_gradient, plain_scored = step(policy, critic, {}, batch)
    metrics, gradient, scored = step(policy, critic, WAYS[way], batch)
    near = {"rtol": OF_FLOAT32, "atol": OF_FLOAT32}
    for name in ("old_logprobs", "reference_logprobs", "values"):
        if getattr(plain_scored, name) is not None:
            torch.testing.assert_close(getattr(scored, name), getattr(plain_scored, name), **near)
    assert metrics == pytest.approx(plain, rel=OF_FLOAT32, abs=OF_FLOAT32)
    assert float((gradient - plain_gradient).norm() / plain_gradient.norm()) < OF_FLOAT32


@pytest.mark.parametrize(
    ("kind", "way"), representatives(product(KINDS, WAYS), *product(["Qwen3"], WAYS), *product(KINDS, ["all"]))
)
def test_the_gradient_of_the_cross_entropy_is_the_same_to_float64(kind, way, make_policy, batch, monkeypatch):
    compute_in_float64(monkeypatch)
    policy = make_policy(kind, **KINDS[kind]).double()
    gradients, losses = [], []
    for changes in ({}, WAYS[way]):
        learner = Learner(copy.deepcopy(policy), None, None, changed(SETTINGS, max_grad_norm=1e9, **changes))
        assert learner.is_packed == (bool(changes.get("packing")) and kind != "Gemma2")
        losses.append(learner.sft_step(batch)["loss"])
        gradients.append(gradients_of(learner))
    rounding = tolerance(torch.float64, num_operations=batch.num_tokens)  # gradients are sums over tokens
    assert losses[1] == pytest.approx(losses[0], rel=rounding)
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < rounding
