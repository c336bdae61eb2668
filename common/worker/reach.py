"""Which prefill workers a decode worker cannot reach over UCX, and when to try again; pure.

A router introduces every P that may hand KV over to this D. A connection that does not come about,
or is lost while nobody needs it, is tried again, less and less often, so that the next handoff need
not find out. A P that has gone for good is tried for as long as this D lives: once a minute, one
address for each name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from common.messages import KvUnreachable

GRACE_SECONDS = 3.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 60.0
PEERS_MAX = 1_024
KV_UNREACHABLE_MAX = 64


@dataclass(slots=True)
class _Peer:
    """`since`: when it was last seen to be linked, or introduced; None while it is."""

    kv_address: str
    since: float | None
    retry_at: float
    wait: float = RETRY_SECONDS


class Reach:
    """`linked` of `look` has the address of the first rank, which stands for all."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def introduced(self, prefill: str, kv_address: str, now: float) -> None:
        """The caller connects this once."""
        name = prefill or kv_address
        self._peers[name] = _Peer(kv_address, now, now + RETRY_SECONDS)
        self._peers.move_to_end(name)
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)

    def look(self, linked: Collection[str], now: float) -> list[str]:
        """Addresses to connect to again."""
        again: list[str] = []
        for peer in self._peers.values():
            if peer.kv_address.split(",")[0] in linked:
                peer.since, peer.wait, peer.retry_at = None, RETRY_SECONDS, now
                continue
            if peer.since is None:
                peer.since = now
            if now >= peer.retry_at:
                again.append(peer.kv_address)
                peer.retry_at = now + peer.wait
                peer.wait = min(RETRY_SECONDS_MAX, 2 * peer.wait)
        return again

    def unreachable(self, now: float) -> tuple[KvUnreachable, ...]:
        """At most `KV_UNREACHABLE_MAX`."""
        found = [
            KvUnreachable(
                prefill=name, kv_address=peer.kv_address, for_ms=(now - peer.since) * 1000
            )
            for name, peer in self._peers.items()
            if peer.since is not None and now - peer.since >= GRACE_SECONDS
        ]
        return tuple(found[:KV_UNREACHABLE_MAX])
