"""Episodes on Ray's workers: the same as in this process, each of them once, even if workers die.

transformers costs a worker that computes with a small model 5 s of CPU time. Two others serve most tests: they write a script
instead. `make test` has test_ray_training.py in place of these tests.
"""

import copy
import dataclasses
import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_worlds
import torch
from ray_worlds import Diarist, Diary, OneAnswer, settings, tasks

from midthought.config import InferenceConfig, RayConfig
from midthought.engines.policy_engine import policy_engine
from midthought.errors import EngineError, SettingsError
from midthought.learning.model import add_adapters
from midthought.rollout.episode import RolloutParts
from midthought.rollout.local_rollouts import LocalRollouts
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import StopReason, Trajectory

pytestmark = pytest.mark.slow


def engine_options(renderer: Renderer) -> dict[str, Any]:
    return {"renderer": renderer, "inference": settings().inference, "model_path": "", "max_seq_len": 256}


def model_group(policy: Any, renderer: Renderer, **ray: Any) -> Any:
    from midthought.cluster.ray.ray_rollouts import RolloutWorkerGroup

    engine = functools.partial(policy_engine, trained=None, **engine_options(renderer))
    placed = RayConfig(cpus_per_actor=0.5, start_timeout_seconds=600, **ray)
    return RolloutWorkerGroup(placed, policy, engine, is_deterministic=True)


def parts_here(policy: Any, renderer: Renderer, environment: Any) -> RolloutParts:
    """Parts with an engine in this process that computes with the policy."""
    return RolloutParts(
        engine=policy_engine(policy, None, **engine_options(renderer)),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([ray_worlds.twice])),
        messages=ray_worlds.messages,
        environment=environment,
        inference=InferenceConfig(max_tokens=24),
    )


def scripted_group(policy: Any, renderer: Renderer, **ray: Any) -> Any:
    from midthought.cluster.ray.ray_rollouts import RolloutWorkerGroup

    placed = RayConfig(cpus_per_actor=0.5, start_timeout_seconds=600, **ray)
    engine = functools.partial(Diarist, renderer=renderer)
    return RolloutWorkerGroup(placed, policy, engine)


def scripted(environment: Any, worker_group: Any, renderer: Renderer) -> Any:
    """Rollouts whose episodes call `diary` three times; its file is beside the environment's."""
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    parts = RolloutParts(
        engine=Diarist(None, renderer=renderer),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([Diary(environment.log.with_name("diaries"))])),
        messages=ray_worlds.messages,
        environment=environment,
        inference=InferenceConfig(max_tokens=1000),
    )
    return RayRollouts(parts, parts.engine, worker_group, seed=3)


@pytest.fixture(scope="module")
def weights() -> torch.nn.Module:
    """The policy of the workers that write a script."""
    return torch.nn.Embedding(4, 2)


@pytest.fixture(scope="module")
def _scripted_group(cluster: Any, weights: torch.nn.Module, renderer: Renderer) -> Iterator[Any]:
    worker_group = scripted_group(weights, renderer, num_actors=2)
    yield worker_group
    worker_group.close()


@pytest.fixture
def on_scripted(_scripted_group: Any, renderer: Renderer) -> Callable[[Any], Any]:
    """Makes rollouts on two workers that write a script."""
    return functools.partial(scripted, worker_group=_scripted_group, renderer=renderer)


def here(parts: RolloutParts, seed: int = 3) -> LocalRollouts:
    return LocalRollouts(parts, parts.engine, seed=seed)


def content(t: Trajectory) -> Any:
    segments = [(s.token_ids, s.loss_mask, repr(s.sampled_logprobs), s.spans) for s in t.segments]
    return t.task, t.seed, t.group, segments, t.stop_reason, t.reward and t.reward.parts, t.turns


def lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


# -- the same as here ----------------------------------------------------------------------------------------------


