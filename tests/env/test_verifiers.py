"""Tasksets of `verifiers.v1`, with the package itself (from 0.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stepping import begin, check_training, do

from midthought.env.environment_tasks import EnvironmentTaskSampler
from midthought.env.verifiers import VerifiersEnvironment
from midthought.errors import EpisodeError, SettingsError

vf = pytest.importorskip("verifiers.v1", reason="needs the package verifiers from 0.4: make test-all")

PACKAGE = '''
"""A package as authors write it: three words to reverse."""
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

class Words(vf.Taskset[Reverse, vf.TasksetConfig]):
    def load(self):
        for word in ("stone", "tide", "lamp"):
            yield Reverse(Word(prompt=f"Reverse {word}.", system_prompt="One word.", answer=word[::-1]))

__all__ = ["Words"]
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "reversed_words.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "reversed_words"


@pytest.fixture
def words(package: str) -> Any:
    return vf.load_taskset(vf.TasksetConfig(id=package))


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


def test_episodes_of_a_group_start_alike_and_share_no_state(words: Any) -> None:
    tasks = EnvironmentTaskSampler(VerifiersEnvironment(words), seed=0)
    (task,) = tasks.draw(0, 1)
    one, other = (tasks.episode(task).environment for _ in range(2))
    assert do(one, "no idea")[1] == 0.0
    assert do(other, answer_of(task.prompt))[1] == 2.0


def test_what_a_task_raises_is_the_error_of_the_episode(words: Any) -> None:
    class Broken(vf.Task[vf.TaskData]):
        async def finalize(self, trace):
            raise OSError("no disk")

    world = VerifiersEnvironment(words, rows=[Broken(vf.TaskData(prompt="a"))])
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

    for kind in (Boxed, Image):
        with pytest.raises(SettingsError, match=f"tasks {kind.__name__} need a runtime"):
            VerifiersEnvironment(words, rows=[kind(vf.TaskData(prompt="a"))])
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": words.config.id}}))
    for other in (env, object()):
        with pytest.raises(SettingsError, match=r"is no Taskset of verifiers\.v1.*env\.taskset"):
            VerifiersEnvironment(other)
    assert begin(VerifiersEnvironment(env.taskset)).startswith("One word.")


def test_a_model_trains_on_a_taskset(words: Any) -> None:
    check_training(VerifiersEnvironment(words))
