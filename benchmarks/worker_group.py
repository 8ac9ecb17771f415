"""Part `ray`: the same episodes on Ray's workers, in plain unsupervised processes, and in this process."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import check_episodes, make_parts
from benchmarks.table import Row
from benchmarks.timing import System, compare
from benchmarks.work import EchoTool, Shape, Work
from midthought.config import RayConfig
from midthought.engines.local.engine import LocalEngine
from midthought.rollout.episode_source import EpisodeSource, LocalEpisodeSource
from midthought.types import Trajectory

PART = "ray"
SEED = 7
MIN_SPEED = 0.9


def measure(options: Options) -> Iterator[Row]:
    shape = Shape(num_episodes=4, num_prompt=40, num_span=12, num_result=24) if options.quick else Shape()
    for size in options.sizes:
        yield from two_actors(options, size, shape)
        yield from one_actor(options, size, shape)


def two_actors(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """One thread each; the processes hand nothing back but that they are done."""
    reciter = options.reciter(size, num_span=shape.num_span)
    with ExitStack() as stack:
        worker_group = stack.enter_context(Episodes(_on_ray(reciter, shape, num_actors=2), reciter))
        processes = stack.enter_context(Processes(2, options, size, shape))
        systems: dict[str, System] = {"2 actors": worker_group, "2 processes": processes}
        timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    yield Row(
        part=PART,
        setting=shape.describe(size),
        figure="2 Ray actors: episodes/s against 2 bare processes",
        value=timings.ratio("2 processes", "2 actors"),
        at_least=MIN_SPEED,
        seconds=timings.medians("2 actors", "2 processes"),
    )


def one_actor(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """Deterministic mode: what comes back must be the same, to the bit. As many threads as this process has."""
    reciter = options.reciter(size, num_span=shape.num_span)
    with ExitStack() as stack:
        worker_group = stack.enter_context(Episodes(_on_ray(reciter, shape, num_actors=1, deterministic=True), reciter))
        here = stack.enter_context(Episodes(_in_process(reciter, shape, deterministic=True), reciter))
        systems: dict[str, System] = {"1 actor": Twin(worker_group, here), "in process": here}
        timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    yield Row(
        part=PART,
        setting=shape.describe(size),
        figure="1 Ray actor, identical trajectories: episodes/s against in-process, deterministic",
        value=timings.ratio("in process", "1 actor"),
        at_least=MIN_SPEED,
        seconds=timings.medians("1 actor", "in process"),
    )


class Episodes:
    """Whole episodes with tools from a source, as the training loop asks for them."""

    def __init__(self, source: EpisodeSource, reciter: Reciter) -> None:
        self._source = source
        self._reciter = reciter
        self.trajectories: list[Trajectory] = []

    def __enter__(self) -> Episodes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._source.close()

    def prepare(self, work: Work) -> None:
        self.work = work
        self._tasks = work.tasks()

    def run(self) -> None:
        self.trajectories = self._source.rollout(self._tasks, iteration=self.work.seed).trajectories

    def check(self) -> None:
        check_episodes(self.trajectories, self._reciter, self.work.shape)


class Twin:
    """Episodes that another system must give, too: whoever comes second in a round is compared with the first."""

    def __init__(self, episodes: Episodes, other: Episodes) -> None:
        self._episodes = episodes
        self._other = other

    def prepare(self, work: Work) -> None:
        self._episodes.prepare(work)

    def run(self) -> None:
        self._episodes.run()

    def check(self) -> None:
        self._episodes.check()
        self._other.prepare(self._episodes.work)
        self._other.run()
        assert _content(self._episodes.trajectories) == _content(self._other.trajectories), "not the same trajectories"


class Processes:
    """Processes with a model, an engine and one thread each, which share the episodes of a round out among themselves."""

    def __init__(self, number: int, options: Options, size: str, shape: Shape) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for place in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, options, size, shape, place, number), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=10)
            process.kill()

    def prepare(self, work: Work) -> None:
        self._ask(work.seed)

    def run(self) -> None:
        self._ask("run")

    def check(self) -> None:
        self._ask("check")

    def _ask(self, word: int | str) -> None:
        for pipe in self._pipes:
            pipe.send(word)
        for pipe in self._pipes:
            pipe.recv()  # EOFError if the process has failed; its traceback is printed


def _serve(pipe: Connection, options: Options, size: str, shape: Shape, place: int, number: int) -> None:
    """What a bare process does: prepares the work of a seed, runs its share, checks it; says when each is done."""
    torch.set_num_threads(1)
    reciter = options.reciter(size, num_span=shape.num_span)
    share = replace(shape, num_episodes=shape.num_episodes // number)
    episodes = Episodes(_in_process(reciter, share), reciter)
    while True:
        try:
            word = pipe.recv()
        except EOFError:
            return
        if isinstance(word, int):
            episodes.prepare(Work(reciter, share, word * number + place))
        else:
            getattr(episodes, word)()
        pipe.send(None)


def _engine(model: Any, *, eos_token_ids: Sequence[int], shape: Shape, deterministic: bool) -> LocalEngine:
    return LocalEngine(
        model,
        eos_token_ids=eos_token_ids,
        max_num_seqs=max(128, shape.num_episodes),
        max_seq_len=shape.length + 1,
        deterministic=deterministic,
    )


def _in_process(reciter: Reciter, shape: Shape, *, deterministic: bool = False) -> LocalEpisodeSource:
    engine = _engine(
        reciter.model, eos_token_ids=reciter.renderer.eos_token_ids, shape=shape, deterministic=deterministic
    )
    parts = make_parts(reciter, engine, EchoTool(reciter, shape.num_result), shape)
    return LocalEpisodeSource(parts, engine, seed=SEED)


def _on_ray(reciter: Reciter, shape: Shape, *, num_actors: int, deterministic: bool = False) -> EpisodeSource:
    from midthought.cluster.ray.ray_rollouts import RayEpisodeSource, RolloutWorkerGroup

    make_engine = functools.partial(
        _engine, eos_token_ids=reciter.renderer.eos_token_ids, shape=shape, deterministic=deterministic
    )
    settings = RayConfig(use_ray=True, num_actors=num_actors)
    worker_group = RolloutWorkerGroup(settings, reciter.model, make_engine, is_deterministic=deterministic)
    engine = make_engine(reciter.model)
    parts = make_parts(reciter, engine, EchoTool(reciter, shape.num_result), shape)
    return RayEpisodeSource(parts, engine, worker_group, seed=SEED)


def _content(trajectories: Sequence[Trajectory]) -> list[Any]:
    return [
        (each.task.task_id, each.seed, [(s.token_ids, s.loss_mask, repr(s.sampled_logprobs)) for s in each.segments])
        for each in trajectories
    ]
