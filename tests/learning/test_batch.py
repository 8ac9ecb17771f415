"""Batches: how trajectories become tensors, and that cutting them loses and changes nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.errors import RecordError
from midthought.learning.batch import PPOBatch
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def trajectory_of(
    *parts: tuple[str, list[int]], reward: float = 1.0, logprob: float = -0.5, group: int = 0
) -> Trajectory:
    """Parts: p(rompt), s(ampled), t(ool), d(emonstrated), in order; a later p begins a segment."""
    event = ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)
    trajectory = None
    for kind, ids in parts:
        if trajectory is None:
            trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), ids, group=group)
        elif kind == "p":
            trajectory.begin_segment(ids)
        elif kind == "s":
            logprobs = (logprob,) * len(ids)
            trajectory.add_sampled(Completion(token_ids=tuple(ids), sampled_logprobs=logprobs, finish=Finish.END))
        elif kind == "t":
            trajectory.add_results([event], ids)
        elif kind == "d":
            trajectory.add_demonstrated(ids)
    trajectory.reward = Reward(parts={"right": reward})
    return trajectory


def test_rows_are_padded_on_the_right_and_the_mask_is_that_of_the_record():
    long = trajectory_of(("p", [1, 2]), ("s", [5, 6]), ("t", [7]), ("s", [3]), reward=0.5)
    short = trajectory_of(("p", [1]), ("s", [9]), reward=2.0, group=4)
    batch = PPOBatch.from_trajectories([long, short], pad_token_id=99)
    assert batch.token_ids.tolist() == [[1, 2, 5, 6, 7, 3], [1, 9, 99, 99, 99, 99]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.sampled_logprobs.tolist() == [[0, 0, -0.5, -0.5, 0, -0.5], [0, -0.5, 0, 0, 0, 0]]
    assert batch.rewards.tolist() == [[0, 0, 0, 0, 0, 0.5], [0, 2.0, 0, 0, 0, 0]]
    assert batch.attention_mask.int().tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch.position_ids.tolist() == [list(range(6))] * 2
    assert batch.groups.tolist() == [0, 4]
    assert (batch.num_tokens, batch.num_policy_tokens, batch.num_episodes, len(batch)) == (8, 4, 2, 2)


def test_the_reward_sits_on_the_last_policy_token_even_where_a_tool_speaks_last():
    batch = PPOBatch.from_trajectories([trajectory_of(("p", [1]), ("s", [5, 6]), ("t", [7, 8]))])
    assert batch.rewards.tolist() == [[0, 0, 1.0, 0, 0]]


def test_every_segment_is_a_row_and_only_the_last_with_policy_tokens_carries_the_reward():
    trajectory = trajectory_of(("p", [1]), ("s", [5, 6]), ("p", [1, 2]), ("s", [7]), ("p", [1, 2, 3]))
    other = trajectory_of(("p", [4]), ("s", [8]), reward=3.0)
    batch = PPOBatch.from_trajectories([trajectory, other])
    assert batch.token_ids.tolist() == [[1, 5, 6], [1, 2, 7], [4, 8, 0]]
    assert batch.episodes.tolist() == [0, 0, 1]
    assert batch.segments.tolist() == [0, 1, 0]
    assert batch.rewards.tolist() == [[0, 0, 0], [0, 0, 1.0], [0, 3.0, 0]]


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_tokens_without_a_finite_sampled_logprob_leave_the_mask_and_are_counted(broken):
    trajectory = trajectory_of(("p", [1]), ("s", [5, 6]))
    trajectory.segments[0].sampled_logprobs[2] = broken
    batch = PPOBatch.from_trajectories([trajectory])
    assert batch.loss_mask.tolist() == [[False, True, False]]
    assert batch.rewards.tolist() == [[0, 1.0, 0]]
    assert batch.num_unscored == 1
    assert torch.isfinite(batch.sampled_logprobs).all()


def test_demonstrations_keep_all_their_tokens_though_none_was_sampled():
    trajectory = trajectory_of(("p", [1]), ("d", [5, 6]), ("t", [7]), ("d", [8]))
    batch = PPOBatch.from_trajectories([trajectory], demonstrations=True)
    assert batch.loss_mask.int().tolist() == [[0, 1, 1, 0, 1]]
    assert batch.num_unscored == 0
    assert not batch.sampled_logprobs.any()


def test_a_batch_without_a_policy_token_is_refused():
    with pytest.raises(RecordError, match="no policy token in 1 trajectories"):
        PPOBatch.from_trajectories([trajectory_of(("p", [1]))])
    with pytest.raises(RecordError, match="no policy token in 0 trajectories"):
        PPOBatch.from_trajectories([])


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=25), max_tokens=st.integers(1, 120))
def test_micro_batches_hold_every_row_once_within_the_budget_and_without_needless_padding(lengths, max_tokens):
    trajectories = [trajectory_of(("p", [1]), ("s", [5] * length)) for length in lengths]
    batch = PPOBatch.from_trajectories(trajectories)
    rows = batch.micro_batch_rows(max_tokens)
    assert sorted(torch.cat(rows).tolist()) == list(range(len(lengths)))
    for micro in batch.micro_batches(max_tokens):
        assert micro.token_ids.shape[1] == int(micro.lengths.max())
        assert micro.token_ids.numel() <= max_tokens or len(micro) == 1
    again = PPOBatch.from_trajectories(trajectories).micro_batch_rows(max_tokens)
    assert all(torch.equal(one, other) for one, other in zip(rows, again, strict=True))


def test_a_budget_of_nothing_is_refused(make_trajectory):
    with pytest.raises(ValueError, match="max_tokens must be above 0, got 0"):
        PPOBatch.from_trajectories([make_trajectory(1)]).micro_batch_rows(0)


def test_selecting_rows_takes_every_field_along(make_trajectory):
    batch = PPOBatch.from_trajectories([make_trajectory(seed) for seed in range(4)])
    batch = batch.with_fields(old_logprobs=batch.token_ids.float(), values=-batch.token_ids.float())
    chosen = batch.select(torch.tensor([3, 1]))
    width = int(batch.lengths[[3, 1]].max())
    assert torch.equal(chosen.old_logprobs, batch.token_ids[[3, 1], :width].float())
    assert torch.equal(chosen.values, -chosen.token_ids.float())
    assert chosen.reference_logprobs is None
    assert chosen.episodes.tolist() == [3, 1]


def test_mini_batches_keep_the_segments_of_an_episode_together_and_take_every_episode_once():
    trajectories = [
        trajectory_of(("p", [1]), ("s", [5]), *([("p", [1]), ("s", [6])] if number % 2 else [])) for number in range(5)
    ]
    batch = PPOBatch.from_trajectories(trajectories)
    minis = list(batch.mini_batches(2, torch.Generator().manual_seed(3)))
    seen = [sorted(set(mini.episodes.tolist())) for mini in minis]
    assert sorted(episode for episodes in seen for episode in episodes) == [0, 1, 2, 3, 4]
    assert [len(episodes) for episodes in seen] == [2, 2, 1]
    assert sum(len(mini) for mini in minis) == len(batch) == 7
    assert [mini.episodes.tolist() for mini in batch.mini_batches(3)] == [[0, 1, 1, 2], [3, 3, 4]]


def test_an_episodes_segments_stand_side_by_side_and_come_back():
    two = trajectory_of(("p", [1]), ("s", [5, 6]), ("p", [1]), ("s", [7]), group=9)
    one = trajectory_of(("p", [4]), ("s", [8]), group=2)
    batch = PPOBatch.from_trajectories([two, one])
    figure = torch.arange(9.0).reshape(3, 3)
    wide = batch.by_episode(figure)
    assert wide.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 0, 0, 0]]
    assert torch.equal(batch.by_row(wide), figure)
    assert batch.episode_groups.tolist() == [9, 2]
    assert batch.by_episode(batch.loss_mask).dtype == torch.bool
