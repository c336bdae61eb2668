"""Snapshots of workers: right field by field, and their sums right whatever comes and goes."""

from __future__ import annotations

from common.messages import Load, Role
from services.router.events import WorkerDrained
from services.router.fleet.role_totals import Totals
from services.router.placement.place import SORTED_MAX, place
from services.router.placement.policies.registry import POLICIES
from services.router.placement.types import (
    CANDIDATES_MAX,
    Placement,
    PlacementContext,
    ResourceRequest,
    Speed,
)
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.views import view


def test_a_view_shows_its_worker_field_by_field(rig: Rig) -> None:
    rig.submit("r1", prompt=100, out=50)
    rig.submit("r2", prompt=100, out=50)
    rig.prefilled("r1")
    rig.started("r1")
    worker = rig.row("d0|1")
    worker.preexisting_kv_tokens, worker.preexisting_requests, worker.slots = 32, 1, 3
    worker.speed = Speed(1.5, 0.5)
    capacity = worker.capacity
    assert worker.view()._asdict() == {
        "name": "d0",
        "identity": "d0|1",
        "incarnation": "1",
        "fingerprint": worker.fingerprint,
        "kv_address": worker.kv_address,
        "block_tokens": capacity.block_tokens,
        "max_model_len": capacity.max_model_len,
        "kv_tokens": worker.held_tokens + 32,
        "kv_tokens_max": int(capacity.kv_blocks * worker.kv_grant_max) * capacity.block_tokens,
        "requests": 3,
        "requests_max": 3,
        "queued": worker.queued_tokens,
        "decoding": 1,
        "last_placed_serial": 2,
        "kv_token_bytes": capacity.kv_block_bytes / capacity.block_tokens,
        "fingerprint_parts": worker.fingerprint_parts,
        "kv_groups": capacity.kv_groups,
        "pull_blocks": capacity.pull_blocks,
        "adapters": worker.adapters,
        "mixed": False,
        "kv_meaning": capacity.kv_meaning,
        "kv_lossy_meaning": capacity.kv_lossy_meaning,
        "kv_element": capacity.kv_element,
        "prefill_speed": 1.5,
        "step_speed": 0.5,
        "patient": False,
    }


def test_totals_are_the_sums_of_what_is_shown(rig: Rig) -> None:
    rig.decode("d1")
    rig.beat("d1|1")
    rig.worker(Role.MIXED, "m0")
    agree(rig)
    assert rig.core.tables.snapshots.totals(Role.DECODE).workers == 3
    for n in range(5):
        rig.submit(f"r{n}", prompt=100, out=50)
        agree(rig)
    rig.handle(WorkerDrained("d1|1", on=True))
    agree(rig)
    assert rig.core.tables.snapshots.totals(Role.DECODE).workers == 2
    rig.handle(WorkerDrained("d1|1", on=False))
    agree(rig)
    rig.gone("d0|1")
    rig.gone("p0|1")
    agree(rig)
    rig.gone("m0|1")
    agree(rig)
    assert rig.core.tables.snapshots.totals(Role.PREFILL).workers == 0


def test_full_workers_come_in_turn() -> None:
    rig = Rig(remote_prefill="never", policy="round_robin")
    rig.gateway()
    for name in ("d0", "d1", "d2"):
        rig.beat(rig.decode(name, seqs=1), Load())
    snapshots = rig.core.tables.snapshots

    def following(most: int) -> list[str]:
        return [view.name for view in snapshots.next_full_decodes(most)]

    assert following(9) == []
    for n in range(3):
        rig.submit(f"r{n}")
    assert following(9) == following(3) == ["d0", "d1", "d2"]
    assert following(2) == ["d0", "d1"]
    assert following(2) == ["d2", "d0"]
    rig.ended("r1", peer="d1|1")
    assert following(2) == ["d2", "d0"]
    agree(rig)


def agree(rig: Rig) -> None:
    for role in (Role.PREFILL, Role.DECODE):
        workers = [w for w in rig.core.tables.workers.values() if role in w.role.parts]
        ready = [w.view() for w in workers if w.ready]
        totals: Totals = rig.core.tables.snapshots.totals(role)
        assert totals.workers == len(ready)
        assert totals.queued == sum(v.queued for v in ready)
        assert totals.requests == sum(v.requests for v in ready)
        assert totals.slots == sum(v.requests_max for v in ready)
        assert totals.kv_tokens == sum(v.kv_tokens for v in ready)
        assert totals.kv_tokens_max == sum(v.kv_tokens_max for v in ready)


def test_the_best_are_found_among_few_and_among_many() -> None:
    for count in (SORTED_MAX, SORTED_MAX + 1):
        views = [view(f"d{n:03}", requests=(n * 7) % count, requests_max=999) for n in range(count)]
        found = place(
            PlacementContext(ResourceRequest(10, 10)), views, [], POLICIES["least_loaded"]
        )
        assert isinstance(found, Placement)
        best = sorted((v.requests, v.name) for v in views)[:CANDIDATES_MAX]
        assert [candidate.name for candidate in found.candidates] == [name for _, name in best]
