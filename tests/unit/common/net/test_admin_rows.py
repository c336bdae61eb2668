"""The JSON that clients of `workers`, `requests`, `kv` and `pairs` read: keys in their order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.services.router.admin.test_kv_ledger import report
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import standard

WORKER = (
    "name role state reason verdict verdict_reason since_s seen_ms requests requests_max "
    "queued_tokens prefix_hashes stored_hashes disk_hashes not_paired_with unlike "
    "kv_tokens_promised kv_tokens_foreign kv_tokens_max kv_used running waiting step_age_ms "
    "block_tokens kv_blocks kv_block_bytes kv_groups max_model_len model fingerprint "
    "fingerprint_parts kv_address incarnation pid wake_ms configured_role role_since_s "
    "role_epoch becomes prefill_tokens_per_s decode_tokens_per_s batch handoffs gpu_busy "
    "gpu_memory_busy accepted tokens_per_output"
)
REQUEST = (
    "request_id attempt model state tenant key_id priority age_ms prompt_tokens max_tokens prefill "
    "decode gateway waits_for move copies"
)
QUEUED = (
    "request_id attempt model class tenant key_id waited_ms start_within_ms prompt_tokens "
    "output_tokens cost passed_by waits_for"
)
HOLD = "owner side peer request_id attempt state orphan blocks bytes lease_left_ms age_ms"
PAIR = (
    "prefill decode state unreachable_s handoffs bytes ms retries digest_mismatches failures "
    "bytes_per_s"
)


@pytest.mark.parametrize(
    ("verb", "args", "keys"),
    [
        ("workers", {}, WORKER),
        ("requests", {}, REQUEST),
        ("requests", {"queue": True}, QUEUED),
        ("pairs", {}, PAIR),
    ],
)
def test_keys_of_a_row(verb: str, args: dict[str, Any], keys: str) -> None:
    rig = standard(max_active=1)
    rig.submit("placed")
    rig.submit("queued")
    for row in ask(rig, verb, **args):
        assert list(row) == keys.split()


def test_keys_of_the_ledger() -> None:
    rig = standard()
    rig.submit()
    report(rig)
    ledger = ask(rig, "kv")
    assert list(ledger) == ["holds", "holds_total", "bytes_total", "orphans", "workers"]
    assert list(ledger["holds"][0]) == HOLD.split()
    reported, silent = ledger["workers"]
    assert list(reported) == list(silent) == ["name", "role", "holds", "counts"]
    assert (reported["counts"]["bytes_out"], silent["counts"]) == (2048, {})
