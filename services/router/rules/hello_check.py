"""Whether a Hello is accepted. Pure: these functions change nothing."""

from __future__ import annotations

from common.errors import Code
from common.identity import identity_of
from common.messages import WIRE_VERSION, Capacity, Hello, Role
from services.router.tables import Tables

PEERS_MAX = 4_096


def refusal(tables: Tables, peer: str, hello: Hello) -> tuple[Code, str] | None:
    """Why the peer with this ZeroMQ identity is not accepted; None when it is."""
    who = f"{hello.role} {hello.name}"
    if hello.wire_version != WIRE_VERSION:
        return Code.WIRE_MISMATCH, (
            f"{who} speaks wire version {hello.wire_version}, this router {WIRE_VERSION}: "
            "install the same baton-serve on both"
        )
    identity = identity_of(hello.name, hello.incarnation)
    if peer != identity or not hello.name or not hello.incarnation:
        return Code.INVALID_REQUEST, f"{who} says Hello on a connection that has another identity"
    if peer in tables.fenced:
        return Code.WORKER_LOST, (
            f"{who} was replaced by {tables.fenced[peer]}; two processes use one name"
        )
    worker = tables.workers.get(peer)
    known = worker is not None or peer in tables.gateways
    if known and hello.role is not (worker.role if worker else Role.GATEWAY):
        return Code.INVALID_REQUEST, f"{who} was here before in another role"
    if not known and len(tables.workers) + len(tables.gateways) >= PEERS_MAX:
        return Code.NO_CAPACITY, f"{PEERS_MAX} peers are already known"
    sentence = _missing(hello) or _against_mode(tables, hello)
    return (Code.INVALID_REQUEST, f"{who} {sentence}") if sentence else None


def _missing(hello: Hello) -> str:
    """What the Hello lacks, as the rest of a sentence; empty = nothing."""
    if hello.role is Role.GATEWAY:
        return "" if hello.stream_endpoint else "names no stream endpoint"
    if hello.role not in (Role.PREFILL, Role.DECODE):
        return "has no place on the control socket"
    if hello.capacity is None or not _positive(hello.capacity) or not hello.fingerprint:
        return "must say its fingerprint and a capacity above 0"
    return ""


def _positive(capacity: Capacity) -> bool:
    parts = (
        capacity.block_tokens,
        capacity.kv_blocks,
        capacity.max_model_len,
        capacity.max_num_seqs,
    )
    return min(parts) > 0


def _against_mode(tables: Tables, hello: Hello) -> str:
    """Why this mode has no place for the peer, as the rest of a sentence; empty = it has."""
    mode = tables.settings.mode
    if mode == "disaggregated" or hello.role is Role.GATEWAY:
        return ""
    if hello.role is Role.PREFILL:
        return f"has no place in mode {mode}: start it as a decode worker"
    others = [
        worker.name
        for worker in tables.workers.values()
        if worker.connected and worker.name != hello.name
    ]
    if mode == "single" and others:
        return f"is one too many in mode single, {others[0]} is here: use mode replicated"
    return ""
