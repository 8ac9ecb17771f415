"""Metrics for Prometheus. Every application has its own registry."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class Metrics:
    """Counts requests by route, method and status, their durations, and how queries were embedded and searched."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ["route", "method", "status"]
        self._requests = Counter("midthought_memory_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "midthought_memory_request_seconds", "Time to answer.", ["route"], registry=registry, buckets=_SECONDS
        )
        self._under_way = Gauge("midthought_memory_queries_under_way", "Queries being searched.", registry=registry)
        self._chunks = Gauge("midthought_memory_chunks", "Chunks of the memory.", registry=registry)
        self._observed = {
            "embedded_together": Histogram(
                "midthought_memory_embedded_together",
                "Queries embedded in one batch.",
                registry=registry,
                buckets=(1, 2, 4, 8, 16, 32, 64),
            ),
            "embed_seconds": Histogram(
                "midthought_memory_embed_seconds", "Time to embed them.", registry=registry, buckets=_SECONDS
            ),
            "search_seconds": Histogram(
                "midthought_memory_search_seconds", "Time LanceDB took.", registry=registry, buckets=_SECONDS
            ),
        }

    def watch(self, num_under_way: Callable[[], int], num_chunks: Callable[[], int]) -> None:
        """Sets the callbacks for these gauges."""
        self._under_way.set_function(num_under_way)
        self._chunks.set_function(num_chunks)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request. Unknown methods are counted as `other`."""
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def observe(self, name: str, value: float) -> None:
        """Records one of `embedded_together`, `embed_seconds`, `search_seconds`."""
        self._observed[name].observe(value)

    def render(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
