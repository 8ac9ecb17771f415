"""Terms that are added to rewards and advantages: DAPO's penalty of long episodes, and the advantages of a teacher."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, so that one token that is impossible for the teacher does not dominate a step."""


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft overlong punishment: `clip((max_tokens - buffer_tokens - n) / buffer_tokens, -1, 0)` for n tokens.

    0 up to `max_tokens - buffer_tokens`, then linear to -1 at `max_tokens`. Source: Yu et al. 2025 (arXiv 2503.14476), equation
    13. Raises ValueError if the buffer is not between 1 and `max_tokens`.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"the buffer must be between 1 and max_tokens={max_tokens} tokens, got {buffer_tokens}")
    return min(0.0, max(-1.0, (max_tokens - buffer_tokens - num_tokens) / buffer_tokens))


def teacher_advantages(teacher_logprobs: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns `log π_teacher - log π` at policy tokens, 0 elsewhere; any shape.

    Its negative is an unbiased estimate of the reverse KL divergence of a token, and `E[A ∇ log π]` over tokens that π sampled is
    the gradient of `-KL(π(·|s) ‖ π_teacher(·|s))` in each visited state s. Effects of a token on later states are left out (a
    discount of 0). Sources: GKD, Agarwal et al. 2023 (arXiv 2306.13649), with on-policy data and the reverse KL; MiniLLM, Gu et
    al. 2023 (arXiv 2306.08543), the single-step part of its gradient; "On-Policy Distillation", Thinking Machines Lab 2025.
    """
    ratios = torch.where(mask, teacher_logprobs - logprobs, 0.0)
    return ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
