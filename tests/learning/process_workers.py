"""A team of learner ranks in processes of this machine, on gloo: real sums, no cluster."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from midthought.config import TrainingConfig
from midthought.learning.distributed.worker import LearnerWorker
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.model import Models

TIMEOUT_SECONDS = 20.0


class ProcessWorkers:
    def __init__(self, num_ranks: int = 2) -> None:
        self._num_ranks = num_ranks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def start(self, models: Models, settings: TrainingConfig, schedule: TrainingSchedule) -> None:
        context = processes.get_context("fork")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for number in range(self._num_ranks):
            ours, theirs = context.Pipe()
            arguments = theirs, models, settings, schedule, self._store.port, number, self._num_ranks
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)

    def call(self, method: str, *arguments: Any) -> Any:
        for pipe in self._pipes:
            pipe.send((method, arguments))
        answers = []
        for pipe in self._pipes:
            assert pipe.poll(TIMEOUT_SECONDS), f"a rank gave no answer to {method}"
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers[0]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []


def _serve(
    pipe: Connection,
    models: Models,
    settings: TrainingConfig,
    schedule: TrainingSchedule,
    port: int,
    number: int,
    num_ranks: int,
) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        for tensor in models.tensors().values():
            tensor.fill_(1)  # what the rank learns from must have been sent
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    worker = LearnerWorker(models, settings, schedule)
    worker.join(store, number, num_ranks, TIMEOUT_SECONDS)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(worker, method)(*arguments)
        except Exception as error:
            answer = error
        pipe.send(answer if number == 0 or isinstance(answer, Exception) else None)
