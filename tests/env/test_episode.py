"""Environments under the rollout loop: what they are told and pay, how they break, groups that begin alike, statistics."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from midthought.config import EnvironmentConfig
from midthought.engines.scripted import ScriptedEngine, byte_tokenizer
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import EnvironmentTaskSampler
from midthought.env.episode import EnvironmentEpisode, call_blocking, episode_statistics
from midthought.env.rewards import combine_rewards
from midthought.errors import EpisodeError, SettingsError
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.trainer.trainer import Trainer
from midthought.types import Completion, Finish, Reward, StopReason, Task, Trajectory, Turn


class Echo(BaseEnvironment):
    """Says what it was told and pays its length; `end` ends it. Begins with a number drawn from the seed."""

    def reset(self, seed: int | None = None) -> str:
        self.start = random.Random(seed).randrange(10**9)
        return f"start {self.start}"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        return f"heard {action!r}", float(len(action)), action == "end", {"success": action == "end"}

    def get_prompt_prefix(self) -> str:
        return "Say something."


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


class Locked(Echo):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def new_trajectory(prompt: str = "start") -> Trajectory:
    return Trajectory(Task(task_id="t", prompt=prompt, answer=""), [1])


def write(trajectory: Trajectory, text: str) -> Turn:
    """The policy's next turn, as the loop records it."""
    trajectory.add_sampled(Completion(token_ids=(5, 6), sampled_logprobs=(-1.0, -1.0), finish=Finish.END))
    trajectory.end_turn(Turn(turn_number=len(trajectory.turns) + 1, model_output=text))
    return trajectory.turns[-1]


def ready(environment: BaseEnvironment) -> BaseEnvironment:
    call_blocking(environment.reset, 30.0, "reset")
    return environment


def say(episode: EnvironmentEpisode, trajectory: Trajectory, *texts: str) -> list[str | None]:
    replies = []
    for text in texts:
        write(trajectory, text)
        replies.append(asyncio.run(episode.reply(trajectory)))
    return replies


def failure(environment: BaseEnvironment) -> str:
    """What the first reply of a broken environment says."""
    trajectory = new_trajectory()
    write(trajectory, "go")
    with pytest.raises(EpisodeError) as caught:
        asyncio.run(EnvironmentEpisode(ready(environment)).reply(trajectory))
    return str(caught.value)


# -- one episode -----------------------------------------------------------------------------------------------


WRITTEN = [
    ("go", "go"),
    ("<think>Hm.</think>\n\ngo", "go"),
    ("<think>go, and nothing after it", ""),
    ("é🦉\ud800", "é🦉\ud800"),
]


def test_the_environment_is_told_what_follows_the_last_thought():
    for written, action in WRITTEN:
        episode, trajectory = EnvironmentEpisode(ready(Echo())), new_trajectory()
        assert say(episode, trajectory, written) == [f"heard {action!r}"]


def test_a_reply_fills_the_turn_in_and_the_end_of_the_episode_is_none():
    episode, trajectory = EnvironmentEpisode(ready(Echo())), new_trajectory()
    assert say(episode, trajectory, "one", "end") == ["heard 'one'", None]
    first, last = trajectory.turns
    assert (first.turn_number, first.model_output, first.observation, first.reward, first.done) == (
        1, "one", "heard 'one'", 3.0, False,
    )  # fmt: skip
    assert (last.observation, last.reward, last.done, last.info) == ("heard 'end'", 3.0, True, {"success": True})
    assert trajectory.dones == [False, True] and trajectory.rewards == [3.0, 3.0]
    write(trajectory, "cut off by the limit")
    assert asyncio.run(episode.score(trajectory)) == Reward(turns=(3.0, 3.0, 0.0))


def test_all_steps_of_an_environment_with_its_own_loop_run_on_the_same_loop():
    """Connections belong to a loop; the rollout's loop lives for one iteration only."""
    loops = []

    async def answer() -> Any:
        loops.append(asyncio.get_running_loop())
        return "seen", 0.0, False, {}

    trajectory = new_trajectory()
    say(EnvironmentEpisode(ready(AsyncDoing(answer))), trajectory, "a", "b")  # each under an asyncio.run of its own
    assert len(loops) == 2 and loops[0] is loops[1]


