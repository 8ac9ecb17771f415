"""Environments under the rollout loop: what they are told and pay, how they break, statistics, closing."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
from stepping import Echo, begin, do

from midthought.config import EnvironmentConfig
from midthought.engines.scripted import ScriptedEngine, byte_tokenizer
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import EnvironmentTaskSampler
from midthought.env.episode import EnvironmentEpisode, episode_statistics
from midthought.env.rewards import WeightedReward, combine_rewards, well_formed_thought
from midthought.errors import EpisodeError
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, Finish, Reward, StopReason, Task, Trajectory, Turn
from midthought.types.turn import as_recorded


class Doing(BaseEnvironment):
    """Its `step` does what it was told to."""

    def __init__(self, action: Callable[[], Any], seconds: float = 30.0) -> None:
        super().__init__(EnvironmentConfig(step_timeout_seconds=seconds))
        self.action = action

    def reset(self) -> str:
        return "begin"

    def step(self, action: str) -> Any:
        return self.action()


class AsyncDoing(Doing):
    async def step(self, action: str) -> Any:
        done = self.action()
        return await done if asyncio.iscoroutine(done) else done


TASK = Task(task_id="t", prompt="start", answer="")


class Played:
    """An episode of a freshly reset environment, turn by turn as the loop records it."""

    def __init__(self, environment: BaseEnvironment, reward: WeightedReward | None = None) -> None:
        begin(environment)
        self.episode = EnvironmentEpisode(environment, reward)
        self.trajectory = Trajectory(TASK, [1])

    def write(self, text: str) -> Turn:
        self.trajectory.add_sampled(Completion(token_ids=(5,), sampled_logprobs=(-1.0,), finish=Finish.END))
        self.trajectory.end_turn(Turn(turn_number=len(self.trajectory.turns) + 1, model_output=text))
        return self.trajectory.turns[-1]

    async def reply(self, text: str) -> str | None:
        self.write(text)
        return await self.episode.reply(self.trajectory)

    def say(self, *texts: str) -> list[str | None]:
        """The replies, each of an event loop of its own."""
        return [asyncio.run(self.reply(text)) for text in texts]

    def score(self) -> Reward:
        return asyncio.run(self.episode.score(self.trajectory))


def failure(environment: BaseEnvironment) -> str:
    """What the first reply of a broken environment says."""
    with pytest.raises(EpisodeError) as caught:
        Played(environment).say("go")
    return str(caught.value)


def test_the_environment_is_told_what_follows_the_last_thought():
    told = {"go": "go", "<think>Hm.</think>\n\ngo": "go", "<think>go, and no answer": "", "é🦉\ud800": "é🦉\ud800"}
    assert Played(Echo()).say(*told) == [f"heard {action!r}" for action in told.values()]


def test_a_reply_fills_the_turn_in_and_the_end_of_the_episode_is_none():
    played = Played(Echo())
    assert played.say("one", "end") == ["heard 'one'", None]
    first, last = played.trajectory.turns
    assert (first.model_output, first.observation, first.reward, first.done) == ("one", "heard 'one'", 3.0, False)
    assert (last.observation, last.reward, last.done, last.info) == ("heard 'end'", 3.0, True, {"success": True})
    assert played.trajectory.dones == [False, True] and played.trajectory.rewards == [3.0, 3.0]
    played.write("cut off by the limit")
    assert played.score() == Reward(turns=(3.0, 3.0, 0.0))


def test_all_steps_of_an_environment_with_its_own_loop_run_on_the_same_loop():
    """Connections belong to a loop; the rollout's loop lives for one iteration only."""
    loops = []

    async def answer() -> Any:
        loops.append(asyncio.get_running_loop())
        return "seen", 0.0, False, {}

    Played(AsyncDoing(answer)).say("a", "b")
    assert len(loops) == 2 and loops[0] is loops[1]


def raising(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


@pytest.mark.parametrize("kind", [Doing, AsyncDoing])
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit("enough"), KeyboardInterrupt("stop")])
def test_a_step_that_raises_is_told_with_the_environments_name(kind, error):
    message = failure(kind(raising(error)))
    assert message.startswith(f"{kind.__name__}.step raised ") and str(error) in message
    assert Played(Echo()).say("go") == ["heard 'go'"], "the others play on"


