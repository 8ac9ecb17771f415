"""Drawing tokens: the right distribution, the right log-probability, the same stream whatever the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from midthought.inference.sampling import counter_uniforms, draw_tokens

THREE = torch.tensor([[0.5, 0.3, 0.2]]).log()


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (1 - 2**-53, 2)])
def test_tokens_are_drawn_by_inverse_cdf(uniform: float, token: int) -> None:
    tokens, logprobs = draw_tokens(THREE, np.array([uniform]), [1.0], [1.0])
    assert tokens == [token]
    assert logprobs == pytest.approx([THREE[0, token].item()], abs=1e-6)


def test_temperature_is_in_the_draw_and_in_the_logprob() -> None:
    # At temperature 0.5 the probabilities are squares: 25, 9, 4 of 38; 0.65 < 25/38 < 0.67.
    for uniform, token, square in ((0.65, 0, 25), (0.67, 1, 9)):
        tokens, logprobs = draw_tokens(THREE, np.array([uniform]), [0.5], [1.0])
        assert (tokens, logprobs) == ([token], pytest.approx([math.log(square / 38)], abs=1e-6))


def test_temperature_zero_is_argmax_beside_rows_that_are_drawn() -> None:
    logits = THREE.expand(2, 3)
    tokens, logprobs = draw_tokens(logits, np.array([0.9, 0.9]), [0.0, 1.0], [0.1, 1.0])
    assert tokens == [0, 2]
    assert logprobs == pytest.approx([math.log(0.5), math.log(0.2)], abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_it_and_renormalises() -> None:
    # 0.5 + 0.3 reaches 0.7: the last token can't come, the others have 5/8 and 3/8.
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    for uniform, token, logprob in (
        (0.62, 1, math.log(5 / 8)),
        (0.63, 2, math.log(3 / 8)),
        (0.999, 2, math.log(3 / 8)),
    ):
        tokens, logprobs = draw_tokens(logits, np.array([uniform]), [1.0], [0.7])
        assert (tokens, logprobs) == ([token], pytest.approx([logprob], abs=1e-6))
    tokens, logprobs = draw_tokens(logits, np.array([0.9999]), [1.0], [0.01])
    assert (tokens, logprobs) == ([1], pytest.approx([0.0], abs=1e-6))


def test_tokens_without_probability_are_never_drawn_at_the_edges() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    assert draw_tokens(logits, np.array([0.0]), [1.0], [1.0])[0] == [1]
    assert draw_tokens(logits, np.array([1 - 2**-53]), [1.0], [1.0])[0] == [2]


def test_a_stream_depends_on_its_seed_and_position_only_and_is_uniform() -> None:
    together = counter_uniforms([1, 2, 1], [5, 5, 6])
    assert counter_uniforms([1], [6])[0] == together[2]
    assert len(set(together)) == 3
    many = counter_uniforms([7] * 20_000 + list(range(20_000)), [*range(20_000), *[3] * 20_000])
    assert 0.0 <= many.min() < many.max() < 1.0
    for stream in (many[:20_000], many[20_000:]):
        counts = np.histogram(stream, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi squared, 19 degrees of freedom, p < 0.001
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.03


def test_seeds_of_any_size_and_sign_are_taken() -> None:
    assert len(set(counter_uniforms([-1, 2**63, 2**80 + 5, 5], [0, 0, 0, 0]))) == 3  # 2**80 + 5 ≡ 5 modulo 2**64
