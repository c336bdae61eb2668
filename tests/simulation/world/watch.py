"""The mechanism, watched where it works. Defences lie in layers, so a broken one is often mended by
the next and nobody outside would see it; here each is asked by itself, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.identity import AttemptKey
from common.messages import Abort, Beat, Cancel, Decode, Ended, Hello, Prefill, Role
from services.router.events import Action, Event, Received, Send
from services.router.records.states import AttemptState, WorkerState
from services.router.rules.hello_check import home_of
from services.router.tables import SharedTables

if TYPE_CHECKING:
    from tests.simulation.world.router import RouterProcess

ON_D = (AttemptState.PLACED, AttemptState.DECODING)


class RouterWatch:
    """`before` and `after` each event. What was given up of a worker that was lost is remembered
    by its identity, `greeted` is the newest incarnation of each worker's name."""

    def __init__(self, router: RouterProcess) -> None:
        self._router = router
        self._given_up: dict[str, list[AttemptKey]] = {}
        self._greeted: dict[tuple[Role, str], str] = {}
        self._held: dict[str, list[AttemptKey]] = {}
        self._gone: set[str] = set()
        self._cancelled: tuple[AttemptKey, str] | None = None
        self._may_lose = False

    @property
    def _shared(self) -> SharedTables:
        return self._router.core.shared

    def before(self, event: Event) -> None:
        shared = self._shared
        self._may_lose = not isinstance(event, Received) or isinstance(event.message, Hello | Beat)
        if self._may_lose:
            self._held = {
                worker.identity: [
                    key
                    for key in worker.held
                    if not shared.models[worker.model].attempts[key].adopted
                ]
                for worker in shared.workers()
            }
            self._gone = {w.identity for w in shared.workers() if w.state is WorkerState.GONE}
        self._cancelled = None
        if isinstance(event, Received) and isinstance(event.message, Cancel):
            key = (event.message.request_id, event.message.attempt)
            attempt = shared.attempt(key)
            gateway = shared.gateways.get(event.peer)
            known = gateway is not None and not gateway.gone and event.peer not in shared.fenced
            mine = attempt is not None and attempt.gateway == event.peer
            if attempt is not None and attempt.state in ON_D and mine and known:
                self._cancelled = (key, attempt.decode)

    def after(self, event: Event, actions: list[Action]) -> None:
        sends = [action for action in actions if isinstance(action, Send)]
        aborted = {
            (send.peer, (send.message.request_id, send.message.attempt))
            for send in sends
            if isinstance(send.message, Abort)
        }
        if isinstance(event, Received):
            self._after_message(event, aborted)
        if self._may_lose:
            self._after_losses(aborted)
        for send in sends:
            if isinstance(send.message, Prefill | Decode):
                self._after_work(send)

    def _after_message(self, event: Received, aborted: set[tuple[str, AttemptKey]]) -> None:
        shared, message = self._shared, event.message
        if isinstance(message, Hello) and event.peer in shared.owners:
            self._greeted[home_of(message)] = event.peer
        if isinstance(message, Ended):
            worker = shared.worker(event.peer)
            if worker is not None and (message.request_id, message.attempt) in worker.held:
                self._violate(f"holds credits of {message.request_id}, which {event.peer} ended")
        if self._cancelled is not None:
            key, decode = self._cancelled
            if (decode, key) not in aborted:
                self._violate(f"did not tell {decode} that {key} is cancelled")
            worker = shared.worker(decode)
            if worker is None or key not in worker.held:
                self._violate(f"freed the credits of {key} before {decode} did")

    def _after_losses(self, aborted: set[tuple[str, AttemptKey]]) -> None:
        """A worker that comes back is told of all that was given up of it meanwhile, save what
        another router had placed."""
        for worker in self._shared.workers():
            identity, gone = worker.identity, worker.state is WorkerState.GONE
            if gone and identity not in self._gone:
                self._given_up[identity] = self._held.get(identity, [])
            elif not gone and identity in self._gone:
                for key in self._given_up.pop(identity, []):
                    if (identity, key) not in aborted:
                        self._violate(f"took {identity} back and did not abort {key}")

    def _after_work(self, send: Send) -> None:
        worker = self._shared.worker(send.peer)
        newest = self._greeted.get(worker.home) if worker is not None else None
        if newest != send.peer:
            self._violate(f"gave work to {send.peer}, replaced by {newest}")

    def _violate(self, sentence: str) -> None:
        self._router.clock.violate(f"{self._router.name} {sentence}")
