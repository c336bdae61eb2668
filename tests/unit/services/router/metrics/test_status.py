"""The router's `status` answer as metrics. The answer is the verb's own, so that both agree."""

from __future__ import annotations

import msgspec

from common.errors import Code
from common.net.admin_status import Status
from services.router.admin.verb import View
from services.router.admin.verbs.status import run
from services.router.metrics.status import router_metrics
from tests.unit.services.router.rig import standard
from tests.unit.services.router.scraped import scraped
from tests.unit.services.router.test_core_mixed import D, M, P, of


def status() -> Status:
    rig = standard()
    counts = rig.core.tables.counts
    counts.submitted, counts.placed, counts.placed_local, counts.moved = 9, 7, 2, 1
    counts.ended, counts.failed, counts.cancelled, counts.adopted = 4, 1, 2, 3
    counts.refuse(Code.QUEUE_FULL.value)
    counts.drop("before hello")
    return run(View(rig.core.shared, rig.now, {"bad frame": 5}), {})


def test_what_the_router_decided() -> None:
    text = scraped(router_metrics(status()))
    for line in (
        "baton_router_requests_submitted_total 9.0",
        "baton_router_requests_placed_total 7.0",
        "baton_router_requests_placed_local_total 2.0",
        "baton_router_requests_moved_total 1.0",
        "baton_router_requests_adopted_total 3.0",
        "baton_router_requests_ended_total 4.0",
        "baton_router_requests_failed_total 1.0",
        "baton_router_requests_cancelled_total 2.0",
        'baton_router_requests_refused_total{code="queue_full"} 1.0',
        'baton_router_messages_dropped_total{reason="before hello"} 1.0',
        'baton_router_messages_dropped_total{reason="bad frame"} 5.0',
    ):
        assert line in text.splitlines()


def test_how_full_it_is() -> None:
    answer = msgspec.structs.replace(status(), queued=3, queued_bytes=800, active=6, open_pairs=2)
    lines = scraped(router_metrics(answer)).splitlines()
    for line in (
        "baton_router_queue_requests 3.0",
        "baton_router_queue_bytes 800.0",
        "baton_router_active_requests 6.0",
        "baton_router_open_pairs 2.0",
        "baton_router_ready 1.0",
        'baton_router_workers_ready{role="prefill"} 1.0',
        'baton_router_workers_ready{role="decode"} 1.0',
    ):
        assert line in lines
    helped = [line for line in lines if line.startswith("# HELP")]
    assert len(helped) == 9 + 7 + 3 + 7


def test_a_mixed_worker_is_counted_once_among_the_ready() -> None:
    rig = of(p0=P, d0=D, m0=M)
    lines = scraped(router_metrics(run(View(rig.core.shared, rig.now, {}), {}))).splitlines()
    for role in ("prefill", "decode", "mixed"):
        assert f'baton_router_workers_ready{{role="{role}"}} 1.0' in lines
        assert f'baton_router_model_workers_ready{{model="model",role="{role}"}} 1.0' in lines
