"""The PPO loop: which tasks an iteration gets, what reaches the learner, and that a resumed run goes on the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_batch import trajectory_of

from midthought.config import RecipeConfig, TrainingConfig
from midthought.learning.iteration import learn
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.rollout.selection import ShuffledTasks, collect
from midthought.types import Reward, RolloutData, StopReason, Task

TASKS = [Task(task_id=f"t{number}", prompt="?", answer="!") for number in range(7)]


def config_of(**training) -> RecipeConfig:
    changes = {"adv_estimator": "reinforce_plus_plus", "batch_size": 4, "group_size": 1, **training}
    return RecipeConfig(training=changes, inference={"max_tokens": 4}).frozen()


class FakeSource:
    """Every episode is [prompt, 5, 6]; those named in `failing` broke. `pay(task, number in the batch)`."""

    stream = None

    def __init__(self, failing=(), pay=lambda task, number: 1.0):
        self.failing, self.pay = failing, pay
        self.asked, self.log, self.options = [], [], []

    def rollout(self, tasks, *, iteration, group_size, **options):
        self.asked.append((iteration, [task.task_id for task in tasks]))
        self.log.append("rollout")
        self.options.append({"group_size": group_size, **options})
        played = [self.play(task, number) for number, task in enumerate(tasks)]
        return RolloutData(trajectories=played, seconds=0.5, policy_version=iteration)

    def play(self, task, number=0):
        trajectory = trajectory_of(("p", [1]), ("s", [5, 6]), reward=self.pay(task, number), task=task)
        trajectory.stop_reason = StopReason.ANSWERED
        if task.task_id in self.failing:
            trajectory.stop_reason, trajectory.reward = StopReason.FAILED, None
        return trajectory

    def sleep(self):
        self.log.append("sleep")

    def update_weights(self, load):
        load()
        self.log.append("weights")


class FakeLearner:
    """Changes nothing; keeps its batches, and what it was asked in a log."""

    training = TrainingConfig()
    device = torch.device("cpu")

    def __init__(self, log):
        self.log, self.batches, self.critic_only = log, [], []

    def score(self, batch):
        self.log.append("score")
        return batch, {"scored": 1.0}

    def credit(self, batch):
        self.log.append("credit")
        return batch, {"credited": 1.0}

    def load_policy(self):
        """The policy is where it is sampled from."""

    def update(self, batch, *, critic_only=False):
        self.log.append("update")
        self.batches.append(batch)
        self.critic_only.append(critic_only)
        return {"updated": 1.0}


def run(num_iters=5, *, start=0, source=None, make_learner=FakeLearner, **changes):
    """The source, the learner, and the metrics of each iteration from `start` on."""
    source, config, told = source or FakeSource(), config_of(**changes), []
    learner, tasks = make_learner(source.log), ShuffledTasks(TASKS, 0)
    for iteration in range(start, num_iters):
        rollouts = collect(source, tasks, config, iteration)
        source.played = rollouts.data.trajectories
        told.append(rollout_metrics(source.played) | learn(source, learner, config, rollouts, iteration))
    return source, learner, told


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 5))
def test_each_pass_covers_every_task_exactly_once(num_tasks, num_groups, seed):
    tasks = [Task(task_id=str(number), prompt="?", answer="!") for number in range(num_tasks)]
    stream = ShuffledTasks(tasks, seed)
    firsts = [task for iteration in range(num_tasks) for task in stream.draw(iteration, num_groups)]
    for begin in range(0, len(firsts), num_tasks):
        assert {task.task_id for task in firsts[begin : begin + num_tasks]} == {task.task_id for task in tasks}


def test_the_episodes_of_a_group_stand_in_a_row():
    source, _, _ = run(num_iters=1, batch_size=12, group_size=3)
    names = source.asked[0][1]
    assert [len(set(names[begin : begin + 3])) for begin in range(0, 12, 3)] == [1] * 4


def test_what_is_drawn_is_a_function_of_the_seed_and_the_iteration_alone():
    def names(seed, iteration, count):
        return tuple(task.task_id for task in ShuffledTasks(TASKS, seed).draw(iteration, count))

    stream = ShuffledTasks(TASKS, 0)
    for iteration in range(9):
        stream.draw(iteration, 5)
    assert tuple(task.task_id for task in stream.draw(9, 5)) == names(0, 9, 5)
    assert len({names(seed, 0, 7) for seed in range(5)}) > 1
    assert len({names(0, number, 7) for number in range(5)}) > 1
    first, again = stream.draw(0, 7), stream.draw(0, 7, attempt=1)
    assert first != again and sorted(map(id, first)) == sorted(map(id, again)) == sorted(map(id, TASKS))


def test_an_iteration_rolls_out_scores_credits_updates_and_only_then_hands_the_weights_over():
    source, _, told = run(num_iters=2)
    assert source.log == ["rollout", "sleep", "score", "credit", "update", "weights"] * 2
    metrics = told[0]
    assert {"scored", "credited", "updated", "reward/mean", "batch/num_unscored_tokens"} <= metrics.keys()
    assert metrics["time/rollout_seconds"] == 0.5
    assert {"time/scoring_seconds", "time/update_seconds", "time/weight_update_seconds"} <= metrics.keys()


def test_only_the_critic_learns_in_the_first_iterations_also_after_going_on():
    assert run(adv_estimator="gae", critic_warmup_iters=2)[1].critic_only == [True, True, False, False, False]
    assert run(adv_estimator="gae", critic_warmup_iters=2, start=1)[1].critic_only == [True, False, False, False]


def test_episodes_that_broke_do_not_reach_the_learner_and_are_counted():
    _, learner, told = run(2, source=FakeSource(failing={"t1", "t4"}), batch_size=7)
    assert [len(batch.lengths) for batch in learner.batches] == [5, 5]
    assert told[0]["episode/failed"] == pytest.approx(2 / 7)
    assert told[0]["reward/mean"] == 1.0


def test_an_iteration_in_which_every_episode_broke_changes_no_weights_and_is_told():
    source, learner, told = run(1, source=FakeSource(failing={task.task_id for task in TASKS}), batch_size=7)
    assert source.log == ["rollout"] and learner.batches == []
    assert told[0]["episode/failed"] == 1.0
    assert told[0]["batch/num_episodes"] == 0


EVEN = {task.task_id for task in TASKS[::2]}


GROUPED = {"batch_size": 8, "group_size": 2, "adv_estimator": "grpo"}


def run_grouped(num_iters, **options):
    """Groups of two, of which those of tasks with an even number have a spread."""
    source = FakeSource(pay=lambda task, number: float(number % 2) if task.task_id in EVEN else 1.0)
    return run(num_iters, source=source, **{**GROUPED, **options})


def learned(learner) -> list[list[int]]:
    return [batch.groups.tolist() for batch in learner.batches]


def test_groups_without_spread_are_dropped_and_counted_where_the_plan_says_so():
    source, learner, told = run_grouped(1)
    tasks = source.asked[0][1][::2]
    kept = [group for group, name in enumerate(tasks) if name in EVEN]
    assert 0 < len(kept) < 4
    assert learned(learner) == [[group for group in kept for _ in range(2)]]
    metrics = told[0]
    assert metrics["batch/num_flat_groups"] == 4 - len(kept) and metrics["batch/num_episodes"] == 2 * len(kept)
    assert metrics["reward/mean"] == pytest.approx((0.5 * len(kept) + 4 - len(kept)) / 4)


def test_a_group_of_which_one_episode_is_left_has_no_spread():
    class LosesOne(FakeSource):
        def play(self, task, number=0):
            trajectory = super().play(task, number)
            trajectory.reward = None if number == 3 else Reward(parts={"correct": float(number)})
            return trajectory

    _, learner, told = run(1, source=LosesOne(), batch_size=4, group_size=2, adv_estimator="grpo")
    assert learned(learner) == [[0, 0]] and told[0]["batch/num_flat_groups"] == 1


class Stepwise(FakeSource):
    """Episodes of two turns, or with two calls. Rewards of turns, calls or spans differ in their order alone."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def play(self, task, number=0):
        end = [("e", [])] if self.kind == "turns" else []
        trajectory = trajectory_of(("p", [1]), *[("s", [5]), *end, ("t", [9])] * 2, task=task)
        paid = ((1.0, 0.0), (0.0, 1.0))
        trajectory.reward = Reward(parts={"end": 1.0}, **{self.kind: paid[number % 2]})
        return trajectory


