"""Queries of a service that arrive while others are embedded are embedded together."""

import asyncio
import threading

import numpy as np
import pytest

from midthought.memory.service.searcher import Searcher


class Model:
    """Notes what is embedded together; a call ends when `gate` is open. The store's hit is the query's vector."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()

    def embed(self, texts: list[str]) -> np.ndarray:
        self.calls.append(texts)
        self.gate.wait(5)
        if "bad" in texts:
            raise ValueError("a bad query")
        return np.asarray([[float(text)] for text in texts])

    def search_batch(self, queries, k, mode, *, vectors, **filters):
        return [vectors[0].tolist()]


async def started(model: Model, *queries: str) -> list[asyncio.Task]:
    """Starts the first search, and the others while it is embedded."""
    searcher = Searcher(model, model, max_batch_size=3)
    tasks = [asyncio.create_task(searcher.search(queries[0], 1, "vector"))]
    while not model.calls:
        await asyncio.sleep(0.001)
    tasks += [asyncio.create_task(searcher.search(query, 1, "vector")) for query in queries[1:]]
    await asyncio.sleep(0.01)
    return tasks


def test_what_comes_meanwhile_goes_together_once_each_in_parts_of_at_most_so_many():
    async def run() -> list:
        model = Model()
        tasks = await started(model, "0", "1", "2", "2", "3", "4")
        model.gate.set()
        assert await asyncio.gather(*tasks) == [[0], [1], [2], [2], [3], [4]]
        return model.calls

    assert asyncio.run(run()) == [["0"], ["1", "2"], ["3", "4"]]


def test_an_error_reaches_those_that_went_together_only_and_a_cancelled_query_is_left_out():
    async def run() -> list:
        model = Model()
        first, gone, bad, near, last = await started(model, "0", "1", "bad", "2", "3")
        gone.cancel()
        await asyncio.sleep(0.01)
        model.gate.set()
        assert await first == [0] and await last == [3]
        for task in (bad, near):
            with pytest.raises(ValueError, match="a bad query"):
                await task
        return model.calls

    assert asyncio.run(run()) == [["0"], ["bad", "2"], ["3"]]
