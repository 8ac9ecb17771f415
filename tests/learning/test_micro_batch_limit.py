"""Out of memory while learning: the step is repeated with smaller micro-batches, and the result is the same."""

import logging
from collections.abc import Callable

import pytest
import torch
from training_settings import prepared, training, weights_of

from midthought.errors import SettingsError
from midthought.learning import passes
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import Critic
from midthought.learning.passes import MicroBatchLimit

LARGE = 4096


def learner_of(make_policy, **changes) -> Learner:
    policy = make_policy(seed=0)
    return Learner(policy, Critic.separate(policy), None, training(learning_rate=1e-3, **changes))


@pytest.fixture
def fits_only(monkeypatch) -> Callable[..., None]:
    """Makes larger passes of a learner's policy raise, after `fails_after` complete ones, as CUDA does."""

    def limit(learner: Learner, num_tokens: int, *, fails_after: int = 0) -> None:
        num_passes, forward = 0, passes.token_outputs

        def limited(model, micro, *arguments, **options):
            nonlocal num_passes
            if model is learner.policy:
                if micro.num_tokens > num_tokens and num_passes >= fails_after:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
                num_passes += 1
            return forward(model, micro, *arguments, **options)

        monkeypatch.setattr(passes, "token_outputs", limited)

    return limit


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([weights_of(learner.policy), weights_of(learner.critic)])


def ppo(learner: Learner, batch: TokenBatch) -> dict[str, float]:
    return learner.update(prepared(learner, batch))


@pytest.mark.parametrize("step", [Learner.sft_step, ppo])
def test_the_step_is_the_one_of_small_micro_batches_from_the_start(make_policy, batch, step, caplog, fits_only):
    longest = int(batch.lengths.max())
    full = batch.num_tokens * 4
    large, small = learner_of(make_policy, micro_batch_tokens=full), None
    fits_only(large, max(2 * longest, full // 8))
    with caplog.at_level(logging.WARNING):
        first = step(large, batch)
    num_halvings = int(first["num_halved_micro_batches"])
    assert num_halvings >= 1
    assert f"at most {full // 2**num_halvings} tokens" in caplog.text and "training.micro_batch_tokens=" in caplog.text
    small = learner_of(make_policy, micro_batch_tokens=full // 2**num_halvings)
    expected = step(small, batch)
    assert torch.equal(weights(large), weights(small))
    assert {**expected, "num_halved_micro_batches": num_halvings} == first
    assert step(large, batch) == step(small, batch), "the smaller size is kept"


def test_gradients_of_the_failed_attempt_are_dropped(make_policy, batch, fits_only):
    longest = int(batch.lengths.max())
    size = 2 * longest
    large, small = (learner_of(make_policy, micro_batch_tokens=tokens) for tokens in (size, size // 2))
    fits_only(large, longest, fails_after=1)
    large.sft_step(batch)
    small.sft_step(batch)
    assert torch.equal(weights(large), weights(small))


def test_passes_without_a_step_are_repeated_too(make_policy, batch, fits_only):
    learner, full = learner_of(make_policy, micro_batch_tokens=LARGE), batch.num_tokens
    expected = learner.sft_loss(batch)
    fits_only(learner, full - 1)
    assert learner.sft_loss(batch) == pytest.approx(expected)
    other = learner_of(make_policy, micro_batch_tokens=LARGE)
    fits_only(other, full - 1)
    other.sft_gradients(batch)


def fails(limit: MicroBatchLimit) -> None:
    for attempt in limit.attempts(LARGE):
        with attempt:
            raise torch.OutOfMemoryError("CUDA out of memory.")


def test_out_of_memory_outside_of_a_micro_batch_is_no_reason_to_make_it_smaller(batch):
    limit = MicroBatchLimit(is_alone=True)

    for attempt in limit.attempts(LARGE):
        with attempt:
            limit.current = batch
    with pytest.raises(torch.OutOfMemoryError):
        fails(limit)
    assert limit.max_tokens(LARGE) == LARGE


def test_a_row_that_does_not_fit_is_reported_with_its_length_and_the_remedy(make_policy, batch, fits_only):
    learner = learner_of(make_policy, micro_batch_tokens=LARGE)
    fits_only(learner, 1)
    with pytest.raises(SettingsError, match=r"row of \d+ tokens; .*gradient_checkpointing=true"):
        learner.sft_step(batch)


def test_one_of_several_ranks_reports_instead_of_repeating(batch):
    limit = MicroBatchLimit(is_alone=False)
    limit.current = batch

    with pytest.raises(
        SettingsError, match=r"several ranks cannot repeat a step: set training\.micro_batch_tokens=2048"
    ):
        fails(limit)
