"""Batches: how trajectories become tensors, and that cutting them loses and changes nothing."""

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.errors import RecordError
from midthought.learning.batch import TokenBatch
from midthought.learning.model import PPOBatch
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory, Turn

TASK = Task(task_id="t", prompt="?", answer="!")


def trajectory_of(
    *parts: tuple[str, list[int]], reward: float = 1.0, logprob: float = -0.5, group: int = 0, task: Task = TASK
) -> Trajectory:
    """Parts: p(rompt), s(ampled), t(ool), d(emonstrated), in order; a later p begins a segment, an e ends a turn."""
    event = ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)
    trajectory = Trajectory(task, parts[0][1], group=group)
    for kind, ids in parts[1:]:
        if kind == "p":
            trajectory.begin_segment(ids)
        elif kind == "s":
            logprobs = (logprob,) * len(ids)
            trajectory.add_sampled(Completion(token_ids=tuple(ids), sampled_logprobs=logprobs, finish=Finish.END))
        elif kind == "t":
            trajectory.add_results([event], ids)
        elif kind == "d":
            trajectory.add_demonstrated(ids)
        else:
            trajectory.end_turn(Turn(turn_number=len(trajectory), model_output=""))
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
    flat = batch.flat()
    assert (flat.num_tokens, flat.num_policy_tokens, flat.num_episodes, len(flat), len(batch)) == (8, 4, 2, 2, 2)


def test_every_segment_is_a_row_and_the_reward_sits_on_the_last_policy_token_of_all():
    trajectory = trajectory_of(("p", [1]), ("s", [5, 6]), ("p", [1, 2]), ("s", [7]), ("p", [1, 2, 3]))
    other = trajectory_of(("p", [4]), ("s", [8]), ("t", [9]), reward=3.0)
    batch = PPOBatch.from_trajectories([trajectory, other])
    assert batch.token_ids.tolist() == [[1, 5, 6], [1, 2, 7], [4, 8, 9]]
    assert batch.episodes.tolist() == [0, 0, 1]
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


def test_a_batch_without_a_policy_token_is_refused():
    with pytest.raises(RecordError, match="no policy token in 1 trajectories"):
        PPOBatch.from_trajectories([trajectory_of(("p", [1]))])
    with pytest.raises(RecordError, match="no policy token in 0 trajectories"):
        PPOBatch.from_trajectories([])


TURNS = [("p", [1]), ("s", [5, 6]), ("t", [7]), ("s", [8]), ("e", []), ("t", [9]), ("s", [3]), ("e", []), ("s", [4])]
"""Policy tokens 5 6 8 are turn 0, 3 is turn 1, 4 belongs to a turn that was never finished."""


