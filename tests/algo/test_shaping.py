"""DAPO's overlong punishment, by hand."""

import pytest

from midthought.algo.shaping import overlong_penalty


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (95, -0.75), (100, -1.0), (101, -1.0), (10**9, -1.0)],
)
def test_the_penalty_falls_along_a_line_within_the_buffer(num_tokens, penalty):
    assert overlong_penalty(num_tokens, max_tokens=100, buffer_tokens=20) == pytest.approx(penalty)


def test_the_buffer_may_be_the_whole_length():
    assert overlong_penalty(25, max_tokens=100, buffer_tokens=100) == pytest.approx(-0.25)


@pytest.mark.parametrize("buffer_tokens", [0, -1, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer_tokens):
    with pytest.raises(ValueError, match=f"between 1 and max_tokens=100 tokens, got {buffer_tokens}"):
        overlong_penalty(5, max_tokens=100, buffer_tokens=buffer_tokens)
