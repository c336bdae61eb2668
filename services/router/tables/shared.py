"""What all models of a router share: gateways, names, API keys, the history, and the counts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from common.identity import AttemptKey
from common.messages import Role
from services.router.admission.keys import KeyAccounts
from services.router.records.attempt import Attempt
from services.router.records.counts import Counts
from services.router.records.gateway import Gateway
from services.router.records.history import History
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.settings import Settings
from services.router.timeline.recorder import Recorder

if TYPE_CHECKING:
    from services.router.tables.tables import Tables

FENCED_MAX = 256
GONE_MAX = 64
REFUSED_MAX = 64
ATTEMPTS_LISTED_MAX = 64


def _nothing_denied(host: str, role: Role, name: str) -> str:  # noqa: ARG001 - there are no keys
    return ""


class RefusedWorker(NamedTuple):
    """A worker whose latest Hello was refused for what its engine serves."""

    role: Role
    name: str
    incarnation: str
    #: What it says that it serves.
    model: str
    fingerprint: str
    #: Why it is refused.
    sentence: str
    #: When it was refused.
    at: float


class SharedTables:
    """`models` holds the tables of each model, by its name; the fleet file names them, and no other
    model is ever served."""

    def __init__(
        self,
        settings: Settings,
        secrets: Callable[[], bytes],
        uniform: Callable[[], float],
        now: float,
    ) -> None:
        self.settings = settings
        #: Makes the 16 random bytes of a ticket.
        self.secrets = secrets
        #: Draws from [0, 1).
        self.uniform = uniform
        #: When this router started, and when it last handled a Tick.
        self.started = self.last_tick = now
        self.models: dict[str, Tables] = {}
        #: The tables that have the row of a worker, by the worker's identity.
        self.owners: dict[str, Tables] = {}
        #: Workers that were refused for what they serve, by role and name, the latest last.
        self.refused: OrderedDict[tuple[Role, str], RefusedWorker] = OrderedDict()
        #: Gateways by identity, those that are out of reach included.
        self.gateways: dict[str, Gateway] = {}
        #: The newest incarnation of each name: its identity, by role in the fleet file and name.
        self.names: dict[tuple[Role, str], str] = {}
        #: Replaced incarnations, to which the router no longer listens: the identity of the
        #: replacement, by identity.
        self.fenced: OrderedDict[str, str] = OrderedDict()
        #: When a host of the allow-list last tried to speak for another's daemon and was logged.
        self.identity_logged: dict[str, float] = {}
        #: What API keys have left, whichever model they ask for.
        self.keys = KeyAccounts(settings.admission.keys_max, settings.admission.key_burst_ms)
        #: Attempts that are over; those that were refused are kept apart.
        self.history = History(settings.history)
        self.refusals = History(settings.history)
        self.recorder = Recorder(settings.history)
        self.counts = Counts()
        #: Why the allow-list does not let this host speak for the daemon of this role and name;
        #: empty = it does, as where there are no keys. The shell sets it.
        self.denied_to_host: Callable[[str, Role, str], str] = _nothing_denied

    def worker(self, identity: str) -> Worker | None:
        owner = self.owners.get(identity)
        return None if owner is None else owner.workers[identity]

    def workers(self) -> Iterator[Worker]:
        """Of all models."""
        for tables in self.models.values():
            yield from tables.workers.values()

    def attempts(self) -> Iterator[Attempt]:
        """The live ones of all models."""
        for tables in self.models.values():
            yield from tables.attempts.values()

    def attempt(self, key: AttemptKey) -> Attempt | None:
        """None if it is not live."""
        models = self.models.values()
        return next((found for tables in models if (found := tables.attempts.get(key))), None)

    def holder_of_request(self, request_id: str) -> Tables | None:
        """The tables in which an attempt of this request is live."""
        models = self.models.values()
        return next((tables for tables in models if request_id in tables.newest), None)

    def live_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways.values() if not gateway.gone]

    def attempts_over(self, request_id: str, last: int = 0) -> list[Attempt]:
        """The attempts of a request that are over and still known, oldest first. `last`: the
        highest number there may be, where the caller knows it."""
        latest = self.history.latest(request_id)
        highest = max(last, latest.number if latest is not None else 1)
        numbers = range(1, min(highest, ATTEMPTS_LISTED_MAX) + 1)
        keys = [(request_id, number) for number in numbers]
        found = [self.history.find(key) or self.refusals.find(key) for key in keys]
        return [attempt for attempt in found if attempt is not None]

    def refuse_worker(self, worker: RefusedWorker) -> None:
        self.refused[worker.role, worker.name] = worker
        self.refused.move_to_end((worker.role, worker.name))
        if len(self.refused) > REFUSED_MAX:
            self.refused.popitem(last=False)

    def fence(self, identity: str, by: str) -> None:
        """This incarnation was replaced; the router never listens to it again."""
        self.fenced[identity] = by
        if len(self.fenced) > FENCED_MAX:
            self.fenced.popitem(last=False)

    def forget_gone(self) -> None:
        """Keeps the tables bounded: only the latest of the lost workers and gateways stay."""
        lost = [worker for worker in self.workers() if worker.state is WorkerState.GONE]
        for worker in lost[: max(0, len(lost) - GONE_MAX)]:
            self.owners[worker.identity].drop_worker(worker.identity)
            self._forget_name(*worker.home, worker.identity)
        away = [g for g in self.gateways.values() if g.gone and not g.attempts]
        for gateway in away[: max(0, len(away) - GONE_MAX)]:
            del self.gateways[gateway.identity]
            self._forget_name(Role.GATEWAY, gateway.name, gateway.identity)

    def _forget_name(self, role: Role, name: str, identity: str) -> None:
        if self.names.get((role, name)) == identity:
            del self.names[role, name]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.history.check_invariants()
        self.refusals.check_invariants()
        self.recorder.check_invariants()
        assert len(self.fenced) <= FENCED_MAX
        assert len(self.refused) <= REFUSED_MAX
        charged = 0
        live: list[AttemptKey] = []
        for tables in self.models.values():
            tables.check_invariants()
            charged += len(tables.admission.charged)
            live += tables.attempts
            for identity, worker in tables.workers.items():
                assert worker.identity == identity
                assert worker.model == tables.model == self.owners[identity].model
        self.keys.check_invariants(charged)
        assert len(self.owners) == sum(len(tables.workers) for tables in self.models.values())
        of_gateways = sum(len(gateway.attempts) for gateway in self.gateways.values())
        assert len(live) == len(set(live)) == of_gateways
