"""The connection to a cluster: what is refused before, what is said where there is no room, what is left as it was."""

import subprocess
import sys
import threading
from typing import Any

import pytest
from ray_worlds import Echo, HoldsLock, settings

from midthought import RayPPOTrainer
from midthought.cluster.ray.ray_cluster import RayCluster, are_colocated
from midthought.config import RayConfig, create_default_config
from midthought.errors import MissingExtraError, SettingsError


def config(**sections: Any) -> Any:
    return create_default_config(ray={"use_ray": True}, **sections)


def test_ray_that_is_not_installed_is_an_error_with_its_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; .* pip install 'midthought\[ray\]'"):
        RayPPOTrainer(settings(), Echo)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"inference": {"backend": "vllm"}}, r"ray\.use_ray with inference\.backend='vllm'"),
        ({"training": {"max_staleness": 2}}, r"training\.max_staleness=2 with Ray.*set it to 0"),
    ],
)
def test_what_does_not_go_with_ray_is_refused(sections, words):
    with pytest.raises(SettingsError, match=words):
        RayPPOTrainer(config(**sections), Echo)


@pytest.mark.slow
def test_a_cluster_without_room_is_an_error_that_names_what_it_has_and_what_was_asked(cluster):
    asked = RayConfig(num_actors=3, cpus_per_actor=2.0, start_timeout_seconds=1.0)
    with pytest.raises(SettingsError) as raised:
        RayCluster(asked)
    said = ("ray.num_actors=3 with 2 CPUs and 0 GPUs each", "It has 4 CPUs and 2 GPUs on 1 node(s)", "within 1 seconds")
    assert all(words in str(raised.value) for words in said)


@pytest.mark.slow
def test_room_is_given_back_and_a_cluster_that_was_there_is_left_alone(cluster):
    for _ in range(2):
        session = RayCluster(RayConfig(num_actors=2, cpus_per_actor=2.0, start_timeout_seconds=10.0))
        session.close()
        session.close()
    assert cluster.is_initialized()


def test_a_reward_that_cannot_be_sent_is_refused_before_ray_is_started(monkeypatch, policy, tokenizer):
    guard = threading.Lock()

    def reward(trajectory: Any) -> float:
        return float(guard.locked())

    monkeypatch.setattr("ray.init", lambda *args, **options: pytest.fail("Ray was started"))
    with pytest.raises(SettingsError, match=r"'_thread\.lock' .*__getstate__"):
        RayPPOTrainer(settings(), Echo, reward, model=policy, tokenizer=tokenizer)


@pytest.mark.slow
def test_an_environment_that_cannot_be_sent_once_it_is_reset_says_so(cluster, policy, tokenizer):
    with (
        RayPPOTrainer(settings(), HoldsLock, model=policy, tokenizer=tokenizer) as trainer,
        pytest.raises(SettingsError, match=r"'_thread\.lock' .*in `reset`"),
    ):
        trainer.rollout()


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "no Ray cluster could be joined there"), ("ray://127.0.0.1:1", "Ray's client")],
)
def test_an_address_that_cannot_be_joined_is_refused_at_once(address, words, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # the cluster of other tests
    with pytest.raises(SettingsError, match=f"ray.address='{address}': {words}"):
        RayCluster(RayConfig(address=address))


OWN_CLUSTER = """
import midthought.cluster.ray.ray_cluster as session
from midthought.config import RayConfig
first = session.RayCluster(RayConfig(num_actors=3, cpus_per_actor=0.5))
second = session.RayCluster(RayConfig(num_actors=1, cpus_per_actor=0.1))
import ray
print("NODE", ray.nodes()[0]["NodeManagerAddress"])
first.close()
print("AFTER ONE", ray.is_initialized())
second.close()
print("AFTER ALL", ray.is_initialized())
"""


@pytest.mark.slow
def test_a_cluster_of_our_own_is_on_loopback_and_ends_with_its_last_session():
    done = subprocess.run([sys.executable, "-c", OWN_CLUSTER], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:4] == ["NODE 127.0.0.1", "AFTER ONE True", "AFTER ALL False", ""], done.stderr


def test_actors_and_learners_share_a_gpu_if_there_are_as_many_and_each_asks_for_a_fraction():
    pairs = {"use_ray": True, "num_actors": 2, "num_learners": 2, "gpus_per_actor": 0.4, "gpus_per_learner": 0.6}
    assert are_colocated(RayConfig(**pairs))
    for other in ({"use_ray": False}, {"num_actors": 3}, {"gpus_per_actor": 0.0}, {"gpus_per_learner": 1.0}):
        assert not are_colocated(RayConfig(**{**pairs, **other})), other


@pytest.mark.slow
def test_an_actor_and_a_learner_of_the_same_number_get_the_same_gpu(cluster):
    """The GPUs are resources that Ray counts; none is used."""

    class Placed:
        def gpus(self) -> list[int]:
            import ray

            return ray.get_gpu_ids()

    parts = {"gpus_per_actor": 0.4, "gpus_per_learner": 0.6, "cpus_per_actor": 0.5, "cpus_per_learner": 0.5}
    asked = RayConfig(use_ray=True, num_actors=2, num_learners=2, **parts)
    of_actors, of_learners = RayCluster(asked, "actor"), RayCluster(asked, "learner")
    placed = cluster.remote(Placed)
    actors = [
        placed.options(**session.options(asked, number)).remote()
        for session in (of_actors, of_learners)
        for number in (0, 1)
    ]
    gpus = cluster.get([actor.gpus.remote() for actor in actors])
    assert gpus[:2] == gpus[2:]
    assert sorted(gpus[:2]) == [[0], [1]]
    for actor in actors:
        cluster.kill(actor)
    of_actors.close()
    assert _num_places() == 1, "the learners still stand there"
    of_learners.close()
    assert _num_places() == 0


def _num_places() -> int:
    from ray.util import placement_group_table

    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())
