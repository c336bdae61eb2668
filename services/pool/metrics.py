"""A pool's Prometheus metrics. What its KV plane counts, the router's metrics have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PoolMetrics(Collector):
    """`blocks` returns how many blocks the pool has, and how many it can have."""

    def __init__(self, blocks: Callable[[], tuple[int, int]]) -> None:
        self._blocks = blocks

    def collect(self) -> Iterator[Metric]:
        held, most = self._blocks()
        yield GaugeMetricFamily("baton_pool_blocks", "KV blocks in the pool", value=held)
        help_ = "Room in the pool; 0 until a worker's layout is known"
        yield GaugeMetricFamily("baton_pool_blocks_max", help_, value=most)
