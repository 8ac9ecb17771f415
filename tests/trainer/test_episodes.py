import pytest

from midthought import Reward, RolloutData, SettingsError, Task, Trajectory
from midthought.learning.harvest import Harvest, PPOPlan
from midthought.trainer.episodes import sort_episodes


def episode(group, total):
    trajectory = Trajectory(Task(task_id=str(group), prompt="?", answer="!"), [1], group=group)
    trajectory.reward = None if total is None else Reward(parts={"r": total})
    return trajectory


def data(*pairs):
    return RolloutData(trajectories=[episode(group, total) for group, total in pairs])


def plan(**options):
    return PPOPlan(**{"batch_size": 4, "group_size": 2, "pad_token_id": 0, **options})


def totals(harvest):
    return [(trajectory.group, trajectory.reward.total) for trajectory in harvest.usable]


def test_broken_episodes_are_left_out_and_groups_stand_together():
    harvest = sort_episodes(data((1, 0.5), (0, 1.0), (1, 2.0), (0, None)), plan(), None)
    assert totals(harvest) == [(1, 0.5), (1, 2.0), (0, 1.0)]
    assert len(harvest.data) == 4


def test_flat_groups_are_left_out_and_counted_where_the_plan_says_so():
    brought = data((0, 1.0), (0, 1.0), (1, 0.0), (1, 1.0), (2, 3.0))
    harvest = sort_episodes(brought, plan(drop_flat_groups=True), None)
    assert totals(harvest) == [(1, 0.0), (1, 1.0)]
    assert harvest.metrics == {"batch/num_flat_groups": 2}
    assert len(sort_episodes(brought, plan(), None).usable) == 5


def test_the_surplus_of_ones_own_rollout_is_left_out_but_not_of_what_is_brought():
    six = data((0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0))
    rolled_out = Harvest(data=six, metrics={"batch/num_surplus_groups": 1})
    harvest = sort_episodes(six, plan(), rolled_out)
    assert totals(harvest) == totals(sort_episodes(six, plan(), None))[:4]
    assert harvest.metrics == {"batch/num_surplus_groups": 1}


def test_baselines_follow_their_groups_whatever_became_of_the_rewards():
    rolled_out_data = data((0, 0.0), (0, None), (1, 1.0), (1, 1.0), (2, 1.0))
    first, second, third, fourth, fifth = rolled_out_data.trajectories
    rolled_out = Harvest(data=rolled_out_data, usable=[first, third, fourth], baselines=[0.25, 0.5, 0.5])
    second.reward, third.reward = Reward(parts={"r": 7.0}), None
    harvest = sort_episodes(rolled_out_data, plan(greedy_baseline=True, batch_size=6), rolled_out)
    assert harvest.usable == [first, second, fourth]
    assert harvest.baselines == [0.25, 0.25, 0.5]
    assert fifth not in harvest.usable, "the greedy episode of its group broke"


def test_some_of_the_rollouts_episodes_may_be_chosen():
    own = data((0, 0.0), (0, 1.0), (1, 0.0))
    rolled_out = Harvest(data=own, usable=own.trajectories, baselines=[0.1, 0.1, 0.2])
    chosen = RolloutData(trajectories=own.trajectories[1:])
    assert sort_episodes(chosen, plan(greedy_baseline=True), rolled_out).baselines == [0.1, 0.2]


def test_episodes_without_the_baseline_that_the_plan_asks_for_are_refused():
    with pytest.raises(SettingsError, match="remax"):
        sort_episodes(data((0, 1.0)), plan(greedy_baseline=True), None)
    with pytest.raises(SettingsError, match="no episode"):
        sort_episodes(RolloutData(), plan(), None)
