"""Two Ray nodes on one machine: a run survives a killed worker, and then a killed node."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_worlds import Echo, LoggedReward, settings

from midthought import RayPPOTrainer

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head that holds no worker, and two nodes with room for two workers each."""
    import ray
    from ray.cluster_utils import Cluster

    assert not ray.is_initialized()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_run_survives_a_killed_worker_and_a_killed_node(nodes, policy, tokenizer, tmp_path, caplog):
    """Both are killed in the middle of a rollout; every task has its episodes, once."""
    config = settings(num_actors=2, training={"num_train_iters": 4}, ray={"cpus_per_actor": 1.0})
    config.ray.address = nodes.address
    log = tmp_path / "log"

    def kill_worker() -> None:
        os.kill(int(first_line(log)[0]), signal.SIGKILL)

    def kill_node() -> None:
        node_id = first_line(log)[1]
        nodes.remove_node(next(each for each in nodes.worker_nodes if each.node_id == node_id), allow_graceful=False)

    drawn: list[str] = []
    with RayPPOTrainer(config, Echo, LoggedReward(log, 2.0), model=policy, tokenizer=tokenizer) as trainer:
        for kill in (None, kill_worker, kill_node, None):
            log.unlink(missing_ok=True)
            killing = threading.Thread(target=kill or (lambda: None))
            killing.start()
            data = trainer.rollout()
            killing.join()
            drawn += [trajectory.task.task_id for trajectory in data]
            trainer.train_step(data)
        figures = trainer.metrics_history
    assert caplog.text.count(" died, its unfinished episodes are run again") == 2
    assert [row["env/num_episodes"] for row in figures] == [4.0] * 4
    assert [row["batch/num_episodes"] for row in figures] == [4.0] * 4
    assert len(drawn) == len(set(drawn)) == 16


def first_line(path: Path) -> list[str]:
    """Once it is there."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path.read_text().splitlines()[0].split()
