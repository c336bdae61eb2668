"""Sums over the timelines: what `pairs` shows, and the balance of the two phases."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from common.messages import KvReport, Leg, RequestSummary
from common.telemetry.timeline import AttemptRecord, TimelineRecord
from services.router.admin.verb import View
from services.router.metrics.router import RouterMetrics, imbalance
from services.router.timeline.traffic import PAIRS_MAX, Traffic
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.scraped import scraped


def served(rig: Rig, kv: KvReport) -> None:
    rig.submit()
    rig.now += 0.2
    rig.prefilled()
    rig.started(kv=kv)
    rig.now += 0.4
    rig.ended()
    legs = (Leg("queue", 1, 1.0), Leg("placed", 1, 200.0), Leg("decode", 1, 400.0))
    rig.receive(
        "g0|1",
        RequestSummary(request_id="r1", attempt=1, outcome="ended", legs=legs, completion_tokens=8),
    )
    rig.tick()


def rows(rig: Rig) -> Any:
    return ask(rig, "pairs", limit=10)


def test_a_pair_is_shown_before_and_after_it_handed_over(rig: Rig) -> None:
    (fresh,) = rows(rig)
    assert (fresh["prefill"], fresh["decode"], fresh["state"]) == ("p0", "d0", "closed")
    assert fresh["handoffs"] == 0
    served(
        rig,
        KvReport(
            blocks=3, complete=True, messages=2, payload_bytes=3072, transfer_ms=4.0, retries=1
        ),
    )
    (row,) = rows(rig)
    assert (row["handoffs"], row["bytes"], row["ms"], row["retries"]) == (1, 3072, 4.0, 1)


def test_a_handoff_that_never_came_is_a_failure(rig: Rig) -> None:
    served(rig, KvReport(digest_mismatches=2))
    (row,) = rows(rig)
    assert (row["handoffs"], row["failures"], row["digest_mismatches"]) == (0, 1, 2)


def test_the_scrape_has_phases_tokens_pairs_and_the_balance(rig: Rig) -> None:
    assert imbalance(rig.core.tables) is None
    served(rig, KvReport(blocks=3, complete=True, messages=2, payload_bytes=3072, transfer_ms=4.0))
    page = scraped(RouterMetrics(lambda: View(rig.core.shared, rig.now, {})).collect())
    for line in (
        'baton_router_phase_seconds_count{model="model",phase="decode"} 1.0',
        'baton_router_tokens_total{model="model",phase="prefill"} 40.0',
        'baton_router_tokens_total{model="model",phase="decode"} 8.0',
        'baton_pair_bytes_total{decode="d0",prefill="p0"} 3072.0',
        'baton_pair_transfer_seconds_total{decode="d0",prefill="p0"} 0.004',
        'baton_router_utilisation_ratio{model="model",phase="decode"} 0.0',
        "baton_router_workers_known 2.0",
    ):
        assert line in page.splitlines(), line
    ratio = imbalance(rig.core.tables)
    assert ratio is not None
    rig.prefill("p1")
    assert imbalance(rig.core.tables) == pytest.approx(2 * ratio)


def test_pairs_are_bounded() -> None:
    traffic = Traffic()
    record = TimelineRecord(
        request_id="r", outcome="ended", code="", total_ms=1.0, ttft_ms=1.0, tpot_ms=0.0
    )
    attempt = AttemptRecord(
        attempt=1,
        state="ended",
        outcome="length",
        total_ms=1.0,
        gateway="g0",
        prompt_tokens=1,
        max_tokens=1,
        decode="d",
    )
    for number in range(2 * PAIRS_MAX):
        attempts = (replace(attempt, prefill=f"p{number}"),)
        traffic.add(replace(record, attempts=attempts))
    assert len(traffic.pairs) == PAIRS_MAX
