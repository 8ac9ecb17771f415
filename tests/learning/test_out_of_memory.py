"""Out of memory while learning: the error names the micro-batch and the setting that makes it fit."""

import re

import pytest
import torch
from training_settings import training

from midthought.errors import SettingsError
from midthought.learning import passes
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner


def fails(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")


@pytest.mark.parametrize("use", [Learner.score, Learner.sft_step, Learner.sft_loss])
def test_a_micro_batch_that_does_not_fit_is_reported_with_its_size_and_the_remedy(make_policy, batch, use, monkeypatch):
    learner = Learner(make_policy(seed=0), None, None, training(micro_batch_tokens=batch.num_tokens * 4))
    monkeypatch.setattr(passes, "token_outputs", fails)
    smaller = max(64, int(batch.lengths.max()), batch.num_tokens // 2)
    size = rf"micro-batch of {batch.num_tokens} tokens in {len(batch)} rows"
    with pytest.raises(
        SettingsError, match=rf"{size}.*training.micro_batch_tokens={smaller}, .*new one with .*20.00 MiB.\)$"
    ):
        use(learner, batch)
    single = batch.select(torch.tensor([0]))
    with pytest.raises(SettingsError, match=r"in 1 rows.* resume the run with training.gradient_checkpointing=true"):
        use(learner, single)


def test_the_remedy_for_a_shared_prompt_is_a_smaller_size_than_the_present_one(
    make_policy, make_trajectory, monkeypatch
):
    """A micro-batch counts the prompt of a group once."""
    rows = [make_trajectory(seed, prompt=[5] * 200) for seed in range(8)]
    batch, size = TokenBatch.from_trajectories(rows), 700
    assert batch.num_tokens > 2 * size
    learner = Learner(make_policy(seed=0), None, None, training(micro_batch_tokens=size, packing="shared"))
    monkeypatch.setattr(passes, "token_outputs", fails)
    with pytest.raises(SettingsError, match=r"of \d+ tokens in 8 rows, .*micro_batch_tokens=\d+, ") as raised:
        learner.sft_step(batch)
    of_rows, smaller = re.search(r"batch of (\d+) tokens.*micro_batch_tokens=(\d+)", str(raised.value)).groups()
    assert int(smaller) < int(of_rows) <= size


def test_out_of_memory_outside_of_a_micro_batch_is_left_as_it_is(make_policy, batch):
    learner = Learner(make_policy(seed=0), None, None, training())
    learner.sft_loss(batch)
    learner.optimizer.zero_grad = lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory"))
    with pytest.raises(torch.OutOfMemoryError):
        learner.sft_step(batch)
