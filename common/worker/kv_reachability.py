"""Which prefill workers a decode worker cannot reach over UCX, and when to try again. Pure.

A router introduces every P that may hand KV to this D. A connection that cannot be made, or is lost
while it is idle, is retried with exponential backoff, so that the next handoff finds it ready. A P
that has gone for good is retried once a minute for as long as this D runs, one address for each
name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from common.messages import KvUnreachable
from common.net.kv_address import address_of

GRACE_SECONDS = 3.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 60.0
PEERS_MAX = 1_024
KV_UNREACHABLE_MAX = 64


@dataclass(slots=True)
class _Peer:
    """One prefill worker. Instants and durations are in seconds."""

    kv_address: str
    #: When the connection was lost, or the worker introduced; None while it is connected.
    since: float | None
    #: When to try again.
    retry_at: float
    #: How long to wait after the next attempt.
    wait: float = RETRY_SECONDS


class KvReachability:
    """The prefill workers that were introduced, at most `PEERS_MAX`."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def add(self, prefill: str, kv_address: str, now: float) -> None:
        """Adds a prefill worker. The caller makes the first attempt to connect."""
        name = prefill or kv_address
        self._peers[name] = _Peer(kv_address, now, now + RETRY_SECONDS)
        self._peers.move_to_end(name)
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)

    def due(self, linked: Collection[str], now: float) -> list[str]:
        """Addresses to which the caller should connect again. `linked` has the addresses that are
        connected now, for each peer that of its first rank."""
        again: list[str] = []
        for peer in self._peers.values():
            if address_of(peer.kv_address, 0) in linked:
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
        """The workers without a connection for `GRACE_SECONDS`, at most `KV_UNREACHABLE_MAX`."""
        found = [
            KvUnreachable(
                prefill=name, kv_address=peer.kv_address, for_ms=(now - peer.since) * 1000
            )
            for name, peer in self._peers.items()
            if peer.since is not None and now - peer.since >= GRACE_SECONDS
        ]
        return tuple(found[:KV_UNREACHABLE_MAX])
