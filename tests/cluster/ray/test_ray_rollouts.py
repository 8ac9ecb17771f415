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
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray_worlds
import torch
from playing import parts_of
from ray_worlds import Diarist, Diary, OneAnswer, settings, tasks

from midthought.config import RayConfig
from midthought.engines.policy_engine import policy_engine
from midthought.errors import EngineError, SettingsError
from midthought.learning.model import add_adapters
from midthought.rollout.episode import RolloutParts
from midthought.rollout.episode_source import LocalEpisodeSource
from midthought.tokenization import Renderer
from midthought.types import StopReason, Trajectory

pytestmark = pytest.mark.slow


def worker_group(policy: Any, engine: Any, *, is_deterministic: bool = False, **ray: Any) -> Any:
    from midthought.cluster.ray.ray_rollouts import RolloutWorkerGroup

    placed = RayConfig(cpus_per_actor=0.5, start_timeout_seconds=600, **ray)
    return RolloutWorkerGroup(placed, policy, engine, is_deterministic=is_deterministic)


def on_ray(parts: RolloutParts, group: Any) -> Any:
    from midthought.cluster.ray.ray_rollouts import RayEpisodeSource

    return RayEpisodeSource(parts, parts.engine, group, seed=3)


def here(parts: RolloutParts) -> LocalEpisodeSource:
    return LocalEpisodeSource(parts, parts.engine, seed=3)


def computed(policy: Any, renderer: Renderer, environment: Any, *, num_actors: int) -> tuple[RolloutParts, Any]:
    """Parts with an engine in this process that computes with the policy, and rollouts on workers that do so, too."""
    options = {"renderer": renderer, "inference": settings().inference, "model_path": "", "max_seq_len": 256}
    engine = functools.partial(policy_engine, trained=None, **options)
    parts = parts_of(engine(policy), renderer, tools=[ray_worlds.twice], environment=environment, max_tokens=24)
    return parts, on_ray(parts, worker_group(policy, engine, is_deterministic=True, num_actors=num_actors))


def scripted(environment: Any, group: Any, renderer: Renderer) -> Any:
    """Rollouts whose episodes call `diary` three times; its file is beside the environment's."""
    tools = [Diary(environment.log.with_name("diaries"))]
    engine = Diarist(None, renderer=renderer)
    return on_ray(parts_of(engine, renderer, tools=tools, environment=environment, max_tokens=1000), group)


@pytest.fixture(scope="module")
def weights() -> torch.nn.Module:
    """The policy of the workers that write a script."""
    return torch.nn.Embedding(4, 2)


@pytest.fixture(scope="module")
def _scripted_group(cluster: Any, weights: torch.nn.Module, renderer: Renderer) -> Iterator[Any]:
    with closing(worker_group(weights, functools.partial(Diarist, renderer=renderer), num_actors=2)) as group:
        yield group


@pytest.fixture
def on_scripted(_scripted_group: Any, renderer: Renderer) -> Callable[[Any], Any]:
    """Makes rollouts on two workers that write a script."""
    return functools.partial(scripted, group=_scripted_group, renderer=renderer)


def content(t: Trajectory) -> Any:
    segments = [(s.token_ids, s.loss_mask, repr(s.sampled_logprobs), s.spans) for s in t.segments]
    return t.task, t.seed, t.group, segments, t.stop_reason, t.reward and t.reward.parts, t.turns


def lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


def test_one_worker_gives_the_episodes_of_this_process_to_the_bit_and_receives_adapters_alone(
    cluster, tokenizer, renderer, tmp_path, monkeypatch
):
    from midthought.cluster.ray import actor_pool

    policy = ray_worlds.policy(tokenizer)
    adapted = dict(add_adapters(policy, 2, 4).named_parameters())
    with torch.no_grad():
        for name in adapted:
            if "lora_B" in name:
                adapted[name].add_(0.2 * torch.randn(adapted[name].shape, generator=torch.Generator().manual_seed(1)))
    sent: list[set[str]] = []
    buckets = actor_pool.buckets
    monkeypatch.setattr(actor_pool, "buckets", lambda sizes: sent.append(set(sizes)) or buckets(sizes))
    parts, source = computed(policy, renderer, OneAnswer(tmp_path / "log"), num_actors=1)
    with closing(source):
        first = [each.rollout(tasks(6), iteration=1, group_size=2) for each in (source, here(parts))]
        greedy = [each.evaluate(tasks(3)) for each in (source, here(parts))]
        with torch.no_grad():
            for name in adapted:
                if "lora_A" in name:
                    adapted[name].mul_(3)
        source.update_weights()
        second = [each.rollout(tasks(3), iteration=2) for each in (source, here(parts))]
    assert [content(t) for t in first[0]] == [content(t) for t in first[1]]
    assert len({tuple(t.token_ids) for t in first[0]}) > 3
    for far, near in (greedy, second):
        assert [content(t)[3] for t in far] == [content(t)[3] for t in near]
    assert len(sent) == 2 and any("lora_A" not in name for name in sent[0])
    assert sent[1] and all("lora_A" in name for name in sent[1])


def test_new_weights_reach_the_workers_before_the_next_episode(cluster, policy, renderer, tmp_path):
    environment = OneAnswer(tmp_path / "log", ray_worlds.log_process)
    parts, source = computed(policy, renderer, environment, num_actors=2)
    embedding = policy.get_input_embeddings().weight
    kept = embedding.detach().clone()
    with closing(source):
        before = source.rollout(tasks(4), iteration=0)
        with torch.no_grad():
            embedding.add_(torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1)))
        source.update_weights()
        after = source.rollout(tasks(4), iteration=0)
        assert len(lines(tmp_path / "processes")) == 2
        near = here(parts).rollout(tasks(4), iteration=0)
        with torch.no_grad():
            embedding.copy_(kept)
        source.update_weights()
        again = source.rollout(tasks(4), iteration=0)
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
    engine = functools.partial(Diarist, renderer=renderer)
    group = worker_group(weights, engine, num_actors=1, silence_timeout_seconds=3.0)
    with closing(scripted(OneAnswer(tmp_path / "log", ray_worlds.block_event_loop), group, renderer)) as source:
        assert {t.stop_reason for t in source.evaluate(tasks(2))} == {StopReason.ANSWERED}


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
    for each in (source, here(parts)):
        with pytest.raises(SettingsError, match="task t0 has no words"):
            each.evaluate(tasks(1))
