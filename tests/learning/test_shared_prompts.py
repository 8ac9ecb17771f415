"""A prompt that the rows of a group share is computed once, and nothing but the time changes."""

import copy
import logging

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from precision import compute_in_float64
from training_settings import changed, gradients_of, training

from midthought import ConfigStore
from midthought.learning.batch import TokenBatch, boundaries
from midthought.learning.forward import ModelInputs
from midthought.learning.learner import Learner
from midthought.learning.micro_batching import rows_together
from midthought.learning.model import add_adapters
from midthought.models.memory import KEY_SHARE, MIN_SAVED

SETTINGS = training(adv_estimator="grpo", mini_batch_size=100, max_grad_norm=1e9, entropy_coef=0.01)
GROUPS = st.lists(
    st.tuples(
        st.integers(0, 30),  # tokens of the prompt
        st.lists(
            st.tuples(st.integers(2, 12), st.just(0) | st.integers(0, 2**12 - 1)), min_size=1, max_size=5
        ),  # own tokens, their mask
    ),
    min_size=1,
    max_size=4,
)


def batch_of(groups, *, order=None) -> TokenBatch:
    """Rows of the groups one after another, or in this order."""
    draw = torch.Generator().manual_seed(len(groups))
    rows, masks, numbers = [], [], []
    for number, (length, samples) in enumerate(groups):
        prompt = torch.randint(3, 48, (length,), generator=draw)
        for own, bits in samples:
            rows.append(torch.cat([prompt, torch.randint(3, 48, (own,), generator=draw)]))
            mask = torch.tensor([False] * length + [bool(bits >> place & 1) for place in range(own)])
            mask[0] = False
            mask[-1] = bits > 0 or not rows  # a row may need nothing
            masks.append(mask)
            numbers.append(7 - number)
    count, num_tokens = len(rows), sum(map(len, rows))
    batch = TokenBatch(
        token_ids=torch.cat(rows),
        cu_seqlens=boundaries(torch.tensor([len(row) for row in rows])),
        loss_mask=torch.cat(masks),
        sampled_logprobs=torch.zeros(num_tokens),
        rewards=torch.zeros(num_tokens),
        turns=torch.zeros(num_tokens, dtype=torch.int64),
        episodes=torch.arange(count),
        groups=torch.tensor(numbers),
        temperatures=1 + torch.rand(num_tokens, generator=draw),
        advantages=torch.randn(num_tokens, generator=draw),
        old_logprobs=torch.zeros(num_tokens),
    )
    return batch if order is None else batch.select(torch.tensor(order))


@given(GROUPS)
@settings(deadline=None)
def test_what_is_shared_is_equal_in_the_group_and_nothing_is_predicted_from_it(groups):
    batch = batch_of(groups)
    rows, masks = ([*tensor.split(batch.lengths.tolist())] for tensor in (batch.token_ids, batch.loss_mask))
    for group in batch.groups.unique():
        of_group = (batch.groups == group).nonzero()[:, 0].tolist()
        expected = 0
        while all(
            expected < len(rows[row]) - 1
            and not masks[row][expected + 1]
            and rows[row][expected] == rows[of_group[0]][expected]
            for row in of_group
        ):
            expected += 1
        saved = expected * (len(of_group) - 1)
        if saved < MIN_SAVED * sum(len(rows[row]) for row in of_group):
            expected = 0
        assert {int(batch.shared_lengths[row]) for row in of_group} == {expected}


