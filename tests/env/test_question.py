import asyncio
import threading
import time

import pytest

from midthought.config import RewardConfig
from midthought.env.environment import EpisodeError
from midthought.env.episode import QuestionEnvironment
from midthought.env.rewards import answer_reward, combine_rewards
from midthought.types import StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory, Turn

WORDS = {1: "<think>", 2: "hm", 3: "</think>", 4: "red", 5: "blue", 6: "<end>", 7: "#call", 8: "I don't know."}


def decode(token_ids):
    return "".join(WORDS[token_id] for token_id in token_ids)


def episode(*token_ids, num_calls=0):
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="red"), [1])
    for _ in range(num_calls):
        trajectory.add_demonstrated([7])
        trajectory.add_results([ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)], [2])
    trajectory.add_demonstrated(token_ids)
    trajectory.end_turn(Turn(model_output=decode(token_ids[:-1]), begins_in_thought=True))
    trajectory.stop_reason = StopReason.ANSWERED
    return trajectory


PAID = [
    (episode(2, 3, 4, 6), {"correct": 1.0, "thought": 0.1, "calls": 0.0}),
    (episode(2, 3, 5, 6), {"correct": 0.0, "thought": 0.1, "calls": 0.0}),
    (episode(3, 4, 6, num_calls=2), {"correct": 1.0, "thought": 0.1, "calls": -0.2}),
    (episode(4, 6), {"correct": 0.0, "thought": 0.0, "calls": 0.0}),
]


def test_the_reward_of_the_settings_pays_answer_and_thought_and_takes_for_calls():
    for trajectory, parts in PAID:
        reward = answer_reward(RewardConfig())
        found = asyncio.run(QuestionEnvironment(reward).score(trajectory))
        assert dict(found.parts) == pytest.approx(parts)


def test_a_wrong_answer_costs_what_the_settings_say_and_an_abstention_nothing():
    reward = answer_reward(RewardConfig(wrong_answer=1.0))
    right, wrong, abstained = (reward(episode(2, 3, token, 6)).parts for token in (4, 5, 8))
    assert (right["correct"], right["wrong_answer"]) == (1.0, 0.0)
    assert (wrong["correct"], wrong["wrong_answer"]) == (0.0, -1.0)
    assert (abstained["correct"], abstained["wrong_answer"]) == (0.0, 0.0)
    assert reward(episode(2, 2)).parts["wrong_answer"] == 0.0  # the thought was not closed: no answer


def test_a_reward_that_blocks_holds_nobody_up():
    together = threading.Barrier(8)

    def slow(trajectory):
        together.wait(60)  # for the other seven
        return 1.0

    async def score_many():
        environment = QuestionEnvironment(combine_rewards([slow]), 100.0)
        return await asyncio.gather(*(environment.score(episode(4)) for _ in range(8)))

    assert [reward.total for reward in asyncio.run(score_many())] == [1.0] * 8


def test_a_reward_that_hangs_is_given_up():
    for is_async in [False, True]:

        async def hangs_politely(trajectory):
            await asyncio.sleep(60)

        function = hangs_politely if is_async else lambda trajectory: time.sleep(1)
        environment = QuestionEnvironment(combine_rewards([("hangs", 1.0, function)]), 0.05)
        with pytest.raises(EpisodeError, match=r"the reward did not finish within 0\.05 seconds"):
            asyncio.run(environment.score(episode(4)))
