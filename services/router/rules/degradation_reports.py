"""What the detector of silent degradation (`degradation/detector.py`) is fed with.

Most of it comes with other events: placements, first tokens, and the counters in Beats. These
counters run since the start of a worker; what is recorded is by how much they grew while this
router listened.
"""

from __future__ import annotations

from common.blocks import CANONICAL_TOKENS, ELEMENT_BYTES
from common.messages import Beat, DecodeStarted, KvCounts, KvReport, PrefillEnded, Role
from services.router.degradation.detector import Cause
from services.router.events import Action, Note
from services.router.placement.types import Placement
from services.router.records.attempt import Attempt
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.tables import Tables

ZERO = KvCounts()


def record_placement(tables: Tables, attempt: Attempt, placement: Placement, now: float) -> None:
    if _remote_prefill_expected(tables, attempt, placement):
        tables.degradation.record_expected_handoff(now)


def _remote_prefill_expected(tables: Tables, attempt: Attempt, placement: Placement) -> bool:
    """Whether a prefill worker should compute this prompt, even if none was found. It should not
    where the governor preferred D, or where there was nothing to choose."""
    if placement.prefill is not None:
        return True
    small = placement.decode.is_one_block(attempt.request.prompt_tokens)
    local = attempt.request.local_reason or attempt.moved_from or placement.decode.mixed
    return not (placement.compared or small or local) and _remote_prefill_wanted(tables)


def record_prefill(tables: Tables, message: PrefillEnded) -> None:
    """A prefill worker answered, whichever it was and for whichever attempt."""
    if not message.error:
        tables.degradation.record_prefill()


def record_first_token(
    tables: Tables, attempt: Attempt, worker: Worker, message: DecodeStarted, now: float
) -> None:
    """D has made a first token. If KV should have come from P, and D computed more than a block
    itself, then D recomputed the prompt: the last token, or the rest of a block, it always does."""
    placement = attempt.placement
    if placement is None or not _remote_prefill_expected(tables, attempt, placement):
        return
    kv, prompt = message.kv, attempt.request.prompt_tokens
    whole = kv is not None and kv.complete
    recomputed = not whole and prompt - message.cached_tokens > worker.capacity.block_tokens
    prefill = placement.prefill
    pair = f"{prefill.name} and {worker.name}" if prefill else f"{worker.name} left alone"
    tables.degradation.count(Cause.RECOMPUTED, now, of=1, bad=recomputed, culprit=pair)
    if kv is not None and whole:
        canonical = prefill is not None and prefill.fingerprint != worker.fingerprint
        wrong = not _has_expected_bytes(kv, worker, canonical=canonical)
        tables.degradation.count(Cause.BYTES, now, of=1, bad=wrong, culprit=pair)


def _has_expected_bytes(kv: KvReport, worker: Worker, *, canonical: bool) -> bool:
    """The blocks times the bytes of a block. What was fetched twice counts twice; fp8 makes fewer
    bytes of it on the wire. `canonical`: blocks are those of the canonical form."""
    raw, capacity = kv.raw_bytes or kv.payload_bytes, worker.capacity
    expected = kv.blocks * capacity.kv_block_bytes
    if canonical and capacity.kv_canonical_bytes:
        expected = kv.blocks * capacity.kv_canonical_bytes
    elif canonical:
        expected = expected * CANONICAL_TOKENS // capacity.block_tokens
    if kv.element in ELEMENT_BYTES and capacity.kv_element in ELEMENT_BYTES:
        expected = expected * ELEMENT_BYTES[kv.element] // ELEMENT_BYTES[capacity.kv_element]
    if kv.compression and not kv.payload_bytes < raw:
        return False
    return raw >= expected if kv.retries else raw == expected


def record_beat(tables: Tables, worker: Worker, message: Beat, now: float) -> None:
    """To be called before `worker.kv_counts` is replaced. The first counters of a worker that joins
    are left out: they belong to a time in which another router listened, or none."""
    after, before = message.kv_counts, worker.kv_counts
    if after is None or (before is None and worker.state is WorkerState.JOINING):
        return
    before = before or ZERO
    damaged = after.digest_mismatches - before.digest_mismatches
    expired = after.leases_expired - before.leases_expired
    if damaged > 0:
        tables.degradation.count(Cause.DIGEST, now, of=damaged, bad=damaged, culprit=worker.name)
    if expired > 0:
        tables.degradation.count(Cause.LEASE, now, of=expired, bad=expired, culprit=worker.name)


def judge(tables: Tables, now: float) -> list[Action]:
    """Raises and clears alarms."""
    if not _remote_prefill_wanted(tables):
        tables.degradation.record_prefill()
    return [
        Note(
            "warning" if change.raised else "info",
            "degradation.raised" if change.raised else "degradation.cleared",
            change.sentence,
            {"cause": change.cause.value},
        )
        for change in tables.degradation.update_alarms(now)
    ]


def _remote_prefill_wanted(tables: Tables) -> bool:
    """Whether the operator wants it and there are, or should be, prefill workers."""
    if tables.placement_memory.all_local:
        return False
    expected = tables.settings.expected.items()
    if any(role is Role.PREFILL and model == tables.model for (role, _), model in expected):
        return True
    return any(worker.role.prefills for worker in tables.workers.values())
