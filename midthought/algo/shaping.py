"""Reward shaping by the length of an episode. Does not need tensors."""

from __future__ import annotations


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft overlong punishment: `clip((max_tokens - buffer_tokens - n) / buffer_tokens, -1, 0)` for n tokens.

    0 up to `max_tokens - buffer_tokens`, then linear to -1 at `max_tokens`. Source: Yu et al. 2025 (arXiv 2503.14476), equation
    13. Raises ValueError if the buffer is not between 1 and `max_tokens`.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"the buffer must be between 1 and max_tokens={max_tokens} tokens, got {buffer_tokens}")
    return min(0.0, max(-1.0, (max_tokens - buffer_tokens - num_tokens) / buffer_tokens))
