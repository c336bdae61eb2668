"""Handoffs between workers that split their heads over unlike numbers of ranks, in parts.

Theory of operation: `Ticket.parts` is a multiple of the ranks of both workers. Part i is the i-th
of that many ranges of heads, in the canonical form. Each rank has equally many of them in a row, so
a part is on one rank of P and on one of D, and is a handoff of its own between these two, with a
key and a secret of its own and with the same blocks. Engines and daemons know the whole only: here
its parts on one rank are joined, and the daemon joins the ranks as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from common.identity import AttemptKey, attempt_of_part, part_key, part_number
from common.kv.handoff.protocol import Ended
from common.messages import KvReport, Ticket
from common.net.kv_address import address_of, rank_addresses

_SUMMED = frozenset(
    {
        "messages",
        "payload_bytes",
        "wire_bytes",
        "early_bytes",
        "raw_bytes",
        "retries",
        "refetches",
        "digest_mismatches",
    }
)


class Rank(NamedTuple):
    """A tensor parallel rank of a worker."""

    number: int = 0
    of: int = 1
    """The ranks of the worker."""

    def parts(self, parts: int) -> range:
        """Those that this rank has. Raises ValueError if they cannot be shared out evenly."""
        if parts % self.of:
            raise ValueError(f"{parts} parts of KV for the {self.of} ranks of this worker")
        here = parts // self.of
        return range(self.number * here, (self.number + 1) * here)

    def addresses(self, kv_address: str, parts: int) -> list[str]:
        """Where the other ends of these parts are, or of the whole. Raises ValueError."""
        if parts == 1:
            return [address_of(kv_address, self.number)]
        others = rank_addresses(kv_address)
        return [others[part * len(others) // parts] for part in self.parts(parts)]


WHOLE = Rank()


def tickets_of(ticket: Ticket, rank: Rank) -> list[Ticket]:
    """For what travels between two ranks: those of the parts that are here, or the ticket itself.
    The secret of a part is the ticket's and one byte more. Raises ValueError for a ticket that no
    router makes for this worker."""
    if ticket.parts == 1:
        return [ticket]
    if not ticket.canonical:
        raise ValueError("KV travels in parts in the canonical form only")
    key, made = key_of(ticket), []
    addresses = rank.addresses(ticket.kv_address, ticket.parts)
    for part, address in zip(rank.parts(ticket.parts), addresses, strict=True):
        secret = ticket.secret + bytes([part])
        named = {"request_id": part_key(key, part)[0], "secret": secret, "kv_address": address}
        made.append(msgspec.structs.replace(ticket, **named))
    return made


def key_of(ticket: Ticket) -> AttemptKey:
    return ticket.request_id, ticket.attempt


def share_of(ticket: Ticket, rank: Rank) -> tuple[int, int]:
    """For the ticket of a part: which of how many equal ranges of the heads of this rank it is."""
    if ticket.parts == 1:
        return 0, 1
    here = rank.parts(ticket.parts)
    return part_number(ticket.request_id) - here.start, len(here)


def joined_ends(one: Ended, other: Ended) -> Ended:
    """The whole has failed if a part has, for the reason that came first."""
    return one if one.error else other


def joined_reports(one: KvReport, other: KvReport) -> KvReport:
    """Of two parts, or of two ranks: bytes and messages add up, the blocks are the same ones."""
    first, second = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    joined = {
        name: (first[name] + second[name]) if name in _SUMMED else max(first[name], second[name])
        for name in first
    }
    joined["complete"] = one.complete and other.complete
    return KvReport(**joined)


@dataclass(slots=True)
class _Open:
    """A handoff of which parts have not ended."""

    ticket: Ticket
    keys: list[AttemptKey]
    """Of all its parts here."""
    left: int
    report: KvReport | None = None
    ended: Ended = field(default_factory=Ended)


class PartEnds:
    """The ends of the parts of handoffs on one rank, joined. As many are open as the caller has
    begun handoffs that have not ended."""

    def __init__(self) -> None:
        self._open: dict[AttemptKey, _Open] = {}

    def begin(self, ticket: Ticket, parts: list[Ticket]) -> None:
        """Does nothing for a ticket that is not in parts."""
        if ticket.parts > 1:
            keys = [key_of(part) for part in parts]
            self._open[key_of(ticket)] = _Open(ticket, keys, len(keys))

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._open

    def keys(self, key: AttemptKey) -> list[AttemptKey]:
        """Under which this attempt is handed over here."""
        whole = self._open.get(key)
        return [key] if whole is None else whole.keys

    def failed(self, key: AttemptKey) -> bool:
        """Whether a part of this attempt has failed, and others are open."""
        return key in self._open and self._open[key].ended.error != ""

    def end(
        self, ticket: Ticket, report: KvReport, ended: Ended
    ) -> tuple[Ticket, KvReport, Ended] | None:
        """The end of the whole, with the last part's; what is in no parts is whole."""
        key = attempt_of_part(key_of(ticket))
        whole = self._open.get(key)
        if whole is None:
            return ticket, report, ended
        before, whole.left = whole.report, whole.left - 1
        whole.report = report if before is None else joined_reports(before, report)
        whole.ended = joined_ends(whole.ended, ended)
        if whole.left:
            return None
        del self._open[key]
        return whole.ticket, whole.report, whole.ended
