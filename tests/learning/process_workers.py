"""Learner ranks in processes of this machine, on gloo: real sums, no cluster."""

import gc
import pickle
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from midthought.config import TrainingConfig
from midthought.learning.learner_worker import LearnerWorker
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule

TIMEOUT_SECONDS = 120.0


class ProcessWorkers:
    """The processes serve one learner after another, until `end`: `start` gives them other models and a new process group.

    Create it outside of `torch.autocast`: processes keep the state that they are forked in.
    """

    can_start_again = False

    def __init__(self, num_ranks: int = 2) -> None:
        self._num_ranks = num_ranks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._is_taken = False
        self._fork()

    def start(self, models: Models, settings: TrainingConfig, schedule: TrainingSchedule) -> None:
        assert not self._is_taken, "another learner has these ranks"
        self._is_taken = True
        if not self._processes:
            self._fork()  # a call that got no answer has ended them
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.call("start", pickle.dumps((models, settings, schedule)), store.port)
        self._store = store  # the earlier process group, which has just ended, needed the earlier store

    def _fork(self) -> None:
        context = processes.get_context("fork")
        for number in range(self._num_ranks):
            ours, theirs = context.Pipe()
            arguments = theirs, number, self._num_ranks
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)

    def call(self, method: str, *arguments: Any) -> Any:
        for pipe in self._pipes:
            pipe.send((method, arguments))
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(TIMEOUT_SECONDS):
                self.end()
                raise AssertionError(f"a rank gave no answer to {method}")
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers[0]

    def close(self) -> None:
        """Frees the ranks for another learner."""
        self._is_taken = False

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []


class _Rank:
    def __init__(self, number: int, num_ranks: int) -> None:
        self._number, self._num_ranks = number, num_ranks

    def start(self, pickled: bytes, port: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        models, settings, schedule = pickle.loads(pickled)  # noqa: S301  # from this test
        with torch.no_grad():
            for tensor in models.tensors().values():
                tensor.fill_(1)  # what the rank learns from must have been sent
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_SECONDS))
        self.worker = LearnerWorker(models, settings, schedule)
        self.worker.join(store, self._number, self._num_ranks, TIMEOUT_SECONDS)


def _serve(pipe: Connection, number: int, num_ranks: int) -> None:
    gc.freeze()  # finalizers of objects of earlier tests would wait for threads that this process does not have
    torch.set_num_threads(1)
    rank = _Rank(number, num_ranks)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(rank if method == "start" else rank.worker, method)(*arguments)
        except Exception as error:
            answer = error
        pipe.send(answer if number == 0 or isinstance(answer, Exception) else None)