# -- broken environments ---------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


@pytest.mark.parametrize("kind", [Doing, AsyncDoing])
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit("enough"), KeyboardInterrupt("stop")])
def test_a_step_that_raises_is_told_with_the_environments_name(kind, error):
    message = failure(kind(raising(error)))
    assert message.startswith(f"{kind.__name__}.step raised ") and str(error) in message
    assert say(EnvironmentEpisode(ready(Echo())), new_trajectory(), "go") == ["heard 'go'"], "the others play on"


@pytest.mark.parametrize("kind", [Doing, AsyncDoing])
def test_a_step_that_blocks_is_given_up_at_its_deadline(kind):
    """Even a coroutine that blocks the environments' own loop."""
    release = threading.Event()
    try:
        message = failure(kind(lambda: release.wait(60), seconds=0.05))
    finally:
        release.set()
    assert message == (
        f"{kind.__name__}.step did not finish within 0.05 seconds; make it faster or raise environment.step_timeout_seconds"
    )


def test_a_step_that_cancels_itself_is_a_failure_and_cancels_nobody_else():
    assert "cancelled itself" in failure(AsyncDoing(raising(asyncio.CancelledError())))


def test_a_cancelled_rollout_cancels_the_step():
    cancelled = threading.Event()

    async def wait() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def play() -> None:
        trajectory = new_trajectory()
        write(trajectory, "go")
        reply = asyncio.ensure_future(EnvironmentEpisode(environment).reply(trajectory))
        await asyncio.sleep(0.05)
        reply.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reply

    environment = ready(AsyncDoing(wait))
    asyncio.run(play())
    assert cancelled.wait(30)


# -- reward functions ------------------------------------------------------------------------------------------


def test_a_reward_function_of_record_and_environment_replaces_what_the_environment_paid():
    trajectory = new_trajectory()
    for reward in (1.0, 2.0):
        write(trajectory, "go").reward = reward
    paid = combine_rewards([("reward_fn", 1.0, lambda record, environment: len(record.turns) + environment.is_done())])
    assert asyncio.run(EnvironmentEpisode(ready(Echo()), paid).score(trajectory)) == Reward(parts={"reward_fn": 2.0})


def test_steps_that_a_tool_took_are_counted_and_may_end_the_episode():
    trajectory, environment = new_trajectory(), ready(Echo())
    episode = EnvironmentEpisode(environment)
    assert say(episode, trajectory, "go") == ["heard 'go'"]
    environment.step("by a tool")
    assert asyncio.run(episode.score(trajectory)) == Reward(parts={"steps_by_tools": 9.0}, turns=(2.0,))
    environment.step("end")
    assert say(episode, trajectory, "more") == [None]
    assert environment.get_step_count() == 3
    assert asyncio.run(episode.score(trajectory)) == Reward(parts={"steps_by_tools": 12.0}, turns=(2.0, 0.0))


# -- tasks -----------------------------------------------------------------------------------------------------


def test_every_group_begins_alike_and_no_two_groups_do():
    for source in [Echo, Echo(), lambda: Echo()]:
        tasks = EnvironmentTaskSampler(source, seed=7)
        made = tasks.draw(0, 3)
        assert len({task.task_id for task in made}) == len({task.prompt for task in made}) == 3
        for task in made:
            one, other = tasks.episode(task).environment, tasks.episode(task).environment
            assert one is not other and one.start == other.start
            assert task.prompt == f"Say something.\nstart {one.start}" and task.answer == ""
        again = EnvironmentTaskSampler(source, seed=7).draw(0, 3)
        assert [task.prompt for task in made] == [task.prompt for task in again]


def test_an_instance_that_was_given_stays_as_it_was():
    mine = Echo()
    mine.reset(seed=1)
    mine.step("hello")
    tasks = EnvironmentTaskSampler(mine, seed=0)
    episode = tasks.episode(tasks.draw(0, 1)[0])
    say(episode, new_trajectory(), "one", "two")
    assert mine.get_step_count() == 1 and episode.environment.get_step_count() == 2


