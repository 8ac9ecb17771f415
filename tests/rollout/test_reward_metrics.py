"""What rewards follow, with numbers worked by hand."""

from __future__ import annotations

import pytest
from midthought.rollout.reward_metrics import reward_metrics

from midthought.types import Completion, Finish, Reward, Task, Trajectory, Turn


def episode(task: str, ids: tuple[int, ...], reward: float | None, text: str = "") -> Trajectory:
    trajectory = Trajectory(Task(task_id=task, prompt="", answer=""), [1])
    trajectory.add_sampled(Completion(token_ids=ids, sampled_logprobs=(-1.0,) * len(ids), finish=Finish.END))
    trajectory.end_turn(Turn(model_output=text))
    trajectory.reward = None if reward is None else Reward(parts={"paid": reward})
    return trajectory


def test_a_reward_that_is_the_number_of_tokens_or_characters_follows_the_length():
    by_tokens = [episode("a", (2,) * n, float(n)) for n in (1, 2, 4)]
    assert reward_metrics(by_tokens)["episode/reward_by_length"] == pytest.approx(1.0)
    by_characters = [episode("a", (2,), -float(len(text)), text) for text in ("red", "blue", "green")]
    assert reward_metrics(by_characters)["episode/reward_by_length"] == pytest.approx(-1.0)


def test_half_a_correlation_explains_a_quarter():
    done = [episode("a", (2,) * n, reward) for n, reward in ((1, 0.0), (2, 1.0), (3, 0.5))]
    assert reward_metrics(done)["episode/reward_by_length"] == pytest.approx(0.25)


def test_rewards_are_compared_among_episodes_of_one_prompt_and_of_one_text():
    done = [episode("a", (2,), 0.0), episode("a", (2,), 1.0), episode("a", (3,), 2.0), episode("b", (2,), 9.0)]
    metrics = reward_metrics([*done, episode("a", (2,), None)])
    assert metrics["episode/same_text"] == 1 and metrics["episode/same_prompt"] == 2
    assert metrics["episode/same_text_std"] == pytest.approx(0.5**0.5)
    assert metrics["episode/same_prompt_std"] == pytest.approx(1.0)


def test_without_anything_to_compare_nothing_is_logged():
    assert reward_metrics([episode("a", (2,), 1.0), episode("b", (2,), 1.0)]) == {}
    assert reward_metrics([episode("a", (2,), None)]) == {}


@pytest.mark.parametrize("rewards", [(0.0, 1e-200), (0.0, 1e150), (1e-320, 0.0)])
def test_rewards_of_extreme_size_end_no_run(rewards):
    metrics = reward_metrics([episode("a", (2,) * n, reward) for n, reward in enumerate(rewards, start=1)])
    assert abs(metrics.get("episode/reward_by_length", 0.0)) <= 1.0 + 1e-9
