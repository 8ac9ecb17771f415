"""What is taken off a reward for the form of an episode. Plain arithmetic: needs no tensors."""

from __future__ import annotations


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft punishment of long answers, between 0 and -1.

    0 up to `max_tokens - buffer_tokens`, from there down along a line to -1 at `max_tokens`, -1 beyond. Source: Yu et al.
    2025 (arXiv 2503.14476), equation 13. Raises ValueError where the buffer is not within 1 and `max_tokens`.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"the buffer must be between 1 and max_tokens={max_tokens} tokens, got {buffer_tokens}")
    return min(0.0, max(-1.0, (max_tokens - buffer_tokens - num_tokens) / buffer_tokens))