def test_an_environment_without_a_seed_is_copied_as_it_was_reset():
    class Seedless(Echo):
        def reset(self):
            return super().reset()

    tasks = EnvironmentTaskSampler(Seedless(), seed=0)
    first, second = tasks.draw(0, 2)
    starts = [tasks.episode(task).environment.start for task in (first, first, second, second)]
    assert starts[0] == starts[1] != starts[2] == starts[3]


def test_asynchronous_resets_run_side_by_side():
    waiting = []

    class Meeting(BaseEnvironment):
        async def reset(self, seed):
            waiting.append(seed)
            while len(waiting) < 4:
                await asyncio.sleep(0.001)
            return f"start {seed}"

        async def step(self, action):
            return "", 0.0, True, {}

    assert len({task.prompt for task in EnvironmentTaskSampler(Meeting, seed=0).draw(0, 4)}) == 4


def test_an_instance_that_cannot_be_copied_is_told_to_become_a_factory():
    with pytest.raises(EpisodeError, match=r"Locked cannot be copied \(TypeError: .*lock.*\); give a factory"):
        EnvironmentTaskSampler(Locked(), seed=0).draw(0, 2)


def test_what_can_neither_be_copied_nor_repeated_can_be_played_once():
    class Seedless(Locked):
        def reset(self):
            return super().reset()

    class Careless(Locked):
        def reset(self, seed):
            return super().reset()

    for source, message in ((Seedless, "its reset takes no seed"), (Careless, "returned another observation")):
        tasks = EnvironmentTaskSampler(source, seed=0)
        (task,) = tasks.draw(0, 1)
        assert say(tasks.episode(task), new_trajectory(), "go") == ["heard 'go'"]
        with pytest.raises(EpisodeError, match=f"{source.__name__} cannot be copied and .*{message}"):
            tasks.episode(task)


class Alike:
    """Has the methods of an environment, but does not extend it."""

    def __init__(self, config: Any = None) -> None:
        """Takes what the trainer passes."""

    def reset(self) -> str:
        return "begin"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        return "", 0.0, True, {}


def test_what_is_no_environment_is_refused_a_class_before_a_model_is_loaded():
    with pytest.raises(SettingsError, match="give a BaseEnvironment, or a function"):
        EnvironmentTaskSampler("FrozenLake-v1", seed=0)  # type: ignore[arg-type]
    with pytest.raises(EpisodeError, match="the environment's factory returned a NoneType"):
        EnvironmentTaskSampler(lambda: None, seed=0).draw(0, 2)  # type: ignore[arg-type, return-value]
    for environment in (Alike, functools.partial(Alike, config=None)):
        with pytest.raises(SettingsError, match=r"write class Alike\(BaseEnvironment\) with reset and step"):
            EnvironmentTaskSampler(environment, seed=0)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=r"write class Alike\(BaseEnvironment\)"):
            Trainer(model="/no/such/model", environment=environment)  # type: ignore[arg-type]


def test_a_reset_that_hangs_is_given_up_at_its_deadline():
    release = threading.Event()

    class Hanging(Echo):
        def reset(self, seed=None):
            release.wait(60)

    class HangingLater(Hanging):
        async def reset(self, seed=None):
            super().reset(seed)

    try:
        for kind in (Hanging, HangingLater):
            with pytest.raises(EpisodeError, match=rf"{kind.__name__}\.reset did not finish within 0.05 seconds"):
                hurried = functools.partial(kind, EnvironmentConfig(step_timeout_seconds=0.05))
                EnvironmentTaskSampler(hurried, seed=0).draw(0, 2)
    finally:
        release.set()


# -- statistics ------------------------------------------------------------------------------------------------


def finished(
    *turns: tuple[float, dict], stop: StopReason = StopReason.ANSWERED, reward: Reward | None = None
) -> Trajectory:
    trajectory = new_trajectory()
    for number, (paid, info) in enumerate(turns):
        write(trajectory, "go")
        trajectory.turns[-1] = Turn(turn_number=number, model_output="go", reward=paid, info=info)
    trajectory.stop_reason = stop
    trajectory.reward = reward or Reward(turns=tuple(paid for paid, _ in turns))
    return trajectory


