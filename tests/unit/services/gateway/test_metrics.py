"""What a gateway's scrape says of tokens, cost and times, and that keys cannot grow it."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from common.config import Config, ModelConfig, PricesConfig
from common.messages import Leg, PriorityClass, RequestSummary
from services.gateway.metrics import GatewayMetrics, VllmNames
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


def samples(gate: Gate, config: Config) -> dict[tuple[str, ...], float]:
    page = scraped(GatewayMetrics(gate.core, config).collect())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_tokens_and_messages_by_class(gate: Gate) -> None:
    counted = gate.core.counters.of_model("m")
    counted.stream_over(PriorityClass.BATCH, 10, 4)
    counted.stream_over(PriorityClass.BATCH, 5, 5)
    counted.stream_over(PriorityClass.STANDARD, 3, 3)
    found = samples(gate, Config(model=ModelConfig(name="m")))
    name = "baton_gateway_class"
    assert found[f"{name}_tokens_total", "batch", "m"] == 15
    assert found[f"{name}_messages_total", "batch", "m"] == 9
    assert found[f"{name}_tokens_total", "standard", "m"] == 3


def test_tokens_and_their_cost_by_key_and_phase(gate: Gate) -> None:
    gate.core.counters.request_over("m", summary(), "k1")
    prices = PricesConfig(prefill=2.0, cached=0.5, decode=8.0, currency="EUR")
    found = samples(gate, Config(model=ModelConfig(name="m"), prices=prices))
    key_tokens, key_cost = "baton_gateway_key_tokens_total", "baton_gateway_key_cost_total"
    tokens = {phase: found[key_tokens, "k1", "m", phase] for phase in PHASES}
    assert tokens == {"prefill": 60.0, "cached": 40.0, "decode": 10.0}
    cost = {phase: found[key_cost, "EUR", "k1", "m", phase] for phase in PHASES}
    assert cost == {"prefill": 120e-6, "cached": 20e-6, "decode": 80e-6}
    assert found["baton_gateway_ttft_seconds_count", "m"] == 1.0
    assert found["baton_gateway_ttft_seconds_bucket", "0.02", "m"] == 0.0
    assert found["baton_gateway_ttft_seconds_bucket", "0.04", "m"] == 1.0
    assert found["baton_gateway_request_seconds_sum", "m"] == 0.2
    assert found["baton_gateway_requests_total", "", "m", "ended"] == 1.0


def test_each_model_has_its_counts_and_its_prices(gate: Gate) -> None:
    models = {
        "chat": ModelConfig(name="chat"),
        "code": ModelConfig(name="code", prices={"decode": 3.0}),
    }
    gate.core.counters.request_over("code", summary(attempt=2), "k1")
    prices = PricesConfig(prefill=2.0, cached=0.5, decode=8.0)
    found = samples(gate, Config(model=models["chat"], models=models, prices=prices))
    key_cost = "baton_gateway_key_cost_total"
    cost = {phase: found[key_cost, "USD", "k1", "code", phase] for phase in PHASES}
    assert cost == {"prefill": 120e-6, "cached": 20e-6, "decode": 30e-6}
    assert not [key for key in found if key[0] == key_cost and "chat" in key]
    for name, ended in (("chat", 0.0), ("code", 1.0)):
        assert found["baton_gateway_ttft_seconds_count", name] == ended
        assert found["baton_gateway_itl_seconds_count", name] == 0.0
        assert found["baton_gateway_migrations_total", name, "resumed"] == ended
        assert found["baton_gateway_live_requests", name] == 0.0


def test_live_requests_are_counted_for_their_model(gate: Gate) -> None:
    gate.open()
    assert (gate.core.live_of("m"), gate.core.live_of("n")) == ((1, 1), (0, 0))
    gate.place()
    assert gate.core.live_of("m") == (1, 0)


def test_vllm_s_names_have_a_row_for_each_model(gate: Gate) -> None:
    gate.core.counters.request_over("code", summary(), "k1")
    page = scraped(VllmNames(gate.core, ["chat", "code"]).collect())
    found = {
        (sample.name, sample.labels["model_name"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "le" not in sample.labels
    }
    for name, used in (("chat", 0), ("code", 1)):
        assert found["vllm:prompt_tokens_total", name] == 100 * used
        assert found["vllm:prompt_tokens_cached_total", name] == 40 * used
        assert found["vllm:generation_tokens_total", name] == 10 * used
        assert found["vllm:time_to_first_token_seconds_count", name] == used
        assert found["vllm:num_requests_running", name] == 0


def test_keys_are_bounded_and_nothing_is_lost() -> None:
    counters = Counters(keys_max=3)
    for number in range(10):
        counters.request_over("m", summary(), f"k{number}")
    by_key = counters.of_model("m").by_key
    assert set(by_key) == {"k0", "k1", "k2", OTHER_KEYS}
    assert sum(usage.output for usage in by_key.values()) == 100
    counters.request_over("m", summary(), "k1")
    assert by_key["k1"].output == 20


def test_what_never_had_a_token_used_none_and_a_moved_one_is_counted() -> None:
    counters = Counters()
    unused = summary(ttft_ms=0.0, completion_tokens=0, cached_tokens=0)
    counters.request_over("m", unused, "k")
    counted = counters.of_model("m")
    assert (counted.by_key["k"].input, counted.ttft.count) == (0, 0)
    counters.request_over("m", summary(attempt=2), "k")
    lost = summary(attempt=3, outcome="failed", code="worker_lost")
    counters.request_over("m", lost, "k")
    assert counted.migrations == {"resumed": 1, "failed": 1}
