"""A gateway's counters as Prometheus metrics, and those that vLLM has too under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config import PricesConfig
from common.telemetry.exposition import histogram
from services.gateway.requests.core import Core

PHASES = ("prefill", "cached", "decode")
ANONYMOUS_KEY = "anonymous"


class GatewayMetrics(Collector):
    def __init__(self, core: Core, prices: PricesConfig) -> None:
        self._core = core
        self._prices = prices

    def collect(self) -> Iterator[Metric]:
        counters = self._core.counters
        ends = CounterMetricFamily(
            "baton_gateway_requests",
            "Requests that are over, by what became of them",
            labels=["outcome", "code"],
        )
        for (outcome, code), count in counters.ends.items():
            ends.add_metric([outcome, code], count)
        yield ends
        for name, help_, buckets in (
            ("ttft", "From a request's head to its first token", counters.ttft),
            ("itl", "Between two messages with tokens of one stream", counters.itl),
            ("request", "From a request's head to its end", counters.request_time),
        ):
            yield histogram(f"baton_gateway_{name}_seconds", help_, {(): buckets})
        yield GaugeMetricFamily(
            "baton_gateway_live_requests", "Requests under way", value=self._core.active
        )
        moves = CounterMetricFamily(
            "baton_gateway_migrations",
            "Requests that were begun anew on another worker, by how they ended",
            labels=["outcome"],
        )
        for outcome, count in counters.migrations.items():
            moves.add_metric([outcome], count)
        yield moves
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
        yield from self._keys()

    def _keys(self) -> Iterator[Metric]:
        prices = self._prices
        price = {"prefill": prices.prefill, "cached": prices.cached, "decode": prices.decode}
        tokens = CounterMetricFamily(
            "baton_gateway_key_tokens",
            "Tokens of each API key: prompt tokens that were computed, those that were cached, and "
            "tokens made",
            labels=["key", "phase"],
        )
        cost = CounterMetricFamily(
            "baton_gateway_key_cost",
            "What those tokens cost by [prices]",
            labels=["key", "phase", "currency"],
        )
        for key, usage in self._core.counters.by_key.items():
            tokens_by_phase = {
                "prefill": usage.input - usage.cached,
                "cached": usage.cached,
                "decode": usage.output,
            }
            for phase in PHASES:
                label = key or ANONYMOUS_KEY
                tokens.add_metric([label, phase], tokens_by_phase[phase])
                amount = tokens_by_phase[phase] * price[phase] / 1e6
                cost.add_metric([label, phase, prices.currency], amount)
        yield tokens
        yield cost


class VllmNames(Collector):
    """What means the same in a vLLM server, under the names and labels that dashboards for vLLM
    read. A fleet is one engine to them. The bounds of the histograms are ours."""

    def __init__(self, core: Core, model: str) -> None:
        self._core = core
        self._labels = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        core, counters = self._core, self._core.counters
        waiting = core.lifecycle.table.waiting
        names, values = list(self._labels), tuple(self._labels.values())
        for name, help_, count in (
            ("running", "Requests that a worker runs", core.active - waiting),
            ("waiting", "Requests that wait for a worker", waiting),
        ):
            gauge = GaugeMetricFamily(f"vllm:num_requests_{name}", help_, labels=names)
            gauge.add_metric(values, count)
            yield gauge
        used = counters.by_key.values()
        for name, help_, count in (
            ("prompt_tokens", "Tokens of prompts", sum(usage.input for usage in used)),
            (
                "prompt_tokens_cached",
                "Tokens of prompts that were in a cache",
                sum(usage.cached for usage in used),
            ),
            ("generation_tokens", "Tokens made", sum(usage.output for usage in used)),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", help_, labels=names)
            counter.add_metric(values, count)
            yield counter
        for name, help_, buckets in (
            ("time_to_first_token", "From a request's head to its first token", counters.ttft),
            ("inter_token_latency", "Between two messages with tokens of a stream", counters.itl),
            ("e2e_request_latency", "From a request's head to its end", counters.request_time),
        ):
            yield histogram(f"vllm:{name}_seconds", help_, {values: buckets}, *names)
