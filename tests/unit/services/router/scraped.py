"""Metrics as a scrape shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def scraped(metrics: Iterable[Metric]) -> str:
    registry = CollectorRegistry()
    registry.register(_Given(metrics))
    return generate_latest(registry).decode()