def test_statistics_worked_by_hand():
    trajectories = [
        finished((1.0, {}), (2.0, {"success": True})),
        finished((0.0, {"success": True}), (-1.0, {"success": False})),
        finished((0.5, {"truncated": True})),
        finished((0.0, {}), (0.0, {}), (0.0, {}), stop=StopReason.MAX_TURNS),
    ]
    assert episode_statistics(trajectories) == {
        "num_episodes": 4.0,
        "return_mean": 0.625,
        "return_min": -1.0,
        "return_max": 3.0,
        "steps_mean": 2.0,
        "truncated_share": 0.5,
        "success_share": 0.25,
    }


def test_statistics_leave_out_failed_episodes_and_success_that_nobody_spoke_of():
    broken = new_trajectory()
    broken.stop_reason, broken.error = StopReason.FAILED, "EpisodeError: …"
    statistics = episode_statistics([broken, finished((1.0, {}), reward=Reward(parts={"reward_fn": 7.0}))])
    assert statistics["num_episodes"] == 1.0 and statistics["return_mean"] == 7.0
    assert "success_share" not in statistics
    assert episode_statistics([broken]) == episode_statistics([]) == {"num_episodes": 0.0}


@pytest.mark.parametrize("limit", ["of the settings", "of its own"])
def test_an_episode_that_the_environment_cuts_is_truncated(limit):
    class Timed(Echo):
        def step(self, action: str) -> tuple[str, float, bool, dict]:
            is_late = limit == "of its own" and self.get_step_count() == 1
            return "more", 1.0, is_late, {"truncated": is_late}

    episode = EnvironmentEpisode(ready(Timed(EnvironmentConfig(max_steps=2 if limit == "of the settings" else None))))
    trajectory = new_trajectory()
    assert say(episode, trajectory, "a", "b") == ["more", None]
    assert episode.is_truncated and trajectory.dones == [False, True]
    trajectory.reward = asyncio.run(episode.score(trajectory))
    assert episode_statistics([trajectory])["truncated_share"] == 1.0


# -- closing -----------------------------------------------------------------------------------------------------


class Closing(Echo):
    """Counts how often its copies were closed. `closing` is what `close` does besides."""

    def __init__(self, closing: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.closing = closing
        self.log: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Closing:
        twin = Closing(self.closing)
        twin.log = self.log
        twin.reset(seed=0)
        return twin

    def close(self) -> Any:
        self.log.append("closed")
        return self.closing()


class AsyncClosing(Closing):
    async def close(self) -> None:
        super().close()


def failing() -> None:
    raise OSError("gone")


def run_with(environment: Closing) -> Trajectory:
    """An episode of a scripted policy, as training drives it."""
    renderer = Renderer(byte_tokenizer())
    parts = RolloutParts(
        engine=ScriptedEngine(["end<|im_end|>"], renderer),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry()),
        messages=lambda task: [{"role": "user", "content": task.prompt}],
        environment=lambda task: EnvironmentEpisode(environment),
    )
    start = EpisodeStart(task=Task(task_id="t", prompt="start", answer=""), seed=0)
    (trajectory,) = asyncio.run(run_episodes(parts, [start]))
    return trajectory


def test_an_environment_is_closed_once_when_its_episode_has_its_reward():
    for kind in [Closing, AsyncClosing]:
        world = kind()
        world.reset(seed=0)
        assert run_with(world).reward is not None
        assert world.log == ["closed"]


def test_an_environment_is_closed_if_its_episode_fails_and_an_error_of_close_is_logged(caplog):
    world = Closing()  # not reset, so that its first step is an error
    assert run_with(world).stop_reason is StopReason.FAILED and world.log == ["closed"]
    world = Closing(failing)
    world.reset(seed=0)
    assert run_with(world).reward is not None and "Closing.close raised OSError: gone" in caplog.text


def test_starts_that_are_not_played_are_closed_before_the_next_ones():
    world = Closing()
    tasks = EnvironmentTaskSampler(world, seed=0)
    tasks.draw(0, 2)
    assert world.log == []
    tasks.draw(1, 1)
    assert world.log == ["closed"] * 2
    tasks.close()
    tasks.close()
    assert world.log == ["closed"] * 3
