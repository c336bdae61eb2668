"""Leases of KV, and tombstones of what has ended.

Theory of operation: only a lease keeps the KV of a finished prefill alive. It ends when it is
released or when it expires, whichever is first, and leaves a tombstone, so that a late or repeated
message finds "ended" and not "unknown". Both tables are bounded: a full lease table grants nothing
(D then computes the prompt), a full tombstone table forgets its oldest entry.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Lease:
    """KV blocks that P holds for one attempt."""

    owner: str
    """The decode worker that they are held for."""
    blocks: int
    granted: float
    """An instant."""
    agreed: float
    """The instant at which it expires unless it is shortened."""
    expires: float
    """The instant at which it does expire."""

    def left_ms(self, now: float) -> float:
        return max(0.0, (self.expires - now) * 1000)


class LeaseTable(Generic[K]):
    """Leases by key, at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._leases: dict[K, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: object) -> bool:
        return key in self._leases

    def grant(self, key: K, owner: str, blocks: int, now: float, lease_ms: float) -> Lease | None:
        """None when the table is full. Granting a key again returns its lease unchanged."""
        held = self._leases.get(key)
        if held is not None:
            return held
        if len(self._leases) >= self._size:
            return None
        agreed = now + lease_ms / 1000
        lease = Lease(owner, blocks, now, agreed, expires=agreed)
        self._leases[key] = lease
        return lease

    def shorten(self, key: K, until: float) -> None:
        """Brings the expiry forward to `until`; never puts it off."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.expires = min(lease.expires, until)

    def restore(self, key: K) -> None:
        """Takes back what `shorten` did."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.expires = lease.agreed

    def release(self, key: K) -> Lease | None:
        return self._leases.pop(key, None)

    def expired(self, now: float) -> list[K]:
        """Keys of expired leases, oldest grant first. They stay until they are released."""
        return [key for key, lease in self._leases.items() if lease.expires <= now]

    def items(self) -> list[tuple[K, Lease]]:
        return list(self._leases.items())


class Tombstones(Generic[K, V]):
    """What is known of the last `size` keys that ended; the oldest is forgotten first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._dead: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._dead)

    def __contains__(self, key: object) -> bool:
        return key in self._dead

    def bury(self, key: K, value: V) -> None:
        self._dead[key] = value
        self._dead.move_to_end(key)
        if len(self._dead) > self._size:
            self._dead.popitem(last=False)

    def get(self, key: K) -> V | None:
        return self._dead.get(key)
