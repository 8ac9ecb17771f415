import pytest

from midthought import Reward, RolloutData, SettingsError, Task, TrainingConfig, Trajectory
from midthought.rollout.selection import select
from midthought.types import Selection


def episode(group, total):
    trajectory = Trajectory(Task(task_id=str(group), prompt="?", answer="!"), [1], group=group)
    trajectory.reward = None if total is None else Reward(parts={"r": total})
    return trajectory


def data(*pairs):
    return RolloutData(trajectories=[episode(group, total) for group, total in pairs])


def training(estimator="reinforce_plus_plus", **changes):
    return TrainingConfig(adv_estimator=estimator, group_size=2, **{"batch_size": 4, **changes})


def totals(batch):
    return [(trajectory.group, trajectory.reward.total) for trajectory in batch.usable]


def test_broken_episodes_are_left_out_and_groups_stand_together():
    batch = select(data((1, 0.5), (0, 1.0), (1, 2.0), (0, None)), training(), None)
    assert totals(batch) == [(1, 0.5), (1, 2.0), (0, 1.0)]
    assert len(batch.data) == 4


def test_rewards_that_differ_only_by_rounding_are_equal():
    brought = data((0, 0.1 + 0.2), (0, 0.3), (1, 0.3), (1, 0.31))
    assert totals(select(brought, training("grpo"), None)) == [(1, 0.3), (1, 0.31)]


def test_the_surplus_of_ones_own_rollout_is_left_out_but_not_of_what_is_brought():
    six = data((0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0))
    rolled_out = Selection(data=six, metrics={"batch/num_surplus_groups": 1})
    batch = select(six, training(), rolled_out)
    assert totals(batch) == totals(select(six, training(), None))[:4]
    assert batch.metrics == {"batch/num_surplus_groups": 1}


def test_episodes_of_different_prompts_in_one_group_are_refused_where_groups_are_compared():
    brought = data((0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0))
    brought.trajectories[3].task = Task(task_id="1", prompt="another question", answer="!")
    message = r"group 1 has episodes of different prompts, '\?' and 'another question',.*: set trajectory.group to"
    with pytest.raises(SettingsError, match=message):
        select(brought, training("grpo"), None)
    assert len(select(brought, training(), None).usable) == 4
    brought.trajectories[3].group = 2
    assert len(select(brought, training("grpo"), None).usable) == 2


def test_some_of_the_rollouts_episodes_may_be_chosen():
    own = data((0, 0.0), (0, 1.0), (1, 0.0))
    rolled_out = Selection(data=own, usable=own.trajectories)
    chosen = RolloutData(trajectories=own.trajectories[1:])
    assert select(chosen, training(), rolled_out).usable == own.trajectories[1:]
