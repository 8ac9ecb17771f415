"""Episodes on Ray's workers: the same as in this process, each of them once, whoever dies meanwhile."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_worlds
import torch
from ray_worlds import (
    BlocksEventLoop,
    Diarist,
    Diary,
    KillsWorker,
    LogsWarning,
    OneAnswer,
    UnpicklableRecord,
    settings,
    tasks,
)

from midthought.config import InferenceConfig, RayConfig
from midthought.engines.create import policy_engine
from midthought.errors import EngineError, SettingsError
from midthought.evaluation.arms import ToolOff
from midthought.learning.adapters import add_adapters
from midthought.rollout.episode import RolloutParts
from midthought.rollout.local_rollouts import LocalRollouts
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import StopReason, Trajectory


def crew_of(policy: Any, renderer: Renderer, *, deterministic: bool = True, **ray: Any) -> Any:
    from midthought.cluster.ray.rollout_workers import RolloutWorkerGroup

    inference = settings(inference={"deterministic": deterministic}).inference
    options = {"trained": None, "renderer": renderer, "inference": inference, "model_path": "", "max_seq_len": 256}
    engine = functools.partial(policy_engine, **options)
    return RolloutWorkerGroup(RayConfig(cpus_per_actor=0.5, **ray), policy, engine, is_deterministic=deterministic)


@pytest.fixture(scope="module")
def _shared(cluster: Any, tokenizer: Any) -> Iterator[tuple[Any, Any]]:
    import ray_worlds

    policy = ray_worlds.policy(tokenizer)
    worker_group = crew_of(policy, Renderer(tokenizer), num_actors=2)
    yield policy, worker_group
    worker_group.close()


@pytest.fixture
def policy(_shared: tuple[Any, Any]) -> Any:
    return _shared[0]


@pytest.fixture
def worker_group(_shared: tuple[Any, Any]) -> Any:
    """Two workers, shared by the tests of this module."""
    return _shared[1]


@pytest.fixture
def on_ray(worker_group: Any, make_parts: Callable[..., RolloutParts]) -> Callable[..., Any]:
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    def source(environment: Any, seed: int = 3, **options: Any) -> Any:
        parts = make_parts(environment, **options)
        return RayRollouts(parts, parts.engine, worker_group, seed=seed)

    return source


def here(parts: RolloutParts, seed: int = 3) -> LocalRollouts:
    return LocalRollouts(parts, parts.engine, seed=seed)


def content(trajectory: Trajectory) -> Any:
    reward = trajectory.reward and trajectory.reward.parts
    segments = [(s.token_ids, s.loss_mask, repr(s.sampled_logprobs), s.spans) for s in trajectory.segments]
    return (
        trajectory.task,
        trajectory.seed,
        trajectory.group,
        segments,
        trajectory.stop_reason,
        reward,
        trajectory.turns,
    )


def lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


# -- the same as here ----------------------------------------------------------------------------------------------


def test_one_worker_gives_the_episodes_of_this_process_to_the_bit(cluster, policy, renderer, make_parts, tmp_path):
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    parts = make_parts(OneAnswer(tmp_path / "log"))
    worker_group = crew_of(policy, renderer, num_actors=1)
    source = RayRollouts(parts, parts.engine, worker_group, seed=3)
    try:
        far = source.rollout(tasks(6), iteration=1, group_size=2)
        greedy = source.evaluate(tasks(3))
    finally:
        source.close()
    near = here(parts).rollout(tasks(6), iteration=1, group_size=2)
    assert [content(t) for t in far] == [content(t) for t in near]
    assert [content(t) for t in greedy] == [content(t) for t in here(parts).evaluate(tasks(3))]
    assert len({tuple(t.token_ids) for t in far}) > 3


def test_two_workers_give_the_same_tokens_in_the_same_order(on_ray, make_parts, tmp_path):
    environment = OneAnswer(tmp_path / "log")
    seen = []
    done = on_ray(environment).evaluate(tasks(9), temperature=1.0, on_finished=seen.append)
    near = here(make_parts(environment)).evaluate(tasks(9), temperature=1.0)
    assert [t.token_ids for t in done] == [t.token_ids for t in near]
    for one, other in zip(done, near, strict=True):
        assert torch.allclose(*(torch.tensor(t.sampled_logprobs) for t in (one, other)), atol=1e-4, equal_nan=True)
    assert Counter(t.task.task_id for t in seen) == Counter(f"t{number}" for number in range(9))


def test_two_workers_give_the_same_bits_again(on_ray, tmp_path):
    source = on_ray(OneAnswer(tmp_path / "log"))
    first, again = (source.rollout(tasks(6), iteration=4, group_size=2) for _ in range(2))
    assert [content(t) for t in first] == [content(t) for t in again]


def test_new_weights_reach_the_workers_before_the_next_episode(on_ray, make_parts, policy, worker_group, tmp_path):
    environment = OneAnswer(tmp_path / "log")
    source = on_ray(environment)
    before = source.rollout(tasks(4), iteration=0)
    kept = copy.deepcopy(policy.state_dict())
    with torch.no_grad():
        policy.get_input_embeddings().weight.add_(torch.randn_like(policy.get_input_embeddings().weight))
    source.update_weights()
    after = source.rollout(tasks(4), iteration=0)
    fresh = make_parts(environment)
    near = here(fresh).rollout(tasks(4), iteration=0)
    policy.load_state_dict(kept)
    source.update_weights()
    assert [t.token_ids for t in after] == [t.token_ids for t in near]
    assert [t.token_ids for t in after] != [t.token_ids for t in before]
    assert ({t.policy_version for t in before}, {t.policy_version for t in after}) == ({0}, {1})
    assert [content(t)[3] for t in source.rollout(tasks(4), iteration=0)] == [content(t)[3] for t in before]


def test_another_executor_travels_with_its_evaluation(on_ray, tmp_path):
    source = on_ray(OneAnswer(tmp_path / "log"))
    done = source.evaluate(tasks(2), executor=ToolOff(source.parts.executor.registry))
    assert [t.stop_reason for t in done] != []
    assert lines(tmp_path / "log") == {"t0": 1, "t1": 1}


def test_64_episodes_on_two_actors_each_see_only_the_state_of_their_own_tool(cluster, policy, renderer, tmp_path):
    from midthought.cluster.ray.ray_rollouts import RayRollouts
    from midthought.cluster.ray.rollout_workers import RolloutWorkerGroup

    make = functools.partial(Diarist, renderer=renderer)
    parts = RolloutParts(
        engine=make(None),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([Diary(tmp_path / "diaries")])),
        messages=ray_worlds.messages,
        environment=OneAnswer(tmp_path / "log"),
        settings=InferenceConfig(max_tokens=1000),
    )
    source = RayRollouts(
        parts, parts.engine, RolloutWorkerGroup(RayConfig(cpus_per_actor=0.5, num_actors=2), policy, make), seed=3
    )
    try:
        done = source.rollout(tasks(64), iteration=0)
    finally:
        source.close()
    for number, trajectory in enumerate(done):
        seen = [event.call.result for event in trajectory.tool_events]
        assert seen == [f"t{number} {trajectory.seed} {words}" for words in ("a", "a b", "a b c")]
    log = [line.split("-") for line in lines(tmp_path / "diaries")]
    for what in ("opened", "closed"):
        assert sorted(task for said, task, _ in log if said == what) == sorted(f"t{number}" for number in range(64))
    assert len({process for _, _, process in log}) == 2


# -- whoever dies --------------------------------------------------------------------------------------------------


def test_episodes_of_a_killed_worker_are_run_again_once_each(on_ray, tmp_path, caplog):
    environment = KillsWorker(tmp_path / "log", {"t1"}, always=False)
    seen = []
    done = on_ray(environment).evaluate(tasks(8), temperature=1.0, on_finished=seen.append)
    assert (tmp_path / "died-t1").exists()
    assert [t.task.task_id for t in done] == [f"t{number}" for number in range(8)]
    assert {t.stop_reason for t in done} <= {StopReason.ANSWERED, StopReason.LENGTH}
    assert Counter(id(t) for t in seen) == Counter(id(t) for t in done)
    assert "died, its unfinished episodes are run again" in caplog.text


def test_every_episode_counts_once_where_several_workers_die(on_ray, tmp_path):
    environment = KillsWorker(tmp_path / "log", {"t0", "t5", "t6"}, always=False)
    done = on_ray(environment).rollout(tasks(8), iteration=2, group_size=2)
    assert [t.task.task_id for t in done] == [f"t{number}" for number in range(8)]
    assert [t.group for t in done] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(t.reward is not None for t in done)


def test_an_episode_that_kills_every_worker_fails_and_takes_no_other_with_it(on_ray, tmp_path):
    done = on_ray(KillsWorker(tmp_path / "log", {"t2"}, always=True)).evaluate(tasks(4))
    failed = [t for t in done if t.stop_reason is StopReason.FAILED]
    assert [t.task.task_id for t in failed] == ["t2"]
    assert "each worker that ran this episode died" in failed[0].error
    assert set(lines(tmp_path / "log")) == {"t0", "t1", "t3"}


def test_a_worker_that_is_silent_is_ended_and_replaced(cluster, policy, renderer, make_parts, tmp_path):
    from midthought.cluster.ray.ray_rollouts import RayRollouts

    parts = make_parts(BlocksEventLoop(tmp_path / "log"))
    worker_group = crew_of(policy, renderer, num_actors=1, silence_timeout_seconds=3.0)
    source = RayRollouts(parts, parts.engine, worker_group, seed=0)
    try:
        done = source.evaluate(tasks(2))
    finally:
        source.close()
    assert {t.stop_reason for t in done} == {StopReason.LENGTH}


def test_a_worker_that_died_between_two_rollouts_is_replaced_in_the_next(on_ray, worker_group, tmp_path, cluster):
    source = on_ray(OneAnswer(tmp_path / "log"))
    source.evaluate(tasks(2))
    for slot in worker_group._pool.slots:
        cluster.kill(slot.actor)
    assert [t.stop_reason for t in source.evaluate(tasks(2))] == [StopReason.LENGTH] * 2


def test_a_record_that_cannot_come_back_is_a_failed_episode(on_ray, tmp_path):
    done = on_ray(UnpicklableRecord(tmp_path / "log")).evaluate(tasks(1))
    assert done[0].stop_reason is StopReason.FAILED
    assert "_thread.lock" in done[0].error and "'lock'" in done[0].error


def test_what_ends_a_rollout_here_ends_it_on_ray_with_the_same_error(on_ray, make_parts, tmp_path):
    def refusing(task: Any) -> Any:
        raise SettingsError(f"task {task.task_id} has no words")

    source = on_ray(OneAnswer(tmp_path / "log"))
    parts = source.parts = dataclasses.replace(source.parts, messages=refusing)
    with pytest.raises(SettingsError, match="task t0 has no words"):
        here(parts).evaluate(tasks(1))
    with pytest.raises(SettingsError, match="task t0 has no words"):
        source.evaluate(tasks(1))


def test_a_callback_that_raises_ends_the_rollout_and_the_next_one_works(on_ray, tmp_path):
    def refuse(trajectory: Trajectory) -> None:
        raise KeyboardInterrupt

    source = on_ray(OneAnswer(tmp_path / "log"))
    with pytest.raises(KeyboardInterrupt):
        source.evaluate(tasks(2), on_finished=refuse)
    assert len(source.evaluate(tasks(2))) == 2


def test_a_policy_that_changed_unsaid_is_found_by_its_digest(on_ray, worker_group, policy, tmp_path, cluster):
    source = on_ray(OneAnswer(tmp_path / "log"))
    source.evaluate(tasks(2))
    kept = copy.deepcopy(policy.state_dict())
    with torch.no_grad():
        policy.get_input_embeddings().weight[0, 0] += 1
    for slot in worker_group._pool.slots:
        worker_group._pool.stop_actor(slot)
    with pytest.raises(
        EngineError, match=r"other weights than the policy had .* \('model.embed_tokens.weight' and 0 more"
    ):
        source.evaluate(tasks(2))
    policy.load_state_dict(kept)
    assert len(source.evaluate(tasks(2))) == 2


def test_a_worker_s_warnings_reach_the_driver_with_its_name(on_ray, tmp_path, capfd):
    on_ray(LogsWarning(tmp_path / "log")).evaluate(tasks(1))
    deadline = time.monotonic() + 20
    said = ""
    while "late for t0" not in said and time.monotonic() < deadline:
        time.sleep(0.2)
        said += "".join(capfd.readouterr())
    line = next(line for line in said.splitlines() if "late for t0" in line)
    assert "rollout-" in line and "WARNING worlds: the tide is late" in line


def test_adapters_travel_with_the_policy_and_later_alone(cluster, tokenizer, renderer, tmp_path):
    import ray_worlds

    from midthought.cluster.ray.ray_rollouts import RayRollouts

    policy = ray_worlds.policy(tokenizer)
    adapted = add_adapters(policy, 2, 4)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    options = {"renderer": renderer, "model_path": "", "max_seq_len": 256}
    engine = policy_engine(policy, None, inference=settings().inference, **options)
    parts = RolloutParts(
        engine=engine,
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry()),
        messages=ray_worlds.messages,
        environment=OneAnswer(tmp_path / "log"),
        settings=InferenceConfig(max_tokens=16),
    )
    worker_group = crew_of(policy, renderer, num_actors=1)
    source = RayRollouts(parts, engine, worker_group, seed=3)
    try:
        first = source.rollout(tasks(3), iteration=0), here(parts).rollout(tasks(3), iteration=0)
        held = dict(worker_group._pool.slots[0].digests)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_A" in name:
                    parameter.mul_(3)
        source.update_weights()
        second = source.rollout(tasks(3), iteration=1), here(parts).rollout(tasks(3), iteration=1)
        changed = {name for name, digest in worker_group._pool.slots[0].digests.items() if held[name] != digest}
    finally:
        source.close()
    assert changed and all("lora_A" in name for name in changed)
    for far, near in (first, second):
        assert [content(t)[3] for t in far] == [content(t)[3] for t in near]
