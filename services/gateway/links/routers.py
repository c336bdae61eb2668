"""The gateway's view of its routers: it uses one, and is known to all.

The first that answers is used until its connection closes or it says nothing for `silence_seconds`
while another does; then what it had not placed is submitted to the other (see the core). What a
router that is not in use says is its own affair, except that it placed something: its worker holds
it. All routers hear what is cancelled, for any of them may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.clock import Clock
from common.log import Logger
from common.messages import Cancel, Fleet, Hello, Journey, Live, Message, Placed
from common.sockets import Dial
from services.gateway.events import Event, FromRouter, RouterDown, RouterUp
from services.gateway.links.router import RouterLink


class RouterLinks:
    """`dials`: control endpoint by router name. `handle` takes events into the core."""

    def __init__(
        self,
        hello: Hello,
        *,
        dials: Mapping[str, Dial],
        silence_seconds: float,
        clock: Clock,
        handle: Callable[[Event], None],
        live: Callable[[], Live],
        on_refused: Callable[[str], None],
        log: Logger,
    ) -> None:
        self._clock = clock
        self._silence = silence_seconds
        self._handle = handle
        self._log = log
        self._used: RouterLink | None = None
        self._fleets: dict[str, Fleet] = {}
        self._links = [
            RouterLink(
                hello,
                router=router,
                dial=dial,
                clock=clock,
                handle=self._on_event,
                live=live,
                on_refused=on_refused,
                log=log,
            )
            for router, dial in dials.items()
        ]

    @property
    def dropped(self) -> int:
        """Frames that were not what the wire promises."""
        return sum(link.dropped for link in self._links)

    @property
    def used(self) -> str:
        """The router that gets new work; empty while there is none."""
        return self._used.router if self._used is not None else ""

    def start(self) -> None:
        for link in self._links:
            link.start()

    def close(self) -> None:
        for link in self._links:
            link.close()

    def leave(self) -> None:
        for link in self._links:
            link.leave()

    def beat(self) -> None:
        for link in self._links:
            link.beat()

    def send(self, message: Message, body: bytes | None = None) -> None:
        """What cannot be sent takes that link down; the core then holds its work."""
        if isinstance(message, Cancel):
            for link in self._links:
                if link.up:
                    link.send(message)
        elif self._used is not None:
            self._used.send(message, body)

    def report(self, journey: Journey) -> None:
        """To the router in use; lost when there is none, for nothing depends on it."""
        if self._used is not None:
            self._used.send(journey)

    def tick(self) -> None:
        """Judges silence. If all are silent, the fault is likelier ours."""
        used = self._used
        if used is None or not self._is_silent(used):
            return
        if any(link.up and not self._is_silent(link) for link in self._links):
            sentence = f"it says nothing for {self._silence:g} s; another router is used"
            self._log.warning("router.silent", router=used.router, sentence=sentence)
            self._leave_used()

    def _is_silent(self, link: RouterLink) -> bool:
        return self._clock.monotonic() - link.heard > self._silence

    def _on_event(self, link: RouterLink, event: Event) -> None:
        match event:
            case RouterUp():
                if self._used is None:
                    self._use(link)
            case RouterDown():
                if link is self._used:
                    self._leave_used()
            case FromRouter(message=message):
                if isinstance(message, Fleet):
                    self._fleets[link.router] = message
                if link is self._used or isinstance(message, Placed):
                    self._handle(event)

    def _use(self, link: RouterLink) -> None:
        self._used = link
        self._log.info("router.used", router=link.router)
        self._handle(RouterUp())
        fleet = self._fleets.get(link.router)
        if fleet is not None:
            self._handle(FromRouter(fleet))

    def _leave_used(self) -> None:
        left, self._used = self._used, None
        self._handle(RouterDown())
        others = [link for link in self._links if link.up and link is not left]
        others.sort(key=self._is_silent)
        if others:
            self._use(others[0])
