"""The JSON of `status`, whose names scripts and dashboards rely on."""

from __future__ import annotations

import json

from common.net.admin_status import Status
from services.router.admin.answer import answer
from services.router.admin.verb import View
from services.router.degradation.detector import Cause
from tests.unit.services.router.rig import Rig

ESTIMATES = (
    "prefill_tokens_per_s", "local_prefill_tokens_per_s", "decode_step_ms", "output_tokens_p90",
    "pair_bytes_per_s", "handoff_tail_ms", "stay_ms",
)  # fmt: skip
TOTALS = (
    "submitted",
    "placed",
    "placed_local",
    "placed_ahead",
    "moved",
    "adopted",
    "ended",
    "failed",
    "cancelled",
)
NAMES = (
    "ready", "reason", "router", "incarnation", "uptime_s", "draining", "policy", "mode",
    "remote_prefill", "model", "max_model_len", "gateways", "prefill_ready", "decode_ready",
    "workers_doubted", "active", "active_max", "queued", "queued_max", "queued_bytes",
    "queued_bytes_max", "ttft_slo_ms", "drained_per_s", "retry_reservations",
    "retry_redeemed_share",
    "estimates", "prefix_hashes", "pairs_resting", "alarms", "flapping", "totals", "refused",
    "dropped", "models", "decode_warm", "mixed_ready", "pools_ready",
)  # fmt: skip


def test_the_names_of_the_answer_are_stable(rig: Rig) -> None:
    rig.submit()
    tables = rig.core.tables
    tables.degradation.count(Cause.DIGEST, rig.now, of=9, bad=9, culprit="d0")
    rig.tick()
    frame = answer(b'{"verb": "status"}', lambda: View(rig.core.shared, rig.now, {"bad frame": 2}))
    result = json.loads(frame)["result"]
    assert tuple(result) == NAMES == Status.__struct_encode_fields__
    assert tuple(result["estimates"]) == ESTIMATES
    assert result["totals"] == {**dict.fromkeys(TOTALS, 0), "submitted": 1, "placed": 1}
    assert [tuple(alarm) for alarm in result["alarms"]] == [("cause", "since_s", "sentence")]
    assert result["dropped"] == {"bad frame": 2}
