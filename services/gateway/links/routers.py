"""The gateway's routers: it uses one of them and is known to all.

The first router that answers is used until its connection closes, or until it sends nothing for
`silence_seconds` while another one does. What it had not placed is then submitted to the other (see
the core). Messages of routers that are not in use are ignored, except `Placed`, because a worker
then holds the request, and `Fleet`, of which the latest of each model is kept for when the router
is used. A Cancel goes to all routers, because any of them may have the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.clock import Clock
from common.messages import Cancel, Fleet, Hello, Live, Message, Placed, RequestSummary
from common.net.sockets import Dial
from common.telemetry.log import Logger
from services.gateway.links.router import RouterLink
from services.gateway.requests.events import Event, FromRouter, RouterDown, RouterUp
from services.gateway.requests.lifecycle import FLEETS_MAX


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
        #: What each router said last of each model, by their names.
        self._fleets: dict[str, dict[str, Fleet]] = {router: {} for router in dials}
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
        """Frames that were no message of the wire."""
        return sum(link.dropped for link in self._links)

    @property
    def used(self) -> str:
        """The name of the router that gets new work; empty while there is none."""
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
        """A message that cannot be sent takes its link down; the core then holds its work."""
        if isinstance(message, Cancel):
            for link in self._links:
                if link.up:
                    link.send(message)
        elif self._used is not None:
            self._used.send(message, body)

    def report(self, summary: RequestSummary) -> None:
        """Sends the summary to the router in use. It is lost when there is none; nothing depends on
        it."""
        if self._used is not None:
            self._used.send(summary)

    def tick(self) -> None:
        """Leaves a silent router. If all routers are silent, the fault is more likely here, and the
        one in use stays."""
        used = self._used
        if used is None or not self._is_silent(used):
            return
        if any(link.up and not self._is_silent(link) for link in self._links):
            sentence = f"it sends nothing for {self._silence:g} s; another router is used"
            self._log.warning("router.silent", router=used.router, sentence=sentence)
            self._leave_used()

    def _is_silent(self, link: RouterLink) -> bool:
        return self._clock.monotonic() - link.last_message_at > self._silence

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
                    self._keep_fleet(link.router, message)
                if link is self._used or isinstance(message, Placed):
                    self._handle(event)

    def _use(self, link: RouterLink) -> None:
        self._used = link
        self._log.info("router.used", router=link.router)
        self._handle(RouterUp())
        for fleet in list(self._fleets[link.router].values()):
            self._handle(FromRouter(fleet))

    def _keep_fleet(self, router: str, fleet: Fleet) -> None:
        """At most `FLEETS_MAX` models; the core knows no more either."""
        fleets = self._fleets[router]
        if fleet.model in fleets or len(fleets) < FLEETS_MAX:
            fleets[fleet.model] = fleet

    def _leave_used(self) -> None:
        left, self._used = self._used, None
        self._handle(RouterDown())
        others = [link for link in self._links if link.up and link is not left]
        others.sort(key=self._is_silent)
        if others:
            self._use(others[0])
