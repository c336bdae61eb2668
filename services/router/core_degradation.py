"""What tells the router that disaggregation silently fails. Called by `core*.py` only.

Most of it is told by the way: placements, first tokens, and the counts that Beats carry, which are
since a worker's start; what counts here is by how much they grew while this router looked.
"""

from __future__ import annotations

from common.messages import Beat, DecodeStarted, KvCounts, KvReport, PrefillEnded, Role
from services.router.degradation import Cause
from services.router.events import Action, Note
from services.router.placement_types import Placement
from services.router.records import Try, Worker
from services.router.state import WorkerState
from services.router.tables import Tables

UNKNOWN = KvCounts()


def placed(tables: Tables, each: Try, choice: Placement, now: float) -> None:
    if _meant(tables, each, choice):
        tables.degradation.asked(now)


def _meant(tables: Tables, each: Try, choice: Placement) -> bool:
    """This prompt should be computed by a prefill worker, whether one was found or not: unless the
    governor weighed otherwise, or for this prompt there was nothing to weigh."""
    if choice.prefill is not None:
        return True
    small = each.ask.prompt_tokens <= choice.decode.block_tokens
    return not (choice.weighed or small or each.ask.local_reason) and _remote_is_on(tables)


def prefilled(tables: Tables, message: PrefillEnded) -> None:
    """By whichever worker, for whichever try."""
    if not message.error:
        tables.degradation.reached()


def started(tables: Tables, each: Try, worker: Worker, message: DecodeStarted, now: float) -> None:
    """D has made a first token. Where KV should have come from elsewhere, and D computed more than
    a block itself, it computed the prompt: the last token, or the rest of a block, it always does.
    """
    if each.placement is None or not _meant(tables, each, each.placement):
        return
    block, kv = worker.capacity.block_tokens, message.kv
    there = max(message.cached_tokens, kv.blocks * block if kv is not None else 0)
    recomputed = each.ask.prompt_tokens - there > block
    prefill = each.placement.prefill
    pair = f"{prefill.name} and {worker.name}" if prefill else f"{worker.name} left alone"
    tables.degradation.count(Cause.RECOMPUTED, now, of=1, bad=recomputed, who=pair)
    if kv is not None and kv.complete and not recomputed:
        wrong = not _weighs_right(kv, worker)
        tables.degradation.count(Cause.BYTES, now, of=1, bad=wrong, who=pair)


def _weighs_right(kv: KvReport, worker: Worker) -> bool:
    """Blocks times what a block weighs; what was fetched twice weighs more, fp8 less on its way."""
    raw = kv.raw_bytes or kv.payload_bytes
    expected = kv.blocks * worker.capacity.kv_block_bytes
    if kv.compression and not kv.payload_bytes < raw:
        return False
    return raw >= expected if kv.retries else raw == expected


def beat(tables: Tables, worker: Worker, message: Beat, now: float) -> None:
    """Before `worker.kv_counts` are replaced. Of a worker that joins, the first counts are a past
    that another router, or none, has seen."""
    told, before = message.kv_counts, worker.kv_counts
    if told is None or (before is None and worker.state is WorkerState.JOINING):
        return
    before = before or UNKNOWN
    damaged = told.digest_mismatches - before.digest_mismatches
    expired = told.leases_expired - before.leases_expired
    if damaged > 0:
        tables.degradation.count(Cause.DIGEST, now, of=damaged, bad=damaged, who=worker.name)
    if expired > 0:
        tables.degradation.count(Cause.LEASE, now, of=expired, bad=expired, who=worker.name)


def tick(tables: Tables, now: float) -> list[Action]:
    if not _remote_is_on(tables):
        tables.degradation.reached()
    return [
        Note(
            "warning" if change.raised else "info",
            "degradation.raised" if change.raised else "degradation.cleared",
            change.sentence,
            {"cause": change.cause.value},
        )
        for change in tables.degradation.judge(now)
    ]


def _remote_is_on(tables: Tables) -> bool:
    """The operator wants it, and there are, or should be, prefill workers."""
    if tables.placing.all_local:
        return False
    if any(role is Role.PREFILL for role, _ in tables.settings.expected):
        return True
    return any(worker.role is Role.PREFILL for worker in tables.workers.values())