@pytest.mark.parametrize("kind", [Doing, AsyncDoing])
def test_a_step_that_blocks_is_given_up_at_its_deadline(kind):
    """Even a coroutine that blocks the environments' own loop."""
    release = threading.Event()
    try:
        message = failure(kind(lambda: release.wait(60), seconds=0.05))
    finally:
        release.set()
    remedy = "make it faster or raise environment.step_timeout_seconds"
    assert message == f"{kind.__name__}.step did not finish within 0.05 seconds; {remedy}"


def test_a_step_that_cancels_itself_is_a_failure_and_a_cancelled_rollout_cancels_the_step():
    assert "cancelled itself" in failure(AsyncDoing(raising(asyncio.CancelledError())))
    cancelled = threading.Event()

    async def wait() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def give_up(played: Played) -> None:
        reply = asyncio.ensure_future(played.reply("go"))
        await asyncio.sleep(0.05)
        reply.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reply

    asyncio.run(give_up(Played(AsyncDoing(wait))))
    assert cancelled.wait(30)


def test_a_reward_function_of_record_and_environment_replaces_what_the_environment_paid():
    paid = combine_rewards([("reward_fn", 1.0, lambda record, environment: len(record.turns) + environment.is_done())])
    played = Played(Echo(), paid)
    played.say("go", "go")
    assert played.score() == Reward(parts={"reward_fn": 2.0})


def test_steps_that_a_tool_took_are_counted_and_may_end_the_episode():
    environment = Echo()
    played = Played(environment)
    assert played.say("go") == ["heard 'go'"]
    environment.step("by a tool")
    assert played.score() == Reward(parts={"steps_by_tools": 9.0}, turns=(2.0,))
    environment.step("end")
    assert played.say("more") == [None] and environment.get_step_count() == 3
    assert played.score() == Reward(parts={"steps_by_tools": 12.0}, turns=(2.0, 0.0))


def test_an_environment_with_counts_of_its_own_is_paid_what_its_steps_returned():
    class Own(Echo):
        def get_step_count(self) -> int:
            return 7

        def get_episode_reward(self) -> float:
            return 100.0

    played = Played(Own())
    played.say("go", "end")
    assert played.score() == Reward(turns=(2.0, 3.0))


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_info_of_a_last_step_that_a_tool_took_is_in_the_record(is_cut):
    environment = Echo()
    played = Played(environment)
    played.say("go")
    environment.step("end")
    if is_cut:
        played.write("an answer without an end")
    else:
        played.say("done")
    played.trajectory.reward = played.score()
    assert [turn.info for turn in played.trajectory.turns] == [{"success": False}, {"success": True}]
    assert episode_statistics([played.trajectory])["success_share"] == 1.0


def test_an_info_in_the_record_does_not_change_with_the_environments_objects():
    board, lock = [], threading.Lock()

    def move() -> Any:
        board.append("x")
        return "moved", 0.0, False, {"board": board, "lock": lock}

    played = Played(Doing(move))
    played.say("a", "b")
    assert [turn.info["board"] for turn in played.trajectory.turns] == [["x"], ["x", "x"]]
    assert played.trajectory.turns[0].info["lock"] is lock, "what cannot be copied is shared"
    copied = copy.deepcopy(played.episode.environment)
    do(copied, "c")
    assert copied.get_step_count() == 3 and played.episode.environment.get_step_count() == 2
    itself: dict[str, Any] = {"lock": lock, "board": board}
    itself["itself"] = itself
    assert as_recorded(itself)["board"] is not board


