"""Iterations of the training loop over fakes, without a trainer: collect, learn, report."""

import time

import torch

from midthought.config import TrainingConfig
from midthought.learning.ppo import learn
from midthought.rollout.rollout_batch import collect
from midthought.rollout.rollout_metrics import rollout_metrics


class FakeLearner:
    """Changes nothing; keeps its batches, and what it was asked in a log."""

    training = TrainingConfig()
    device = torch.device("cpu")

    def __init__(self, log=None):
        self.log = [] if log is None else log
        self.batches = []
        self.critic_only = []

    def score(self, batch):
        self.log.append("score")
        return batch, {"scored": 1.0}

    def credit(self, batch):
        self.log.append("credit")
        return batch, {"credited": 1.0}

    def load_policy(self):
        """The policy is where it is sampled from."""

    def update(self, batch, *, critic_only=False):
        self.log.append("update")
        self.batches.append(batch)
        self.critic_only.append(critic_only)
        return {"updated": 1.0}


def run_iterations(source, learner, tasks, config, *, start, num_iters, on_iteration):
    """Iterations `start` to `num_iters`; `on_iteration(iterations done, metrics, data)` after each."""
    for iteration in range(start, num_iters):
        started = time.perf_counter()
        rollouts = collect(source, tasks, config, iteration)
        metrics = rollout_metrics(rollouts.data.trajectories) | learn(source, learner, config, rollouts, iteration)
        metrics["time/seconds"] = time.perf_counter() - started
        on_iteration(iteration + 1, metrics, rollouts.data)