SHORT = [("p", [1]), ("s", [5, 6])]
WORKED = {
    "a turn's reward is at its last policy token, that of the parts at the very last": (
        TURNS, Reward(parts={"right": 0.5, "form": 0.25}, turns=(2.0, -1.0)),
        "turns", [[-1, 0, 0, -1, 0, -1, 1, 2]], [[0, 0, 0, 0, 2.0, 0, -1.0, 0.75]],
    ),
    "turns run on over the segments": (
        [("p", [1]), ("s", [5]), ("e", []), ("p", [2, 2]), ("p", [1, 2]), ("s", [6, 7]), ("e", []), ("s", [8])],
        Reward(turns=(1.0, 2.0)),
        "turns", [[-1, 0, -1, -1, -1], [-1, -1, 1, 1, 2]], [[0, 1.0, 0, 0, 0], [0, 0, 0, 2.0, 0]],
    ),
    "two calls in a thought make three steps, with a reward at the end of each call": (
        [("p", [1]), ("s", [5, 6]), ("t", [7, 8]), ("s", [5]), ("t", [9]), ("s", [3, 4]), ("e", [])],
        Reward(parts={"right": 0.5}, calls=(2.0, -1.0)),
        "calls", [[-1, 0, 0, -1, -1, 1, -1, 2, 2]], [[0, 0, 2.0, 0, 0, -1.0, 0, 0, 0.5]],
    ),
    "parallel calls are one step, whose rewards add up with the turn's": (
        [("p", [1]), ("s", [5, 6]), ("e", []), ("t", [7]), ("t", [8]), ("s", [3]), ("e", [])],
        Reward(turns=(4.0, 0.5), calls=(2.0, -1.0)),
        "calls", [[-1, 0, 0, -1, -1, 1]], [[0, 0, 5.0, 0, 0, 0.5]],
    ),
    "call steps run on over turns and segments": (
        [("p", [1]), ("s", [5]), ("t", [7]), ("s", [6]), ("e", []), ("p", [2, 2]), ("s", [3]), ("t", [7]), ("s", [4])],
        Reward(calls=(2.0, -1.0)),
        "calls", [[-1, 0, -1, 1, -1], [-1, -1, 1, -1, 2]], [[0, 2.0, 0, 0, 0], [0, 0, -1.0, 0, 0]],
    ),
    "a call before any policy token has no step": (
        [("p", [1]), ("t", [7]), ("s", [5]), ("t", [7]), ("s", [6])],
        Reward(parts={"right": 1.0}),
        "calls", [[-1, -1, 0, -1, 1]], [[0, 0, 0, 0, 1.0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WORKED)
def test_steps_and_their_rewards_are_as_worked_by_hand(case):
    parts, reward, kind, steps, rewards = WORKED[case]
    trajectories = [trajectory_of(*parts), trajectory_of(*SHORT)]
    trajectories[0].reward = reward
    batch = PPOBatch.from_trajectories(trajectories)
    padding = [-1] * (batch.token_ids.shape[1] - 3)
    assert getattr(batch, kind).tolist() == [*steps, [-1, 0, 0, *padding]]
    assert batch.rewards.tolist()[:-1] == rewards
    assert not case.startswith("parallel") or list(trajectories[0].rewards) == [5.0, 0.5]
    assert torch.equal(getattr(batch.flat(), kind), getattr(TokenBatch.from_trajectories(trajectories), kind))


@pytest.mark.parametrize(("broken", "place"), [([4], 2), ([1, 2, 4], 6)])
def test_a_reward_whose_own_token_left_the_mask_goes_to_the_one_before_it_or_else_to_the_first(broken, place):
    trajectory = trajectory_of(*TURNS)
    trajectory.reward = Reward(turns=(2.0,))
    for index in broken:
        trajectory.segments[0].sampled_logprobs[index] = math.nan
    batch = PPOBatch.from_trajectories([trajectory])
    assert batch.rewards.nonzero().tolist() == [[0, place]] and float(batch.rewards.sum()) == 2.0
    assert batch.num_unscored == len(broken)


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=5),
    paid=st.lists(st.floats(-10, 10, width=32), min_size=5, max_size=5),
    broken=st.sets(st.integers(0, 20)),
)
def test_the_rewards_of_a_row_sum_up_to_the_episodes_whatever_left_the_mask(turns, paid, broken):
    parts = [("p", [1])]
    for runs in turns:
        parts += [*(item for length in runs for item in (("s", [5] * length), ("t", [7]))), ("e", [])]
    trajectory = trajectory_of(*parts)
    trajectory.reward = Reward(parts={"right": 1.5}, turns=tuple(paid[: len(turns)]))
    sampled = [index for index, flag in enumerate(trajectory.loss_mask) if flag]
    for number in broken & set(range(len(sampled) - 1)):
        trajectory.segments[0].sampled_logprobs[sampled[number]] = -math.inf
    batch = PPOBatch.from_trajectories([trajectory])
    assert float(batch.rewards.sum()) == pytest.approx(trajectory.reward.total, abs=1e-4)
    assert not batch.rewards[~batch.loss_mask].any()
    numbers = batch.turns[batch.loss_mask].tolist()
    assert numbers == sorted(numbers) and set(numbers) <= set(range(len(turns)))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Reward(parts={"right": math.nan}), "the reward for 'right' is nan"),
        (Reward(turns=(0.0, math.inf)), "the reward for 'turn 1' is inf"),
        (Reward(turns=(1.0, 1.0, 1.0)), "rewards for 3 turns, but 2 were finished"),
        (Reward(calls=(1.0, 1.0, 1.0)), "rewards for 3 calls, but 2 were made"),
    ],
)
def test_a_reward_that_does_not_fit_its_record_names_the_task_and_the_part(reward, message):
    trajectory = trajectory_of(*TURNS)
    trajectory.reward = reward
    with pytest.raises(RecordError, match=f"task 't': {message}"):
        PPOBatch.from_trajectories([trajectory])


def test_the_value_of_a_turn_is_that_before_its_first_policy_token():
    two = trajectory_of(("p", [1]), ("s", [5]), ("t", [7]), ("s", [6]), ("e", []), ("p", [1]), ("s", [8]), ("e", []))
    batch = TokenBatch.from_trajectories([two, trajectory_of(*TURNS)])
    values = torch.arange(batch.num_tokens).float()
    first, last, other = (row.tolist() for row in values.split(batch.lengths.tolist()))
    found = batch.with_fields(values=values).turn_values()
    assert found == {0: {0: first[1], 1: last[1]}, 1: {0: other[1], 1: other[6], 2: other[7]}}
    with pytest.raises(ValueError, match="score it with a critic"):
        batch.turn_values()