@given(GROUPS, st.integers(1, 150), st.integers(1, 6))
@settings(deadline=None)
def test_rows_of_a_group_are_computed_together_within_the_budget(groups, max_tokens, at_least):
    batch = batch_of(groups)
    shared = batch.shared_lengths
    units, sizes = rows_together(batch.lengths, shared, batch.groups, max_tokens, at_least)
    assert sorted(torch.cat(units).tolist()) == list(range(len(batch)))
    assert len(units) >= min(at_least, len(batch))
    for rows, size in zip(units, sizes.tolist(), strict=True):
        assert len(rows) == 1 or size <= max_tokens
        assert len(set(batch.groups[rows].tolist())) == 1
        copies = sum(-(-int(shared[row]) // KEY_SHARE) for row in rows)
        assert size == int(batch.lengths[rows].sum()) - (len(rows) - 1) * int(shared[rows[0]]) + copies
    for group in batch.groups.unique():
        of_group = [rows for rows in units if batch.groups[rows[0]] == group]
        length = sum(map(len, of_group))
        together = int(rows_together(batch.lengths, shared, batch.groups, 10**6)[1].max())
        if at_least == 1 and together <= max_tokens and shared[of_group[0][0]]:
            assert len(of_group) == 1, f"{length} rows are cut"


def test_rows_that_are_left_of_a_split_group_have_at_most_max_tokens_if_sharing_does_not_pay_for_them():
    batch = batch_of([(60, [(300, 1)] * 8)])  # saves 420 of 2,880 tokens; of two rows 60 of 720
    parts = batch.micro_batch_rows(680, packed="shared")
    assert sorted(torch.cat(parts).tolist()) == list(range(8))
    passes = [ModelInputs.of(batch.select(rows), packed="shared").arguments["input_ids"] for rows in parts]
    assert max(tokens.shape[1] for tokens in passes) <= 680


@given(
    GROUPS, st.sampled_from([64, 100, 4096]), st.sampled_from(["plain", "adapters", "recomputed", "blocks"]), st.data()
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_log_probabilities_and_gradients_are_those_of_separate_rows_to_float64(
    make_policy, groups, max_tokens, way, data
):
    batch = batch_of(groups)
    order = data.draw(st.permutations(range(len(batch))))
    with pytest.MonkeyPatch.context() as patched:
        compute_in_float64(patched)
        policy = make_policy().double()
        if way == "adapters":
            torch.manual_seed(0)
            policy = add_adapters(policy, 2, 4).double()
        changes = {
            "micro_batch_tokens": max_tokens,
            "gradient_checkpointing": way == "recomputed",
            "logits_mib": 48 * 4 * 5 / 2**20 if way == "blocks" else 64,
        }
        found = []
        for packing, rows in ((True, batch), ("shared", batch.select(torch.tensor(order)))):
            learner = Learner(copy.deepcopy(policy), None, None, changed(SETTINGS, packing=packing, **changes))
            scored = learner.score(rows)[0]
            learner.update(scored.with_fields(advantages=rows.advantages))
            found.append((scored.old_logprobs, gradients_of(learner)))
    places = batch.tokens_of(torch.tensor(order))
    torch.testing.assert_close(found[1][0], found[0][0][places], atol=1e-10, rtol=0)
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
        ("Mistral", {"sliding_window": 12}),  # names no types of layers, and its window is longer than the probe
    ],
)
def test_a_model_whose_layers_see_only_a_window_computes_rows_one_by_one_and_the_log_says_so(
    make_policy, caplog, kind, options
):
    policy = make_policy(kind, **options)
    batch = batch_of([(20, [(5, 31), (9, 200)])])
    with caplog.at_level(logging.WARNING):
        scores = [
            Learner(policy, None, None, changed(SETTINGS, packing=way)).score(batch)[0] for way in ("shared", True)
        ]
    assert torch.equal(scores[0].old_logprobs, scores[1].old_logprobs)
    assert "computed once per sample: it has layers that see only a window" in caplog.text


@pytest.mark.parametrize(("packing", "expected"), [("shared", True), (True, True), (False, False)])
def test_a_deterministic_run_shares_nothing(packing, expected):
    config = ConfigStore(training={"packing": packing})
    assert config.frozen().training.packing == packing
    config.inference.deterministic = True
    assert config.frozen().training.packing is expected
