"""What a KV service holds: all counts are zero when no handoff is open."""

from __future__ import annotations

from common.kv.service import KvService


def holdings(service: KvService, extra_pending: int = 0) -> dict[str, int]:
    """Counts by name. `extra_pending`: requests that a test made UCX keep."""
    kv_thread = service._kv_thread
    assert kv_thread is not None
    receive_side, send_side = kv_thread.receive_side, kv_thread.send_side
    tickets = send_side._tickets
    tickets.check_invariants()
    links = len(kv_thread._accepted) + len(receive_side.connections._channels)
    return {
        "fetches": len(receive_side._fetches),
        "receiving transfers": len(receive_side._by_transfer),
        "open receives": len(receive_side._arrivals),
        "staging of D": receive_side._pools.host.used,
        "claims of D": len(receive_side._pools.host._claims),
        "leases": len(tickets.holds()),
        "senders": len(tickets._senders),
        "secrets": len(tickets._by_secret),
        "sending transfers": len(tickets._by_transfer),
        "early requests": len(tickets._early),
        "offered prompts": len(send_side._prompts),
        "staging of P": send_side._pools.host.used,
        "loans of P": len(send_side._loans),
        "claims of P": len(send_side._pools.host._claims),
        "pending requests": kv_thread.ucx.inflight - links - extra_pending,
    }