def finished(*turns: tuple[float, dict], stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    played = Played(Echo())
    for paid, info in turns:
        turn = played.write("go")
        turn.reward, turn.info = paid, info
    played.trajectory.stop_reason, played.trajectory.reward = stop, played.score()
    return played.trajectory


def test_statistics_worked_by_hand():
    trajectories = [
        finished((1.0, {"truncated": True}), (2.0, {"success": True})),  # something else that is cut, not the episode
        finished((0.0, {"success": True}), (-1.0, {"success": False})),
        finished((0.5, {"truncated": True}), stop=StopReason.MAX_STEPS),
        finished(*[(0.0, {})] * 3, stop=StopReason.MAX_TURNS),
    ]
    returns = {"return_mean": 0.625, "return_min": -1.0, "return_max": 3.0}
    shares = {"truncated_share": 0.5, "success_share": 0.25}
    assert episode_statistics(trajectories) == {"num_episodes": 4.0, **returns, "steps_mean": 2.0, **shares}


def test_statistics_leave_out_failed_episodes_and_success_that_nobody_spoke_of():
    broken, played = finished(stop=StopReason.FAILED), finished((1.0, {}))
    broken.reward, played.reward = None, Reward(parts={"reward_fn": 7.0})
    statistics = episode_statistics([broken, played])
    assert statistics["num_episodes"] == 1.0 and statistics["return_mean"] == 7.0
    assert "success_share" not in statistics
    assert episode_statistics([broken]) == episode_statistics([]) == {"num_episodes": 0.0}


class Timed(Echo):
    def step(self, action: str) -> tuple[str, float, bool, dict]:
        is_late = self.get_step_count() == 1
        return "more", 1.0, is_late, {"truncated": is_late}


@pytest.mark.parametrize("world", [Timed(EnvironmentConfig(max_steps=None)), Echo(EnvironmentConfig(max_steps=2))])
def test_an_episode_that_the_environment_cuts_by_itself_or_at_the_limit_of_the_settings_is_truncated(world):
    played = Played(world)
    assert played.say("a", "b")[1] is None
    assert played.episode.is_truncated and played.trajectory.dones == [False, True]


class Closing(Echo):
    """Counts in a list that its copies share how often they were closed."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __deepcopy__(self, memo: dict[int, Any]) -> Closing:
        twin = type(self)(self.log)
        twin.reset(seed=0)
        return twin

    def close(self) -> Any:
        self.log.append("closed")


class AsyncClosing(Closing):
    async def close(self) -> None:
        super().close()


class FailingToClose(Closing):
    def close(self) -> None:
        raise OSError("gone")


def run_with(environment: Closing, *, is_reset: bool = True) -> Trajectory:
    """An episode of a scripted policy whose thoughts have tags of their own, as training drives it."""
    if is_reset:
        environment.reset(seed=0)
    renderer = Renderer(byte_tokenizer())
    parts = RolloutParts(
        engine=ScriptedEngine(["[THINK]hm[/THINK]end<|im_end|>"], renderer),
        renderer=renderer,
        call_format=InThoughtFormat("inside", "[THINK]", "[/THINK]"),
        executor=ToolExecutor(ToolRegistry()),
        messages=lambda task: [{"role": "user", "content": task.prompt}],
        environment=lambda task: EnvironmentEpisode(environment, combine_rewards([well_formed_thought])),
    )
    (trajectory,) = asyncio.run(run_episodes(parts, [EpisodeStart(task=TASK, seed=0)]))
    return trajectory


def test_an_environment_is_closed_once_after_its_reward_or_failure_and_an_error_of_close_is_logged(caplog):
    for kind in [Closing, AsyncClosing]:
        world = kind([])
        assert run_with(world).reward == Reward(parts={"well_formed_thought": 1.0}) and world.log == ["closed"]
    world = Closing([])  # its first step is an error
    assert run_with(world, is_reset=False).stop_reason is StopReason.FAILED and world.log == ["closed"]
    assert run_with(FailingToClose([])).reward is not None
    assert "FailingToClose.close raised OSError: gone" in caplog.text


def test_starts_that_are_not_played_are_closed_before_the_next_ones():
    world = Closing([])
    tasks = EnvironmentTaskSampler(world, seed=0)
    tasks.draw(0, 2)
    assert world.log == []
    tasks.draw(1, 1)
    assert world.log == ["closed"] * 2
    tasks.close()
    tasks.close()
    assert world.log == ["closed"] * 3
