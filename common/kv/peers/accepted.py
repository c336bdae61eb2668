"""P's side of the links: who connected, how many may, and how long one may stay silent.

Theory of operation: everything runs on the KV thread. Whoever reaches the listener gets a link
before he has said who he is, and each costs descriptors of a process that needs them for the
fleet. So the links are bounded, by address and in all; a new one is refused when too few
descriptors are left; and one that sends no hello in time is closed. A connection that does not get
as far as a link is invisible here, because UCX waits for the rest of what it began to send. Such
strangers are found among the process's sockets (`transport/listening_socket.py`), held to the same
limits, and shut down. Links that have said hello are not closed to make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from common.config import KvConfig
from common.kv.peers.channel import Channel
from common.kv.transport import listening_socket
from common.kv.transport.listening_socket import Address
from common.kv.transport.ucx import UcxLink

TOO_MANY, NO_HELLO = "too_many_links", "no_hello"
"""Reasons by which refused peers are counted."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """As in `[kv]`."""

    hello_s: float
    links_max: int
    links_per_address_max: int
    descriptors_reserved: int


@dataclass(frozen=True, slots=True)
class ListenerView:
    """What the kernel tells of the listener and this process."""

    connected: Callable[[], set[Address]]
    """The other ends of all connections to the listener, those of links included."""
    shut_down: Callable[[set[Address]], None]
    """Ends the connections to these ends."""
    free_descriptors: Callable[[], int]


@dataclass(frozen=True, slots=True)
class _AcceptedLink:
    channel: Channel
    remote: Address
    hello_due: float


class AcceptedLinks:
    """The channels to all who connected to this worker."""

    def __init__(
        self,
        limits: LinkLimits,
        view: ListenerView,
        make_channel: Callable[[UcxLink], Channel],
        on_refused: Callable[[str, str], None],
    ) -> None:
        self._limits = limits
        self._view = view
        self._make_channel = make_channel
        self._on_refused = on_refused
        self._links: dict[int, _AcceptedLink] = {}
        #: Connections that are no links, and when each was seen first, the oldest first.
        self._strangers: dict[Address, float] = {}

    def __len__(self) -> int:
        return len(self._links)

    def channels(self) -> list[Channel]:
        return [link.channel for link in self._links.values()]

    def accept(self, link: UcxLink, now: float) -> None:
        """Makes a channel of a new link, or closes it."""
        remote = link.remote()
        why = self._no_room(remote[0])
        if why:
            self._on_refused(TOO_MANY, f"a link from {remote[0] or 'somewhere'}: {why}")
            link.close()
            return
        channel = self._make_channel(link)
        self._links[channel.id] = _AcceptedLink(channel, remote, now + self._limits.hello_s)

    def forget(self, channel: Channel) -> None:
        """This channel has closed."""
        self._links.pop(channel.id, None)

    def check(self, now: float) -> bool:
        """Ends what was silent too long or is too much. Call it every second, and every half while
        it returns True: somebody has connected and not said who he is."""
        for link in list(self._links.values()):
            if link.channel.peer is None and link.hello_due <= now:
                why = f"no hello within {self._limits.hello_s:g} s"
                self._on_refused(NO_HELLO, f"a link from {link.remote[0] or 'somewhere'}: {why}")
                link.channel.close(why)
        known = {link.remote for link in self._links.values()}
        seen = self._view.connected() - known
        old = {remote: first for remote, first in self._strangers.items() if remote in seen}
        self._strangers = old | dict.fromkeys(sorted(seen - old.keys()), now)
        self._end_strangers(self._overdue(now), NO_HELLO, "it began to speak and did not go on")
        self._end_strangers(self._surplus(), TOO_MANY, "too many connections")
        silent = any(link.channel.peer is None for link in self._links.values())
        return silent or bool(self._strangers)

    def _no_room(self, host: str) -> str:
        limits, hosts = self._limits, self._by_host()
        if len(self._links) >= limits.links_max:
            return f"there are {limits.links_max} links ([kv] links_max)"
        if host and hosts[host] >= limits.links_per_address_max:
            most = limits.links_per_address_max
            return f"there are {most} from this address ([kv] links_per_address_max)"
        if self._view.free_descriptors() < limits.descriptors_reserved:
            return "file descriptors are short ([kv] descriptors_reserved; raise LimitNOFILE)"
        return ""

    def _by_host(self) -> Counter[str]:
        return Counter(link.remote[0] for link in self._links.values())

    def _overdue(self, now: float) -> set[Address]:
        limit = now - self._limits.hello_s
        return {remote for remote, first in self._strangers.items() if first <= limit}

    def _surplus(self) -> set[Address]:
        """Strangers above the limits, the newest first; all of them when descriptors are short."""
        limits, hosts, total = self._limits, self._by_host(), len(self._links)
        if self._strangers and self._view.free_descriptors() < limits.descriptors_reserved:
            return set(self._strangers)
        surplus: set[Address] = set()
        for remote in self._strangers:
            host = remote[0]
            if hosts[host] >= limits.links_per_address_max or total >= limits.links_max:
                surplus.add(remote)
            else:
                hosts[host] += 1
                total += 1
        return surplus

    def _end_strangers(self, remotes: Iterable[Address], reason: str, why: str) -> None:
        ending = set(remotes)
        for host, port in sorted(ending):
            self._on_refused(reason, f"a connection from {host}:{port}: {why}")
            del self._strangers[host, port]
        if ending:
            self._view.shut_down(ending)


def accepted_links(
    config: KvConfig,
    port: int,
    make_channel: Callable[[UcxLink], Channel],
    on_refused: Callable[[str, str], None],
) -> AcceptedLinks:
    """Of the UCX listener at this port."""
    limits = LinkLimits(
        hello_s=config.hello_ms / 1000,
        links_max=config.links_max,
        links_per_address_max=config.links_per_address_max,
        descriptors_reserved=config.descriptors_reserved,
    )
    view = ListenerView(
        connected=partial(listening_socket.connected, port),
        shut_down=partial(listening_socket.shut_down, port),
        free_descriptors=listening_socket.free_descriptors,
    )
    return AcceptedLinks(limits, view, make_channel, on_refused)
