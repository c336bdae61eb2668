"""Snapshots for placement tests."""

from typing import Any

from services.router.placement.types import WorkerView


def view(name: str, **more: Any) -> WorkerView:
    """An idle worker of 1,600 KV tokens and 8 slots."""
    fields: dict[str, Any] = {
        "identity": f"{name}|1",
        "incarnation": "1",
        "fingerprint": "f",
        "kv_address": "h:1",
        "block_tokens": 16,
        "max_model_len": 1000,
        "kv_tokens": 0,
        "kv_tokens_max": 1600,
        "requests": 0,
        "requests_max": 8,
        "queued": 0,
    }
    return WorkerView(name=name, **(fields | more))
