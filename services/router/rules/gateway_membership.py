"""Gateways that join, go out of reach, and return.

A gateway whose connection closed may be back in a moment. Its requests are kept for
`gateway_grace_seconds`: placed ones run on, queued ones keep their place. Then, or when another
incarnation replaces it, or when it is silent on a connection that stands, its requests are given
up. Decode workers drop the streams of a gateway that died by themselves. Any message of a gateway
brings it back, so that no Submit is lost because the gateway had been silent before it.

The gateways that use this router also keep its orders for workers (`scale.py`).
"""

from __future__ import annotations

from common.messages import Hello, KeepOrder, Leaving, ScaleOrder
from services.router.events import Action, Note, Send
from services.router.records.gateway import Gateway
from services.router.records.states import AttemptState
from services.router.rules import attempt_lifecycle
from services.router.tables import SharedTables, Tables

TELL_SECONDS = 1.0
"""A gateway that does not confirm an order for workers is told again after this time."""


def on_hello(shared: SharedTables, peer: str, message: Hello, now: float) -> list[Action]:
    """The Hello was checked before."""
    gateway = shared.gateways.get(peer)
    if gateway is None:
        gateway = Gateway(
            identity=peer,
            name=message.name,
            incarnation=message.incarnation,
            stream_endpoint=message.stream_endpoint,
            pid=message.pid,
            last_seen=now,
            since=now,
        )
        shared.gateways[peer] = gateway
    gateway.stream_endpoint, gateway.pid = message.stream_endpoint, message.pid
    gateway.unconfirmed = dict(gateway.attempts)
    gateway.unqueued.clear()
    gateway.kept_orders = None
    gateway.orders_told.clear()
    actions = _take_back(gateway, now)
    note = Note("info", "gateway.joined", f"gateway {gateway.name} is here")
    fleets = [Send(peer, tables.fleet) for tables in shared.models.values()]
    return [*actions, *fleets, note]


def record_traffic(gateway: Gateway, now: float) -> list[Action]:
    """Any message shows that the gateway is here. One without a Hello before it: the gateway did
    not notice that it was out of reach, and what it sends counts."""
    gateway.last_seen = now
    return _take_back(gateway, now) if gateway.gone else []


def on_leaving(gateway: Gateway, message: Leaving) -> list[Action]:
    gateway.leaving, gateway.reason = True, message.reason
    return [Note("info", "gateway.leaving", f"gateway {gateway.name} drains: {message.reason}")]


def _take_back(gateway: Gateway, now: float) -> list[Action]:
    """It is sent what it may have missed."""
    if gateway.gone:
        gateway.gone, gateway.since, gateway.reason = False, now, ""
    gateway.last_seen = now
    sentence = "the request was lost with its worker or with this gateway's connection"
    keys = [*gateway.lost, *gateway.unqueued]
    gateway.unqueued.clear()
    return [attempt_lifecycle.failed_message(gateway.identity, key, sentence) for key in keys]


def lose(shared: SharedTables, gateway: Gateway, reason: str, now: float) -> list[Action]:
    """It is out of reach, perhaps for a moment only. Idempotent."""
    if gateway.gone:
        return []
    gateway.gone, gateway.since, gateway.reason = True, now, reason
    grace = shared.settings.liveness.gateway_grace_ms / 1000
    sentence = (
        f"gateway {gateway.name} is out of reach: {reason}; "
        f"its {len(gateway.attempts)} requests are kept for {grace:g} s"
    )
    return [Note("warning", "gateway.lost", sentence)]


def give_up(shared: SharedTables, gateway: Gateway, reason: str, now: float) -> list[Action]:
    """Aborts what the gateway submitted here. Adopted attempts have another owner, or D drops them
    itself. Beside another router the gateway may merely be out of our reach, so that only what is
    queued here is dropped. Idempotent."""
    alone = shared.settings.alone
    mine = []
    for key in gateway.attempts:
        attempt = shared.attempt(key)
        assert attempt is not None
        if (alone and not attempt.adopted) or attempt.state is AttemptState.QUEUED:
            mine.append(attempt)
    if not mine:
        return []
    sentence = f"gateway {gateway.name} was lost: {reason}"
    note = Note("warning", "gateway.given_up", f"{sentence}; {len(mine)} requests end")
    actions: list[Action] = [note]
    for attempt in mine:
        if attempt.state in (AttemptState.PLACED, AttemptState.DECODING):
            gateway.lost.append(attempt.key)
        elif attempt.state is AttemptState.QUEUED:
            gateway.unqueued.append(attempt.key)
        actions += attempt_lifecycle.abort(shared.models[attempt.model], attempt, sentence, now)
    return actions


def give_up_absent(shared: SharedTables, now: float) -> list[Action]:
    """Gives up the gateways that are silent, or out of reach, for too long."""
    grace = shared.settings.liveness.gateway_grace_ms / 1000
    actions: list[Action] = []
    for gateway in shared.gateways.values():
        silent = now - gateway.last_seen
        if not gateway.gone and silent > shared.settings.worker_timeout_ms / 1000:
            reason = f"silent for {silent:.1f} s"
            actions += lose(shared, gateway, reason, now) + give_up(shared, gateway, reason, now)
        elif gateway.gone and gateway.attempts and now - gateway.since >= grace:
            actions += give_up(shared, gateway, gateway.reason, now)
    return actions


def keepers(tables: Tables) -> list[Gateway]:
    """The gateways that use this router and can keep orders."""
    gateways = tables.gateways.values()
    return [g for g in gateways if g.kept_orders is not None and not (g.gone or g.leaving)]


def tell_order(tables: Tables, now: float) -> list[Action]:
    """Gateways that keep something else than what is open are told."""
    order = tables.scale.open
    wanted = order.kept_as if order is not None else None
    told: ScaleOrder | None = None
    actions: list[Action] = []
    for gateway in keepers(tables) if tables.scale.acts else ():
        kept, last = gateway.kept_orders or {}, gateway.orders_told.get(tables.model)
        fresh = last is not None and last[0] == wanted and now - last[1] < TELL_SECONDS
        if kept.get(tables.model) == wanted or fresh:
            continue
        gateway.orders_told[tables.model] = (wanted, now)
        told = told or tables.scale.wire(tables.model, now)
        actions.append(Send(gateway.identity, KeepOrder(model=tables.model, order=told)))
    return actions
