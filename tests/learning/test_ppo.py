"""The PPO loop: which tasks an iteration gets, what reaches the learner, and that a resumed run goes on the same."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midthought.learning.ppo import PPOPlan, draw_tasks, rollout_metrics, run_ppo
from midthought.types import Completion, Finish, Reward, RolloutData, StopReason, Task, Trajectory

TASKS = [Task(task_id=f"t{number}", prompt="?", answer="!") for number in range(7)]


def plan(**changes) -> PPOPlan:
    fields = {"num_iters": 5, "batch_size": 4, "group_size": 1, "seed": 0, "pad_token_id": 0, **changes}
    return PPOPlan(**fields)


class FakeSource:
    """Every episode is [prompt, 5, 6]; those named in `failing` broke."""

    def __init__(self, failing=()):
        self.failing = set(failing)
        self.asked: list[tuple[int, list[str]]] = []
        self.log: list[str] = []

    def rollout(self, tasks, *, iteration, group_size):
        self.asked.append((iteration, [task.task_id for task in tasks]))
        self.log.append("rollout")
        return RolloutData(trajectories=[self.play(task) for task in tasks], seconds=0.5)

    def play(self, task):
        trajectory = Trajectory(task, [1])
        trajectory.add_sampled(Completion(token_ids=(5, 6), sampled_logprobs=(-1.0, -2.0), finish=Finish.END))
        if task.task_id in self.failing:
            trajectory.stop_reason = StopReason.FAILED
        else:
            trajectory.stop_reason = StopReason.ANSWERED
            trajectory.reward = Reward(parts={"correct": 1.0})
        return trajectory

    def update_weights(self):
        self.log.append("weights")


class FakeLearner:
    def __init__(self, log):
        self.log = log
        self.batches = []
        self.critic_only = []

    def score(self, batch):
        self.log.append("score")
        return batch, {"scored": 1.0}

    def credit(self, batch):
        self.log.append("credit")
        return batch, {"credited": 1.0}

    def update(self, batch, *, critic_only=False):
        self.log.append("update")
        self.batches.append(batch)
        self.critic_only.append(critic_only)
        return {"updated": 1.0}


def run(num_iters=5, start=0, failing=(), **changes):
    source = FakeSource(failing)
    learner = FakeLearner(source.log)
    told = []
    run_ppo(
        source,
        learner,
        TASKS,
        plan(num_iters=num_iters, **changes),
        start=start,
        on_iteration=lambda done, metrics, data: told.append((done, metrics)),
    )
    return source, learner, told


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5))
def test_each_pass_covers_every_task_exactly_once(num_tasks, num_groups, group_size, seed):
    tasks = [Task(task_id=str(number), prompt="?", answer="!") for number in range(num_tasks)]
    settings = plan(batch_size=num_groups * group_size, group_size=group_size, seed=seed)
    drawn = [task for iteration in range(num_tasks) for task in draw_tasks(tasks, settings, iteration)]
    firsts = drawn[::group_size]
    for begin in range(0, len(firsts), num_tasks):
        assert sorted(task.task_id for task in firsts[begin : begin + num_tasks]) == sorted(
            str(n) for n in range(num_tasks)
        )


def test_the_episodes_of_a_group_stand_in_a_row():
    drawn = draw_tasks(TASKS, plan(batch_size=12, group_size=3), 0)
    assert [len(set(map(id, drawn[begin : begin + 3]))) for begin in range(0, 12, 3)] == [1] * 4
    assert Counter(task.task_id for task in drawn).most_common(1)[0][1] == 3


def test_what_is_drawn_is_a_function_of_the_seed_and_the_iteration_alone():
    settings = plan(batch_size=5)
    later = draw_tasks(TASKS, settings, 9)
    for iteration in range(9):
        draw_tasks(TASKS, settings, iteration)
    assert draw_tasks(TASKS, settings, 9) == later
    orders = {tuple(task.task_id for task in draw_tasks(TASKS, plan(batch_size=7, seed=seed), 0)) for seed in range(5)}
    passes = {tuple(task.task_id for task in draw_tasks(TASKS, plan(batch_size=7), number)) for number in range(5)}
    assert len(orders) > 1 and len(passes) > 1


def test_an_iteration_rolls_out_scores_credits_updates_and_only_then_hands_the_weights_over():
    source, _, told = run(num_iters=2)
    assert source.log == ["rollout", "score", "credit", "update", "weights"] * 2
    assert [done for done, _ in told] == [1, 2]
    metrics = told[0][1]
    assert {"scored", "credited", "updated", "reward/mean", "batch/num_unscored_tokens"} <= metrics.keys()
    assert metrics["time/rollout_seconds"] == 0.5 and metrics["time/tokens_per_second"] > 0


@pytest.mark.parametrize("start", [1, 3, 5])
def test_a_run_that_goes_on_from_an_iteration_gets_the_tasks_that_it_would_have_had(start):
    whole, _, _ = run()
    rest, _, told = run(start=start)
    assert rest.asked == whole.asked[start:]
    assert [done for done, _ in told] == list(range(start + 1, 6))


def test_only_the_critic_learns_in_the_first_iterations_also_after_going_on():
    assert run(critic_warmup_iters=2)[1].critic_only == [True, True, False, False, False]
    assert run(critic_warmup_iters=2, start=1)[1].critic_only == [True, False, False, False]


def test_episodes_that_broke_do_not_reach_the_learner_and_are_counted():
    _, learner, told = run(num_iters=2, batch_size=7, failing={"t1", "t4"})
    assert [len(batch.lengths) for batch in learner.batches] == [5, 5]
    assert told[0][1]["episode/failed"] == pytest.approx(2 / 7)
    assert told[0][1]["reward/mean"] == 1.0


def test_an_iteration_in_which_every_episode_broke_changes_no_weights_and_is_told():
    source, learner, told = run(num_iters=1, batch_size=7, failing={task.task_id for task in TASKS})
    assert source.log == ["rollout"] and learner.batches == []
    assert told[0][1]["episode/failed"] == 1.0


def test_the_batch_holds_what_the_policy_wrote():
    batch = run(num_iters=1)[1].batches[0]
    assert batch.token_ids.tolist() == [[1, 5, 6]] * 4
    assert torch.equal(batch.loss_mask, torch.tensor([[False, True, True]] * 4))


def test_the_figures_of_an_iteration_by_hand():
    source = FakeSource()
    done = [source.play(task) for task in TASKS[:3]]
    done[1].reward = Reward(parts={"correct": 0.0})
    done[2].stop_reason, done[2].reward = StopReason.FAILED, None
    metrics = rollout_metrics(done)
    assert metrics["reward/mean"] == 0.5 and metrics["reward/std"] == 0.5 and metrics["reward/correct"] == 0.5
    assert metrics["episode/answered"] == pytest.approx(2 / 3) and metrics["episode/failed"] == pytest.approx(1 / 3)
    assert metrics["episode/policy_tokens"] == metrics["episode/response_tokens"] == 2.0
    assert metrics["episode/calls"] == 0.0
