"""What a gateway's scrape says of tokens, cost and times, and that keys cannot grow it."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from common.config import PricesConfig
from common.messages import Leg, RequestSummary
from services.gateway.metrics import GatewayMetrics
from services.gateway.requests.counters import OTHER_KEYS, Counters
from tests.unit.services.gateway.gate import Gate
from tests.unit.services.router.scraped import scraped

PHASES = ("prefill", "cached", "decode")


def summary(**more: Any) -> RequestSummary:
    made = RequestSummary(
        request_id="r",
        attempt=1,
        outcome="ended",
        legs=(Leg("decode", 1, 200.0),),
        prompt_tokens=100,
        cached_tokens=40,
        completion_tokens=10,
        ttft_ms=30.0,
    )
    return msgspec.structs.replace(made, **more)


def samples(gate: Gate, prices: PricesConfig) -> dict[tuple[str, ...], float]:
    page = scraped(GatewayMetrics(gate.core, prices).collect())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_tokens_and_their_cost_by_key_and_phase(gate: Gate) -> None:
    gate.core.counters.request_over(summary(), "k1")
    prices = PricesConfig(prefill=2.0, cached=0.5, decode=8.0, currency="EUR")
    found = samples(gate, prices)
    tokens = {phase: found["baton_gateway_key_tokens_total", "k1", phase] for phase in PHASES}
    assert tokens == {"prefill": 60.0, "cached": 40.0, "decode": 10.0}
    cost = {phase: found["baton_gateway_key_cost_total", "EUR", "k1", phase] for phase in PHASES}
    assert cost == {"prefill": 120e-6, "cached": 20e-6, "decode": 80e-6}
    assert found["baton_gateway_ttft_seconds_count",] == 1.0
    assert found["baton_gateway_ttft_seconds_bucket", "0.02"] == 0.0
    assert found["baton_gateway_ttft_seconds_bucket", "0.04"] == 1.0
    assert found["baton_gateway_request_seconds_sum",] == 0.2
    assert found["baton_gateway_requests_total", "", "ended"] == 1.0


def test_keys_are_bounded_and_nothing_is_lost() -> None:
    counters = Counters(keys_max=3)
    for number in range(10):
        counters.request_over(summary(), f"k{number}")
    assert set(counters.by_key) == {"k0", "k1", "k2", OTHER_KEYS}
    assert sum(usage.output for usage in counters.by_key.values()) == 100
    counters.request_over(summary(), "k1")
    assert counters.by_key["k1"].output == 20


def test_what_never_had_a_token_used_none_and_a_moved_one_is_counted() -> None:
    counters = Counters()
    counters.request_over(summary(ttft_ms=0.0, completion_tokens=0, cached_tokens=0), "k")
    assert (counters.by_key["k"].input, counters.ttft.count) == (0, 0)
    counters.request_over(summary(attempt=2), "k")
    counters.request_over(summary(attempt=3, outcome="failed", code="worker_lost"), "k")
    assert counters.migrations == {"resumed": 1, "failed": 1}
