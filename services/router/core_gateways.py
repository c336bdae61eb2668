"""Gateways that come, go and come back. Called by `core_peers` and `core_health` only.

A gateway whose connection closed may be back in a moment: its requests are kept for
`gateway_grace_seconds`, placed ones run on, queued ones keep their place. One that does not come
back in time, is replaced, or says nothing on a connection that stands, is given up: its requests
are aborted. Of a gateway that died, decode workers drop the streams at once by themselves.
"""

from __future__ import annotations

from common.messages import Hello
from services.router import core_requests
from services.router.events import Action, Note, Send
from services.router.records import Gateway
from services.router.state import TryState
from services.router.tables import Tables


def hello(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    gateway = tables.gateways.get(peer)
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
        tables.gateways[peer] = gateway
    gateway.stream_endpoint, gateway.pid = message.stream_endpoint, message.pid
    gateway.unconfirmed = dict(gateway.tries)
    gateway.unqueued.clear()
    actions = returned(gateway, now)
    note = Note("info", "gateway.joined", f"gateway {gateway.name} is here")
    return [*actions, Send(peer, tables.fleet), note]


def returned(gateway: Gateway, now: float) -> list[Action]:
    if gateway.gone:
        gateway.gone, gateway.since, gateway.reason = False, now, ""
    gateway.last_seen = now
    sentence = "the request was lost with its worker or with this gateway's connection"
    keys = [*gateway.lost, *gateway.unqueued]
    gateway.unqueued.clear()
    return [core_requests.failed_answer(gateway.identity, key, sentence) for key in keys]


def gone(tables: Tables, gateway: Gateway, reason: str, now: float) -> list[Action]:
    """Out of reach, perhaps for a moment only. Idempotent."""
    if gateway.gone:
        return []
    gateway.gone, gateway.since, gateway.reason = True, now, reason
    grace = tables.settings.liveness.gateway_grace_seconds
    sentence = (
        f"gateway {gateway.name} is out of reach: {reason}; "
        f"its {len(gateway.tries)} requests are kept for {grace:g} s"
    )
    return [Note("warning", "gateway.lost", sentence)]


def give_up(tables: Tables, gateway: Gateway, reason: str, now: float) -> list[Action]:
    """Aborts what it had submitted here; adopted ones have another owner, or D drops them itself.
    With another router, the gateway may merely be out of our reach: only what waits here is
    dropped. Idempotent."""
    alone, tries = tables.settings.alone, [tables.tries[key] for key in gateway.tries]
    mine = [each for each in tries if (alone and not each.adopted) or each.state is TryState.QUEUED]
    if not mine:
        return []
    sentence = f"gateway {gateway.name} was lost: {reason}"
    note = Note("warning", "gateway.given_up", f"{sentence}; {len(mine)} requests end")
    actions: list[Action] = [note]
    for each in mine:
        key = each.key
        if each.state in (TryState.PLACED, TryState.DECODING):
            gateway.lost.append(key)
        elif each.state is TryState.QUEUED:
            gateway.unqueued.append(key)
        actions += core_requests.abort(tables, each, sentence, now)
    return actions


def tick(tables: Tables, now: float) -> list[Action]:
    """Gives up those whose time is over."""
    grace = tables.settings.liveness.gateway_grace_seconds
    actions: list[Action] = []
    for gateway in tables.gateways.values():
        silent = now - gateway.last_seen
        if not gateway.gone and silent > tables.settings.worker_timeout:
            reason = f"silent for {silent:.1f} s"
            actions += gone(tables, gateway, reason, now) + give_up(tables, gateway, reason, now)
        elif gateway.gone and gateway.tries and now - gateway.since >= grace:
            actions += give_up(tables, gateway, gateway.reason, now)
    return actions
