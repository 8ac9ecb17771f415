"""Actors and learners that share places (`ray.colocate`): which GPU each gets, and when the places are given back.

The GPUs are resources that Ray counts; none is used.
"""

import pytest

from midthought.config import RayConfig


@pytest.mark.slow
def test_an_actor_and_a_learner_of_the_same_number_get_the_same_gpu(cluster):
    from midthought.cluster.ray.ray_cluster import RayCluster

    class Placed:
        def gpus(self) -> list[int]:
            import ray

            return ray.get_gpu_ids()

    parts = {"gpus_per_actor": 0.4, "gpus_per_learner": 0.6, "cpus_per_actor": 0.5, "cpus_per_learner": 0.5}
    asked = RayConfig(use_ray=True, num_actors=2, num_learners=2, colocate=True, **parts)
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
