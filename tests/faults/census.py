"""What a KV service holds: all of it is zero when no handoff is open."""

from __future__ import annotations

from common.kv.service import KvService


def census(service: KvService, extra_pending: int = 0) -> dict[str, int]:
    """Counts by name. `extra_pending`: requests that a test made UCX keep."""
    core = service._core
    assert core is not None
    incoming, outgoing = core.incoming, core.outgoing
    desk = outgoing._desk
    desk.check_invariants()
    links = len(core._accepted_channels) + len(incoming.ways._channels)
    return {
        "fetches": len(incoming._fetches),
        "receiving transfers": len(incoming._by_transfer),
        "owed receives": len(incoming._owed),
        "staging of D": incoming._staging.used,
        "claims of D": len(incoming._staging._claims),
        "leases": len(desk.holds()),
        "senders": len(desk._senders),
        "secrets": len(desk._by_secret),
        "sending transfers": len(desk._by_transfer),
        "parked": len(desk._parked),
        "sources": len(outgoing._sources),
        "staging of P": outgoing._staging.used,
        "loans of P": len(outgoing._loans),
        "claims of P": len(outgoing._staging._claims),
        "pending requests": core.ucx.inflight - links - extra_pending,
    }
