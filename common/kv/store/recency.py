"""Which slot of a store is given up next. Sans-IO.

Theory of operation: the slot that was used least recently goes, whoever its block belongs to, as
long as no owner has more than his share. Who has his share makes room for himself, by his own least
recently used block. If others have more than theirs, because room was free when they stored, the
least recently used one of those blocks goes. So one tenant alone may fill the store, and displaces
nobody when others come. An owner who has his share and nothing that could be given up, because all
of it is read, written or pinned, displaces others by what he stores at that moment, and no more.

An owner is a hash (`owner_of`); without shares nothing is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from common.kv.store.slots import Slot

OWNER_BYTES = 8
ANONYMOUS = "anonymous"


def owner_of(cache_salt: str | None) -> bytes:
    """To whom blocks with this salt belong: a hash of the tenant, whatever salts of his own he
    adds. Empty for callers without a key."""
    tenant = (cache_salt or "").partition("/")[0]
    if tenant in ("", ANONYMOUS):
        return b""
    text = tenant.encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=OWNER_BYTES, person=b"store owner").digest()


class Recency:
    """The slots that may be given up, least recently used first."""

    def __init__(self, slots: Sequence[Slot], share: float) -> None:
        """`share`: of all slots, what one owner may have before he makes room for himself; 1: as
        many as there are."""
        self._slots = slots
        self._most = max(1, int(share * len(slots))) if share < 1 else None
        self._unread: OrderedDict[int, None] = OrderedDict()
        #: The same by owner, as long as he has any, and how many slots each owner has in all.
        self._of: dict[bytes, OrderedDict[int, None]] = {}
        self._held: Counter[bytes] = Counter()
        #: Owners who have more than their share.
        self._over: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._unread)

    def __contains__(self, at: object) -> bool:
        return at in self._unread

    def __iter__(self) -> Iterator[int]:
        return iter(self._unread)

    def use(self, at: int) -> None:
        """This slot may be given up, and was used last of all."""
        self._unread[at] = None
        self._unread.move_to_end(at)
        if self._most is not None:
            own = self._of.setdefault(self._slots[at].owner, OrderedDict())
            own[at] = None
            own.move_to_end(at)

    def age(self, at: int) -> None:
        """This slot, which may be given up, is the next to go."""
        self._unread.move_to_end(at, last=False)
        if self._most is not None:
            self._of[self._slots[at].owner].move_to_end(at, last=False)

    def remove(self, at: int) -> None:
        """This slot may not be given up. Idempotent."""
        if at not in self._unread:
            return
        del self._unread[at]
        if self._most is not None:
            owner = self._slots[at].owner
            del self._of[owner][at]
            if not self._of[owner]:
                del self._of[owner]

    def take(self, owner: bytes) -> None:
        """This owner has one slot more."""
        if self._most is not None:
            self._held[owner] += 1
            if self._held[owner] > self._most:
                self._over[owner] = None

    def give(self, owner: bytes) -> None:
        """This owner has one slot less."""
        if self._most is not None:
            self._held[owner] -= 1
            if self._held[owner] <= self._most:
                self._over.pop(owner, None)
            if not self._held[owner]:
                del self._held[owner]

    def next_for(self, owner: bytes) -> int | None:
        """The slot that is given up for a new block of this owner; None if no slot may be."""
        if self._most is not None and self._held.get(owner, 0) >= self._most and owner in self._of:
            return next(iter(self._of[owner]))
        over = [next(iter(self._of[one])) for one in self._over if one in self._of]
        if over:
            return min(over, key=lambda at: self._slots[at].expires)
        return next(iter(self._unread), None)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        if self._most is None:
            return
        held = Counter(slot.owner for slot in self._slots if slot.name is not None)
        assert self._held == held
        assert set(self._over) == {owner for owner, has in held.items() if has > self._most}
        assert sorted(at for own in self._of.values() for at in own) == sorted(self._unread)
        for owner, own in self._of.items():
            assert all(self._slots[at].owner == owner for at in own)
            assert list(own) == [at for at in self._unread if at in own]
