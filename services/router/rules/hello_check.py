"""Whether a Hello is accepted. Pure: these functions change nothing.

With keys, the allow-list says for whom a host may speak (`common/security/peers.py`). Beyond that,
a name is the host's that used it first: while its daemon is here, no other host may say Hello under
the name, and afterwards only a host whose entry lists it.

A worker must serve a model that the fleet file names, as must a pool. All decode workers of one
model must compute the same tokens, because a stream may move from any of them to any other. The
first one decides the weights; others follow when all of them have left.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.errors import Code
from common.identity import identity_of
from common.messages import WIRE_VERSION, Capacity, Hello, Role
from common.security.speaker import Speaker
from services.router.fleet.roles import WITH_ENGINE
from services.router.placement.fingerprint_mismatch import difference
from services.router.records.worker import Worker
from services.router.tables import SharedTables, Tables

PEERS_MAX = 4_096
NAME_CHARS_MAX = 64
MODEL_PARTS = ("model", "config", "weights")


def home_of(hello: Hello) -> tuple[Role, str]:
    """By what a peer is known whichever role it has: the role of the fleet file, and its name."""
    return hello.configured_role or hello.role, hello.name


def identity_refusal(shared: SharedTables, hello: Hello, speaker: Speaker | None) -> str:
    """Why this host may not say this Hello; empty = it may. `speaker`: None without keys."""
    if speaker is None:
        return ""
    who, host = f"{hello.role} {hello.name}", speaker.host
    if speaker.denied:
        return f"host {host} may not speak for {who}: {speaker.denied}"
    older = shared.names.get(home_of(hello), "")
    worker, gateway = shared.worker(older), shared.gateways.get(older)
    known = worker or gateway
    if known is None or known.host == host:
        return ""
    if (worker is not None and worker.connected) or (gateway is not None and not gateway.gone):
        return f"host {host} may not take the place of {who}, which is here from host {known.host}"
    if speaker.listed:
        return ""
    return (
        f"host {host} may not speak for {who}, which host {known.host} used first; "
        f"`baton keygen add --names {hello.name} {host}` gives it the name"
    )


def refusal(shared: SharedTables, peer: str, hello: Hello) -> tuple[Code, str] | None:
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
    if peer in shared.fenced:
        return Code.WORKER_LOST, (
            f"{who} was replaced by {shared.fenced[peer]}; two processes use one name"
        )
    worker = shared.worker(peer)
    known = worker is not None or peer in shared.gateways
    same = hello.role is (worker.role if worker else Role.GATEWAY)
    if known and not same and not _changes_role(worker, hello):
        return Code.INVALID_REQUEST, f"{who} was here before in another role"
    if not known and len(shared.owners) + len(shared.gateways) >= PEERS_MAX:
        return Code.NO_CAPACITY, f"{PEERS_MAX} peers are already known"
    sentence = _missing(hello) or model_refusal(shared, hello)
    return (Code.INVALID_REQUEST, f"{who} {sentence}") if sentence else None


def _changes_role(worker: Worker | None, hello: Hello) -> bool:
    """Whether the same worker says that it has taken another role since."""
    state = worker.role_state if worker is not None else None
    if state is None or state.configured is None or hello.configured_role is not state.configured:
        return False
    return hello.role in WITH_ENGINE and hello.role_epoch > state.epoch


def model_refusal(shared: SharedTables, hello: Hello) -> str:
    """Why what the worker serves has no place here, as the rest of a sentence; empty = it has."""
    if hello.role is Role.GATEWAY:
        return ""
    tables = shared.models.get(hello.model)
    if tables is None:
        served = ", ".join(shared.models)
        return f"serves the model {hello.model[:NAME_CHARS_MAX]!r}; this fleet's file has {served}"
    before = shared.worker(identity_of(hello.name, hello.incarnation))
    if before is not None and before.model != hello.model:
        return f"served {before.model} before, and now {hello.model}"
    return _against_mode(tables, hello) or _of_other_weights(tables, hello)


def _missing(hello: Hello) -> str:
    """What the Hello lacks, as the rest of a sentence; empty = nothing."""
    if hello.role is Role.GATEWAY:
        return "" if hello.stream_endpoint else "names no stream endpoint"
    if hello.role is Role.POOL:
        return _missing_of_pool(hello)
    if hello.role not in WITH_ENGINE:
        return "has no place on the control socket"
    if hello.capacity is None or not _positive(hello.capacity) or not hello.fingerprint:
        return "must say its fingerprint and a capacity above 0"
    return ""


def _missing_of_pool(hello: Hello) -> str:
    """A pool learns from a router what it can hold, and says it in its second Hello."""
    capacity = hello.capacity
    if capacity is None and not hello.fingerprint:
        return ""
    if capacity is None or not hello.fingerprint or not hello.kv_address:
        return "must say a fingerprint, an address and a capacity, or none of them"
    sizes = capacity.block_tokens, capacity.kv_block_bytes, capacity.pull_blocks
    return "" if min(sizes) > 0 else "must say a capacity above 0"


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
    if mode == "disaggregated" or hello.role is Role.POOL:
        return ""
    if hello.role.prefills:
        return f"has no place in mode {mode}: start it as a decode worker"
    others = [
        worker.name
        for worker in tables.workers.values()
        if worker.connected and worker.name != hello.name and worker.role is not Role.POOL
    ]
    if mode == "single" and others:
        return f"is one too many in mode single, {others[0]} is here: use mode replicated"
    return ""


def _of_other_weights(tables: Tables, hello: Hello) -> str:
    """How the model of a decode worker differs from that of the others of this name, as the rest of
    a sentence; empty = it does not."""
    if not hello.role.decodes:
        return ""
    theirs = _model_parts(hello.model, hello.fingerprint_parts)
    for worker in tables.workers.values():
        if not worker.role.decodes or worker.away or worker.name == hello.name:
            continue
        ours = _model_parts(worker.model, worker.fingerprint_parts)
        shared = ours.keys() & theirs.keys()
        differs = difference({k: ours[k] for k in shared}, {k: theirs[k] for k in shared})
        if differs:
            return f"has another model than {worker.name}: {differs}"
    return ""


def _model_parts(model: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {"model": model} | {key: parts[key] for key in MODEL_PARTS if key in parts}
