"""What workers and gateways report that they hold, compared with the tables.

The router's state is soft: a restarted router knows nothing, and one of two knows only what it
placed itself. Workers report what they hold after every Welcome, and at once what another router
gives them.

An attempt that is held and not known here is adopted. It keeps its promises and ends by its
workers' reports like any other. Its owner is another router, or was an earlier one, so this router
never aborts it merely because it lost sight of somebody.

An attempt that is known here and not held there is over; its end was lost with a connection. Only
what was placed before the peer's Hello can be judged so, because the rest may be on its way.

An attempt that a gateway wants, and that neither this router nor any worker knows, was
dropped by an earlier router that could not tell the gateway any more. The gateway is told.

A router that has just started places nothing until it knows what already runs: requests wait in the
queue until every worker of the fleet file has reported, or `rebuild_seconds` have passed. One that
the earlier router had placed, and whose `Placed` was lost, is then found on its worker instead of
being placed twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.identity import AttemptKey, split_identity
from common.messages import HeldAttempt, Holding, Live, Role, Took
from services.router.events import Action, Note
from services.router.placement.types import Placement, ResourceRequest
from services.router.records.attempt import Attempt
from services.router.records.gateway import Gateway
from services.router.records.states import AttemptEvent, AttemptState, WorkerState
from services.router.records.worker import Worker
from services.router.rules import attempt_lifecycle
from services.router.rules.attempt_lifecycle import abort_message
from services.router.tables import SharedTables, Tables

POLICY = "adopted"
GATEWAYS_MAX = 4_096
REPORTED_SECONDS, UNKNOWN_SECONDS = 1.0, 5.0
"""After so long an attempt that a gateway wants and nobody holds is lost: when all workers have
reported, and when some have not."""


def reconcile_worker(tables: Tables, worker: Worker, message: Holding, now: float) -> list[Action]:
    listed = {(held.request_id, held.attempt): held for held in message.attempts}
    unconfirmed, worker.unconfirmed = worker.unconfirmed, {}
    actions: list[Action] = []
    if message.complete:
        for key in unconfirmed:
            if key in worker.held and key not in listed:
                actions += _end_unheld(tables, worker, key, now)
        _trust_survivor(tables, worker, listed.keys())
    before = tables.counts.adopted
    for held in listed.values():
        actions += _adopt(tables, worker, held, now)
    adopted = tables.counts.adopted - before
    if adopted:
        sentence = f"{worker.name} holds {adopted} requests that this router did not place"
        actions.append(Note("info", "requests.adopted", sentence))
    return actions


def adopt(tables: Tables, worker: Worker, message: Took, now: float) -> list[Action]:
    """The worker took an attempt; perhaps the other router placed it."""
    return _adopt(tables, worker, message.held, now)


def reconcile_gateway(
    shared: SharedTables, gateway: Gateway, message: Live, now: float
) -> list[Action]:
    """What the gateway no longer wants is aborted; its Cancel was lost with a connection."""
    wanted = set(message.attempts)
    gateway.wanted, gateway.wanted_since = message.attempts, now
    unconfirmed, gateway.unconfirmed = gateway.unconfirmed, {}
    actions: list[Action] = []
    for key in unconfirmed:
        attempt = shared.attempt(key)
        if message.complete and attempt is not None and key not in wanted:
            reason = "its gateway no longer wants it"
            tables = shared.models[attempt.model]
            actions += attempt_lifecycle.abort(tables, attempt, reason, now)
    return actions


def fail_unknown(shared: SharedTables, now: float) -> list[Action]:
    """At each Tick. Workers may report what they hold later than the gateway; those of the fleet
    file that never do are not waited for any longer than `UNKNOWN_SECONDS`."""
    actions: list[Action] = []
    for gateway in shared.gateways.values():
        if not gateway.wanted or gateway.gone:
            continue
        models = shared.models.values()
        missing = any(tables.rebuilding or _missing(tables) for tables in models)
        if now - gateway.wanted_since < (UNKNOWN_SECONDS if missing else REPORTED_SECONDS):
            continue
        sentence = "an earlier router dropped the request while this gateway was out of reach"
        actions += [
            attempt_lifecycle.failed_message(gateway.identity, key, sentence)
            for key in gateway.wanted
            if not _is_known(shared, key)
        ]
        gateway.wanted = ()
    return actions


def _is_known(shared: SharedTables, key: AttemptKey) -> bool:
    models = shared.models.values()
    return any(key in tables.attempts or tables.history.find(key) for tables in models)


def _trust_survivor(tables: Tables, worker: Worker, holds: Iterable[AttemptKey]) -> None:
    """A worker that was lost and speaks again has not died of what it no longer holds."""
    held = [tables.attempts.get(key) or tables.history.find(key) for key in holds]
    digests = frozenset(attempt.digest for attempt in held if attempt is not None)
    if tables.quarantine.survived(worker.identity, digests):
        tables.changes.capacity = True


def _end_unheld(tables: Tables, worker: Worker, key: AttemptKey, now: float) -> list[Action]:
    attempt = tables.attempts[key]
    sentence = f"{worker.name} does not hold the request, and its end was not reported"
    if attempt.decode != worker.identity:
        attempt_lifecycle.lose_prefill(tables, attempt, sentence)
        return []
    return attempt_lifecycle.fail(tables, attempt, sentence, now)


def _adopt(tables: Tables, worker: Worker, held: HeldAttempt, now: float) -> list[Action]:
    """Takes over what the worker holds, or aborts it there if it is over. Idempotent."""
    key = (held.request_id, held.attempt)
    attempt = tables.attempts.get(key)
    if _computes(worker, held):
        if _needs_no_prefill(tables, worker, key):
            reason = "it is over, or D needs no more of it"
            return [abort_message(worker.identity, key, reason)]
        if attempt is not None:
            _adopt_prefill(tables, attempt, worker, held)
        return []
    if attempt is not None and attempt.state is not AttemptState.QUEUED:
        if attempt.decode != worker.identity:
            tables.counts.drop("held twice")
        return []
    if _is_over(tables, worker, key):
        reason = "it is over, or a newer attempt took its place"
        return [abort_message(worker.identity, key, reason)]
    gateway = _find_or_add_gateway(tables, held.gateway, now)
    if gateway is None:
        tables.counts.drop("held for an unknown gateway")
        return []
    if attempt is None and tables.shared.holder_of_request(held.request_id) not in (None, tables):
        tables.counts.drop("held with two models")
        return []
    if attempt is not None:
        tables.waiting.remove(attempt)
        _place(tables, attempt, worker, held, now)
        return [attempt_lifecycle.placed_message(attempt)]
    attempt = _new_attempt(tables, gateway, held, now)
    tables.add(attempt)
    _place(tables, attempt, worker, held, now)
    return []


def _computes(worker: Worker, held: HeldAttempt) -> bool:
    """Whether it holds this as P. A mixed worker is never both ends of an attempt."""
    mixed = worker.role is Role.MIXED and held.decode != worker.identity
    return mixed or worker.role is Role.PREFILL


def _is_over(tables: Tables, worker: Worker, key: AttemptKey) -> bool:
    """Of an adopted attempt only its owner can tell: this router may merely have lost sight of
    it."""
    request_id, number = key
    if key in worker.orphans or number < tables.newest.get(request_id, number):
        return True
    over = tables.history.latest(request_id)
    if over is None or over.number < number or over.adopted:
        return False
    if over.number == number and over.state is AttemptState.FAILED and not tables.settings.alone:
        return False
    return over.number > number or over.placement is not None


def _needs_no_prefill(tables: Tables, worker: Worker, key: AttemptKey) -> bool:
    """The Abort to this prefill worker was lost with a connection; without another, the worker
    would hold the blocks until their lease ends."""
    attempt = tables.attempts.get(key)
    if attempt is None:
        return _is_over(tables, worker, key)
    begun = attempt.state in (AttemptState.DECODING, AttemptState.ABORTING)
    return begun and not attempt.prefill_open


def _find_or_add_gateway(tables: Tables, identity: str, now: float) -> Gateway | None:
    """A gateway that has yet to say Hello to this router gets a row. None: its identity is no good,
    or there are too many."""
    known = tables.gateways.get(identity)
    if known is not None or identity in tables.shared.fenced:
        return known
    name, incarnation = split_identity(identity)
    if not name or not incarnation or len(tables.gateways) >= GATEWAYS_MAX:
        return None
    gateway = Gateway(
        identity=identity,
        name=name,
        incarnation=incarnation,
        stream_endpoint="",
        pid=0,
        last_seen=now,
        since=now,
        gone=True,
        reason="known from its requests only",
    )
    tables.gateways[identity] = gateway
    return gateway


def _new_attempt(tables: Tables, gateway: Gateway, held: HeldAttempt, now: float) -> Attempt:
    return Attempt(
        request_id=held.request_id,
        number=held.attempt,
        gateway=gateway.identity,
        request=ResourceRequest(max(1, held.prompt_tokens), max(1, held.max_tokens)),
        body=b"",
        received=now,
        model=tables.model,
        holder=held.holder,
    )


def _place(tables: Tables, attempt: Attempt, worker: Worker, held: HeldAttempt, now: float) -> None:
    """The attempt is on this decode worker, with all promises that go with that."""
    attempt.adopted = True
    attempt.request = attempt.request._replace(kv_tokens=held.kv_tokens)
    sentence = f"{worker.name} was found holding it"
    tables.place(attempt, Placement(worker.view(), None, POLICY, sentence, ()), now)
    attempt.drop_prompt()
    tables.counts.adopted += 1
    if held.started:
        attempt.apply(AttemptEvent.STARTED)
        worker.start_decoding(attempt.key)
        return
    if not held.prefill:
        worker.start_prompt(attempt.key, attempt.request.prompt_tokens)
    prefill = tables.workers.get(held.prefill)
    if prefill is not None and prefill.role.prefills and not prefill.away:
        _adopt_prefill(tables, attempt, prefill, held)


def _adopt_prefill(tables: Tables, attempt: Attempt, worker: Worker, held: HeldAttempt) -> None:
    """Adds the prefill worker of an adopted attempt whose D has not begun. `held` is the report of
    either of the two; P's names no gateway."""
    computed = held.gateway == "" and held.started
    if computed and attempt.prefill == worker.identity and attempt.prefill_open:
        worker.finish_prompt(attempt.key)
    if not attempt.adopted or attempt.prefill or attempt.state is not AttemptState.PLACED:
        return
    if attempt.placement is None or not worker.view().may_give(attempt.placement.decode):
        return
    attempt.placement = attempt.placement._replace(prefill=worker.view())
    tables.open_prefill(attempt, worker, computed=computed)


# ------------------------------------------------------------ the first moments


def open_queue(tables: Tables, now: float) -> list[Action]:
    """Lets placement begin when it is time."""
    waited, missing = now - tables.started, _missing(tables)
    if missing and waited < tables.settings.rebuild_seconds:
        return []
    tables.end_rebuild()
    sentence = (
        f"placing begins {waited:.1f} s after the start: {len(tables.workers)} workers of "
        f"{tables.model} reported, {missing} did not; "
        f"{tables.counts.adopted} requests were already running"
    )
    return [Note("info", "router.rebuilt", sentence)]


def _missing(tables: Tables) -> int:
    """Workers of the fleet file that have not reported yet; 1 when the file names none."""
    expected = [who for who, model in tables.settings.expected.items() if model == tables.model]
    if not expected:
        return 1
    found = 0
    for name in expected:
        worker = tables.workers.get(tables.shared.names.get(name, ""))
        found += worker is not None and worker.state is not WorkerState.JOINING
    return len(expected) - found