def test_one_worker_gives_the_episodes_of_this_process_to_the_bit_and_receives_adapters_alone(
    cluster, tokenizer, renderer, tmp_path, monkeypatch
):
    from midthought.cluster.ray import actor_pool
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    policy = ray_worlds.policy(tokenizer)
    adapted = add_adapters(policy, 2, 4)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    parts = parts_here(policy, renderer, OneAnswer(tmp_path / "log"))
    sent: list[set[str]] = []
    buckets = actor_pool.buckets
    monkeypatch.setattr(actor_pool, "buckets", lambda sizes: sent.append(set(sizes)) or buckets(sizes))
    source = RayRollouts(parts, parts.engine, model_group(policy, renderer, num_actors=1), seed=3)
    try:
        first = (
            source.rollout(tasks(6), iteration=1, group_size=2),
            here(parts).rollout(tasks(6), iteration=1, group_size=2),
        )
        greedy = source.evaluate(tasks(3)), here(parts).evaluate(tasks(3))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_A" in name:
                    parameter.mul_(3)
        source.update_weights()
        second = source.rollout(tasks(3), iteration=2), here(parts).rollout(tasks(3), iteration=2)
    finally:
        source.close()
    assert [content(t) for t in first[0]] == [content(t) for t in first[1]]
    assert len({tuple(t.token_ids) for t in first[0]}) > 3
    for far, near in (greedy, second):
        assert [content(t)[3] for t in far] == [content(t)[3] for t in near]
    assert len(sent) == 2 and any("lora_A" not in name for name in sent[0])
    assert sent[1] and all("lora_A" in name for name in sent[1])


def test_new_weights_reach_the_workers_before_the_next_episode(cluster, policy, renderer, tmp_path):
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    environment = OneAnswer(tmp_path / "log", ray_worlds.log_process)
    parts = parts_here(policy, renderer, environment)
    source = RayRollouts(parts, parts.engine, model_group(policy, renderer, num_actors=2), seed=3)
    embedding = policy.get_input_embeddings().weight
    kept = embedding.detach().clone()
    try:
        before = source.rollout(tasks(4), iteration=0)
        with torch.no_grad():
            embedding.add_(torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1)))
        source.update_weights()
        after = source.rollout(tasks(4), iteration=0)
        assert len(lines(tmp_path / "processes")) == 2
        near = here(parts_here(policy, renderer, environment)).rollout(tasks(4), iteration=0)
        with torch.no_grad():
            embedding.copy_(kept)
        source.update_weights()
        again = source.rollout(tasks(4), iteration=0)
    finally:
        source.close()
    assert [t.token_ids for t in after] == [t.token_ids for t in near]
    assert [t.token_ids for t in after] != [t.token_ids for t in before]
    versions = [{v for t in part for s in t.segments for v in s.policy_versions} for part in (before, after)]
    assert versions == [{-1, 0}, {-1, 1}]  # -1: tokens that were not sampled
    assert [content(t)[3] for t in again] == [content(t)[3] for t in before]


def test_64_episodes_on_two_actors_each_see_only_the_state_of_their_own_tool(on_scripted, tmp_path):
    done = on_scripted(OneAnswer(tmp_path / "log")).rollout(tasks(64), iteration=0)
    for number, trajectory in enumerate(done):
        seen = [event.call.result for event in trajectory.tool_events]
        assert seen == [f"t{number} {trajectory.seed} {words}" for words in ("a", "a b", "a b c")]
    log = [line.split("-") for line in lines(tmp_path / "diaries")]
    for what in ("opened", "closed"):
        assert sorted(task for said, task, _ in log if said == what) == sorted(f"t{number}" for number in range(64))
    assert len({process for _, _, process in log}) == 2


# -- whoever dies --------------------------------------------------------------------------------------------------


def test_every_episode_counts_once_if_workers_die_and_one_that_kills_every_worker_fails(on_scripted, tmp_path, caplog):
    environment = OneAnswer(tmp_path / "log", functools.partial(ray_worlds.kill_worker, once={"t5"}, always={"t2"}))
    done = on_scripted(environment).rollout(tasks(8), iteration=2, group_size=2)
    assert [t.task.task_id for t in done] == [f"t{number}" for number in range(8)]
    assert [t.group for t in done] == [0, 0, 1, 1, 2, 2, 3, 3]
    (failed,) = (t for t in done if t.stop_reason is StopReason.FAILED)
    assert failed.task.task_id == "t2" and "each worker that ran this episode died" in failed.error
    others = [t for t in done if t is not failed]
    assert {t.stop_reason for t in others} == {StopReason.ANSWERED} and all(t.reward is not None for t in others)
    assert set(lines(tmp_path / "log")) == {t.task.task_id for t in others}
    assert "died, its unfinished episodes are run again" in caplog.text


