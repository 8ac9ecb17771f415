"""Iterations of the training loop over fakes, without a trainer: collect, learn, report."""

import time

from midthought.learning.ppo import learn
from midthought.rollout.rollout_batch import collect


def run_iterations(source, learner, tasks, config, *, start, num_iters, on_iteration):
    """Iterations `start` to `num_iters`; `on_iteration(iterations done, metrics, data)` after each."""
    for iteration in range(start, num_iters):
        started = time.perf_counter()
        rollouts = collect(source, tasks, config, iteration)
        metrics = learn(source, learner, config, rollouts, iteration)
        metrics["time/seconds"] = time.perf_counter() - started
        on_iteration(iteration + 1, metrics, rollouts.data)