@pytest.mark.parametrize(
    ("kind", "estimator", "figure"), [("turns", "grpo_turns", "turns"), ("calls", "grpo_calls", "per_call")]
)
def test_a_group_is_flat_by_step_only_if_the_rewards_of_all_steps_agree(kind, estimator, figure):
    options = {"batch_size": 2, "group_size": 2, "overlong_buffer_tokens": 2}
    for name, flat in (("grpo", True), (estimator, False)):
        _, learner, (metrics,) = run(1, source=Stepwise(kind), adv_estimator=name, **options)
        assert metrics["batch/num_flat_groups"] == flat and bool(learner.batches) is not flat
        assert metrics[f"reward/{figure}"] == 1.0 and metrics["reward/mean"] == 1.0
        assert metrics["reward/overlong"] == -1.0


def test_dynamic_sampling_draws_further_tasks_until_the_batch_is_full():
    source, learner, told = run_grouped(1, max_dynamic_batches=5)
    metrics = told[0]
    assert [options.get("attempt", 0) for options in source.options] == list(range(len(source.options)))
    assert 1 < metrics["batch/num_rollouts"] == len(source.asked) <= 5
    assert {iteration for iteration, _ in source.asked} == {0}
    drawn = [name for _, names in source.asked for name in names[::2]]
    kept = [number for number, name in enumerate(drawn) if name in EVEN]
    assert learned(learner) == [[group for group in kept[:4] for _ in range(2)]]
    assert metrics["batch/num_surplus_groups"] == len(kept) - 4
    assert metrics["batch/num_flat_groups"] == len(drawn) - len(kept)
    assert metrics["time/rollout_seconds"] == 0.5 * len(source.asked)
    assert metrics["reward/mean"] == pytest.approx(1 - 0.5 * len(kept) / len(drawn))


