"""Rows of the admin verbs for tests that do not care for most of their fields."""

from __future__ import annotations

from common.net.admin_rows import PairRow, WorkerRow

WORKER = WorkerRow(
    name="d0", role="decode", state="ready", reason="", since_s=90.0, seen_ms=5, requests=2,
    requests_max=8, queued_tokens=0, kv_tokens_promised=400, kv_tokens_foreign=100,
    kv_tokens_max=1000, kv_used=0.25, running=2, waiting=0, step_age_ms=1.0, block_tokens=16,
    kv_blocks=64, kv_block_bytes=1024, max_model_len=1024, model="m", fingerprint="f",
    kv_address="127.0.0.1:1", incarnation="1", pid=100,
)  # fmt: skip
PAIR = PairRow(
    prefill="p0", decode="d0", state="closed", handoffs=7, bytes=1 << 30, ms=1.0, retries=0,
    digest_mismatches=0, failures=0, bytes_per_s=1 << 20,
)  # fmt: skip
