"""The way of new weights to the actors: which one is chosen, and a broadcast of which a part dies."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")
from broadcast_scenario import Broadcasts, an_actor_dies_during_a_broadcast

from midthought.cluster.ray import weight_broadcast
from midthought.cluster.ray.weight_broadcast import WeightBroadcast
from midthought.cluster.ray.weight_route import choose_weight_route
from midthought.config import RayConfig
from midthought.errors import SettingsError


@pytest.fixture
def broadcasts(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Broadcasts]]:
    made: list[Broadcasts] = []

    def make(**ray: Any) -> Broadcasts:
        made.append(Broadcasts(tmp_path, "", monkeypatch, **ray))
        made[-1].pool.open()
        return made[-1]

    yield make
    for each in made:
        each.pool.close()


# -- the choice ----------------------------------------------------------------------------------------------------


SITUATIONS = [
    ({}, {}, "nccl", "each worker have a GPU of their own"),
    ({}, {"gpu_ids": ["a", "b", "c"]}, "nccl", "each worker have a GPU of their own"),
    ({"weight_transport": "object_store"}, {}, "object_store", r"ray\.weight_transport"),
    ({}, {"policy_device": "cpu"}, "object_store", "the policy in the training process is on 'cpu'"),
    ({"num_learners": 2}, {"policy_device": "cpu"}, "object_store", "the policy in the training process is on 'cpu'"),
    ({"gpus_per_actor": 0.0}, {}, "object_store", "the workers have no GPUs"),
    ({"colocate": True, "num_learners": 2, "gpus_per_actor": 0.5}, {}, "object_store", "share GPUs with the learners"),
    ({}, {"has_nccl": False}, "object_store", "no NCCL"),
    ({}, {"gpu_ids": ["a", "b", "a"]}, "object_store", "a worker is on the policy's GPU"),
    ({"gpus_per_actor": 0.5}, {"gpu_ids": ["a", "b", "b"]}, "object_store", "several workers share a GPU"),
    ({"gpus_per_actor": 0.5}, {"gpu_ids": ["a", "b"]}, "nccl", "each worker have a GPU of their own"),
]


def asked(**ray: Any) -> RayConfig:
    return RayConfig(**{"use_ray": True, "num_actors": 2, "gpus_per_actor": 1.0, **ray})


@pytest.mark.parametrize(("ray", "situation", "name", "reason"), SITUATIONS)
def test_the_route_is_chosen_by_the_situation(ray, situation, name, reason):
    route = choose_weight_route(asked(**ray), **{"policy_device": "cuda:0"} | situation)
    assert route.name == name and re.search(reason, route.reason)


@pytest.mark.parametrize(("ray", "situation", "name", "reason"), SITUATIONS[3:10])
def test_a_route_that_is_demanded_and_impossible_is_refused_with_the_remedy(ray, situation, name, reason):
    with pytest.raises(SettingsError, match=rf"ray\.weight_transport='nccl', but .*{reason}.*: .*'object_store'"):
        choose_weight_route(asked(weight_transport="nccl", **ray), **{"policy_device": "cuda:0"} | situation)


def test_nccl_is_refused_before_a_worker_is_started_if_the_policy_is_on_the_cpu():
    with pytest.raises(SettingsError, match="train on a GPU"):
        WeightBroadcast(asked(weight_transport="nccl"), torch.device("cpu"))


def test_the_route_is_logged_once_with_its_reason(caplog):
    caplog.set_level("INFO")
    route = WeightBroadcast(asked(), torch.device("cpu"))
    assert [route.send([], [], []) for _ in range(2)] == [False, False]
    assert caplog.messages == [
        "new weights go to the Ray workers through Ray's object store: the policy in the training process is on 'cpu'"
    ]


def test_an_actor_on_the_policy_s_gpu_is_found_by_the_gpus_themselves(cluster, monkeypatch, caplog):
    """Ray does not know which GPU the training process uses."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(weight_broadcast, "gpu_id", lambda device: "GPU-0")
    actors = [SimpleNamespace(gpu_id=SimpleNamespace(remote=lambda n=n: cluster.put(f"GPU-{n}"))) for n in (1, 0)]
    caplog.set_level("INFO")
    route = WeightBroadcast(asked(), torch.device("cuda:0"))
    assert not caplog.messages, "the actors' GPUs are not known yet"
    assert not route.send(actors, [], [])
    assert "through Ray's object store: a worker is on the policy's GPU" in caplog.text
    with pytest.raises(SettingsError, match=r"set model\.device to a GPU that no worker is on"):
        WeightBroadcast(asked(weight_transport="nccl"), torch.device("cuda:0")).send(actors, [], [])


# -- broadcasts ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_weights_are_broadcast_bit_for_bit_and_an_actor_that_dies_meanwhile_is_no_obstacle(broadcasts, caplog):
    an_actor_dies_during_a_broadcast(broadcasts(), caplog)


@pytest.mark.slow
def test_an_actor_that_takes_no_part_holds_up_an_update_for_a_limited_time(broadcasts, caplog):
    silent = broadcasts(silence_timeout_seconds=4.0)
    assert silent.update() == []
    silent.stop_one()
    started = time.monotonic()
    assert silent.update() == ["no answer within 4 seconds"]
    assert time.monotonic() - started < 30
    assert len(silent.running()) == silent.num_object_store == 1
    assert "this time" in caplog.text
    assert silent.update() == [], "the actor that is left gets the next update alone"
    assert silent.num_object_store == 1
