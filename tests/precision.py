"""How far two computations of one figure may differ by rounding, from the precision of what is compared.

The order of a sum depends on the processor: its vector width, its number of cores, its library of kernels. So does the
rounding error. A tolerance taken from the result of one processor fails on another.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch


def tolerance(dtype: torch.dtype, magnitude: float = 1.0, num_operations: int = 1) -> float:
    """Largest difference between two computations in `dtype` that rounding explains: 4 · √num_operations · eps · magnitude.

    magnitude: the largest intermediate result, such as the logits of a log-probability (a relative tolerance: 1).
    num_operations: roundings that add up in one figure, such as the length of a sum, or of all sums on the way from the
    inputs to it. eps: the distance from 1 to the next number of `dtype`; one rounding is off by at most eps / 2.

    Rounding errors are nearly independent and of mean 0, so n of them add up to about √n · eps / 2 (Higham and Mary,
    "A New Approach to Probabilistic Rounding Error Analysis", 2019, theorem 2.4). Both computations have such an error:
    a factor of √2. The rest of the factor, 5.7, is the distance from the standard deviation that no test ever sees.
    """
    return 4 * sqrt(num_operations) * torch.finfo(dtype).eps * magnitude


def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, conversions to float32 give float64.

    The models of transformers compute their norms, their rotary embeddings and the softmax of attention in float32, also
    if their weights are float64. Gradients of a norm's weight are then summed over all tokens in float32 (Cohere,
    Gemma 2): two layouts of a batch differ by 1e-8, which says nothing about the code that is tested.
    """
    for owner, name in ((torch.Tensor, "to"), (torch.nn.functional, "softmax")):
        monkeypatch.setattr(owner, name, _widened(getattr(owner, name)))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def _widened(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def widen(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        return function(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})

    return call


def logit_tolerance(model: Any, num_tokens: int = 64, magnitude: float = 8.0) -> float:
    """`tolerance` of the logits and the log-probabilities of a decoder, in the type of its weights.

    Terms of the sums on the way to a logit: in each layer 6 · hidden_size (two norms, the maps before and after attention,
    scores, the first map of the MLP), `num_tokens` (attention) and intermediate_size; then hidden_size (the head) and
    vocab_size (the softmax). Logits of the tests' random models are below 8.
    """
    config = model.config
    intermediate_size = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    per_layer = 6 * config.hidden_size + intermediate_size + num_tokens
    num_operations = config.num_hidden_layers * per_layer + config.hidden_size + config.vocab_size
    return tolerance(model.dtype, magnitude, num_operations)
