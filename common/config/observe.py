"""What is written down of requests, and what tokens cost."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Section


class TimelineConfig(Section, frozen=True):
    """One JSON line for each request that is over, in `RUN_DIR/ROUTER.timeline.jsonl`. `file_mib`:
    the file and the one before it together, at most; 0 = no file. `otlp_endpoint`: where spans are
    sent, such as `http://127.0.0.1:4318/v1/traces`; empty = none are made. A client's sampled
    `traceparent` is always followed; of the others `otlp_share` is."""

    file_mib: Annotated[int, Meta(ge=0)] = 64
    otlp_endpoint: str = ""
    otlp_share: Annotated[float, Meta(ge=0, le=1)] = 1.0


class PricesConfig(Section, frozen=True):
    """Per million tokens, by phase, for `baton_gateway_key_cost_total`; 0 = not charged. `cached`:
    prompt tokens whose KV was there already. `currency`: a label. `keys_max`: keys with a row of
    their own in a scrape; the others share one."""

    prefill: Annotated[float, Meta(ge=0)] = 0.0
    cached: Annotated[float, Meta(ge=0)] = 0.0
    decode: Annotated[float, Meta(ge=0)] = 0.0
    currency: str = "USD"
    keys_max: Count = 200