def test_a_worker_that_is_silent_is_ended_and_replaced(cluster, weights, renderer, tmp_path):
    worker_group = scripted_group(weights, renderer, num_actors=1, silence_timeout_seconds=3.0)
    source = scripted(OneAnswer(tmp_path / "log", ray_worlds.block_event_loop), worker_group, renderer)
    try:
        done = source.evaluate(tasks(2))
    finally:
        source.close()
    assert {t.stop_reason for t in done} == {StopReason.ANSWERED}


def test_a_worker_that_died_is_found_when_it_gets_new_weights_and_replaced(on_scripted, weights, tmp_path, caplog):
    source = on_scripted(OneAnswer(tmp_path / "log", ray_worlds.log_process))
    source.evaluate(tasks(1))
    (killed,) = lines(tmp_path / "processes")
    os.kill(int(killed), signal.SIGKILL)
    with torch.no_grad():
        weights.weight.add_(1)
    source.update_weights()
    seen = []
    done = source.evaluate(tasks(2), on_finished=seen.append)
    assert [t.stop_reason for t in done] == [StopReason.ANSWERED] * 2
    assert Counter(id(t) for t in seen) == Counter(id(t) for t in done)
    after = lines(tmp_path / "processes")
    assert len(after) == 3 and after[killed] == 1
    assert "died while it received weights" in caplog.text


def test_a_record_that_cannot_come_back_is_a_failed_episode(on_scripted, tmp_path):
    done = on_scripted(OneAnswer(tmp_path / "log", ray_worlds.record_a_lock)).evaluate(tasks(1))
    assert done[0].stop_reason is StopReason.FAILED
    assert "_thread.lock" in done[0].error


def test_a_callback_that_raises_ends_the_rollout_and_the_next_one_works(on_scripted, tmp_path):
    def refuse(trajectory: Trajectory) -> None:
        raise KeyboardInterrupt

    source = on_scripted(OneAnswer(tmp_path / "log"))
    with pytest.raises(KeyboardInterrupt):
        source.evaluate(tasks(1), on_finished=refuse)
    assert len(source.evaluate(tasks(2))) == 2


def test_a_policy_that_changed_unsaid_is_found_by_its_digest(on_scripted, weights, tmp_path):
    source = on_scripted(OneAnswer(tmp_path / "log", ray_worlds.log_process))
    source.evaluate(tasks(1))
    kept = copy.deepcopy(weights.state_dict())
    with torch.no_grad():
        weights.weight[0, 0] += 1
    (process,) = lines(tmp_path / "processes")
    os.kill(int(process), signal.SIGKILL)  # the one that replaces it receives the weights as they are now
    with pytest.raises(EngineError, match=r"other weights than the policy had .* \('weight' and 0 more"):
        source.evaluate(tasks(1))
    weights.load_state_dict(kept)
    assert len(source.evaluate(tasks(2))) == 2


def test_a_worker_s_warnings_reach_the_driver_with_its_name(on_scripted, tmp_path, capfd):
    on_scripted(OneAnswer(tmp_path / "log", ray_worlds.log_warning)).evaluate(tasks(1))
    deadline = time.monotonic() + 20
    said = ""
    while "late for t0" not in said and time.monotonic() < deadline:
        time.sleep(0.2)
        said += "".join(capfd.readouterr())
    line = next(line for line in said.splitlines() if "late for t0" in line)
    assert "rollout-" in line and "WARNING worlds: the tide is late" in line


def test_what_ends_a_rollout_here_ends_it_on_ray_with_the_same_error(on_scripted, tmp_path):
    def refusing(task: Any) -> Any:
        raise SettingsError(f"task {task.task_id} has no words")

    source = on_scripted(OneAnswer(tmp_path / "log"))
    parts = source.parts = dataclasses.replace(source.parts, messages=refusing)
    with pytest.raises(SettingsError, match="task t0 has no words"):
        here(parts).evaluate(tasks(1))
    with pytest.raises(SettingsError, match="task t0 has no words"):
        source.evaluate(tasks(1))