def test_padding_and_flattening_give_the_same_batch(make_trajectory):
    batch = TokenBatch.from_trajectories([make_trajectory(seed) for seed in range(4)], policy_version=1)
    batch = batch.with_fields(values=batch.token_ids.float(), temperatures=batch.token_ids.float())
    again = PPOBatch(batch, pad_token_id=7).flat()
    for field in fields(TokenBatch):
        value, its_value = getattr(batch, field.name), getattr(again, field.name)
        assert torch.equal(value, its_value) if isinstance(value, torch.Tensor) else value == its_value


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=25), max_tokens=st.integers(1, 120))
def test_micro_batches_hold_every_row_once_within_the_budget_and_without_needless_padding(lengths, max_tokens):
    trajectories = [trajectory_of(("p", [1]), ("s", [5] * length)) for length in lengths]
    batch = TokenBatch.from_trajectories(trajectories)
    rows = batch.micro_batch_rows(max_tokens)
    assert sorted(torch.cat(rows).tolist()) == list(range(len(lengths)))
    for micro in map(batch.select, rows):
        padded = PPOBatch(micro)
        assert padded.token_ids.shape[1] == int(micro.lengths.max())
        assert padded.token_ids.numel() <= max_tokens or len(micro) == 1
    again = TokenBatch.from_trajectories(trajectories).micro_batch_rows(max_tokens)
    assert all(torch.equal(one, other) for one, other in zip(rows, again, strict=True))


def test_a_budget_of_nothing_is_refused(make_trajectory):
    with pytest.raises(ValueError, match="max_tokens must be above 0, got 0"):
        TokenBatch.from_trajectories([make_trajectory(1)]).micro_batch_rows(0)


def test_selecting_rows_takes_every_field_along(make_trajectory):
    batch = TokenBatch.from_trajectories([make_trajectory(seed) for seed in range(4)])
    batch = batch.with_fields(old_logprobs=batch.token_ids.float(), values=-batch.token_ids.float())
    chosen = batch.select(torch.tensor([3, 1]))
    rows = batch.token_ids.split(batch.lengths.tolist())
    assert torch.equal(chosen.token_ids, torch.cat([rows[3], rows[1]]))
    assert torch.equal(chosen.cu_seqlens, torch.tensor([0, len(rows[3]), len(rows[3]) + len(rows[1])]))
    assert torch.equal(chosen.old_logprobs, chosen.token_ids.float())
    assert torch.equal(chosen.values, -chosen.token_ids.float())
    assert chosen.reference_logprobs is None
    assert chosen.episodes.tolist() == [3, 1]


@pytest.mark.parametrize(("num_episodes", "size"), [(5, 2), (33, 32), (64, 32), (65, 32), (31, 32), (1, 32)])
def test_mini_batches_keep_the_segments_of_an_episode_together_and_divide_the_episodes_evenly(num_episodes, size):
    """33 episodes, 32 at most in a step: a last step of one episode would weigh as much as the one of 32 before it."""
    trajectories = [
        trajectory_of(("p", [1]), ("s", [5]), *([("p", [1]), ("s", [6])] if number % 2 else []))
        for number in range(num_episodes)
    ]
    batch = TokenBatch.from_trajectories(trajectories)
    minis = list(batch.mini_batches(size, torch.Generator().manual_seed(3)))
    seen = [sorted(set(mini.episodes.tolist())) for mini in minis]
    assert sorted(episode for episodes in seen for episode in episodes) == list(range(num_episodes))
    assert sum(len(mini) for mini in minis) == len(batch) == num_episodes + num_episodes // 2
    sizes = [len(episodes) for episodes in seen]
    assert len(sizes) == math.ceil(num_episodes / size) and max(sizes) <= size and max(sizes) - min(sizes) <= 1
    in_order = [episode for mini in batch.mini_batches(size) for episode in mini.episodes.tolist()]
    assert in_order == batch.episodes.tolist(), "without a generator"


def test_an_episodes_segments_stand_side_by_side_and_come_back():
    two = trajectory_of(("p", [1]), ("s", [5, 6]), ("p", [1]), ("s", [7]), group=9)
    one = trajectory_of(("p", [4]), ("s", [8]), group=2)
    batch = TokenBatch.from_trajectories([two, one])
    figure = torch.arange(7.0)
    wide = batch.by_episode(figure, missing=-1)
    assert wide.tolist() == [[0, 1, 2, 3, 4], [5, 6, -1, -1, -1]]
    assert torch.equal(batch.by_token(wide), figure)
    assert batch.of_episodes(batch.groups).tolist() == [9, 2]
    assert batch.token_episodes.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert batch.by_episode(batch.loss_mask).dtype == torch.bool
