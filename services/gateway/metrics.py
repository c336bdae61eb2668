"""A gateway's counters as Prometheus metrics, and those that vLLM has too under vLLM's names.

What concerns requests has the label `model`, with the name of the model in the fleet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config import Config
from common.telemetry.exposition import histogram
from services.gateway.cells.core import CellsCore
from services.gateway.requests.counters import ModelCounters
from services.gateway.requests.port import CoreView

PHASES = ("prefill", "cached", "decode")
ANONYMOUS_KEY = "anonymous"
#: Labels of vLLM's metrics.
LABELS = ("model_name", "engine")


class GatewayMetrics(Collector):
    def __init__(self, core: CoreView, config: Config) -> None:
        self._core = core
        self._prices = {model: config.of_model(model).prices for model in config.served}

    def collect(self) -> Iterator[Metric]:
        counters = self._core.counters
        models = {model: counters.of_model(model) for model in self._prices}
        yield from _ends(models)
        yield from _steps(models)
        for name, help_, rows in (
            (
                "ttft",
                "From a request's head to its first token",
                {(model,): counted.ttft for model, counted in models.items()},
            ),
            (
                "itl",
                "Between two messages with tokens of one stream",
                {(model,): counted.itl for model, counted in models.items()},
            ),
            (
                "request",
                "From a request's head to its end",
                {(model,): counted.request_time for model, counted in models.items()},
            ),
        ):
            yield histogram(f"baton_gateway_{name}_seconds", help_, rows, "model")
        live = GaugeMetricFamily(
            "baton_gateway_live_requests", "Requests under way", labels=["model"]
        )
        for model in models:
            live.add_metric([model], self._core.live_of(model)[0])
        yield live
        dropped = CounterMetricFamily(
            "baton_gateway_deltas_dropped", "Tokens that were not passed on", labels=["reason"]
        )
        dropped.add_metric(["stale"], counters.stale)
        dropped.add_metric(["unknown"], counters.unknown)
        yield dropped
        ignored = CounterMetricFamily(
            "baton_gateway_ignored_fields",
            "Requests with a field that changes nothing here and was ignored",
            labels=["field"],
        )
        for field, count in counters.ignored_fields.items():
            ignored.add_metric([field], count)
        yield ignored
        yield from self._keys(models)

    def _keys(self, models: dict[str, ModelCounters]) -> Iterator[Metric]:
        tokens = CounterMetricFamily(
            "baton_gateway_key_tokens",
            "Tokens of each API key: prompt tokens that were computed, those that were cached, and "
            "tokens made",
            labels=["model", "key", "phase"],
        )
        cost = CounterMetricFamily(
            "baton_gateway_key_cost",
            "What those tokens cost by [prices] and the prices of their model",
            labels=["model", "key", "phase", "currency"],
        )
        for model, counted in models.items():
            prices = self._prices[model]
            price = {"prefill": prices.prefill, "cached": prices.cached, "decode": prices.decode}
            for key, usage in counted.by_key.items():
                tokens_by_phase = {
                    "prefill": usage.input - usage.cached,
                    "cached": usage.cached,
                    "decode": usage.output,
                }
                for phase in PHASES:
                    labels = [model, key or ANONYMOUS_KEY, phase]
                    tokens.add_metric(labels, tokens_by_phase[phase])
                    amount = tokens_by_phase[phase] * price[phase] / 1e6
                    cost.add_metric([*labels, prices.currency], amount)
        yield tokens
        yield cost


def _steps(models: dict[str, ModelCounters]) -> Iterator[Metric]:
    for at, (name, help_) in enumerate(
        (
            ("tokens", "Tokens of streams that are over, by the class of the request"),
            ("messages", "Messages that brought those tokens, one for each step of a stream"),
        )
    ):
        counter = CounterMetricFamily(
            f"baton_gateway_class_{name}", help_, labels=["model", "class"]
        )
        for model, counted in models.items():
            for priority, counts in counted.by_class.items():
                counter.add_metric([model, priority.name.lower()], counts[at])
        yield counter


def _ends(models: dict[str, ModelCounters]) -> Iterator[Metric]:
    ends = CounterMetricFamily(
        "baton_gateway_requests",
        "Requests that are over, by what became of them",
        labels=["model", "outcome", "code"],
    )
    moves = CounterMetricFamily(
        "baton_gateway_migrations",
        "Requests that were begun anew on another worker, by how they ended",
        labels=["model", "outcome"],
    )
    for model, counted in models.items():
        for (outcome, code), count in counted.ends.items():
            ends.add_metric([model, outcome, code], count)
        for outcome, count in counted.migrations.items():
            moves.add_metric([model, outcome], count)
    yield ends
    yield moves


class CellMetrics(Collector):
    """Which cells take requests, and how many each was given. Nothing where there are no cells."""

    def __init__(self, core: CellsCore, models: Iterable[str]) -> None:
        self._core = core
        self._models = tuple(models)

    def collect(self) -> Iterator[Metric]:
        cells = {name: cell for name, cell in self._core.cells.items() if name}
        serves = GaugeMetricFamily(
            "baton_gateway_cell_serves",
            "1 if the cell has a router and a worker for the model",
            labels=["cell", "model"],
        )
        requests = CounterMetricFamily(
            "baton_gateway_cell_requests",
            "Requests that a cell was given: home, those of its tenants; spilled, those of another",
            labels=["cell", "why"],
        )
        for name, cell in cells.items():
            for model in self._models:
                serves.add_metric([name, model], float(cell.serves(model)))
            requests.add_metric([name, "home"], cell.home)
            requests.add_metric([name, "spilled"], cell.spilled)
        if cells:
            yield from (serves, requests)


class VllmNames(Collector):
    """What means the same in a vLLM server, under the names and labels that dashboards for vLLM
    read. All workers of a model are one engine to them. The bounds of the histograms are ours."""

    def __init__(self, core: CoreView, models: Iterable[str]) -> None:
        self._core = core
        self._models = tuple(models)

    def collect(self) -> Iterator[Metric]:
        counters = self._core.counters
        rows = {(model, "0"): counters.of_model(model) for model in self._models}
        live = {labels: self._core.live_of(labels[0]) for labels in rows}
        for name, help_, counts in (
            (
                "running",
                "Requests that a worker runs",
                {labels: requests - waiting for labels, (requests, waiting) in live.items()},
            ),
            (
                "waiting",
                "Requests that wait for a worker",
                {labels: waiting for labels, (_, waiting) in live.items()},
            ),
        ):
            gauge = GaugeMetricFamily(f"vllm:num_requests_{name}", help_, labels=LABELS)
            for labels, count in counts.items():
                gauge.add_metric(labels, count)
            yield gauge
        for name, help_, field in (
            ("prompt_tokens", "Tokens of prompts", "input"),
            ("prompt_tokens_cached", "Tokens of prompts that were in a cache", "cached"),
            ("generation_tokens", "Tokens made", "output"),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", help_, labels=LABELS)
            for labels, counted in rows.items():
                tokens = [asdict(usage)[field] for usage in counted.by_key.values()]
                counter.add_metric(labels, sum(tokens))
            yield counter
        for name, help_, times in (
            (
                "time_to_first_token",
                "From a request's head to its first token",
                {labels: counted.ttft for labels, counted in rows.items()},
            ),
            (
                "inter_token_latency",
                "Between two messages with tokens of a stream",
                {labels: counted.itl for labels, counted in rows.items()},
            ),
            (
                "e2e_request_latency",
                "From a request's head to its end",
                {labels: counted.request_time for labels, counted in rows.items()},
            ),
        ):
            yield histogram(f"vllm:{name}_seconds", help_, times, *LABELS)
