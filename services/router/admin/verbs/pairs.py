"""`pairs`: what each pair of workers handed over, and whether it may hand over now."""

from __future__ import annotations

from dataclasses import asdict

from common.messages import Role
from common.net.admin_rows import PairRow
from common.net.admin_verbs import Value
from services.router.admin import pair_rows
from services.router.admin.verb import View
from services.router.estimates.pair_bandwidth import PairBandwidth
from services.router.fleet.pairing import may_give
from services.router.placement.pair_breaker import PairState
from services.router.tables import SharedTables
from services.router.timeline.traffic import PairTotals

OK = PairState.CLOSED.value


def run(view: View, args: dict[str, Value]) -> list[PairRow]:
    shared, limit = view.shared, int(args["limit"])
    trouble = {
        (row["prefill"], row["decode"]): row["state"] for row in pair_rows.rows(shared, view.now)
    }
    apart = _unreachable(shared, view.now)
    ready = [worker for worker in shared.workers() if worker.connected]
    models = {worker.name: worker.model for worker in ready if worker.role.decodes}
    there = [
        (p.name, d.name)
        for p in ready
        for d in ready
        if p.role.prefills and d.role is Role.DECODE and p.model == d.model
        if may_give(p, d)
    ]
    names = sorted({*there, *shared.recorder.traffic.pairs})
    if args["trouble"]:
        names = [name for name in names if name in apart or trouble.get(name, OK) != OK]
    return [
        PairRow(
            prefill=prefill,
            decode=decode,
            state=trouble.get((prefill, decode), OK),
            unreachable_s=apart.get((prefill, decode)),
            **asdict(shared.recorder.traffic.pairs.get((prefill, decode), PairTotals())),
            bytes_per_s=round(_estimates(view, models, decode).bytes_per_s(prefill, decode)),
        )
        for prefill, decode in names[:limit]
    ]


def _estimates(view: View, models: dict[str, str], decode: str) -> PairBandwidth:
    """Those of the model that this decode worker serves."""
    tables = view.shared.models[models[decode]] if decode in models else view.tables
    return tables.estimates.bandwidth


def _unreachable(shared: SharedTables, now: float) -> dict[tuple[str, str], float]:
    """Seconds for which D has had no connection to a connected P, by the names of P and D."""
    there = {
        (worker.name, worker.kv_address)
        for worker in shared.workers()
        if worker.role.prefills and worker.connected
    }
    return {
        (lost.prefill, decode.name): round(lost.for_ms / 1000 + now - decode.kv_seen, 1)
        for decode in shared.workers()
        if decode.role.decodes and decode.connected
        for lost in decode.kv_unreachable
        if (lost.prefill, lost.kv_address) in there
    }
