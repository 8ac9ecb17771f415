"""Drawing tokens: the right distribution, the right log-probability, the same stream whatever the batch."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from precision import tolerance

from midthought.engines.engine import Sampling
from midthought.engines.local.sampling import MAX_SUMMED, RandomStreams, SamplingBatch, draw_tokens


def how(**given: float) -> Sampling:
    return Sampling(max_tokens=1, **given)  # type: ignore[arg-type]


def draw(logits: torch.Tensor, uniforms: np.ndarray, samplings: Sequence[Sampling]) -> tuple[list[int], list[float]]:
    return draw_tokens(logits, torch.from_numpy(np.asarray(uniforms)), SamplingBatch(samplings)).read()


THREE = torch.tensor([[0.5, 0.3, 0.2]]).log()
ROUNDING = tolerance(torch.float32, magnitude=6.0, num_operations=4)
"""Of a log-probability: a difference, an exponential, a sum (which is added up in pairs), a logarithm; logits are below 6."""


def test_tokens_are_drawn_by_inverse_cdf_at_the_temperature():
    for uniform, token in ((0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (1 - 2**-53, 2)):
        tokens, logprobs = draw(THREE, np.array([uniform]), [how()])
        assert (tokens, logprobs) == ([token], pytest.approx([THREE[0, token].item()], abs=ROUNDING))
    # At temperature 0.5 the probabilities are squares: 25, 9, 4 of 38; 0.65 < 25/38 < 0.67.
    for uniform, token, square in ((0.65, 0, 25), (0.67, 1, 9)):
        tokens, logprobs = draw(THREE, np.array([uniform]), [how(temperature=0.5)])
        assert (tokens, logprobs) == ([token], pytest.approx([math.log(square / 38)], abs=ROUNDING))


def drawn(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """Every token that can come, and its log-probability."""
    found = {}
    for uniform in np.linspace(0.0, 1 - 2**-53, 200):
        (token,), (logprob,) = draw(logits, np.array([uniform]), [sampling])
        found[token] = logprob
    return found


FOUR = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (how(top_k=1), {0: 1}),
        (how(top_k=3), {0: 4, 1: 3, 2: 2}),
        (how(top_k=9), {0: 4, 1: 3, 2: 2, 3: 1}),
        (how(min_p=0.5), {0: 4, 1: 3, 2: 2}),
        (how(min_p=0.51), {0: 4, 1: 3}),
        (how(top_p=0.65), {0: 4, 1: 3}),  # 0.4 + 0.3 reach it
        (how(top_p=0.01), {0: 1}),
        (how(top_k=3, top_p=0.7), {0: 4, 1: 3}),  # 4 + 3 of the 9 that are left reach 0.7
        (how(top_k=3, top_p=0.79), {0: 4, 1: 3, 2: 2}),
        (how(min_p=0.25, temperature=0.5), {0: 16, 1: 9, 2: 4}),
    ],
)
def test_what_may_come_and_how_often(sampling, weights):
    total = sum(weights.values())
    assert drawn(FOUR, sampling) == pytest.approx(
        {token: math.log(weight / total) for token, weight in weights.items()}, abs=ROUNDING
    )


def test_rows_of_a_batch_do_not_change_each_other():
    generator = torch.Generator().manual_seed(0)
    ways = [how(), how(top_k=5), how(min_p=0.2), how(top_p=0.5), how(temperature=0.0)]
    logits = 3 * torch.randn(len(ways), 50, generator=generator)
    uniforms = np.linspace(0.05, 0.95, len(ways))
    tokens, logprobs = draw(logits, uniforms, ways)
    for row, way in enumerate(ways):
        alone = draw(logits[row : row + 1], uniforms[row : row + 1], [way])
        assert alone == ([tokens[row]], [logprobs[row]])


@pytest.mark.parametrize(
    "way", [how(top_k=7), how(top_p=0.8), how(min_p=0.1), how(temperature=0.7, top_k=20, top_p=0.9)]
)
def test_the_distribution_is_that_of_transformers_own_processors(way):
    from transformers.generation import logits_process as theirs

    logits = 2 * torch.randn(1, 60, generator=torch.Generator().manual_seed(1))
    processors = [
        theirs.TemperatureLogitsWarper(way.temperature) if way.temperature != 1 else None,
        theirs.MinPLogitsWarper(way.min_p) if way.min_p else None,
        theirs.TopKLogitsWarper(way.top_k) if way.top_k else None,
        theirs.TopPLogitsWarper(way.top_p) if way.top_p < 1 else None,
    ]
    expected = logits
    for processor in filter(None, processors):
        expected = processor(None, expected)
    expected = expected.log_softmax(-1)[0]
    for uniform in np.linspace(0.01, 0.99, 40):
        (token,), (logprob,) = draw(logits, np.array([uniform]), [way])
        assert logprob == pytest.approx(expected[token].item(), abs=ROUNDING)


def test_tokens_without_probability_are_never_drawn_at_the_edges():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    assert draw(logits, np.array([0.0]), [how()])[0] == [1]
    assert draw(logits, np.array([1 - 2**-53]), [how()])[0] == [2]
    for only in (0, 5, MAX_SUMMED, 2 * MAX_SUMMED + 76):  # of a long vocabulary
        logits = torch.full((3, 2 * MAX_SUMMED + 77), -torch.inf)
        logits[:, only] = 0.0
        assert draw(logits, np.array([0.0, 0.5, 1 - 2**-53]), [how()] * 3) == ([only] * 3, [0.0] * 3)


def test_a_stream_depends_on_its_seed_and_position_only_and_is_uniform():
    together = RandomStreams([1, 2, 1]).at([5, 5, 6])
    assert RandomStreams([1]).at([6])[0] == together[2]
    assert len(set(together)) == 3
    many = RandomStreams([7] * 20_000 + list(range(20_000))).at([*range(20_000), *[3] * 20_000])
    assert 0.0 <= many.min() < many.max() < 1.0
    for stream in (many[:20_000], many[20_000:]):
        counts = np.histogram(stream, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi squared, 19 degrees of freedom, p < 0.001
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.03
    assert len(set(RandomStreams([-1, 2**63, 2**80 + 5, 5]).at([0, 0, 0, 0]))) == 3  # 2**80 + 5 ≡ 5 modulo 2**64


def test_a_long_vocabulary_is_drawn_from_as_a_short_one_is():
    num_tokens, num_rows = 2 * MAX_SUMMED + 77, 400
    logits = torch.randn(1, num_tokens, generator=torch.Generator().manual_seed(2))
    logits[:, ::3] = -torch.inf
    sums = np.cumsum(logits.double().softmax(-1)[0].numpy())
    uniforms = np.linspace(0.0, 1 - 2**-53, num_rows)
    tokens, logprobs = draw(logits.expand(num_rows, -1), uniforms, [how()] * num_rows)
    off_by = [
        max(sums[token - 1] - uniform, uniform - sums[token]) for token, uniform in zip(tokens, uniforms, strict=True)
    ]
    assert max(off_by) < 1e-6
    assert all(token % 3 for token in tokens) and len(set(tokens)) > 300
    assert logprobs == pytest.approx(logits.double().log_softmax(-1)[0, tokens].tolist(), abs=ROUNDING)
