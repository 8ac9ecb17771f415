"""Trajectories from this process: seeds follow from the purpose and the place alone, tasks in a row are a group."""

import dataclasses
import functools
import threading
from types import SimpleNamespace

import pytest
from playing import EveryFew, Look, parts_of
from small_qwen import small_model
from transformers import Qwen3Config

from midthought.config import InferenceConfig
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.forward_pass import EnginePasses
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import EngineError
from midthought.rollout.episode_source import LocalEpisodeSource
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import StopReason, Task

TASKS = [Task(task_id=f"t{number}", prompt=f"Who wound clock {number}?", answer="!") for number in range(3)]


@pytest.fixture
def make_source(renderer):
    model = small_model(Qwen3Config, renderer)

    def make(seed=0, deterministic=False, parts=None, **options):
        engine = LocalEngine(model, eos_token_ids=renderer.eos_token_ids, max_seq_len=200, deterministic=deterministic)
        return LocalEpisodeSource(
            parts_of(engine, renderer, max_tokens=8, **(parts or {})), engine, seed=seed, **options
        )

    return make


@pytest.fixture
def loop():
    loop = BackgroundLoop("test-rollouts")
    yield loop
    loop.close()


def written(trajectories):
    return [trajectory.sampled_runs() for trajectory in trajectories]


def test_a_rollout_gives_one_scored_episode_per_task_in_order(make_source):
    data = make_source().rollout(TASKS, iteration=0)
    assert [trajectory.task for trajectory in data.trajectories] == TASKS
    for trajectory in data.trajectories:
        trajectory.check()
        assert trajectory.stop_reason in (StopReason.ANSWERED, StopReason.LENGTH)
        assert trajectory.reward.parts == {"length": trajectory.num_sampled} and 1 <= trajectory.num_sampled <= 8
    assert data.seconds > 0 and data.policy_version == 0


def test_tasks_in_a_row_are_one_group_and_its_episodes_differ(make_source):
    done = make_source().rollout([TASKS[0]] * 3 + [TASKS[1]] * 3, iteration=0, group_size=3).trajectories
    assert [trajectory.group for trajectory in done] == [0, 0, 0, 1, 1, 1]
    assert len({trajectory.seed for trajectory in done}) == 6
    assert len(set(map(str, written(done[:3])))) > 1


def test_an_iteration_can_be_repeated_and_another_one_is_drawn_anew(make_source):
    source = make_source()
    told = []
    assert len(source.evaluate(TASKS, on_finished=told.append)) == len(told) == 3  # changes no iteration
    first = written(source.rollout(TASKS, iteration=4).trajectories)
    assert written(make_source().rollout(TASKS, iteration=4).trajectories) == first
    assert written(make_source().rollout(TASKS, iteration=5).trajectories) != first
    assert written(make_source(seed=1).rollout(TASKS, iteration=4).trajectories) != first


def test_an_evaluation_is_greedy_unless_a_temperature_is_given(make_source):
    source = make_source()
    twins = [TASKS[0], dataclasses.replace(TASKS[0], task_id="twin")]
    greedy = written(source.evaluate(twins))
    assert greedy[0] == greedy[1]
    sampled = written(source.evaluate(twins, temperature=1.0))
    assert sampled[0] != sampled[1]
    assert source.parts.inference.temperature == 1.0


def test_an_evaluation_may_use_another_executor_and_leaves_the_sources_own(make_source, renderer):
    source = make_source()
    asked = []

    class Watching(ToolExecutor):
        async def run(self, calls, task, **options):
            asked.append(task.task_id)
            return await super().run(calls, task, **options)

    engine = ScriptedEngine(["<think>#call look {}</think>Ada"], renderer)
    source.parts = dataclasses.replace(source.parts, engine=engine, inference=InferenceConfig(max_tokens=60))
    source.evaluate(TASKS[:1], executor=Watching(ToolRegistry()))
    assert asked == ["t0"]
    assert type(source.parts.executor) is ToolExecutor


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_engine_that_hangs_is_named_within_its_limit(deterministic, make_source, loop, monkeypatch):
    source, released = make_source(deterministic=deterministic, loop=loop, silence_seconds=0.5), threading.Event()
    monkeypatch.setattr(EnginePasses, "step", lambda passes: released.wait() and pytest.fail("too late"))
    words = r"sampled no token for 0.5 s, and episodes wait for one; raise ray.silence_timeout_seconds"
    for wait in (functools.partial(source.rollout, iteration=0), source.evaluate):
        with pytest.raises(EngineError, match=words):
            wait(TASKS)
    released.set()


def test_a_stream_that_cannot_be_dropped_does_not_keep_the_engine_open(make_source, loop, monkeypatch):
    stream, ended = SimpleNamespace(drop=lambda: pytest.fail("the engine is silent")), []
    source = make_source(stream=stream, loop=loop)
    monkeypatch.setattr(LocalEngine, "shutdown", lambda engine: ended.append("engine"))
    with pytest.raises(pytest.fail.Exception, match="silent"):
        source.close()
    assert ended == ["engine"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_tool_that_takes_longer_than_the_engines_limit_is_waited_for(deterministic, make_source, loop):
    """In deterministic mode the other episodes' requests wait for it, too."""
    parts = {"tools": [Look({"slow": 2.5})], "call_format": EveryFew(words=["slow", "tide"], num_pieces=2, num_calls=1)}
    source = make_source(deterministic=deterministic, parts=parts, loop=loop, silence_seconds=0.5)
    done = source.rollout(TASKS, iteration=0).trajectories
    assert max(trajectory.tool_seconds for trajectory in done) > 2
    assert all(trajectory.stop_reason is not StopReason.FAILED for trajectory in done)


def test_new_weights_are_a_new_policy_version(make_source):
    source = make_source()
    source.update_weights()
    data = source.rollout(TASKS, iteration=0)
    assert data.policy_version == 1
    assert {version for each in data.trajectories for version in each.segments[0].policy_versions} == {-1, 1}
