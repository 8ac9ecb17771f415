"""Tasksets and environments of `verifiers.v1`, with the package itself (from 0.4)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from stepping import begin, check_training, do

from midthought.config import EnvironmentConfig
from midthought.env.environment_tasks import EnvironmentTaskSampler
from midthought.env.episode import call_blocking
from midthought.env.verifiers import VerifiersEnvironment
from midthought.errors import EpisodeError, SettingsError

vf = pytest.importorskip("verifiers.v1", reason="needs the package verifiers from 0.4: make test-all")

PACKAGE = '''
"""A package as authors write it: three words to reverse, with an environment that gives the first letter."""
import verifiers.v1 as vf

class Word(vf.TaskData):
    answer: str

class Reverse(vf.Task[Word]):
    async def setup(self, trace):
        trace.info["is_set_up"] = True

    @vf.reward(weight=2.0)
    async def is_right(self, task, trace):
        return float(task.answer in trace.last_reply and trace.info["is_set_up"])

    @vf.metric
    async def num_messages(self, trace):
        return float(len(trace.messages))

    @vf.stop
    async def gave_up(self, trace):
        return trace.last_reply == "I give up"

class Words(vf.Taskset[Reverse, vf.TasksetConfig]):
    def load(self):
        for word in ("stone", "tide", "lamp"):
            yield Reverse(Word(prompt=f"Reverse {word}.", system_prompt="One word.", answer=word[::-1]))

class HintsConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Hints(vf.Env[HintsConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as exchange:
            segment = await exchange.turn()
            while not segment.terminated and task.data.answer not in segment.last_reply:
                segment = await exchange.turn(f"It begins with {task.data.answer[0]}.")

    async def finalize(self, task, episode):
        episode.traces[0].record_metric("num_turns", episode.num_turns)

__all__ = ["Words", "Hints"]
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "reversed_words.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "reversed_words"


@pytest.fixture
def words(package: str) -> Any:
    return vf.load_taskset(vf.TasksetConfig(id=package))


@pytest.fixture
def hints(package: str) -> Any:
    return vf.load_environment(vf.resolve_env_config({"taskset": {"id": package}}))


def answer_of(prompt: str) -> str:
    return prompt.split()[-1][-2::-1]


def test_a_task_is_one_answer_scored_by_its_rewards(words: Any) -> None:
    world = VerifiersEnvironment(words)
    prompt = begin(world, seed=0)
    assert prompt.startswith("One word.\n\nReverse ") and prompt == begin(world, seed=0)
    assert do(world, answer_of(prompt)) == ("", 2.0, True, {"metrics": {"is_right": 1.0, "num_messages": 3.0}})
    begin(world, seed=0)
    assert do(world, "no idea")[1:3] == (0.0, True)


def test_every_task_is_drawn_and_some_may_be_chosen(words: Any) -> None:
    world = VerifiersEnvironment(words)
    assert len({begin(world, seed=seed) for seed in range(20)}) == 3
    world = VerifiersEnvironment(words, rows=list(words)[:1])
    assert {begin(world, seed=seed) for seed in range(5)} == {"One word.\n\nReverse stone."}
    with pytest.raises(SettingsError, match="Words has no tasks to play"):
        VerifiersEnvironment(words, rows=[])


def test_an_environment_exchanges_turns_and_adds_its_own_judgement(hints: Any) -> None:
    world = VerifiersEnvironment(hints)
    prompt = begin(world, seed=1)
    answer = answer_of(prompt)
    assert do(world, "what?") == (f"It begins with {answer[0]}.", 0.0, False, {"metrics": {}})
    metrics = {"is_right": 1.0, "num_messages": 5.0, "num_turns": 2.0}
    assert do(world, f"It is {answer}.") == ("", 2.0, True, {"metrics": metrics})


def test_a_stop_of_the_task_ends_the_exchange(hints: Any) -> None:
    world = VerifiersEnvironment(hints)
    begin(world)
    assert do(world, "I give up")[1:3] == (0.0, True)


def test_the_limit_on_steps_is_scored_as_an_end(hints: Any) -> None:
    world = VerifiersEnvironment(hints, config=EnvironmentConfig(max_steps=2))
    begin(world)
    assert not do(world, "a")[2]
    _, reward, done, info = do(world, "b")
    assert (reward, done, info["truncated"], info["metrics"]["num_turns"]) == (0.0, True, True, 2.0)


def test_episodes_of_a_group_start_alike_and_are_closed(hints: Any) -> None:
    tasks = EnvironmentTaskSampler(VerifiersEnvironment(hints), seed=0)
    (task,) = tasks.draw(0, 1)
    one, other = (tasks.episode(task).environment for _ in range(2))
    do(one, "a")
    assert do(other, answer_of(task.prompt))[1] == 2.0, "the episodes share no state"
    call_blocking(one.close, 30.0, "close")
    with pytest.raises(EpisodeError, match=r"the environment is closed; call reset\(\) first"):
        do(one, "b")
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(other)


def test_what_the_environment_raises_is_the_error_of_the_episode(words: Any) -> None:
    class Broken(vf.Env[vf.SingleAgentEnvConfig]):
        async def run(self, task, agents):
            await agents.agent.run(task)
            raise OSError("no disk")

    world = VerifiersEnvironment(Broken(vf.SingleAgentEnvConfig(taskset={"id": words.config.id})))
    begin(world)
    with pytest.raises(EpisodeError, match="raised OSError: no disk"):
        do(world, "a")


def test_what_needs_more_than_a_policy_is_refused(words: Any) -> None:
    class Boxed(vf.Task[vf.TaskData]):
        @vf.reward
        async def file_exists(self, trace, runtime) -> float:
            return 1.0

    class Image(vf.Task[vf.TaskData]):
        NEEDS_CONTAINER = True

    class Two(vf.EnvConfig):
        solver: vf.AgentConfig = vf.AgentConfig()
        judge: vf.AgentConfig = vf.AgentConfig()

    class Judged(vf.Env[Two]):
        async def run(self, task, agents):
            pass

    for kind in (Boxed, Image):
        with pytest.raises(SettingsError, match=f"tasks {kind.__name__} need a runtime"):
            VerifiersEnvironment(words, rows=[kind(vf.TaskData(prompt="a"))])
    with pytest.raises(
        SettingsError, match="Judged has the agents solver, judge; environments of one agent are supported"
    ):
        VerifiersEnvironment(Judged(Two(taskset={"id": words.config.id})))
    with pytest.raises(SettingsError, match=r"neither a Taskset nor an Env of verifiers\.v1"):
        VerifiersEnvironment(object())


def test_a_model_trains_in_an_environment(hints: Any) -> None:
    check_training(VerifiersEnvironment(hints))
