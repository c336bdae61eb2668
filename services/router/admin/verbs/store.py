"""`store`: what each tier of each worker's store holds and has counted. `pin`, `unpin` and `drop`
order something of the blocks of a prompt, wherever the router knows them to be.

Pinned blocks stay in memory until they are unpinned or dropped, or the worker restarts. Which are
meant is known of the latest requests only, by their first blocks (`common.prefix.HASHES_MAX`). What
comes of an order shows in the counts, half a second later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from common.errors import BatonError, Code
from common.messages import StoreAction
from common.messages.from_router import STORE_ORDER_BYTES_MAX
from common.net.admin_rows import StoreOrderRow, StoreRow
from common.net.admin_verbs import Value
from common.prefix import HASH_BYTES, split
from services.router.admin.named import known_attempts, known_request
from services.router.admin.verb import View
from services.router.events import StoreOrdered
from services.router.records.attempt import Attempt
from services.router.records.states import WorkerState
from services.router.records.worker import Worker


def run(view: View, args: dict[str, Value]) -> list[StoreRow] | list[StoreOrderRow]:
    workers = [w for w in view.shared.workers() if w.state is not WorkerState.GONE]
    chosen = [w for w in workers if args["worker"] in ("", w.name)]
    chosen.sort(key=lambda worker: worker.name)
    if args["action"] == "list":
        return [row for worker in chosen for row in _rows(worker)]
    return _order(view, args, chosen)


def _order(view: View, args: dict[str, Value], chosen: list[Worker]) -> list[StoreOrderRow]:
    action, tokens = cast(StoreAction, args["action"]), int(args["tokens"])
    attempts = _meant(view, action, str(args["request"]), str(args["session"]))
    rows, orders = [], {}
    for worker in chosen:
        model = view.shared.owners.get(worker.identity)
        one = worker.capacity.block_tokens
        if model is None or not one or not worker.connected:
            continue
        most = STORE_ORDER_BYTES_MAX // HASH_BYTES
        names = dict.fromkeys(
            name
            for attempt in attempts
            if attempt.model == model.model
            for name in split(attempt.names)[: -(-tokens // one) or None]
        )
        wanted = list(names)[:most]
        memory = model.placement_memory
        tiers = (tier.has(worker.identity, wanted) for tier in (memory.stored, memory.on_disk))
        held = [name for name, *here in zip(wanted, *tiers, strict=True) if any(here)]
        if action == "pin":
            _check_room(worker, len(held))
        if held:
            orders[worker.identity] = b"".join(held)
            rows.append(
                StoreOrderRow(
                    worker=worker.name,
                    role=worker.role.value,
                    action=action,
                    blocks=len(held),
                    wanted=len(wanted),
                )
            )
    if not rows:
        sentence = "no store that is connected has any of these blocks"
        raise BatonError(Code.NOT_FOUND, sentence)
    view.act(StoreOrdered(action, orders))
    return rows


def _meant(view: View, action: str, request_id: str, session: str) -> list[Attempt]:
    """Those with names, of which each prompt's last. Raises BatonError."""
    if bool(request_id) is bool(session):
        sentence = f"store {action} needs request= or session=, one of them"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    known = known_attempts(view.shared)
    if request_id:
        request_id = known_request(view.shared, request_id)
        found = [row for row in known if row.request_id == request_id]
    else:
        found = [row for row in known if row.request.session == session]
    if not found:
        what = f"request {request_id[:96]!r}" if request_id else f"session {session[:96]!r}"
        sentence = f"nothing is known any more of {what}"
        raise BatonError(Code.NOT_FOUND, sentence)
    named = [row for row in found if row.names]
    if not named:
        sentence = "its prompt is shorter than a KV block, or came by another router: no names"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    return named


def _check_room(worker: Worker, blocks: int) -> None:
    """Raises BatonError(INVALID_REQUEST) where more would be pinned than half of its memory."""
    counts = worker.kv_counts
    most = counts.store_slots // 2 if counts is not None else 0
    pinned = counts.store_pinned if counts is not None else 0
    if pinned + blocks > most:
        sentence = (
            f"{worker.name} may keep {most} blocks, half of its memory; {pinned} are pinned, and "
            f"{blocks} would be: unpin some, give tokens=, or raise [kv.store] ram_mib"
        )
        raise BatonError(Code.INVALID_REQUEST, sentence)


def _rows(worker: Worker) -> Iterator[StoreRow]:
    counts, block_bytes = worker.kv_counts, worker.capacity.kv_block_bytes
    if counts is None:
        return
    if counts.store_slots:
        yield StoreRow(
            worker=worker.name,
            role=worker.role.value,
            tier="ram",
            state="on",
            blocks=counts.store_held,
            blocks_max=counts.store_slots,
            bytes=counts.store_held * block_bytes,
            bytes_max=counts.store_slots * block_bytes,
            written=counts.store_written,
            hits=counts.store_read,
            evicted=counts.store_evicted,
            expired=counts.store_expired,
            damaged=counts.store_damaged,
            skipped=counts.store_skipped,
            pinned=counts.store_pinned,
            ttl_s=counts.store_ttl_s,
        )
    if counts.store_disk_slots:
        yield StoreRow(
            worker=worker.name,
            role=worker.role.value,
            tier="disk",
            state="failed" if counts.store_disk_off else "on",
            blocks=counts.store_disk_held,
            blocks_max=counts.store_disk_slots,
            bytes=counts.store_disk_held * block_bytes,
            bytes_max=counts.store_disk_slots * block_bytes,
            written=counts.store_disk_written,
            hits=counts.store_disk_read,
            evicted=counts.store_disk_evicted,
            expired=counts.store_disk_expired,
            damaged=counts.store_disk_damaged,
            skipped=counts.store_disk_skipped,
            ttl_s=counts.store_ttl_s,
        )
