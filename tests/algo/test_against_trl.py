"""TRL's own GRPO loss as an oracle, where it is installed: its method is given log-probabilities in place of a model.

Its advantages are worked out inside a longer method and cannot be asked for; docs/algorithms.md says how they differ.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from token_rows import rows_of

from midthought.algo.losses import compute_policy_loss, entropy_from_logprobs, loss_weights, masked_average
from midthought.algo.shaping import kl_divergence

trl = pytest.importorskip("trl.trainer.grpo_trainer")
pytestmark = pytest.mark.slow

ROWS, LENGTH, MAX_LENGTH = 5, 9, 32


def given(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old, reference = -torch.rand(2, ROWS, LENGTH, generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=generator)
    tools = torch.rand(ROWS, LENGTH, generator=generator) < 0.2
    tools[:, 0] = False
    return {
        "old": old,
        "new": old + 0.4 * torch.randn(ROWS, LENGTH, generator=generator),
        "reference": reference,
        "advantages": torch.randn(ROWS, generator=generator),
        "completion": torch.arange(LENGTH).expand(ROWS, LENGTH) < lengths,
        "tools": tools,
    }


def trl_loss(figures: dict[str, torch.Tensor], **settings) -> torch.Tensor:
    """`GRPOTrainer._compute_loss` on a trainer that is nothing but the settings it reads."""
    mask = figures["completion"] & ~figures["tools"]
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1, report_to=[]
        ),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda tensor: tensor, reduce=lambda tensor, reduction=None: tensor
        ),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (figures["new"], torch.zeros(ROWS, LENGTH), None),
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        **{
            "beta": 0.0,
            "epsilon_low": 0.2,
            "epsilon_high": 0.28,
            "importance_sampling_level": "token",
            "loss_type": "dapo",
            "max_completion_length": MAX_LENGTH,
            **settings,
        },
    )
    ids = torch.ones(ROWS, 2, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": torch.ones(ROWS, LENGTH, dtype=torch.int64),
        "completion_mask": figures["completion"].int(),
        "tool_mask": (~figures["tools"]).int(),
        "advantages": figures["advantages"],
        "old_per_token_logps": figures["old"],
        "ref_per_token_logps": figures["reference"],
        "num_items_in_batch": mask.sum(),
    }
    return trl.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)


def our_loss(figures: dict[str, torch.Tensor], average: str, **settings) -> torch.Tensor:
    mask = figures["completion"] & ~figures["tools"]
    weights, denominator = loss_weights(mask, rows_of(mask), average, MAX_LENGTH)
    advantages = figures["advantages"][:, None].expand(ROWS, LENGTH)
    options = {"clip_low": 0.2, "clip_high": 0.28, **settings}
    loss, _ = compute_policy_loss(
        figures["old"], figures["new"], advantages, mask, denominator=denominator, weights=weights, **options
    )
    return loss


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("loss_type", "average"),
    [
        ("dapo", "token-mean"),
        ("bnpo", "token-mean"),
        ("grpo", "seq-mean-token-mean"),
        ("dr_grpo", "seq-mean-token-sum-norm"),
        ("luspo", "seq-mean-token-sum"),
    ],
)
def test_the_clipped_surrogate_agrees_under_every_average(loss_type, average, seed):
    figures = given(seed)
    torch.testing.assert_close(our_loss(figures, average), trl_loss(figures, loss_type=loss_type))


def test_its_two_sided_clipping_is_our_dual_clip():
    figures = given()
    torch.testing.assert_close(our_loss(figures, "token-mean", dual_clip=1.5), trl_loss(figures, delta=1.5))


def test_gspo_agrees():
    figures = given()
    theirs = trl_loss(figures, loss_type="grpo", importance_sampling_level="sequence")
    torch.testing.assert_close(our_loss(figures, "seq-mean-token-mean", kind="gspo"), theirs)


def test_cispo_agrees_without_its_lower_bound():
    """TRL's `epsilon_high` is the largest weight itself, ours what it may be above 1."""
    figures = given()
    theirs = trl_loss(figures, loss_type="cispo", epsilon_high=1.28)
    torch.testing.assert_close(our_loss(figures, "token-mean", kind="cispo", clip_low=1.0), theirs)


def test_the_divergence_in_the_loss_is_k3():
    figures = given()
    mask = figures["completion"] & ~figures["tools"]
    divergence = masked_average(kl_divergence(figures["new"], figures["reference"], "k3"), mask)
    torch.testing.assert_close(our_loss(figures, "token-mean") + 0.3 * divergence, trl_loss(figures, beta=0.3))


def test_the_entropy_agrees():
    from trl.trainer.utils import entropy_from_logits

    logits = torch.randn(3, 4, 11)
    torch.testing.assert_close(entropy_from_logprobs(logits.log_softmax(-1)), entropy_from_logits(logits))
