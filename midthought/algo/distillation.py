"""On-policy distillation: the advantage that a teacher gives to the tokens that the policy sampled."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, so that one token that is impossible for the teacher does not dominate a step."""


def teacher_advantages(teacher_logprobs: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns `log π_teacher - log π` at policy tokens, 0 elsewhere; any shape.

    Its negative is an unbiased estimate of the reverse KL divergence of a token, and `E[A ∇ log π]` over tokens that π sampled is
    the gradient of `-KL(π(·|s) ‖ π_teacher(·|s))` in each visited state s. Effects of a token on later states are left out (a
    discount of 0). Sources: GKD, Agarwal et al. 2023 (arXiv 2306.13649), with on-policy data and the reverse KL; MiniLLM, Gu et
    al. 2023 (arXiv 2306.08543), the single-step part of its gradient; "On-Policy Distillation", Thinking Machines Lab 2025.
    """
    ratios = torch.where(mask, teacher_logprobs - logprobs, 0.0)
    return ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
