"""`[timeline]` and `[prices]`: what is recorded of requests, and what tokens cost."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from common.config.base import Count, Section

Price = Annotated[float, Meta(ge=0)]
Phase = Literal["prefill", "cached", "decode"]


class TimelineConfig(Section, frozen=True):
    """The record of each request that is over: one JSON line in `RUN_DIR/ROUTER.timeline.jsonl`,
    and spans for OpenTelemetry."""

    file_mib: Annotated[int, Meta(ge=0)] = 64
    """MiB that the timeline file and its predecessor may take together; 0 writes no file."""
    otlp_endpoint: str = ""
    """URL to which spans are sent, such as `http://127.0.0.1:4318/v1/traces`; empty makes none."""
    otlp_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the requests that get spans. A client's sampled `traceparent` is always followed."""


class PricesConfig(Section, frozen=True):
    """Prices per million tokens, by phase, for `baton_gateway_key_cost_total`; 0 charges
    nothing. A model may have others in its `prices`."""

    prefill: Price = 0.0
    """Price of a million prompt tokens that were computed."""
    cached: Price = 0.0
    """Price of a million prompt tokens whose KV was already there."""
    decode: Price = 0.0
    """Price of a million generated tokens."""
    currency: str = "USD"
    """Label of the cost metric; nothing is converted."""
    keys_max: Count = 200
    """API keys that have a row of their own for each model in a scrape, which bounds its size. The
    other keys share one row."""