def test_dynamic_sampling_goes_no_further_than_it_may_and_takes_what_there_is():
    source = FakeSource(pay=lambda task, number: float(number == 0))
    _, learner, (metrics,) = run(1, source=source, max_dynamic_batches=3, **GROUPED)
    assert len(source.asked) == 3
    assert learned(learner) == [[0, 0, 4, 4, 8, 8]]
    assert metrics["batch/num_rollouts"] == 3 and metrics["batch/num_episodes"] == 6


def test_the_overlong_penalty_is_a_part_of_the_reward_of_its_own():
    _, learner, told = run(1, overlong_buffer_tokens=4)
    # two tokens after the prompt, of at most four, all of them within the buffer
    assert told[0]["reward/overlong"] == pytest.approx(-0.5)
    assert told[0]["reward/mean"] == pytest.approx(0.5)
    batch = learner.batches[0]
    assert batch.by_episode(batch.rewards).sum(1).tolist() == pytest.approx([0.5] * 4)


def test_scored_episodes_get_the_critics_value_of_every_turn():
    class Scoring(FakeLearner):
        def score(self, batch):
            return batch.with_fields(values=batch.position_ids.float()), {}

    source, _, _ = run(1, source=Stepwise("turns"), make_learner=Scoring)
    assert [trajectory.values for trajectory in source.played] == [[1.0, 3.0]] * 4
    assert all(len(trajectory.values) == len(trajectory.states) for trajectory in source.played)
